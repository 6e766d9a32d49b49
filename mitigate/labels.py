"""Labelled sentences and judged answers, read from JSON Lines in one place.

- ``read_labelled``: labelled sentences with their source, group and fold, for evaluation and training.
- ``read_gold``: rows to fit a calibration to: labelled sentences, or annotated records with ``"gold"`` (one of the
  four labels, or "unsupported") added to some of their sentences; sentences without it are skipped.
- ``read_answers``: answers with their judged sentences, for statistics, from annotated records, labelled sentences or
  the lines of `mitigate evaluate --judgements`.

``check_labelled`` knows the fields of a labelled sentence: ``label`` is one of the four, or "unsupported" in two-way
sources, ``fragments`` are verbatim pieces of the reference, ``correction`` is a whole sentence. A bad line, returned
with its problems, stops no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from annotators.base import thought
from annotators.evaluation.agreement import Judged
from annotators.evaluation.evaluate import LabelledSentence, labelled
from annotators.evaluation.metrics import GOLD_LABELS
from annotators.evaluation.splits import FOLD_NAMES, GROUP_FIELDS, N_FOLDS, fold_of, group_rows
from annotators.evaluation.splits import plain as folded
from annotators.records import LABELS
from annotators.text.language import stated
from mitigate.io import (
    Line,
    Problem,
    Record,
    UsageError,
    check_annotation_input,
    check_texts,
    read_all,
    set_aside,
    shown,
)

FOLDERS = ("sentences", "binary", "spans")


@dataclass(frozen=True)
class LabelledFiles:
    """What was read: the rows asked for, how many valid ones there were, and the bad lines of each file."""

    rows: list[LabelledSentence]
    n_valid: int
    rejected: list[tuple[Path, Line]]
    fold_files: list[Path] = field(default_factory=list)


def check_labelled(record: Record) -> list[Problem]:
    """Problems of a labelled sentence; extra keys are free."""
    problems = check_texts(record, sentence="text", reference="any", question="any?", answer="any?", correction="any?")
    problems += check_texts(record, source="text?", lang="text?", language="text?")
    if record.get("label") not in GOLD_LABELS:
        problems.append(Problem.of(record, "label", f"one of {', '.join(GOLD_LABELS)}"))
    pieces = record.get("fragments")
    if pieces is not None and not (isinstance(pieces, list) and all(isinstance(p, str) for p in pieces)):
        problems.append(Problem.of(record, "fragments", "a list of strings or null"))
    return problems


def parse_fold(name: str) -> tuple[int, ...] | None:
    """Fold numbers of "test", "dev", "train" or "0" to "4"; None for "all". Raises ValueError: it is none of these."""
    known = {"all": None, **FOLD_NAMES, **{str(n): (n,) for n in range(N_FOLDS)}}
    if name not in known:
        raise ValueError(f"expected {', '.join(FOLD_NAMES)}, all, or 0 to {N_FOLDS - 1}; got {name!r}")
    return known[name]


def fold_files(paths: Iterable[Path]) -> list[Path]:
    """The files over which folds are computed: every ``*.jsonl``, but ``*.rejected.jsonl``, beside the given ones and
    in the folders FOLDERS beside theirs, as rows of one document recur across them.
    """
    given = {path.resolve() for path in paths}
    folders = {path.parent for path in given}
    folders |= {folder.parent / name for folder in folders for name in FOLDERS}
    found = {file.resolve() for folder in folders for file in folder.glob("*.jsonl")}
    return sorted(given | {file for file in found if not file.name.endswith(".rejected.jsonl")})


def read_labelled(paths: Sequence[Path], folds: Sequence[int] | None = None) -> LabelledFiles:
    """Read files of labelled sentences.

    With ``folds``, groups and folds are computed over whole data sets (see :func:`fold_files`), so the fold of a row
    does not depend on which of the files are given; every line that is a JSON object takes part in the grouping, also
    one without a label. Without, groups join the rows of these files only. Raises UsageError: a file cannot be read.
    """
    good, rejected = read_all(paths, check_labelled)
    records = [record for *_, record in good]
    files = fold_files(paths) if folds is not None else []
    groups = _groups(good, files) if files else group_rows([_own_texts(record) for record in records])
    sources = [_names(record, path)[0] for path, _, record in good]
    rows = labelled(records, [str(path) for path, *_ in good], groups, sources)
    kept = rows if folds is None else [row for row in rows if fold_of(str(row.group)) in folds]
    return LabelledFiles(kept, len(rows), rejected, files)


def _groups(rows: Sequence[tuple[Path, int, Record]], files: Iterable[Path]) -> list[str]:
    """The group of each row, over all lines of the files."""
    every, _ = read_all(files, lambda _: [])
    names = group_rows([_texts(record) for *_, record in every])
    group_of = {(path, number): name for (path, number, _), name in zip(every, names, strict=True)}
    return [group_of[path.resolve(), number] for path, number, _ in rows]


def _texts(record: Record) -> dict[str, str]:
    """What rows are grouped by, without lone surrogates, which no hash takes."""
    known = ((name, record.get(name)) for name in (*GROUP_FIELDS, "id"))
    return {k: v.encode("utf-8", "replace").decode() for k, v in known if isinstance(v, str)}


def _own_texts(record: Record) -> dict[str, str]:
    """The same but for a sentence without a fact ("Here is a summary:"), which would make one group of many answers."""
    texts = _texts(record)
    common = record.get("label") == "no_fact" and texts.keys() & {"reference", "answer"}
    return {k: v for k, v in texts.items() if not (common and k == "sentence")}


def read_gold(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str], list[tuple[Path, Line]]]:
    """The rows to judge ("reference", "sentence", "label", maybe "question", "answer", "language"), equal ones once,
    the group of each, and the bad lines with their files; lines of both forms may stand in one file. UsageError: a file
    cannot be read.
    """
    good, rejected = read_all(paths, check_gold)
    rows = [row for *_, record in good for row in _rows_of(record)]
    kept = list({(row["reference"], row["sentence"], row.get("question") or ""): row for row in rows}.values())
    return kept, group_rows([_own_texts(row) for row in kept]), rejected


def check_gold(record: Record) -> list[Problem]:
    """Problems of a line of either form; a line with "sentences" is an annotated record."""
    if "sentences" not in record:
        return check_labelled(record)
    problems = check_annotation_input(record)
    sentences = record["sentences"]
    if not (isinstance(sentences, list) and all(isinstance(s, dict) for s in sentences)):
        return [*problems, Problem("sentences", shown(sentences), "a list of objects")]
    for number, sentence in enumerate(sentences):
        if (gold := sentence.get("gold")) is None:
            continue
        if gold not in GOLD_LABELS:
            expected = f"one of {', '.join(GOLD_LABELS)}, or null"
            problems.append(Problem(f"sentences[{number}].gold", shown(gold), expected))
        wrong = check_texts(sentence, text="text")
        problems += [replace(problem, field=f"sentences[{number}].text") for problem in wrong]
    return problems


def _rows_of(record: Record) -> list[dict[str, Any]]:
    known = {name: record.get(name) for name in ("question", "answer", "language")}
    if "sentences" not in record:
        known["language"] = known["language"] or record.get("lang")
        pieces = [(record["sentence"], record["label"])]
    else:
        pieces = [(s["text"], s["gold"]) for s in record["sentences"] if s.get("gold") is not None]
    shared = {"reference": record["reference"], **{name: value for name, value in known.items() if value}}
    return [{"sentence": sentence, "label": label, **shared} for sentence, label in pieces]


@dataclass(frozen=True)
class JudgedSentence:
    """The id of its line, its place in the answer, its text, its reference with white space folded and without case,
    and what was judged; label None: it was not.
    """

    id: str | None
    start: int
    text: str
    reference: str
    label: str | None
    places: frozenset[int] | None = None
    corrected: str | None = None


@dataclass
class JudgedAnswer:
    """An answer with its sentences in order; ``ordered`` unless only single sentences without it are known. ``key`` is
    its question and text: what it is known by in another file. Its sentences may have several references.
    """

    key: Hashable
    source: str
    language: str
    answer: str
    ordered: bool
    sentences: list[JudgedSentence] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        """Share of the answer's characters that are in judged sentences, white space aside, in [0, 1]."""
        held = bytearray(len(self.answer))
        for s in self.sentences:
            if s.label is not None:
                held[s.start : s.start + len(s.text)] = b"\1" * len(s.text)
        said = thought(self.answer)
        solid = [place for place, char in enumerate(self.answer) if place >= said and not char.isspace()]
        return sum(held[place] for place in solid) / len(solid) if solid else 0.0


def check_either(record: Record) -> list[Problem]:
    """Problems of an annotated record (it has ``sentences``), a judgement (``status``), or a labelled sentence."""
    if "sentences" not in record and "sentence" in record and "status" in record:
        text = record["sentence"]
        sentence = {**record, "text": text, "start": 0, "end": len(text) if isinstance(text, str) else 0}
        return check_texts(record, sentence="text") or check_either(
            {"answer": text, "reference": record.get("reference"), "sentences": [sentence]}
        )
    if "sentences" not in record:
        if "answer" in record and "sentence" not in record:
            return [Problem("sentences", None, "the list that `mitigate annotate` writes")]
        return check_labelled(record)
    if "answer" in record and record["answer"] is None and record["sentences"] == []:  # `best-of` could judge none
        return []
    problems, sentences = check_texts(record, answer="text", reference="any"), record["sentences"]
    if problems or (isinstance(sentences, list) and all(_is_sentence(s, record) for s in sentences)):
        return problems
    expected = "a list of sentences as `mitigate annotate` writes them, with offsets into the answer"
    return [Problem("sentences", shown(sentences), expected)]


def _is_sentence(sentence: Any, record: Record) -> bool:
    try:
        placed = record["answer"][sentence["start"] : sentence["end"]] == sentence["text"]
        fragments, edits = ([(x["start"], x["end"]) for x in sentence[key]] for key in ("fragments", "correction"))
        targets = [edit["to"] for edit in sentence["correction"]]
        known = sentence["label"] in (*LABELS, None)
    except (KeyError, TypeError):
        return False
    numbers = all(type(n) is int for span in (*fragments, *edits) for n in span)
    return (
        placed and known and numbers and all(type(t) is str for t in targets)
        and all(0 <= start <= end <= len(record["reference"]) for start, end in fragments)
    )  # fmt: skip


def read_answers(paths: Sequence[Path], *, gold: bool = False) -> tuple[list[JudgedAnswer], int]:
    """The answers of all files, and how many lines are bad, which are told; with ``gold`` the labels that a person gave
    annotated records, where one did. UsageError: a file can't be read, or holds the judgements of several annotators.
    """
    answers: dict[Hashable, list[JudgedAnswer]] = {}
    by: dict[Path, str] = {}
    good, bad = read_all(paths, check_either)
    for path, number, record in good:
        if record.get("sentences") == [] and record.get("answer") is None:
            continue
        if "sentences" in record:
            _add_record(answers, record, path, gold)
        else:
            _add_row(answers, record, path, number)
        name = record.get("annotator") if "status" in record else None  # as `mitigate evaluate --judgements` writes it
        if isinstance(name, str) and by.setdefault(path, name) != name:
            raise UsageError(
                f"{path}: expected the judgements of one annotator, got those of {by[path]} and {name}; give each its "
                "own file"
            )
    set_aside(bad, None)
    found = [answer for copies in answers.values() for answer in copies]
    for answer in found:
        answer.sentences.sort(key=lambda s: s.start)
    return found, len(bad)


def _names(record: Record, path: Path) -> tuple[str, str]:
    source = record.get("source") or path.name.split(".")[0]
    return str(source), stated(record) or "unknown"


def _id(record: Record) -> str | None:
    return None if record.get("id") is None else str(record["id"])


def _judged(record: Record, sentence: Record, text: str, start: int) -> JudgedSentence:
    """What ``sentence``, as `mitigate annotate` writes it, says of a ``text``."""
    from mitigate.dataset.export import corrected

    places = frozenset(place for f in sentence["fragments"] for place in range(f["start"], f["end"]))
    mended = corrected({**sentence, "text": text}) if sentence["correction"] else None
    return JudgedSentence(_id(record), start, text, folded(record["reference"]), sentence["label"], places, mended)


def _add_record(answers: dict[Hashable, list[JudgedAnswer]], record: Record, path: Path, gold: bool) -> None:
    key = (record.get("question") or "", record["answer"])
    answer = JudgedAnswer(key, *_names(record, path), record["answer"], ordered=True)
    answer.sentences += [_judged(record, s, s["text"], s["start"]) for s in record["sentences"]]
    if gold and any(s.get("gold") for s in record["sentences"]):  # a person's, who wrote no evidence
        labels = [s.get("gold") for s in record["sentences"]]
        pairs = zip(answer.sentences, labels, strict=True)
        answer.sentences = [replace(s, label=label, places=None, corrected=None) for s, label in pairs]
    answers[(str(path), len(answers))] = [answer]


def _add_row(answers: dict[Hashable, list[JudgedAnswer]], row: Record, path: Path, number: int) -> None:
    text, whole, start = row["sentence"], row.get("answer") or "", row.get("start")
    if type(start) is not int or whole[start : start + len(text)] != text:
        start = whole.find(text)
    source, language = _names(row, path)
    key = (row.get("question") or "", whole if start >= 0 else text)
    if "status" in row:
        sentence = _judged(row, {**row, "start": 0}, text, max(start, 0))
    else:
        places = None
        if row.get("fragments") is not None:
            found = [(row["reference"].find(piece), len(piece)) for piece in row["fragments"]]
            places = frozenset(place for at, length in found if at >= 0 for place in range(at, at + length))
        reference, mended = folded(row["reference"]), row.get("correction")
        sentence = JudgedSentence(_id(row), max(start, 0), text, reference, row["label"], places, mended)
    copies = answers.setdefault((str(path), source, key, "" if start >= 0 else number), [])
    without = (a for a in copies if all((s.start, s.text) != (sentence.start, text) for s in a.sentences))
    if (answer := next(without, None)) is None:  # a new answer, or an equal one once more
        answer = JudgedAnswer(key, source, language, whole or text, ordered=start >= 0)
        copies.append(answer)
    answer.sentences.append(sentence)


def paired(
    first: Sequence[JudgedAnswer], second: Sequence[JudgedAnswer]
) -> tuple[list[tuple[Judged, Judged]], list[Hashable], tuple[int, int]]:
    """The sentences that both have judged, the answer of each, and how many only one has. The same sentence of the same
    answer to the same question and reference is taken by its line's id, where both files have that, else in the order
    of the files: equal answers may be there several times.
    """
    rest, other = ([(a.key, s) for a in side for s in a.sentences if s.label is not None] for side in (first, second))
    pairs: list[tuple[Judged, Judged]] = []
    groups: list[Hashable] = []
    for by_id in (True, False):
        waiting: dict[Hashable, list[tuple[Hashable, JudgedSentence]]] = defaultdict(list)
        for key, s in reversed(other):
            waiting[key, s.start, s.text, s.reference, s.id if by_id else ""].append((key, s))
        alone = []
        for key, s in rest:
            name = (key, s.start, s.text, s.reference, s.id if by_id else "")
            if (by_id and s.id is None) or not waiting[name]:
                alone.append((key, s))
                continue
            one, two = (Judged(x.label or "", x.places, x.corrected) for x in (s, waiting[name].pop()[1]))
            pairs.append((one, two))
            groups.append(key)
        rest, other = alone, [found for left in waiting.values() for found in reversed(left)]
    return pairs, groups, (len(rest), len(other))
