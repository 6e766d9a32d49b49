"""Judge an annotator by labelled sentences: ask it, without showing it the labels, and compute the figures.

What the figures mean stands in ``annotators/metrics.py``; files are read by ``mitigate/labelled.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from annotators.intervals import Statistic, bootstrap, mean_of
from annotators.metrics import UNSUPPORTED, statistics, summarise
from annotators.records import HALLUCINATED, Annotator, SentenceAnnotation

SHOWN_TO_ANNOTATOR = ("id", "question", "reference", "answer", "sentence", "lang", "language")
CHUNK = 256
MEANS = (
    "coverage",
    "auc",
    "balanced_accuracy",
    "balanced_accuracy_checked",
    "ece",
    "accuracy",
    "accuracy_checked",
    "macro_f1",
    "balanced_accuracy_4way",
    "ece_4way",
)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LabelledSentence:
    """A row to judge. ``two_way``: its source is supported/unsupported, so it enters no four-way figure."""

    row: Mapping[str, Any]
    source: str
    language: str
    two_way: bool
    group: Hashable


def labelled(
    rows: Sequence[Mapping[str, Any]],
    files: Sequence[str],
    groups: Sequence[str],
    sources: Sequence[str] | None = None,
) -> list[LabelledSentence]:
    """Rows with what evaluation must know of them.

    A source is two-way in a file where it has an "unsupported" row, so hand over whole files, then choose.

    Args:
        rows: (n,) with ``reference``, ``sentence``, ``label`` and maybe ``source``, ``lang`` or ``language``.
        files: (n,) the file of each row, under any name.
        groups: (n,) of :func:`annotators.splits.group_rows`.
        sources: (n,) instead of the rows' own ``source``.
    """
    names = list(sources) if sources is not None else [row.get("source") or "unknown" for row in rows]
    places = list(zip(files, names, strict=True))
    two_way = {place for place, row in zip(places, rows, strict=True) if row["label"] == UNSUPPORTED}
    return [
        LabelledSentence(
            row, name, row.get("language") or row.get("lang") or "unknown", (file, name) in two_way, group
        )
        for row, (file, name), group in zip(rows, places, groups, strict=True)
    ]


def predict(
    annotator: Annotator, rows: Sequence[LabelledSentence], progress: Progress | None = None
) -> list[SentenceAnnotation]:
    """Ask the annotator in chunks of 256 rows; it gets the texts, never labels, fragments or corrections.

    Raises:
        ValueError: It returned another number of judgements than it got rows.
    """
    judged: list[SentenceAnnotation] = []
    for start in range(0, len(rows), CHUNK):
        chunk = [
            {k: r.row[k] for k in SHOWN_TO_ANNOTATOR if r.row.get(k) is not None}
            for r in rows[start : start + CHUNK]
        ]
        answers = annotator.predict(chunk)
        if len(answers) != len(chunk):
            raise ValueError(f"{annotator.name}: expected {len(chunk)} judgements, got {len(answers)}")
        judged += answers
        if progress:
            progress(len(judged), len(rows))
    return judged


def evaluate(
    rows: Sequence[LabelledSentence],
    judged: Sequence[SentenceAnnotation],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures: ``overall`` (every row alike), ``mean_over_sources`` (every source alike), and by part.

    Returns:
        ``overall``, ``sources`` and ``languages`` hold what :func:`annotators.metrics.summarise` returns,
        with ``evidence``; ``mean_over_sources`` {figure: {"value", "interval", "n_sources"}}, over the
        sources where the figure exists; ``labels`` by gold label; ``statuses`` counts of checked and why
        not.
    """
    predicted = [a.label if a.status == "checked" else None for a in judged]
    scores = [a.scores if a.status == "checked" else None for a in judged]

    def part(numbers: Sequence[int]) -> dict[str, Any]:
        some, answers = [rows[i] for i in numbers], [judged[i] for i in numbers]
        return {
            **summarise(
                [r.row["label"] for r in some],
                [predicted[i] for i in numbers],
                [scores[i] for i in numbers],
                two_way_only=[r.two_way for r in some],
                groups=[r.group for r in some],
                n_resamples=n_resamples,
                seed=seed,
            ),
            "evidence": evidence(some, answers),
        }

    sources = {name: part(numbers) for name, numbers in _by(rows, lambda r: r.source).items()}
    return {
        "overall": part(range(len(rows))),
        "mean_over_sources": _mean_over_sources(rows, predicted, scores, sources, n_resamples, seed),
        "sources": sources,
        "languages": {name: part(numbers) for name, numbers in _by(rows, lambda r: r.language).items()},
        "labels": {
            label: _of_label(label, [predicted[i] for i in numbers])
            for label, numbers in _by(rows, lambda r: r.row["label"]).items()
        },
        "statuses": dict(Counter(a.status for a in judged)),
    }


def evidence(rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation]) -> dict[str, Any]:
    """How much of the gold fragments the annotator's fragments hold, in characters of the reference.

    Over checked rows with gold fragments that are verbatim in the reference (of several places of one
    fragment, the one that is covered best counts). ``recall``: covered / gold characters; ``precision``:
    predicted characters that lie in gold / predicted characters, over rows with a prediction; both are
    means over rows, None without rows.
    """
    recalls: list[float] = []
    precisions: list[float] = []
    for r, answer in zip(rows, judged, strict=True):
        reference = r.row["reference"]
        pieces = [piece for piece in r.row.get("fragments") or [] if piece and piece in reference]
        if not pieces or answer.status != "checked":
            continue
        covered = np.zeros(len(reference), dtype=bool)
        for f in answer.fragments:
            covered[f.start : f.end] = True
        gold = np.zeros(len(reference), dtype=bool)
        for piece in pieces:
            places = _places(piece, reference)
            best = int(np.argmax([covered[s : s + len(piece)].sum() for s in places]))
            gold[places[best] : places[best] + len(piece)] = True
        recalls.append(float(covered[gold].mean()))
        if covered.any():
            precisions.append(float(gold[covered].mean()))
    return {
        "n": len(recalls),
        "recall": float(np.mean(recalls)) if recalls else None,
        "precision": float(np.mean(precisions)) if precisions else None,
    }


def _places(piece: str, text: str) -> list[int]:
    """Where a piece begins in a text, overlapping places too."""
    places = []
    start = text.find(piece)
    while start >= 0:
        places.append(start)
        start = text.find(piece, start + 1)
    return places


def _by(rows: Sequence[LabelledSentence], key: Callable[[LabelledSentence], str]) -> dict[str, list[int]]:
    """Row numbers of each value of a key, the values in alphabetical order."""
    parts: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        parts.setdefault(key(row), []).append(number)
    return dict(sorted(parts.items()))


def _of_label(label: str, predicted: Sequence[str | None]) -> dict[str, Any]:
    """What became of the rows of one gold label; "unsupported" is right where it was called hallucinated."""
    n = len(predicted)
    hallucinated = sum(p in HALLUCINATED for p in predicted)
    right = hallucinated if label == UNSUPPORTED else sum(p == label for p in predicted)
    return {
        "n": n,
        "coverage": sum(p is not None for p in predicted) / n,
        "recall": right / n,
        "called_hallucinated": hallucinated / n,
        "predicted": dict(sorted(Counter(p or "unchecked" for p in predicted).items())),
    }


def _mean_over_sources(
    rows: Sequence[LabelledSentence],
    predicted: Sequence[str | None],
    scores: Sequence[Mapping[Any, float] | None],
    sources: Mapping[str, Mapping[str, Any]],
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """The mean of each figure over the sources where it exists, with an interval where they have one."""
    parts: dict[str, list[tuple[Any, Statistic]]] = {}
    for numbers in _by(rows, lambda r: r.source).values():
        figures = statistics(
            [rows[i].row["label"] for i in numbers],
            [predicted[i] for i in numbers],
            [scores[i] for i in numbers],
            [rows[i].two_way for i in numbers],
        )
        for name, figure in figures.items():
            parts.setdefault(name, []).append((np.array(numbers), figure))
    means = {name: mean_of(part) for name, part in parts.items()}
    limits = bootstrap(means, [r.group for r in rows], n_resamples, seed)
    result = {}
    for name in MEANS:
        known = [source[name] for source in sources.values() if source[name] is not None]
        result[name] = {
            "value": float(np.mean(known)) if known else None,
            "interval": limits.get(name),
            "n_sources": len(known),
        }
    return result
