"""The stages in their order, and the files of the run folder that they read and write.

    01_topics  02_documents  03_candidates  04_references  05_questions  06_distinct  07_filtered  08_selected
    09_answers_1, 09_answers_2, …  10_records  11_annotated        (.jsonl; what goes no further is in ….rejected.jsonl)
    review/  dataset/  statistics.md  statistics.json   responses.sqlite

A stage reads the file before it and appends to its own, so a killed run goes on where it was. A complete file is never
written again, so it may be corrected by hand before the next stage starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from annotators.base import Annotator, engine_in
from annotators.records import failed_share
from mitigate.dataset import questions, review, sources
from mitigate.dataset.export import counted, export, label_counts, page, topic_counts
from mitigate.dataset.stage import CACHE, LLM, Asked, Options, embedder, extended, read_rows
from mitigate.io import (
    Check,
    Record,
    UsageError,
    open_job,
    progress,
    rejected_path,
    say,
    tell_rejected,
    write_bytes,
    write_json,
)
from mitigate.models import open_engine


@dataclass
class Build:
    """One run: its options, its folder, and how many lines each file has left out."""

    options: Options
    folder: Path
    rejected: dict[str, int] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def stage(
        self,
        source: str,
        output: str,
        process: Callable[..., Sequence[Record]],
        asked: Asked | None = None,
        check: Check = lambda _: [],
        **more: Any,
    ) -> str:
        """Turn the rows of one file into those of the next, going on where an earlier run was; returns its name.

        ``process`` turns rows into rows that hold what they held, and more; it gets ``more`` and, where ``asked`` says
        how, an LLM as ``llm``, which is opened only where something is left to do. ``check`` says why a row can't be
        taken further. Raises UsageError: the output was made from another source.
        """

        def matches(record: Record, written: Record) -> str | None:
            changed = [key for key, value in record.items() if key not in written or written[key] != value]
            return f"{changed[0]!r} differs" if changed else None

        here, there = self.file(source), self.file(output)
        try:
            job = open_job(here, there, check=check, matches=matches)
        except UsageError as error:
            why, _, _ = str(error).partition("; choose another --output")
            raise UsageError(
                f"{why}; delete the files of this stage and of all later ones to make them again"
            ) from error
        with job, ExitStack() as stack:
            self.rejected[output] = job.rejected
            tell_rejected(here, job.first_rejected, job.rejected, job.rejected_path)
            if job.done < job.valid:
                before = f", {job.done:,} of them done before" if job.done else ""
                say(f"{output}: {job.valid:,} rows{before}")
                if asked is not None:
                    name = asked.engine or self.options.engine or ""
                    how = {"concurrency": asked.concurrency} if name.startswith("openai:") else {}
                    engine = open_engine(name, "engine", self.folder / CACHE, **how)
                    more["llm"] = LLM(stack.enter_context(closing(engine)), asked)
            shown = stack.enter_context(progress(output, job.valid, job.done))
            job.run(partial(process, **more), chunk_size=self.options.chunk_size, on_chunk=lambda _: shown(job.done))
        return output


def build(options: Options, folder: Path) -> dict[str, Any] | None:
    """Run all stages that are not done; a run that an error ended goes on from there.

    Returns the final figures; None where the run waits for a person to review a file.
    """
    run = Build(options, folder)
    _read(run)
    apply = partial(review.apply_references, documents=run.file("02_documents"))
    name = _reviewed(run, _references(run), "references", review.write_references, apply)
    if name is None:
        return None
    annotator = cache(lambda: _annotator(run))  # loaded only where something is left to annotate
    name = run.stage(
        _answers(run, _questions(run, name)), "11_annotated",
        lambda rows: [one.to_dict() for one in annotator().annotate_batch(rows)],
    )  # fmt: skip
    name = _reviewed(run, name, "annotations", review.write_annotations, review.apply_annotations)
    return None if name is None else _finish(run, name)


def _read(run: Build) -> None:
    topics, corpus = run.options.files()
    for name, (kept, bad) in (
        ("01_topics", sources.read_topics(topics, run.file("01_topics"))),
        ("02_documents", sources.read_corpus(corpus, run.file("02_documents"))),
    ):
        run.rejected[name] = bad
        if not kept:
            raise UsageError(f"{name[3:]}: none is usable; see {rejected_path(run.file(name))}")
        say(f"{name}: {kept:,} usable, {bad:,} rejected")


def _references(run: Build) -> str:
    o, documents = run.options, run.file("02_documents")

    @cache
    def found() -> dict[str, list[Record]]:
        topics = read_rows(run.file("01_topics"))
        return sources.find(topics, read_rows(documents), o.matching.candidates, o.embedder)

    @cache
    def texts() -> dict[str, str]:
        return {row["document"]: row["text"] for row in read_rows(documents)}

    def judge(topics: list[Record], llm: LLM | None = None) -> list[Record]:
        return sources.judge(topics, texts(), llm)

    name = run.stage(
        "01_topics", "03_candidates",
        lambda topics: [extended(topic, candidates=found()[topic["topic"]]) for topic in topics],
    )  # fmt: skip
    return run.stage(name, "04_references", judge, o.matching if o.matching.judge else None)


def _questions(run: Build, name: str) -> str:
    o = run.options
    shown, q = o.document_characters, o.questions
    name = run.stage(
        name, "05_questions", questions.write, q, sources.check_reference,
        per_topic=q.per_topic, rounds=q.rounds, characters=shown,
    )  # fmt: skip
    name = run.stage(
        name, "06_distinct", questions.make_distinct, None,
        questions.check_questions("questions", "a question that could be read"),
        thresholds={"en": o.distinct.english, "zh": o.distinct.chinese}, model=o.embedder,
    )  # fmt: skip
    name = run.stage(name, "07_filtered", questions.keep_answerable, o.filters, characters=shown)
    return run.stage(
        name, "08_selected", questions.select, o.selection,
        questions.check_questions("kept", "a question that is objective and that the document answers"),
        keep=o.selection.keep,
    )  # fmt: skip


def _answers(run: Build, name: str) -> str:
    keys = [f"answers_{place}" for place in range(1, len(run.options.answers) + 1)]
    for key, asked in zip(keys, run.options.answers, strict=True):
        name = run.stage(
            name, f"09_{key}", questions.answer, asked,
            key=key, with_reference=asked.with_reference, characters=run.options.document_characters,
        )  # fmt: skip
    kept, run.rejected["10_records"] = questions.write_records(run.file(name), run.file("10_records"), keys)
    if not kept:
        raise UsageError(f"answers: there is none to annotate; see the .rejected.jsonl files in {run.folder}")
    return "10_records"


def _annotator(run: Build) -> Annotator:
    from annotators import load_annotator

    name = run.options.annotator
    generative = engine_in(name) is not None  # its replies belong to those of the run
    more = {"cache": run.folder / CACHE, **run.options.annotator_options} if generative else {}
    try:
        return load_annotator(name, **more)
    except (ValueError, ImportError, OSError) as error:
        raise UsageError(f"annotator {name}: {error}") from error


def _reviewed(
    run: Build, name: str, what: str, write: Callable[[Path, Path], None], apply: Callable[..., tuple[int, int]]
) -> str | None:
    """The file with a person's corrections in; None where they are waited for, the file itself without review."""
    if not run.options.review:
        return name
    table, output = run.folder / "review" / f"{what}.csv", run.file(f"{name}_reviewed")
    checked = table.with_name(f"{what}.checked.csv")
    if not output.is_file():
        if not checked.is_file():
            write(run.file(name), table)
            say(f"review: correct {table}, save it as {checked.name} beside it, and give this command again")
            return None
        used, bad = apply(run.file(name), checked, output)
        say(f"review: {used:,} corrections of {checked} put in, {bad:,} rows could not be used")
    lost = rejected_path(checked)
    run.rejected[f"review/{checked.name}"] = len(read_rows(lost)) if lost.is_file() else 0
    return output.stem


def _finish(run: Build, name: str) -> dict[str, Any]:
    """Export and count."""
    records = read_rows(run.file(name))
    rows = export(records, run.folder / "dataset")
    held = {record["topic"] for record in records}
    table2 = counted(records, embedder(None).count_tokens)
    table4 = label_counts(records)
    kinds = topic_counts([row for row in read_rows(run.file("01_topics")) if row["topic"] in held])
    write_bytes(run.folder / "statistics.md", page(table2, table4, kinds, run.rejected).encode())
    figures = {
        "counts": table2,
        "labels": [{"language": lang, "answers": source, **counter} for (lang, source), counter in table4.items()],
        "topics": [{"category": c, "domain": d, "topics": n} for (c, d), n in kinds.items()],
        "rejected": run.rejected,
    }
    write_json(run.folder / "statistics.json", figures)
    return {
        "topics": len(held),
        "answers": len(records),
        "failed": failed_share(Counter(s["status"] for record in records for s in record["sentences"])),
        **{f"rows of {name}.jsonl": n for name, n in rows.items()},
        "rejected": sum(run.rejected.values()),
    }
