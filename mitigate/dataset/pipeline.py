"""Task `build-dataset`: the stages in their order, and the files of the run folder that they read and write.

    01_topics  02_documents  03_candidates  04_references  05_questions  06_distinct  07_filtered  08_selected
    09_answers_1, 09_answers_2, …  10_records  11_annotated        (.jsonl; what goes no further is in ….rejected.jsonl)
    dataset/  statistics.md  responses.sqlite

A stage reads the file before it and appends to its own, so a killed run goes on where it was. A complete file but
01_topics is never written again, so it may be corrected by hand before the next stage starts. What a person says of the
annotations (option ``review``) is in 11_annotated_reviewed.jsonl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from annotators.base import engine_in
from annotators.records import HALLUCINATED, LABELS, failed_share
from engines.types import EngineError
from mitigate.dataset import questions, sources
from mitigate.dataset.export import export, page
from mitigate.dataset.stage import CACHE, LLM, Asked, Options, embedder, extended, read_rows
from mitigate.io import (
    Check,
    Problem,
    Record,
    UsageError,
    open_job,
    progress,
    read_whole,
    rejected_path,
    say,
    shown,
    write_bytes,
)
from mitigate.models import check_generative, open_annotator, open_engine
from mitigate.recipes.folder import RunFolder

GOES_ON = True  # also when it was complete: stages are compared with their inputs, and may have been reviewed


def check(options: Options) -> None:
    """Refuse missing files and engines."""
    topics, corpus = options.files()
    if not topics.is_file():
        raise UsageError(f"topics: no such file {topics}")
    for path in corpus:
        if not path.exists():
            raise UsageError(f"corpus: no such file or folder {path}")
    asked: dict[str, Asked] = {name: getattr(options, name) for name in ("questions", "filters", "selection")}
    asked |= {"matching": options.matching} if options.matching.judge else {}
    asked |= {f"answers.{place}": answer for place, answer in enumerate(options.answers)}
    if len({answer.model_dump_json() for answer in options.answers}) < len(options.answers):
        raise UsageError("answers: two are equal, and would bring the same answers; let them differ, or leave one out")
    if options.engine is None and (without := [name for name, stage in asked.items() if stage.engine is None]):
        raise UsageError(f"{', '.join(without)}: no engine; give each one, or `engine:` for all")
    own = options.annotator_options
    if not check_generative(options.annotator, own, "annotator_options") and own:
        raise UsageError(f"annotator_options: for generative:KIND:MODEL[@BASE_URL] only, not {options.annotator}")


@dataclass
class Build:
    """One run: its options, its folder, and how many lines each file has left out."""

    options: Options
    folder: Path
    rejected: dict[str, int] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def stage(
        self, source: str, output: str, process: Callable[..., Sequence[Record]], asked: Asked | None = None,
        check: Check = lambda _: [], **more: Any,
    ) -> str:  # fmt: skip
        """Turn the rows of one file into those of the next, going on where an earlier run was; returns its name.

        ``process`` turns rows into rows that hold what they held, and more; it gets ``more`` and, where ``asked`` says
        how, an LLM as ``llm``, which is opened only where something is left to do. ``check`` says why a row can't be
        taken further. Raises UsageError: the output was made from another source.
        """

        def matches(record: Record, written: Record) -> str | None:
            changed = [key for key, value in record.items() if key not in written or written[key] != value]
            return f"{changed[0]!r} differs" if changed else None

        here, there = self.file(source), self.file(output)
        with ExitStack() as stack:
            try:
                job = stack.enter_context(open_job(here, there, check=check, matches=matches))
            except UsageError as error:
                why, _, _ = str(error).partition("; choose another --output")
                advice = "delete the files of this stage and of all later ones to make them again"
                raise UsageError(f"{why}; {advice}") from error
            self.rejected[output] = job.rejected
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


def run(options: Options, folder: RunFolder) -> int:
    """Run all stages that are not done; 3 where input or replies could not all be used. A run that an error ended goes
    on from there. Raises EngineError: too many judgements failed.
    """
    build = Build(options, folder.path)
    generative = engine_in(options.annotator) is not None  # its replies belong to those of the run
    more = {"cache": folder / CACHE, **options.annotator_options} if generative else {}
    annotator = cache(lambda: open_annotator(options.annotator, more, "annotator"))  # only where there is work for it
    if not generative and not build.file("11_annotated").is_file():
        annotator()  # a wrong name is told before anything is asked
    _read(build)
    name = _answers(build, _questions(build, _references(build)))
    name = build.stage(name, "11_annotated", lambda rows: [one.to_dict() for one in annotator().annotate_batch(rows)])
    records = read_rows(build.file(name))
    if options.review:
        checked = build.file(f"{name}_reviewed")
        if not checked.is_file():
            say(f"review: save a corrected copy of {build.file(name)} as {checked.name}, and give this command again")
            return 0
        build.rejected[checked.stem] = put_in(records, checked)
    rows = export(records, folder / "dataset")
    statistics = folder / "statistics.md"
    write_bytes(statistics, page(records, embedder(None).count_tokens, build.rejected).encode())
    figures = {
        "topics": len({record["topic"] for record in records}),
        "answers": len(records),
        "failed": failed_share(Counter(s["status"] for record in records for s in record["sentences"])),
        **{f"rows of {name}.jsonl": n for name, n in rows.items()},
        "rejected": sum(build.rejected.values()),
    }
    if figures["failed"] > options.max_failed:
        raise EngineError(
            f"the judgement of {figures['failed']:.0%} of the sentences failed, more than max_failed "
            f"{options.max_failed:g}; delete {folder / '11_annotated.jsonl'} to have them judged again"
        )
    folder.finish(figures)
    print(f"{figures}\nstatistics: {statistics}")
    return 3 if figures["rejected"] else 0


def _read(build: Build) -> None:
    topics, corpus = build.options.files()
    documents = build.file("02_documents")
    if documents.is_file() and documents.stat().st_size:  # a person may have corrected it
        say("02_documents: as an earlier start wrote it; delete it to have it made again")
        rows, broken = read_whole(documents, lambda _: [], None)
        left_out = rejected_path(documents)
        read = len(rows), broken + (len(read_rows(left_out)) if left_out.is_file() else 0)
    else:
        read = sources.read_corpus(corpus, documents)
    for name, (kept, bad) in (
        ("01_topics", sources.read_topics(topics, build.file("01_topics"))),  # which may be mended between two starts
        ("02_documents", read),
    ):
        build.rejected[name] = bad
        if not kept:
            raise UsageError(f"{name[3:]}: none is usable; see {rejected_path(build.file(name))}")
        say(f"{name}: {kept:,} usable, {bad:,} rejected")


def _references(build: Build) -> str:
    o, documents = build.options, build.file("02_documents")

    @cache
    def found() -> dict[str, list[Record]]:
        topics = read_rows(build.file("01_topics"))
        return sources.find(topics, read_rows(documents), o.matching.candidates, o.embedder)

    @cache
    def texts() -> dict[str, str]:
        return {row["document"]: row["text"] for row in read_rows(documents)}

    def judge(topics: list[Record], llm: LLM | None = None) -> list[Record]:
        return sources.judge(topics, texts(), llm)

    name = build.stage(
        "01_topics", "03_candidates",
        lambda topics: [extended(topic, candidates=found()[topic["topic"]]) for topic in topics],
    )  # fmt: skip
    return build.stage(name, "04_references", judge, o.matching if o.matching.judge else None)


def _questions(build: Build, name: str) -> str:
    o = build.options
    shown, q = o.document_characters, o.questions
    name = build.stage(
        name, "05_questions", questions.write, q, sources.check_reference,
        per_topic=q.per_topic, rounds=q.rounds, characters=shown,
    )  # fmt: skip
    name = build.stage(
        name, "06_distinct", questions.make_distinct, None,
        questions.check_questions("questions", "a question that could be read"),
        thresholds={"en": o.distinct.english, "zh": o.distinct.chinese}, model=o.embedder,
    )  # fmt: skip
    name = build.stage(name, "07_filtered", questions.keep_answerable, o.filters, characters=shown)
    return build.stage(
        name, "08_selected", questions.select, o.selection,
        questions.check_questions("kept", "a question that is objective and that the document answers"),
        keep=o.selection.keep,
    )  # fmt: skip


def _answers(build: Build, name: str) -> str:
    keys = [f"answers_{place}" for place in range(1, len(build.options.answers) + 1)]
    for key, asked in zip(keys, build.options.answers, strict=True):
        name = build.stage(
            name, f"09_{key}", questions.answer, asked,
            key=key, with_reference=asked.with_reference, characters=build.options.document_characters,
        )  # fmt: skip
    kept, build.rejected["10_records"] = questions.write_records(build.file(name), build.file("10_records"), keys)
    if not kept:
        raise EngineError(f"answers: there is none to annotate; see the .rejected.jsonl files in {build.folder}")
    return "10_records"


# --- what a person says of the annotations ---------------------------------------------------------------------------


def put_in(records: list[Record], checked: Path) -> int:
    """Put a person's judgements, a corrected copy of lines of 11_annotated.jsonl, into annotated records; returns the
    number of lines that could not be used, which leave their records as they were. Of each sentence ``label``,
    ``fragments`` ([{"text"}]) and ``correction`` ([{"from", "to"}]) are taken; ``start`` may say which of several
    places is meant. A changed sentence gets ``annotated_by``: "human" where it had no label before, else "reviewed".
    """
    known = {record["id"]: record for record in records}

    def take(row: Record) -> list[Problem]:
        record, new = known.get(str(row.get("id"))), row.get("sentences")
        if record is None or not isinstance(new, list) or len(new) != len(record["sentences"]):
            return [Problem("id", shown(row.get("id")), "that of a record of this run, with all of its sentences")]
        judged: list[Record] = []
        problems = []
        for number, (old, said) in enumerate(zip(record["sentences"], new, strict=True)):
            try:
                judged.append(_judged(record, old, said))
            except ValueError as error:
                problems.append(Problem(f"sentences[{number}]", shown(said), str(error)))
            except (KeyError, TypeError, AttributeError):
                expected = "a label, fragments [{text}] and correction [{from, to}]"
                problems.append(Problem(f"sentences[{number}]", shown(said), expected))
        if not problems:
            record["sentences"] = judged
        return problems

    return read_whole(checked, take, checked)[1]


def _judged(record: Record, old: Record, said: Record) -> Record:
    """A sentence as a person judged it. Raises ValueError: what was expected."""
    if all(said[key] == old[key] for key in ("label", "fragments", "correction")):
        return old
    label = said["label"]
    if label not in LABELS:
        raise ValueError(f"one of the labels {', '.join(LABELS)}")
    fragments = [_placed(piece, "text", record["reference"], 0) for piece in said["fragments"]]
    edits = [_placed(edit, "from", record["answer"], old["start"], old["end"]) for edit in said["correction"]]
    edits.sort(key=lambda edit: edit["start"])
    if any(a["end"] > b["start"] for a, b in pairwise(edits)) or not all(isinstance(edit["to"], str) for edit in edits):
        raise ValueError("corrections to a text that do not overlap")
    return {
        **old, "status": "checked", "label": label, "fragments": fragments if label != "no_fact" else [],
        "correction": edits if label in HALLUCINATED else [], "annotated_by": "reviewed" if old["label"] else "human",
    }  # fmt: skip


def _placed(piece: Record, key: str, text: str, low: int, high: int | None = None) -> Record:
    """A piece with its place in ``text[low:high]``: where its ``start`` says, if it stands there, else the first."""
    words, start = piece[key], piece.get("start")
    if type(start) is not int or start < low or text.find(words, start, high) != start:
        start = text.find(words, low, high)
    if start < 0 or not words.strip():
        raise ValueError(f"words of the {'reference' if key == 'text' else 'sentence'}, copied, not {shown(words)}")
    return {**piece, "start": start, "end": start + len(words)}
