"""The stages in their order, and the files of the run folder that they read and write.

    01_topics  02_documents  03_candidates  04_references  05_questions  06_distinct  07_filtered  08_selected
    09_answers_1, 09_answers_2, …  10_records  11_annotated        (.jsonl; what goes no further is in ….rejected.jsonl)
    review/  dataset/  statistics.md  statistics.json  topics.png  responses.sqlite

A file that is complete is never written again, so it may be read, and corrected by hand before the next stage starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.types import Engine
from mitigate.dataset import answers, questions, review, sources
from mitigate.dataset import sources as matching
from mitigate.dataset.export import counted, draw_topics, export, label_counts, page, topic_counts
from mitigate.dataset.stage import (
    CACHE,
    Asked,
    Process,
    embedder,
    opened,
    read_rows,
    run_stage,
    say,
    tell_rows,
    write_json,
    write_whole,
)
from mitigate.io import Check, Record, UsageError, rejected_path

if TYPE_CHECKING:
    from mitigate.recipes.build_dataset import Options


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
        opening: Callable[[], AbstractContextManager[Process]],
        check: Check = lambda _: [],
    ) -> str:
        """Run one stage; returns the name of its file."""
        self.rejected[output] = run_stage(
            self.file(source), self.file(output), opening, check=check, chunk_size=self.options.chunk_size
        )
        return output

    def asking(self, asked: Asked, process: Callable[[Engine, Asked], Process]) -> Callable[[], Any]:
        """What opens a stage that asks an LLM: its own, or the recipe's."""
        filled = asked.model_copy(update={"engine": asked.engine or self.options.engine})

        @contextmanager
        def opening() -> Iterator[Process]:
            with opened(filled, self.folder) as engine:
                yield process(engine, filled)

        return opening


def build(options: Options, folder: Path) -> dict[str, Any] | None:
    """Run all stages that are not done.

    Args:
        options: The recipe.
        folder: The run folder.

    Returns:
        The final figures; None where the run waits for a person to review a file.

    Raises:
        UsageError: An input is wrong, or a stage has nothing left to go on with.
        EngineError, OutputError: A later run goes on from here.
    """
    run = Build(options, folder)
    _read(run)
    name = _references(run)
    if name is None:
        return None
    name = _questions(run, name)
    name = _annotated(run, _answers(run, name))
    reviewed = _reviewed(run, name, review.write_annotations, _apply_annotations, "annotations")
    return None if reviewed is None else _finish(run, reviewed)


def _read(run: Build) -> None:
    topics, corpus = run.options.files()
    for name, (kept, bad) in (
        ("01_topics", sources.read_topics(topics, run.file("01_topics"))),
        ("02_documents", sources.read_corpus(corpus, run.file("02_documents"))),
    ):
        run.rejected[name] = bad
        if bad:
            tell_rows(read_rows(rejected_path(run.file(name))), bad)
        if not kept:
            raise UsageError(f"{name[3:]}: none is usable; see {rejected_path(run.file(name))}")
        say(f"{name}: {kept:,} usable, {bad:,} rejected")


def _references(run: Build) -> str | None:
    o, topics, documents = run.options, run.file("01_topics"), run.file("02_documents")
    run.stage(
        "01_topics", "03_candidates", lambda: matching.finding(topics, documents, o.matching.candidates, o.embedder)
    )

    @contextmanager
    def judging() -> Iterator[Process]:
        if not o.matching.judge:
            with matching.judging(documents, o.matching, None) as process:
                yield process
            return
        filled = o.matching.model_copy(update={"engine": o.matching.engine or o.engine})
        with opened(filled, run.folder) as engine, matching.judging(documents, filled, engine) as process:
            yield process

    name = run.stage("03_candidates", "04_references", judging)
    return _reviewed(run, name, review.write_references, _apply_references, "references")


def _questions(run: Build, name: str) -> str:
    o, shown = run.options, run.options.document_characters
    q = o.questions

    @contextmanager
    def distinct() -> Iterator[Process]:
        yield questions.making_distinct({"en": o.distinct.english, "zh": o.distinct.chinese}, o.embedder)

    name = run.stage(
        name, "05_questions",
        run.asking(q, lambda e, a: questions.writing(e, a, per_topic=q.per_topic, rounds=q.rounds, characters=shown)),
        matching.check_reference,
    )  # fmt: skip
    name = run.stage(
        name, "06_distinct", distinct, questions.check_questions("questions", "a question that could be read")
    )
    name = run.stage(
        name, "07_filtered", run.asking(o.filters, lambda e, a: questions.filtering(e, a, characters=shown))
    )
    return run.stage(
        name, "08_selected",
        run.asking(o.selection, lambda e, a: questions.selecting(e, a, keep=o.selection.keep)),
        questions.check_questions("kept", "a question that is objective and that the document answers"),
    )  # fmt: skip


def _answers(run: Build, name: str) -> str:
    shown, keys = run.options.document_characters, []
    for place, answer in enumerate(run.options.answers, start=1):
        keys.append(f"answers_{place}")
        opening = run.asking(
            answer,
            lambda e, a, key=keys[-1], given=answer.with_reference: answers.answering(  # type: ignore[misc]
                e, a, key=key, with_reference=given, characters=shown
            ),
        )
        name = run.stage(name, f"09_answers_{place}", opening)
    kept, missing = answers.write_records(run.file(name), run.file("10_records"), keys)
    run.rejected["10_records"] = missing
    if missing:
        tell_rows(read_rows(rejected_path(run.file("10_records"))), missing)
    if not kept:
        raise UsageError(f"answers: there is none to annotate; see the .rejected.jsonl files in {run.folder}")
    return "10_records"


def _annotated(run: Build, name: str) -> str:
    @contextmanager
    def opening() -> Iterator[Process]:
        from annotators import load_annotator

        name = run.options.annotator
        generative = name.startswith("generative:")  # its replies belong to those of the run
        more = {"cache": run.folder / CACHE, **run.options.annotator_options} if generative else {}
        try:
            annotator = load_annotator(name, **more)
        except (ValueError, ImportError, OSError) as error:
            raise UsageError(f"annotator {name}: {error}") from error
        yield answers.annotating(annotator)

    return run.stage(name, "11_annotated", opening)


def _reviewed(
    run: Build,
    name: str,
    write: Callable[[Path, Path], None],
    apply: Callable[[Build, Path, Path, Path], tuple[int, int]],
    what: str,
) -> str | None:
    """The file with a person's corrections in; None where they are waited for, the file itself without review."""
    if not run.options.review:
        return name
    table, output = run.folder / "review" / f"{what}.csv", run.file(f"{name}_reviewed")
    checked = table.with_name(f"{what}.checked.csv")
    if not output.is_file():
        if not checked.is_file():
            write(run.file(name), table)
            say(f"review: correct {table}, save it as {checked.name} beside it, and run this again")
            return None
        used, bad = apply(run, run.file(name), checked, output)
        say(f"review: {used:,} corrections of {checked} put in, {bad:,} rows could not be used")
    run.rejected[f"review/{checked.name}"] = (
        len(read_rows(rejected_path(checked))) if rejected_path(checked).is_file() else 0
    )
    return output.stem


def _apply_references(run: Build, source: Path, checked: Path, output: Path) -> tuple[int, int]:
    return review.apply_references(source, checked, run.file("02_documents"), output)


def _apply_annotations(run: Build, source: Path, checked: Path, output: Path) -> tuple[int, int]:
    return review.apply_annotations(source, checked, output)


def _finish(run: Build, name: str) -> dict[str, Any]:
    """Export, count and draw."""
    records: list[Record] = read_rows(run.file(name))
    rows = export(records, run.folder / "dataset")
    held = {record["topic"] for record in records}
    topics = [row for row in read_rows(run.file("01_topics")) if row["topic"] in held]
    table2 = counted(records, embedder(None).count_tokens)
    table4, kinds = label_counts(records), topic_counts(topics)
    write_whole(run.folder / "statistics.md", page(table2, table4, kinds, run.rejected).encode())
    figures = {
        "counts": table2,
        "labels": [{"language": lang, "answers": src, **counter} for (lang, src), counter in table4.items()],
        "topics": [{"category": c, "domain": d, "topics": n} for (c, d), n in kinds.items()],
        "rejected": run.rejected,
    }
    write_json(run.folder / "statistics.json", figures)
    draw_topics(kinds, run.folder / "topics.png")
    return {
        "topics": len(held),
        "answers": len(records),
        **{f"rows of {name}.jsonl": n for name, n in rows.items()},
        "rejected": sum(run.rejected.values()),
    }
