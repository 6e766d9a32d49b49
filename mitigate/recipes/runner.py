"""The course of a run of `rlhf` and `mask-dpo`: data → answers before → training → answers after → table and page.

    {"when": "before", "set": "held-out", "question", "reference", "answer", "sentences", …, "by_reward": {…}}

Both times the same questions, the same seed and the same judge, kept in samples.jsonl. ``by_reward`` is what the
reward's annotator says where it is not the judge: the gap between the two is what a policy may have learned to exploit.
A resumed run finds every part that is done.

Training runs in this process, or under `accelerate launch` (section ``launch``) with one process per GPU, each of them
`python -m mitigate.recipes.runner RUN_FOLDER`: the run that launched them holds the folder's lock and waits, and the
first of them writes checkpoints, metrics and the model.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

from annotators.base import Annotator
from annotators.records import Annotation, hallucination_rate
from engines import load_engine
from engines.types import EngineError, Sampling
from fewl.expertise import whole_answer
from mitigate.io import UsageError, progress, say
from mitigate.models import refuse_failures
from mitigate.recipes.config import load_recipe
from mitigate.recipes.data import Questions, read_questions
from mitigate.recipes.folder import CONFIG, METRICS, REJECTED, SAMPLES, RunFolder
from mitigate.recipes.options import Base, Launch
from mitigate.recipes.trainer import MODEL, give_back
from mitigate.report import terminal
from mitigate.report.html import write_run_page
from mitigate.report.totals import NOT_CHECKED, UNSURE, Totals, percent, printable
from mitigate.rewards.inputs import copied

Part = Callable[[Any, Questions, RunFolder], None]
Row = Mapping[str, Any]
BEFORE, AFTER = "before", "after"
OWN_JUDGE = (
    "The judge is the reward's own annotator: where it is wrong, a policy learns to exploit it, and this table "
    "does not show it."
)
COPIED = "Copied: how much of an answer's sentences, all of them, stands so in the document, mean over answers."
CHUNK, SHOWN = 64, 24  # questions asked at once, and shown on the page
MOST_FAILED = 0.1  # share of the sentences; where more failed, the judge is what has to be mended
HEADINGS = (
    "questions", "when", "answers", "hallucinated", "95 % interval", "no verdict", "supported", "sentences", "silent",
    "copied",
)  # fmt: skip
WIDTH = 120  # columns where the output is no terminal


def run(options: Base, folder: RunFolder, train: Part, prepare: Part | None = None) -> int:
    """Run a recipe in its folder; returns the exit code: 0, or 3 where input lines were rejected.

    ``train`` makes ``folder``/model from the starting model; ``prepare`` is called before it, in one process.
    """
    quiet()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("expected one process, which starts the others: give launch={config: zero2, processes: N}")
    questions = read_questions(options, folder)
    if questions.rejected:
        print(f"{questions.rejected} input lines rejected: {folder / REJECTED}", file=sys.stderr)
    answer_and_judge(BEFORE, options.model, questions, options, folder)
    if not (folder / MODEL).is_dir():
        if prepare is not None:
            prepare(options, questions, folder)
        if options.launch is None:
            train(options, questions, folder)
            give_back()  # the next model needs the memory of this one
        else:
            _launch(options.launch, folder)
    answer_and_judge(AFTER, str(folder / MODEL), questions, options, folder)
    samples = folder.rows(SAMPLES)
    table, who = compare(samples), [row["annotator"] for row in samples]
    judged_by = list(dict.fromkeys(f"{one.get('name', '')} ({one.get('fingerprint', '')})" for one in who))
    write_run_page(
        folder / "report.html", about=[options.about, f"Judged by {'; '.join(judged_by)}"], comparison=table,
        head=HEADINGS, rows=map(cells, table), metrics=folder.rows(METRICS), samples=samples,
        pairs=SHOWN,
        note=f"Hallucinated: contradictory or unverifiable, of the factual sentences. {COPIED} {by_reward(table)}",
    )  # fmt: skip
    folder.finish({"table": table, "judges": judged_by})
    show(folder)
    return 3 if questions.rejected else 0


def _launch(how: Launch, folder: RunFolder) -> None:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(how.file())]
    command += ["--num_processes", str(how.processes), "-m", "mitigate.recipes.runner", str(folder.path)]
    if code := subprocess.run(command, check=False).returncode:
        raise EngineError(f"training ended with exit code {code}, see above")


def show(folder: RunFolder) -> None:
    """Print the table of a complete run with what it means and who judged, and where its files are."""
    if (done := folder.done) is None:
        return
    print_rows("Answers before and after", HEADINGS, map(cells, done["table"]))
    print(
        f"Judged by {printable('; '.join(done['judges']))}. Hallucinated: of factual sentences. No verdict: sentences "
        "that the judge was not sure of or could not judge. Supported (repeats count once) and sentences: mean per "
        f"answer. Silent: answers without a fact. {COPIED} Interval over answers. {by_reward(done['table'])}"
    )
    for name in ("report.html", SAMPLES, METRICS, CONFIG, MODEL):
        print(f"{name.split('.')[0]}: {folder / name}")


def quiet() -> None:
    """Turn libraries' own progress bars and notices off; errors stay."""
    import warnings

    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", ".*_checkpointing.* is deprecated", FutureWarning)  # TRL's own use of it
    # An answer cut off in its first sentence has no score (logged as unscored_share): TRL would print the row.
    rows = "All reward functions returned None"
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(lambda record: rows not in record.getMessage())


def main(path: Path) -> None:
    options: Any
    options, task = load_recipe(path / CONFIG)
    quiet()
    task.train(options, read_questions(options, None), RunFolder(path))


def ask(
    model: str, rows: Sequence[Row], options: Base, how: Any, *, n: int, seed: int, chunk: int = CHUNK,
    whole: bool = False,
) -> Iterator[list[dict[str, Any]]]:  # fmt: skip
    """Yield, chunk by chunk, records to annotate: each row without its ``prompt`` with each of ``n`` answers to it.

    Each chat draws from its own stream of the seed, so answers do not depend on their neighbours. ``how`` has
    ``temperature`` and ``max_new_tokens``; with ``whole`` an answer that runs into that limit ends with its last whole
    sentence, which ``cut_off`` says, and is left out without one. EngineError where no row has an answer; some without,
    and answers that are left out, are counted on stderr.
    """
    errors: list[str] = []
    lost = 0
    # As it is trained: a model that may think does so, or doesn't.
    kinds: Any = {"chat_template_kwargs": options.template_arguments} if options.template_arguments else {}
    name = f"{options.evaluation.engine}:{model}"
    with closing(load_engine(name, dtype=options.dtype, **kinds)) as engine, progress("answers", len(rows)) as tell:
        for start in range(0, len(rows), chunk):
            asked = rows[start : start + chunk]
            sampling = Sampling(how.max_new_tokens, how.temperature, n=n, seed=seed)
            found = engine.chat([row["prompt"] for row in asked], sampling)
            own = ({key: value for key, value in row.items() if key != "prompt"} for row in asked)
            pairs = [(row, sample) for row, one in zip(own, found, strict=True) for sample in one.samples]
            if whole:
                texts = [(row, whole_answer(sample), sample.finish_reason == "length") for row, sample in pairs]
                yield [{**row, "answer": text, "cut_off": cut} for row, text, cut in texts if text]
                lost += sum(not text for _, text, _ in texts)
            else:
                yield [{**row, "answer": sample.said} for row, sample in pairs]
            errors += [one.error for one in found if one.error is not None]
            tell(start + len(asked))
    if lost:
        say(f"{model}: {lost:,} answers are left out, which were cut off before a sentence ended; raise max_new_tokens")
    if errors:
        told = f"{model}: {len(errors):,} of {len(rows):,} questions have no answer ({errors[0]})"
        if len(errors) == len(rows):
            raise EngineError(told)
        say(told)


def answer_and_judge(when: str, model: str, questions: Questions, options: Base, folder: RunFolder) -> None:
    """Ask the questions of every set and add the judged answers, unless they are there."""
    if any(row["when"] == when for row in folder.rows(SAMPLES)):
        return
    own, other = options.judge, options.reward.annotator
    other_wanted = other != own and not options.evaluation.same_judge
    # Neither is kept: the model that answers needs their memory.
    if other_wanted and _prints(options.load_annotator(own)) & _prints(options.load_annotator(other)):
        raise UsageError(
            f"evaluation.annotator: expected another judge than the reward's, but {own!r} and {other!r} loaded the "
            "same one; see the warnings above, or give same_judge=true"
        )
    rows = [{**row, "set": name} for name, asked in questions.evaluation.items() for row in asked]
    unjudged = f"answers-{when}.jsonl"  # so that a judge that fails costs no answers
    if not (records := folder.rows(unjudged)):
        asked = ask(model, rows, options, options.evaluation, n=1, seed=options.seed)
        records = [record for chunk in asked for record in chunk]
        folder.write_rows(unjudged, records)
    judge = options.load_annotator(own)
    out = [{"when": when, **one.to_dict()} for one in judged(own, judge, records)]
    if other != own:
        reward = options.load_annotator(other)
        for row, one in zip(out, judged(other, reward, records), strict=True):
            labels = [sentence.label for sentence in one.sentences]
            row["by_reward"] = {"annotator": dict(one.annotator), "labels": labels}
    folder.write_rows(SAMPLES, [*folder.rows(SAMPLES), *out])  # all of them or none, whatever stops the run
    if folder.writes:
        (folder / unjudged).unlink()


def _prints(annotator: Annotator) -> set[str]:
    """The fingerprints of an annotator, or of those that an ensemble or a cascade asks."""
    return set().union(*map(_prints, annotator.asks)) or {annotator.own_fingerprint}


def judged(name: str, annotator: Annotator, records: Sequence[Row]) -> list[Annotation]:
    """The annotations of records; EngineError where so many sentences failed that they would say nothing."""
    found = annotator.annotate_batch(records)
    refuse_failures(f"annotator {name}", (s.status for one in found for s in one.sentences), MOST_FAILED)
    return found


def figures(rows: Iterable[Row]) -> dict[str, Any]:
    """Figures of judged answers.

    ``rate`` is hallucinated / judged factual sentences (lower is better, None without any), with its 95 % ``interval``
    over answers; ``unsure`` are the sentences that the judge was not sure of, ``not_checked`` those that it could not
    judge; ``supported`` and ``sentences`` are per answer (repeats of a supported sentence counted once); ``silent`` is
    the share of answers that state nothing; ``copied``, which asks no annotator, is the mean over answers of how much
    of one is its reference's (mean density of its sentences); ``by_reward`` the rate by the reward's annotator, where
    that is another (``two_judges``).
    """
    rows = list(rows)
    totals, n = Totals.of(rows), len(rows)
    supported = sum(len({s["text"] for s in row["sentences"] if s["label"] == "supported"}) for row in rows)
    silent = sum(all(s["label"] == "no_fact" for s in row["sentences"]) for row in rows)
    shares = [share for row in rows if (share := copied(row)) is not None]
    others = [row["by_reward"]["labels"] for row in rows if "by_reward" in row]
    return {
        "answers": n, "factual": totals.factual, "hallucinated": totals.hallucinated, "rate": totals.rate,
        "interval": totals.interval, "unsure": totals.kinds[UNSURE], "not_checked": totals.kinds[NOT_CHECKED],
        "supported": supported / n if n else None, "sentences": totals.sentences / n if n else None,
        "silent": silent / n if n else None, "copied": fmean(shares) if shares else None,
        "by_reward": hallucination_rate([label for labels in others for label in labels]), "two_judges": bool(others),
    }  # fmt: skip


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The final table: for each set, before and after."""
    sets = dict.fromkeys(row["set"] for row in rows)
    return [
        {"set": name, "when": when, **figures(row for row in rows if (row["set"], row["when"]) == (name, when))}
        for name in sets
        for when in (BEFORE, AFTER)
    ]


def cells(row: Row) -> list[str]:
    """One row of the table, in the order of HEADINGS."""
    low_high = row["interval"]
    return [
        row["set"],
        row["when"],
        f"{row['answers']:,}",
        f"{percent(row['rate'])} of {row['factual']:,}",
        f"{percent(low_high[0])} to {percent(low_high[1])}" if low_high else "–",
        f"{row['unsure'] + row['not_checked']:,}",
        *(f"{row[name]:.2f}" if row[name] is not None else "–" for name in ("supported", "sentences")),
        percent(row["silent"]),
        "–" if row["copied"] is None else percent(row["copied"]),
    ]


def by_reward(table: Sequence[Row]) -> str:
    """What the reward's annotator says where it is not the judge, a warning where it is."""
    rates = [f"{row['set']}, {row['when']}: {percent(row['by_reward'])}" for row in table if row["two_judges"]]
    return f"Hallucinated by the annotator of the reward: {'; '.join(rates)}." if rates else OWN_JUDGE


def print_rows(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows as a table under HEADINGS or some of them; all but the first two are numbers."""
    texts = ([terminal.plain(cell) for cell in row] for row in rows)
    shown = terminal.table(head, texts, title=title, title_justify="left")
    for column in shown.columns:
        column.justify = "left" if column.header in HEADINGS[:2] else "right"
    terminal.console(WIDTH).print(shown)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
