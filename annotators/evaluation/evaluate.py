"""Judges an annotator by labelled sentences: asks it without showing the labels, and computes the figures, or the
paired differences of two annotators; ``metrics.py`` says what they mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from annotators.base import Annotator
from annotators.evaluation import metrics
from annotators.evaluation.metrics import UNSUPPORTED, WITH_INTERVALS, statistics
from annotators.evaluation.texts import text_figures
from annotators.records import HALLUCINATED, JUDGED, SentenceAnnotation
from annotators.text.language import stated

SHOWN_TO_ANNOTATOR = ("id", "question", "reference", "answer", "sentence", "start", "lang", "language", "name",
                      "topic")  # fmt: skip
CHUNK = 256
MEANS = ("coverage", "auc", "balanced_accuracy", "balanced_accuracy_checked", "ece", "accuracy", "accuracy_checked",
         "macro_f1", "balanced_accuracy_4way", "ece_4way")  # fmt: skip
Ask = Callable[[Sequence[Mapping[str, Any]]], Sequence[SentenceAnnotation]]


@dataclass(frozen=True)
class LabelledSentence:
    """A row to judge. ``two_way``: its source is supported/unsupported, so it enters no four-way figure."""

    row: Mapping[str, Any]
    source: str
    language: str
    two_way: bool
    group: Hashable

    def shown(self, *, parametric: bool = False) -> dict[str, Any]:
        """What of the row an annotator gets, no labels, fragments or corrections; ``parametric``: nor the reference."""
        row = {key: self.row[key] for key in SHOWN_TO_ANNOTATOR if self.row.get(key) is not None}
        return row | ({"reference": "", "parametric": True} if parametric else {})


def labelled(
    rows: Sequence[Mapping[str, Any]], files: Sequence[str], groups: Sequence[str], sources: Sequence[str] | None = None
) -> list[LabelledSentence]:
    """(n,) rows with what evaluation must know of them; ``sources`` replace the rows' own ``source``.

    A source is two-way in a file where it has an "unsupported" row, so hand over whole files, then choose. ``groups``
    are those of :func:`annotators.evaluation.splits.group_rows`.
    """
    names = list(sources) if sources is not None else [row.get("source") or "unknown" for row in rows]
    places = list(zip(files, names, strict=True))
    two_way = {place for place, row in zip(places, rows, strict=True) if row["label"] == UNSUPPORTED}
    return [
        LabelledSentence(row, name, stated(row) or "unknown", (file, name) in two_way, group)
        for row, (file, name), group in zip(rows, places, groups, strict=True)
    ]


def predict(
    annotator: Annotator, rows: Sequence[LabelledSentence], progress: Callable[[int], object] | None = None, *,
    parametric: bool = False, ask: Ask | None = None,
) -> list[SentenceAnnotation]:  # fmt: skip
    """Ask the annotator in chunks of about ``CHUNK`` rows, those of one answer that stand together in one chunk.

    ``progress`` is called with the number of rows judged so far; ``parametric`` hides the reference, so that only what
    the model knows is left; ``ask`` stands in for the annotator's ``predict``. ValueError where the number of
    judgements is wrong.
    """
    judged: list[SentenceAnnotation] = []
    for start, end in _chunks(rows):
        chunk = [row.shown(parametric=parametric) for row in rows[start:end]]
        answers = (ask or annotator.predict)(chunk)
        if len(answers) != len(chunk):
            raise ValueError(f"{annotator.name}: expected {len(chunk)} judgements, got {len(answers)}")
        judged += answers
        if progress:
            progress(len(judged))
    return judged


def _chunks(rows: Sequence[LabelledSentence]) -> list[tuple[int, int]]:
    """Runs of at least CHUNK rows (the last may have fewer) that end with an answer's last row."""
    edges = [0]
    for i in range(1, len(rows)):
        same = rows[i].row.get("answer") is not None and rows[i].row.get("answer") == rows[i - 1].row.get("answer")
        if i - edges[-1] >= CHUNK and (not same or i - edges[-1] >= 2 * CHUNK):
            edges.append(i)
    return list(pairwise([*edges, len(rows)])) if rows else []


def judgement_lines(
    rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation], annotator: str, parametric: bool
) -> Iterator[dict[str, Any]]:
    """Lines for ``mitigate/labels.py``: what was asked about each row, its gold label, what the annotator said."""
    names = ("id", "split", "lang", "language", "question", "reference", "answer", "sentence", "start")
    for row, found in zip(rows, judged, strict=True):
        asked = {k: row.row[k] for k in names if row.row.get(k) is not None}
        said = {k: v for k, v in found.to_dict().items() if k not in ("text", "start", "end")}
        line = {**asked, "source": row.source, "gold": row.row["label"], "annotator": annotator}
        yield line | ({"parametric": True} if parametric else {}) | said


def evaluate(
    rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation], *, n_resamples: int = 1000, seed: int = 0,
    texts: bool = False, similarity: Sequence[float | None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """All figures: ``overall`` (every row alike), ``mean_over_sources`` (every source alike), and by part.

    ``overall``, ``sources``, ``languages`` and ``splits`` hold what :func:`annotators.evaluation.metrics.summarise`
    returns, and with ``texts`` the figures of annotations as texts, with BERTScore ``similarity`` of each row;
    ``mean_over_sources`` is {figure: {"value", "interval", "n_sources"}}; ``labels`` is by gold label; ``statuses``
    counts the checked rows and why the others are not.
    """

    def part(numbers: Sequence[int]) -> dict[str, Any]:
        groups = [rows[i].group for i in numbers]
        figures = metrics.summarise(
            **_columns(rows, judged, numbers), groups=groups, n_resamples=n_resamples, seed=seed
        )
        if texts:
            chosen = None if similarity is None else [similarity[i] for i in numbers]
            figures["texts"] = text_figures([rows[i].row for i in numbers], [judged[i] for i in numbers], chosen)
        return figures

    predicted = _columns(rows, judged, range(len(rows)))["predicted"]
    by_split = {name: part(numbers) for name, numbers in _splits(rows).items()}
    sources = {name: part(numbers) for name, numbers in _by(rows, lambda r: r.source).items()}
    return {
        "overall": part(range(len(rows))),
        "mean_over_sources": _mean_over_sources(rows, judged, sources, n_resamples, seed),
        "sources": sources,
        "languages": {name: part(numbers) for name, numbers in _by(rows, lambda r: r.language).items()},
        **({"splits": by_split} if by_split else {}),
        "labels": {
            label: _one_label(label, [predicted[i] for i in numbers])
            for label, numbers in _by(rows, lambda r: r.row["label"]).items()
        },
        "statuses": dict(Counter(a.status for a in judged)),
    }


def _by(rows: Sequence[LabelledSentence], key: Callable[[LabelledSentence], str]) -> dict[str, list[int]]:
    """Row numbers of each value of a key, the values in alphabetical order."""
    parts: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        parts.setdefault(key(row), []).append(number)
    return dict(sorted(parts.items()))


def _splits(rows: Sequence[LabelledSentence]) -> dict[str, list[int]]:
    return {name: numbers for name, numbers in _by(rows, lambda r: str(r.row.get("split") or "")).items() if name}


def _one_label(label: str, predicted: Sequence[str | None]) -> dict[str, Any]:
    """What became of the rows of one gold label; "unsupported" is right where it was called hallucinated."""
    right = sum(p in HALLUCINATED if label == UNSUPPORTED else p == label for p in predicted)
    became = dict(sorted(Counter(p or "unchecked" for p in predicted).items()))
    return {"n": len(predicted), "recall": right / len(predicted), "predicted": became}


def _mean_over_sources(
    rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation],
    sources: Mapping[str, Mapping[str, Any]], n_resamples: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """The mean of each figure over the sources where it exists, with an interval where they have one."""
    figures = [
        (np.array(numbers), statistics(**_columns(rows, judged, numbers)))
        for numbers in _by(rows, lambda r: r.source).values()
    ]
    means = {name: metrics.mean_of([(places, one[name]) for places, one in figures]) for name in WITH_INTERVALS}
    limits = metrics.bootstrap(means, [r.group for r in rows], n_resamples, seed)
    known = {name: [s[name] for s in sources.values() if s[name] is not None] for name in MEANS}
    return {
        name: {"value": float(np.mean(of)) if of else None, "interval": limits.get(name), "n_sources": len(of)}
        for name, of in known.items()
    }


def compare(
    rows: Sequence[LabelledSentence], first: Sequence[SentenceAnnotation], second: Sequence[SentenceAnnotation], *,
    n_resamples: int = 1000, seed: int = 0,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """first − second of each figure over the same draws: "overall", "language en", … → figure → difference."""
    languages = _by(rows, lambda r: r.language)
    parts = {"overall": list(range(len(rows)))}
    parts |= {f"language {name}": numbers for name, numbers in languages.items() if len(languages) > 1}
    parts |= {f"split {name}": numbers for name, numbers in _splits(rows).items()}
    out: dict[str, dict[str, Any]] = {}
    for part, numbers in parts.items():
        a, b = (statistics(**_columns(rows, judged, numbers)) for judged in (first, second))
        groups = [rows[i].group for i in numbers]
        out[part] = {"n": len(numbers)} | {
            name: metrics.paired_difference(a[name], b[name], groups, n_resamples, seed)
            for name in ("accuracy", "macro_f1", "balanced_accuracy", "auc")
        }
    return out


def _columns(
    rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation], numbers: Sequence[int]
) -> dict[str, Any]:
    """What figures of the rows with these numbers are computed from, by the names of ``summarise``."""
    some, answers = [rows[i] for i in numbers], [judged[i] for i in numbers]
    return {
        "gold": [r.row["label"] for r in some],
        "predicted": [a.label if a.status == "checked" else None for a in answers],
        "scores": [a.scores if a.status in JUDGED else None for a in answers],
        "two_way_only": [r.two_way for r in some],
    }
