"""Read and check files of labelled sentences, and keep one fold of them.

The files are JSON Lines with ``reference``, ``sentence`` and ``label`` (one of the four, or "unsupported" in
supported/unsupported sources), and optionally ``id``, ``source``, ``question``, ``answer``, ``lang`` or
``language``, ``fragments`` (verbatim pieces of the reference) and ``correction`` (a whole sentence). A bad
line is left out and kept apart with its problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from annotators.evaluation import LabelledSentence, labelled
from annotators.metrics import GOLD_LABELS
from annotators.splits import FOLD_NAMES, GROUP_FIELDS, N_FOLDS, fold_of, group_rows
from mitigate.jsonl import Line, Problem, Record, check_text, read_lines, shown

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
    problems = check_text(record, "sentence", required=True)
    problems += check_text(record, "reference", required=True, empty=True)
    for name in ("question", "answer", "correction"):
        problems += check_text(record, name, required=False, empty=True)
    for name in ("source", "lang", "language"):
        problems += check_text(record, name, required=False)
    label = record.get("label")
    if not isinstance(label, str) or label not in GOLD_LABELS:
        value = shown(label) if "label" in record else None
        problems.append(Problem("label", value, f"one of {', '.join(GOLD_LABELS)}"))
    pieces = record.get("fragments")
    if pieces is not None and not (isinstance(pieces, list) and all(isinstance(p, str) for p in pieces)):
        problems.append(Problem("fragments", shown(pieces), "a list of strings or null"))
    return problems


def parse_fold(name: str) -> tuple[int, ...] | None:
    """Fold numbers of "test", "dev", "train" or "0" to "4"; None for "all".

    Raises:
        ValueError: It is none of these.
    """
    if name == "all":
        return None
    if name in FOLD_NAMES:
        return FOLD_NAMES[name]
    if name in map(str, range(N_FOLDS)):
        return (int(name),)
    raise ValueError(f"expected {', '.join(FOLD_NAMES)}, all, or 0 to {N_FOLDS - 1}; got {name!r}")


def fold_files(paths: Iterable[Path]) -> list[Path]:
    """The files over which folds are computed: every ``*.jsonl`` beside the given ones and in siblings.

    Siblings are the folders ``sentences``, ``binary`` and ``spans`` beside a given file's folder, as rows of
    one document recur across them. ``*.rejected.jsonl`` is no data.
    """
    given = {path.resolve() for path in paths}
    folders = {path.parent for path in given}
    folders |= {folder.parent / name for folder in folders for name in FOLDERS}
    found = {file.resolve() for folder in folders for file in folder.glob("*.jsonl")}
    return sorted(given | {file for file in found if not file.name.endswith(".rejected.jsonl")})


def read_labelled(paths: Sequence[Path], folds: Sequence[int] | None = None) -> LabelledFiles:
    """Read files of labelled sentences.

    With ``folds``, groups and folds are computed over whole data sets (see :func:`fold_files`), so the fold
    of a row does not depend on which of the files are given; every line that is a JSON object takes part in
    the grouping, also one without a label. Without, groups join the rows of these files only.

    Args:
        paths: JSON Lines files.
        folds: Fold numbers to keep; None keeps all rows.

    Raises:
        UsageError: A file cannot be read.
    """
    places: list[tuple[Path, int]] = []
    records: list[Record] = []
    rejected: list[tuple[Path, Line]] = []
    for path in paths:
        for line in read_lines(path, check_labelled):
            if line.record is None:
                rejected.append((path, line))
            else:
                places.append((path, line.number))
                records.append(line.record)
    files = fold_files(paths) if folds is not None else []
    groups = _groups(places, files) if files else group_rows([_texts(record) for record in records])
    files_of = [str(path) for path, _ in places]
    names = [path.name.split(".")[0] for path, _ in places]
    sources = [record.get("source") or name for record, name in zip(records, names, strict=True)]
    rows = labelled(records, files_of, groups, sources)
    kept = rows if folds is None else [row for row in rows if fold_of(str(row.group)) in folds]
    return LabelledFiles(kept, len(rows), rejected, files)


def _groups(places: Sequence[tuple[Path, int]], files: Iterable[Path]) -> list[str]:
    """The group of each (file, line), over all lines of the files."""
    keys: list[tuple[Path, int]] = []
    texts: list[dict[str, str]] = []
    for path in files:
        for line in read_lines(path, lambda _: []):
            if line.record is not None:
                texts.append(_texts(line.record))
                keys.append((path, line.number))
    group_of = dict(zip(keys, group_rows(texts), strict=True))
    resolved = {path: path.resolve() for path in {path for path, _ in places}}
    return [group_of[resolved[path], number] for path, number in places]


def _texts(record: Record) -> dict[str, str]:
    """What rows are grouped by, without lone surrogates, which no hash takes."""
    known = ((name, record.get(name)) for name in (*GROUP_FIELDS, "id"))
    return {k: v.encode("utf-8", "replace").decode() for k, v in known if isinstance(v, str)}
