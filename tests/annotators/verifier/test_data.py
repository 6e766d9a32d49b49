"""What the verifier learns from: pairs beside other texts and without held-out ones, labels with weights, files."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from annotators.verifier import data
from annotators.verifier.data import UNSUPPORTED, Example
from tests.helpers.jsonl import read_rows, write_rows


def words(texts: list[str]) -> Any:
    places = [[m.span() for m in re.finditer(r"\S+", text)] for text in texts]
    return [(np.arange(len(p)), np.array(p, dtype=np.int64).reshape(-1, 2)) for p in places]


def pair(claim: str, evidence: str, label: str, group: str = "g") -> dict[str, str]:
    return {"source": "vitaminc", "claim": claim, "evidence": evidence, "label": label, "group": group}


def test_pairs_with_held_out_texts_are_left_out(tmp_path: Path) -> None:
    texts = ("The mill has 3 wheels.", "It has three wheels."), ("It is new.", "It is new.")
    leak = pair("It is old.", "The mill was built in the year 1902. It burnt.", "supported")
    rows = [leak, *(pair(claim, evidence, "supported") for claim, evidence in texts)]
    write_rows(tmp_path / "pairs" / "vitaminc.jsonl", rows)
    held_out = [{"sentence": "the mill has  3 wheels.", "reference": "The mill was built in the year 1902. It is new."}]
    kept = data.read_pairs(tmp_path, ["vitaminc"], held_out)
    assert [row["claim"] for row in kept] == ["It is new."]  # short sentences of evidence are no leak


def test_cases_are_one_claim_or_one_evidence() -> None:
    labels, red = ("supported", "contradictory"), "The house is painted red."
    rows = [
        pair("It has 3 wheels.", f"There are {n} wheels.", x) for n, x in zip(("three", "four"), labels, strict=True)
    ]
    rows += [pair(f"It is {colour}.", red, x, "h") for colour, x in zip(("red", "blue"), labels, strict=True)]
    made = [e for e in data.pair_examples(rows, 0) if e.target != 2]
    wheels = [("It has 3 wheels.", 0), ("It has 3 wheels.", 1)]
    assert sorted((e.sentence, e.target) for e in made) == [*wheels, ("It is blue.", 1), ("It is red.", 0)]
    cases = {e.sentence: e.case for e in made}
    assert (len(set(cases.values())), cases["It is red."]) == (2, cases["It is blue."])


def test_buried_evidence_is_among_unlike_texts() -> None:
    pool = [f"Ship {n} left the port of Lisbon with {n} sailors." for n in range(30)]
    pool += ["The gold coin was minted in Rome."]
    for seed in range(20):
        found = data.buried("The gold coin was struck in Rome.", "The coin is from Rome.", pool, Random(seed))
        assert found.count("The gold coin was struck in Rome.") == 1
        assert "The gold coin was minted in Rome." not in found  # may be a revision of the evidence
        assert sum(len(text.split()) for text in found) <= data.MOST_WORDS
    lengths = {len(data.buried("A.", "B.", pool, Random(seed))) for seed in range(30)}
    assert len(lengths) > 2


def test_row_weights_by_hand() -> None:
    # source a: 4 rows, 1 supported, 3 hallucinated; source b: 1 supported; a cell weighs (its source)^½ / its rows
    raw = [2 / 1, 2 / 3, 2 / 3, 2 / 3, 1.0]
    found = data.row_weights(["a", "a", "a", "a", "b"], [0, 1, 2, UNSUPPORTED, 0])
    assert found == pytest.approx([5 * weight / sum(raw) for weight in raw])


def test_changed_words_by_hand() -> None:
    before, after = "It was opened in 1902 by Maud.", "It was closed in 1903 by Maud."
    assert [after[a:b] for a, b in data.changed(before, after)] == ["closed", "1903"]
    assert data.changed(before, before) == ()
    cut = "It was opened by Maud."  # "in 1902" is gone: the words around it
    assert [cut[a:b] for a, b in data.changed(before, cut)] == ["opened by"]


def test_corrections_are_supported_examples_of_the_case(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "1", "label": "supported", "source": "summedits", "sentence": "It is long.", "question": None},
        {"id": "2", "label": "unsupported", "source": "summedits", "sentence": "It is very short.",
         "question": "How long?", "correction": "It is very long."},
        {"id": "3", "label": "unsupported", "source": "begin", "sentence": "It is red.", "question": None,
         "correction": "It is quite blue."},
    ]  # fmt: skip
    reference = "The bridge is very long. " + "Nothing else is said here. " * 9
    made = data.labelled_examples([{**row, "reference": reference} for row in rows], words, 12)
    assert [(e.sentence, e.target, e.spans) for e in made] == [
        ("It is long.", 0, ()), ("It is very short.", UNSUPPORTED, ((11, 16),)), ("It is very long.", 0, ()),
        ("It is red.", UNSUPPORTED, None),
    ]  # fmt: skip
    assert made[1].case == made[2].case != ""
    assert made[1].question == "How long?"
    assert all(sum(len(p.split()) for p in e.passages) <= 12 for e in made)
    assert "The bridge is very long." in made[1].passages
    data.write_examples(made, tmp_path / "e.jsonl")
    assert data.read_examples(tmp_path / "e.jsonl") == made
    assert isinstance(made[0], Example)


def test_sentences_about_texts_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passage = "The pool opens at 7. The sauna opens at 9. Dogs may not come in."
    told = [["It opens at 7.", "It opens at 9."], ["No dogs.", "Dogs may come."]]
    rows = [
        {"topic": f"t{n}", "question": f"{n}?", "passage": passage, "pairs": told, "open": ["Entry is 5 €."]}
        for n in range(40)
    ]
    write_rows(tmp_path / "texts.jsonl", rows)
    monkeypatch.setattr(data, "TEXTS", tmp_path / "texts.jsonl")
    made = data.text_examples(99)
    watched = {row["topic"] for row in rows if data.watched_text(row)}
    assert 0 < len(watched) < 10
    assert len(made) == 5 * (40 - len(watched))
    assert [(e.sentence, e.target, e.spans) for e in made[:5]] == [
        ("It opens at 7.", 0, ()), ("It opens at 9.", 1, ((12, 13),)), ("No dogs.", 0, ()),
        ("Dogs may come.", 1, ((0, 4), (5, 13))), ("Entry is 5 €.", 2, None),
    ]  # fmt: skip
    assert {e.passages for e in made} == {("The pool opens at 7. The sauna opens at 9. Dogs may not come in.",)}
    assert [e.case for e in made[:10:4]] == ["text t0", "text t0", "text t1"]  # sentences about one text are a case
    assert {e.question for e in data.text_examples(2)} == {"0?", "1?"}  # the first ones
    assert [row["topic"] in watched for row in rows[:28]] == [False] * 27 + [True]
    assert len(data.text_examples(28)) == 135  # which the watched one counts among


def test_shipped_texts_are_whole() -> None:
    texts = [json.loads(line) for line in data.TEXTS.read_bytes().splitlines()]
    assert len({text["topic"] for text in texts}) == len({text["passage"] for text in texts}) == len(texts) > 300
    for text in texts:
        assert set(text) == {"topic", "question", "passage", "pairs", "open"}
        assert 60 <= len(text["passage"].split()) <= 260
        said = [sentence for pair in text["pairs"] for sentence in pair] + text["open"]
        assert len(set(said)) == len(said) == 2 * len(text["pairs"]) + len(text["open"]) > 18
    files = (Path(__file__).parents[3] / "benchmarks").glob("*.jsonl")
    asked = {value for path in files for row in read_rows(path) for value in row.values() if isinstance(value, str)}
    assert len(asked) > 1000
    assert not asked & {sentence for t in texts for pair in (*t["pairs"], t["open"]) for sentence in pair}
    assert 0.07 < sum(map(data.watched_text, texts)) / len(texts) < 0.13
