"""Training: synthetic edits are false by one thing, fold 0 stays out, the whole path learns."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from annotators import LABELS
from annotators.evaluation.splits import FOLD_NAMES
from annotators.text.words import OPPOSITES
from annotators.verifier.annotator import DiscriminativeAnnotator
from annotators.verifier.features import words_of
from annotators.verifier.synthetic import FRAMES, SMALL_TALK, edit
from annotators.verifier.training import (
    SOURCES,
    TALK_REFERENCES,
    calibrate,
    fit_combiner,
    fit_idf,
    read_rows,
    synthetic,
    usable,
    windows,
)
from engines.embedding import Embedder
from tests.helpers.labelled_data import DATA, TRAINABLE

REFERENCE = (
    "The Alder Bridge was opened in May 1902 by Queen Maud. It is 134 metres long and was not painted until 1950."
)


@pytest.mark.parametrize(
    "sentence",
    [
        "The bridge was opened in 1902.",
        "The bridge was opened by Queen Maud.",
        "The bridge is 134 metres long.",
        "It was first opened in May.",
        "The bridge was not painted until 1950.",
    ],
)
def test_edits_change_one_thing(sentence: str) -> None:
    made = {edit(sentence, REFERENCE, Random(seed)) for seed in range(60)} - {None}
    assert len(made) >= 2
    before = words_of(sentence).lower
    for text in made:
        assert text is not None
        assert text != sentence
        after = words_of(text).lower
        frame = any(set(words_of(f.format("")).lower) <= set(after) for f in FRAMES)
        # framed, or one word (or a name of some words) exchanged, put in or taken out
        assert frame or abs(len(after) - len(before)) <= 2
        common = sum(word in after for word in before)
        assert frame or common >= len(before) - 2


def test_numbers_in_edits_are_not_in_the_reference() -> None:
    for seed in range(200):
        text = edit("It has 134 rooms.", "The house has 134 rooms, 150 windows and 99 doors.", Random(seed))
        if text is not None and "134" not in text and text.startswith("It has "):
            assert words_of(text).numbers[2] not in {"134", "150", "99"}


def test_no_edit_where_none_applies() -> None:
    assert all(
        edit("They walked slowly.", "They walked slowly.", Random(seed)) is None
        or "walked slowly" in str(edit("They walked slowly.", "They walked slowly.", Random(seed)))
        for seed in range(50)
    )


def test_opposites_are_no_fixed_points() -> None:
    assert all(word != other for word, other in OPPOSITES.items())


def rows_of(fold: int, label: str, n: int) -> list[dict[str, object]]:
    reference = "The Alder Bridge was opened in May 1902. It is 134 metres long. Anna Berg designed it."
    sentence = {
        "supported": "The bridge is {} and 134 metres long.",
        "contradictory": "The bridge is {} and 999 metres long.",
        "unverifiable": "Its keeper {} bred dogs in Wales.",
        "no_fact": "I like {} very much, do you?",
    }[label]
    word = "old grand steel famous big wide narrow busy quiet grey".split()
    return [
        {"id": f"{fold}{label}{i}", "source": "made", "lang": "en", "fold": fold, "label": label, "question": None,
         "reference": reference, "sentence": sentence.format(word[i % 10])}
        for i in range(n)
    ]  # fmt: skip


def test_synthetic_rows_come_from_training_folds_only() -> None:
    rows = [row for fold in range(5) for row in rows_of(fold, "supported", 4)]
    extra, parents = synthetic(rows)
    talk = [row for row in extra if row["label"] == "no_fact"]
    edits = extra[: len(extra) - len(talk)]
    assert len(parents) == len(extra)
    assert len(edits) == 12
    assert {rows[i]["fold"] for i in parents} == {2, 3, 4}
    assert {row["label"] for row in edits} == {"contradictory"}
    assert all(new["reference"] == rows[i]["reference"] for new, i in zip(extra, parents, strict=True))
    assert len(talk) == TALK_REFERENCES * len(SMALL_TALK)
    assert {row["label"] for row in talk} == {"no_fact"}
    assert not any("{" in row["sentence"] for row in talk)
    assert synthetic(rows) == (extra, parents)


def test_the_whole_path_learns(tmp_path: Path) -> None:
    """Made-up rows whose labels follow simple rules: after training, unseen rows of fold 1 are judged right."""
    rows = [row for fold in (1, 2, 3, 4) for label in LABELS for row in rows_of(fold, label, 30)]
    embedder = Embedder(dtype="float32")
    idf = fit_idf([row for row in rows if row["fold"] != 1])
    table, passages = windows(rows, idf, embedder, tmp_path)
    again, same = windows(rows, idf, embedder, tmp_path)
    assert np.array_equal(table.features, again.features)
    assert passages == same
    assert len(passages) == len(rows)
    assert all(text in row["reference"] for row, texts in zip(rows, passages, strict=True) for text in texts)
    combiner = calibrate(fit_combiner(table, FOLD_NAMES["train"]), table, None, None)
    annotator = DiscriminativeAnnotator(combiner, idf, embedder)
    unseen = [row for row in rows if row["fold"] == 1]
    right = [a.label == row["label"] for a, row in zip(annotator.predict(unseen), unseen, strict=True)]
    assert np.mean(right) > 0.8
    assert 0.5 <= float(combiner.tensors["threshold"]) <= 0.8


def test_sources_are_the_english_trainable_ones() -> None:
    assert set(SOURCES) == TRAINABLE - {"uhgeval", "kdconv", "wice_tokens"}


def test_rows_for_shipped_weights_exclude_fold_0() -> None:
    if not (DATA / "sentences").is_dir():
        pytest.skip("skipped: data not here")
    rows = [row for row in read_rows(DATA) if usable(row, SOURCES)]
    train = [row for row in rows if row["fold"] != 0]
    extra, parents = synthetic(train)
    test_texts = {row["sentence"] for row in rows if row["fold"] == 0}
    test_references = {row["reference"] for row in rows if row["fold"] == 0}
    assert {row["source"] for row in rows} <= set(SOURCES)
    assert not test_references & {row["reference"] for row in [*train, *extra]}
    assert not test_texts & {train[i]["sentence"] for i in parents}
