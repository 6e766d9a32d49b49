"""Answers before and after training: asked, judged and kept in samples.jsonl, the final table, and report.html.

    {"when": "before", "set": "held-out", "question", "reference", "answer", "sentences", …, "by_reward": {…}}

Both times the same questions, the same seed and the same judge. ``by_reward`` is what the reward's annotator says where
it is not the judge: the gap between the two is what a policy may have learned to exploit. ``JudgeLog`` follows the same
gap during training. How the page is drawn is in ``mitigate/report/html.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from annotators.records import hallucination_rate
from mitigate.io import progress
from mitigate.recipes.data import Questions
from mitigate.recipes.folder import SAMPLES, RunFolder
from mitigate.recipes.options import Base
from mitigate.report.html import write_run_page
from mitigate.report.totals import Totals, percent, printable

Row = Mapping[str, Any]
BEFORE, AFTER = "before", "after"
OWN_JUDGE = (
    "The judge is the reward's own annotator: a mistake that it makes is one that a policy learns to exploit, and that "
    "does not show here."
)
CHUNK = 64  # questions asked at once
HEADINGS = ("questions", "when", "answers", "hallucinated", "95 % interval", "supported", "sentences", "silent")
WIDTH = 100  # columns where the output is no terminal


def ask(
    model: str, rows: Sequence[Row], options: Base, *, n: int, seed: int, chunk: int = CHUNK, **how: Any
) -> Iterator[list[tuple[Row, list[str]]]]:
    """Yield, chunk by chunk, the rows with ``n`` answers to their ``prompt`` each; fewer where a row has none.

    Each chat draws from its own stream of the seed, so answers do not depend on their neighbours. ``how`` is the
    sampling: ``temperature`` and ``max_tokens``.
    """
    from engines import load_engine
    from engines.types import Sampling

    if not rows:
        return
    with (
        closing(load_engine(f"{options.evaluation.engine}:{model}", dtype=options.dtype)) as engine,
        progress("answers", len(rows)) as tell,
    ):
        for start in range(0, len(rows), chunk):
            asked = rows[start : start + chunk]
            found = engine.chat([row["prompt"] for row in asked], Sampling(n=n, seed=seed, **how))
            yield [(row, list(one.texts)) for row, one in zip(asked, found, strict=True)]
            tell(start + len(asked))


def without_prompt(row: Row) -> dict[str, Any]:
    """A row as it is annotated and kept."""
    return {key: value for key, value in row.items() if key != "prompt"}


def answer_and_judge(when: str, model: str, questions: Questions, options: Base, folder: RunFolder) -> None:
    """Ask the questions of every set and append the judged answers, unless they are there."""
    if any(row["when"] == when for row in folder.rows(SAMPLES)):
        return
    rows = [{**row, "set": name} for name, asked in questions.evaluation.items() for row in asked]
    how = options.evaluation
    asked = ask(
        model, rows, options, n=1, seed=options.seed, temperature=how.temperature, max_tokens=how.max_new_tokens
    )
    records = [{**without_prompt(row), "answer": text} for chunk in asked for row, texts in chunk for text in texts]
    judged = options.load_annotator(options.judge).annotate_batch(records)
    out = [{"when": when, **one.to_dict()} for one in judged]
    if options.reward.annotator != options.judge:
        reward = options.load_annotator(options.reward.annotator)
        for row, one in zip(out, reward.annotate_batch(records), strict=True):
            labels = [sentence.label for sentence in one.sentences]
            row["by_reward"] = {"annotator": dict(one.annotator), "labels": labels}
    folder.append(SAMPLES, out)


def figures(rows: Iterable[Row]) -> dict[str, Any]:
    """Figures of judged answers.

    ``rate`` is hallucinated / judged factual sentences (lower is better, None without any), with its 95 % ``interval``
    over answers; ``supported`` and ``sentences`` are per answer (repeats of a supported sentence counted once);
    ``silent`` is the share of answers without a factual sentence; ``by_reward`` the rate by the reward's annotator,
    where it is not the judge.
    """
    totals, supported, silent, others = Totals(), 0, 0, []
    for row in rows:
        totals.add(row)
        supported += len({s["text"] for s in row["sentences"] if s["label"] == "supported"})
        silent += hallucination_rate(s["label"] for s in row["sentences"]) is None
        others += row.get("by_reward", {}).get("labels", [])
    n = totals.records
    return {
        "answers": n, "factual": totals.factual, "rate": totals.rate, "interval": totals.interval,
        "supported": supported / n if n else None, "sentences": totals.sentences / n if n else None,
        "silent": silent / n if n else None, "by_reward": hallucination_rate(others),
    }  # fmt: skip


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The final table: for each set, before and after."""
    sets = dict.fromkeys(row["set"] for row in rows)
    return [
        {"set": name, "when": when, **figures(row for row in rows if (row["set"], row["when"]) == (name, when))}
        for name in sets
        for when in (BEFORE, AFTER)
    ]


class JudgeLog:
    """A reward function that scores nothing: at every so many batches a held-out judge logs what it finds in them."""

    __name__ = "judge"

    def __init__(self, judge: Callable[..., Any], every: int) -> None:
        self.judge, self.every, self.calls = judge, every, 0

    def __call__(self, completions: Sequence[Any], **arguments: Any) -> list[None]:
        """None for each completion: a number, even of weight 0, would make TRL count unscored answers as 0."""
        if self.calls % self.every == 0:
            self.judge(
                completions=completions, **arguments | {"log_extra": None}
            )  # whose columns every batch must fill
        self.calls += 1
        return [None] * len(completions)


def cells(row: Row) -> list[str]:
    """One row of the table, in the order of HEADINGS."""
    low_high = row["interval"]
    return [
        row["set"],
        row["when"],
        f"{row['answers']:,}",
        f"{percent(row['rate'])} of {row['factual']:,}",
        f"{percent(low_high[0])} to {percent(low_high[1])}" if low_high else "–",
        *(f"{row[name]:.2f}" if row[name] is not None else "–" for name in ("supported", "sentences")),
        percent(row["silent"]),
    ]


def judges(samples: Sequence[Row]) -> list[str]:
    """ "name (fingerprint)" of every annotator that judged."""
    found = [row["annotator"] for row in samples]
    return list(dict.fromkeys(f"{who.get('name', '')} ({who.get('fingerprint', '')})" for who in found))


def by_reward(table: Sequence[Row]) -> str:
    """What the reward's annotator says where it is not the judge, a warning where it is."""
    rates = [
        f"{row['set']}, {row['when']}: {percent(row['by_reward'])}" for row in table if row["by_reward"] is not None
    ]
    return f"Hallucinated by the annotator of the reward: {'; '.join(rates)}." if rates else OWN_JUDGE


def print_table(table: Sequence[Row], judged_by: Sequence[str]) -> None:
    """Print the table of :func:`compare` with what it means, and who judged."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title="Answers before and after", title_justify="left")
    for name in HEADINGS:
        shown.add_column(name, justify="left" if name in HEADINGS[:2] else "right")
    for row in table:
        shown.add_row(*map(Text, cells(row)))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(shown)
    note = (
        f"Judged by {printable('; '.join(judged_by))}. Hallucinated: of factual sentences. Supported (repeats count "
        f"once) and sentences: mean per answer. Silent: answers without a fact. Interval over answers. "
        f"{by_reward(table)}"
    )
    console.print(Text(note.strip()))


def write_page(
    path: Path, about: str, samples: Sequence[Row], table: Sequence[Row], metrics: Sequence[Row], pairs: int
) -> None:
    """Write the page of a run: its table, the curves of metrics.jsonl, and ``pairs`` questions with their answers."""
    write_run_page(
        path,
        about=[about, f"Judged by {'; '.join(judges(samples))}"],
        comparison=table,
        head=HEADINGS,
        rows=map(cells, table),
        note=f"Hallucinated: contradictory or unverifiable, of the factual sentences. {by_reward(table)}",
        metrics=metrics,
        samples=samples,
        pairs=pairs,
    )
