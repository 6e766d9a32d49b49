"""The baselines by hand on a few rows, and the cosine with the packaged MiniLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.baselines import chooses_threshold, cosine, judged, majority, ngram_overlap, table, with_threshold
from engines.embedding import Embedder


def _row(label: str, source: str = "fm2", fold: int = 1, **more: Any) -> dict[str, Any]:
    return {"source": source, "fold": fold, "label": label, "file": f"sentences/{source}", "group": "g", **more}


def test_ngram_overlap_by_hand() -> None:
    rows = [
        # the, cat, sat, the cat, cat sat, the cat sat: all but "sat", "cat sat" and the three together: 3 of 6.
        {"sentence": "The cat sat.", "reference": "THE CAT, a dog."},
        # a, b, a b, b a, a b a, b a b (each once): of "a b" it has a, b, a b: 3 of 6.
        {"sentence": "a b a b", "reference": "a b"},
        {"sentence": "...", "reference": "a b"},  # no words
        {"sentence": "word", "reference": ""},
    ]
    support = ngram_overlap(rows)
    assert support[[0, 1, 3]] == pytest.approx([0.5, 0.5, 0.0])
    assert np.isnan(support[2])


def test_majority_counts_the_training_folds_of_trainable_four_way_sources() -> None:
    training = [
        _row("contradictory", fold=2),
        _row("contradictory", fold=4),
        _row("supported", fold=3),
        *[_row("supported", fold=0)] * 5,  # the test fold
        *[_row("supported", fold=1)] * 5,  # the development fold
        *[_row("supported", "healthver", fold=2)] * 5,  # not trainable
        *[_row("supported", "begin", fold=2, file="binary/begin")] * 5,  # two-way
    ]
    assert majority([_row("supported")] * 2, training).labels == ["contradictory"] * 2


def test_thresholds_are_chosen_on_fold_1_with_every_source_alike() -> None:
    rows = [
        # The large source alone would choose 0.6 (2 of 2 and 4 of 4) …
        _row("supported", "fm2"), _row("supported", "fm2"), *[_row("unverifiable", "fm2")] * 4,
        # … but at 0.6 the small one is all wrong (0 of 1 and 0 of 1 right), the mean (1 + 0) / 2 = 0.5; at 0.25 the
        # large one has 2 of 2 and 0 of 4, the small one 1 of 1 and 0 of 1: 0.5 too, at 0.85 the same; at 0.95 the
        # large one has 0 of 2 and 4 of 4, the small one 0 of 1 and 1 of 1: 0.5; at 0.35 the large one has 2 of 2
        # and 2 of 4, the small one 1 of 1 and 0 of 1: (0.75 + 0.5) / 2 = 0.625, the best.
        _row("supported", "wice"), _row("contradictory", "wice"),
        _row("supported", "expertqa"),  # one class only: no part in the choice
        _row("supported", "fm2", fold=0), _row("unsupported", "healthver"), _row("no_fact", "fm2"),
    ]  # fmt: skip
    support = np.array([0.7, 0.7, 0.3, 0.3, 0.5, 0.5, 0.4, 0.9, 0.1, 0.34, 0.36, np.nan])
    found = with_threshold("test", rows, support)
    assert found.threshold == pytest.approx((0.3 + 0.4) / 2)
    assert found.labels[-3:] == ["unsupported", "supported", None]
    with pytest.raises(ValueError, match="expected rows of fold 1 of trainable sources, of both classes"):
        with_threshold("test", rows[-3:], support[-3:])


def test_rows_that_are_needed() -> None:
    rows = [_row("supported", fold=f) for f in range(5)] + [_row("supported", "healthver", fold=f) for f in (0, 1)]
    assert [(row["source"], row["fold"]) for row in judged(rows)] == [("fm2", 0), ("fm2", 1), ("healthver", 0)]
    assert not chooses_threshold(_row("supported", "healthver"))


def test_cosine_takes_the_nearest_sentence() -> None:
    reference = "Omar Khayyam was born in Nishapur. Bread is made from flour and water."
    rows = [
        {"sentence": "Bread is made from flour and water.", "reference": reference},
        {"sentence": "Flour and water make bread.", "reference": reference},
        {"sentence": "Stock markets fell sharply on Monday.", "reference": reference},
        {"sentence": "Bread is made from flour and water.", "reference": " "},
    ]
    support = cosine(rows, Embedder(device="cpu", dtype="float32"))
    assert support[0] == pytest.approx(1, abs=1e-5)
    assert 0.8 < support[1] < 0.99
    assert support[2] < 0.3
    assert np.isnan(support[3])


def test_the_table_has_the_figures_of_the_test_fold() -> None:
    rows = [
        _row("supported", fold=0, group="a"), _row("contradictory", fold=0, group="b"),
        _row("unverifiable", fold=0, group="c"), _row("no_fact", fold=0, group="d"),
        _row("supported"), _row("contradictory"), _row("supported", "healthver", fold=0),
    ]  # fmt: skip
    # Threshold 0.5; on fold 0: supported 1 of 1, hallucinated 1 of 2; 0.8 ties 0.8 and beats 0.1: AUC 0.75.
    found = with_threshold("mine", rows, np.array([0.8, 0.8, 0.1, 0.0, 0.6, 0.4, 0.9]))
    head, _, line, *means = table(rows, [found])
    assert head == "| source | n | mine: balanced acc. | mine: AUC |"
    assert line == "| fm2 | 3 | 0.750 | 0.750 |"
    assert [mean.split("|")[1].strip() for mean in means] == [
        "**mean over all 1 sources**",
        "**mean over the 1 trainable sources**",
    ]
