"""A corpus scored part by part has the scores of the whole, bit by bit, whatever the options and the cuts."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from fewl.records import read_record
from fewl.score import FewlOptions, neighbours_of, score_records
from fewl.similarity import char_tfidf, character_grams, from_function, new_words, words
from fewl.surroundings import Whole
from tests.test_fewl_score import dot, encode, random_records

one_by_one = from_function(
    lambda candidates, references, _: [dot(a, b) for a, b in zip(candidates, references, strict=True)]
)


def in_parts(records, options, similarity_of, cut, items_of=None):
    """Every part scored by itself, in a random order of parts."""
    whole = Whole(options.references, options.weak, items_of)
    for record in records:
        whole.add(read_record(record))
    questions = whole.questions
    table = dict(zip(questions, neighbours_of(encode(questions), options), strict=True))
    rows = []
    counts = {"scored": 0, "questions_without_neighbours": 0, "pairs_not_compared": 0}
    for start in range(0, len(records), cut):
        part = records[start : start + cut]
        around = whole.around({r["question"]: table[r["question"]] for r in part}, questions)
        scored, report = score_records(
            part, similarity=similarity_of(whole), options=options, surroundings=around
        )
        rows += scored
        for name in counts:
            counts[name] += getattr(report, name)
    return rows, counts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expertise": "similarity", "aggregation": "eq6", "penalty_of": "reference"},
        {"neighbours": 3, "references": "single:two"},
        {"neighbour_choice": "random", "neighbours": 4, "weak": ("three",), "divergence": "js"},
        {"penalty": False, "expertise": "ideal"},
    ],
    ids=str,
)
@pytest.mark.parametrize("cut", [1, 4])
def test_parts_are_scored_as_the_whole(options, cut):
    records = random_records(3)
    for record in records[::3]:
        record["answers"][0]["label"] = True
        record["answers"][1]["label"] = False
    chosen = FewlOptions(**options)
    scored, report = score_records(records, similarity=one_by_one, encode=encode, options=chosen)
    rows, counts = in_parts(records, chosen, lambda _: one_by_one, cut)
    assert [json.dumps(row) for row in rows] == [json.dumps(row) for row in scored]
    assert counts == {name: getattr(report, name) for name in counts}


def test_frequencies_of_the_corpus():
    """Words and character n-grams are as common as in all texts that are compared, other LLMs' answers left out."""
    records = random_records(4)
    records[0]["answers"][0]["text"] = "Ärger \ud800 twice twice"  # a lone surrogate does no harm
    options = FewlOptions(references="single:two", weak=("one",))
    whole_scored, _ = score_records(records, similarity=new_words, encode=encode, options=options)
    rows, _ = in_parts(
        records, options, lambda whole: partial(new_words, frequencies=whole.frequencies), 3, words
    )
    assert [json.dumps(row) for row in rows] == [json.dumps(row) for row in whole_scored]
    texts = ["a stone bridge", "an old stone", "a stone bridge over the river"]
    whole = Whole(items_of=character_grams)
    for text in (*texts, texts[0]):
        whole.add(read_record({"question": text, "answers": [{"text": " "}]}))
    assert whole.frequencies.texts == 3
    of_parts = np.concatenate([char_tfidf(256, whole.frequencies)([text]) for text in texts])
    np.testing.assert_array_equal(of_parts, char_tfidf(256)(texts))


def test_a_part_does_not_know_the_mean_of_the_corpus():
    whole = Whole()
    whole.add(read_record(random_records(0)[0]))
    with pytest.raises(ValueError, match="expertise_scope: expected question"):
        score_records(
            random_records(0)[:1],
            similarity=one_by_one,
            options=FewlOptions(expertise_scope="dataset"),
            surroundings=whole.around({}, []),
        )
