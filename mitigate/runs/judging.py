"""Answers before and after training: asked, judged and kept in samples.jsonl, and the figures of the final table.

    {"when": "before", "set": "kept apart", "question", "reference", "answer", "sentences", …, "by_reward": {…}}

Both times the same questions, the same seed and the same judge. ``by_reward`` is what the reward's annotator says
where it is not the judge: the gap between the two is what a policy may have learned to exploit. ``JudgeLog`` follows
the same gap during training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from annotators.records import Annotation, Annotator, hallucination_rate
from mitigate.progress import progress
from mitigate.report import Totals
from mitigate.reward_texts import completion_text
from mitigate.run_folder import SAMPLES, RunFolder
from mitigate.runs.data import Questions
from mitigate.runs.options import Base

Row = Mapping[str, Any]
BEFORE, AFTER = "before", "after"
CHUNK = 64  # questions asked at once


def ask(
    model: str, rows: Sequence[Row], options: Base, *, n: int, seed: int, chunk: int = CHUNK, **how: Any
) -> Iterator[tuple[int, list[tuple[Row, list[str]]]]]:
    """Yield, chunk by chunk, (number of the first row, [(row, its ``n`` answers; fewer where it has none), …]).

    Args:
        model: Folder or hub id.
        rows: With ``prompt``, a chat.
        options: Names the engine.
        n: Answers a question.
        seed: Of the draws; each chat has its own stream, so answers do not depend on their neighbours.
        chunk: Rows asked at once.
        **how: ``temperature`` and ``max_tokens``.
    """
    from engines import load_engine
    from engines.types import Sampling

    if not rows:
        return
    sampling = Sampling(n=n, seed=seed, **how)
    with (
        closing(load_engine(f"{options.evaluation.engine}:{model}", dtype=options.dtype)) as engine,
        progress("answers", len(rows)) as tell,
    ):
        for start in range(0, len(rows), chunk):
            asked = rows[start : start + chunk]
            found = engine.chat([row["prompt"] for row in asked], sampling)
            yield start, [(row, [s.text for s in one.samples]) for row, one in zip(asked, found, strict=True)]
            tell(start + len(asked))


def answer_and_judge(when: str, model: str, questions: Questions, options: Base, folder: RunFolder) -> None:
    """Ask the questions of every set and append the judged answers, unless they are there."""
    if any(row["when"] == when for row in folder.rows(SAMPLES)):
        return
    rows = [{**row, "set": name} for name, asked in questions.evaluation.items() for row in asked]
    how = options.evaluation
    asked = ask(
        model,
        rows,
        options,
        n=1,
        seed=options.seed,
        temperature=how.temperature,
        max_tokens=how.max_new_tokens,
    )
    records = [
        {**{k: v for k, v in row.items() if k != "prompt"}, "answer": texts[0]}
        for _, chunk in asked
        for row, texts in chunk
        if texts
    ]
    judged = options.load_annotator(options.judge).annotate_batch(records)
    out = [{"when": when, **one.to_dict()} for one in judged]
    if options.reward.annotator != options.judge:
        reward = options.load_annotator(options.reward.annotator)
        for row, one in zip(out, reward.annotate_batch(records), strict=True):
            labels = [sentence.label for sentence in one.sentences]
            row["by_reward"] = {"annotator": dict(one.annotator), "labels": labels}
    folder.append(SAMPLES, out)


def figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of judged answers.

    Returns:
        ``answers``; ``rate`` (hallucinated / judged factual sentences, lower is better, None without any) with its 95 %
        ``interval`` over answers and ``factual`` sentences; ``supported`` and ``sentences`` an answer (repeats of a
        supported sentence counted once); ``silent``: share of answers without a factual sentence; ``by_reward``: the
        rate by the reward's annotator, where it is not the judge.
    """
    totals, supported, silent, others = Totals(), 0, 0, []
    for row in rows:
        totals.add(row)
        supported += len({s["text"] for s in row["sentences"] if s["label"] == "supported"})
        silent += hallucination_rate(s["label"] for s in row["sentences"]) is None
        others += row.get("by_reward", {}).get("labels", [])
    n = totals.records
    return {
        "answers": n,
        "factual": totals.factual,
        "rate": totals.rate,
        "interval": totals.interval,
        "supported": supported / n if n else None,
        "sentences": totals.sentences / n if n else None,
        "silent": silent / n if n else None,
        "by_reward": hallucination_rate(others),
    }


def compare(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The final table: for each set, before and after."""
    sets = dict.fromkeys(row["set"] for row in rows)
    return [
        {
            "set": name,
            "when": when,
            **figures(row for row in rows if (row["set"], row["when"]) == (name, when)),
        }
        for name in sets
        for when in (BEFORE, AFTER)
    ]


class JudgeLog:
    """A GRPO reward function of weight 0: it logs what the judge says of the sampled answers, and rewards nothing.

    Args:
        judge: An annotator, usually a better or more expensive one than the reward's.
    """

    __name__ = "judge"

    def __init__(self, judge: Annotator) -> None:
        self.judge = judge

    def __call__(
        self,
        completions: Sequence[Any],
        question: Sequence[str],
        reference: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float]:
        """Log the figures of all completions together; return zeros."""
        texts = map(completion_text, completions)
        judged = self.judge.annotate_batch(
            {"question": q, "reference": r, "answer": a}
            for q, r, a in zip(question, reference, texts, strict=True)
        )
        for name, value in measure(judged).items():
            if log_metric is not None and value is not None:
                log_metric(f"judge/{name}", value)
        return [0.0] * len(completions)


def measure(annotations: Sequence[Annotation]) -> dict[str, float | None]:
    """Figures over all sentences of some answers.

    Returns:
        ``hallucination_rate``: hallucinated / factual sentences, lower is better, None without factual ones;
        ``supported``: true sentences an answer, repeats of one counted once; ``sentences`` an answer; ``no_fact``:
        share of sentences that claim nothing, abstentions among them. None where there are no answers or sentences.
    """
    labels = [sentence.label for one in annotations for sentence in one.sentences]
    distinct = sum(len({s.text for s in one.sentences if s.label == "supported"}) for one in annotations)
    n = len(annotations)
    return {
        "hallucination_rate": hallucination_rate(labels),
        "supported": distinct / n if n else None,
        "sentences": len(labels) / n if n else None,
        "no_fact": labels.count("no_fact") / len(labels) if labels else None,
    }
