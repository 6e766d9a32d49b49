"""Made-up texts: their sentences are true, false or open by the values that they were made of."""

from random import Random

import pytest

from annotators.verifier import worlds
from annotators.verifier.data import CONTRADICTORY, SUPPORTED, UNVERIFIABLE

HOTEL = {
    "subject": ["the {p} Hotel"],
    "it": "the hotel",
    "facts": [
        {
            "keys": ["a single room", "a double room", "the suite"], "slots": {"v": "price"},
            "say": ["{k} costs {v}", "one pays {v} for {k}"], "more": ["{k} costs more than {l}"],
        },
        {"say": ["pets are welcome", "animals may come"], "deny": ["pets are forbidden", "animals may not come"]},
        {"slots": {"a": "time", "b": "time"}, "say": ["{s} opens at {a} and closes at {b}", "doors: {a} to {b}"]},
        {"say": ["all pay", "everybody pays"], "deny": ["nobody pays", "only some pay"], "unlike": True},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "forms"), [
    ("time", 9 * 60, ["9:00", "9 a.m."]), ("time", 12 * 60 + 30, ["12:30", "12:30 p.m."]),
    ("time", 20 * 60, ["20:00", "8 p.m."]), ("price", 40, ["€40", "40 euros"]), ("small", 12, ["12", "twelve"]),
    ("count", 13, ["13"]), ("large", 1200, ["1,200"]), ("year", 1999, ["1999"]), ("date", 31 + 27, ["28 February",
    "February 28"]), ("floor", 0, ["first"]), ("stop", 0, ["second"]), ("weekday", 6, ["Sunday"]),
])  # fmt: skip
def test_values_are_written_by_hand(kind: str, value: int, forms: list[str]) -> None:
    assert list(worlds.KINDS[kind].forms(value)) == forms


def price(sentence: str) -> int:
    (found,) = [int(word.strip("€.")) for word in sentence.split() if word.strip("€.").isdigit()]
    return found


def test_verdicts_follow_from_the_text() -> None:
    kinds = set()
    for seed in range(300):
        text = worlds._Text(HOTEL, Random(seed))
        told = " ".join(text.passages)
        assert told.count(".") >= len(text.passages)
        prices = {one.key: one.values["v"] for one in text.stated if "keys" in one.fact}
        for example in text.examples("t"):
            said, target = example.sentence, example.target
            assert said[0].isupper() or said[0] == "€"
            assert example.passages == text.passages
            key = next((k for k in HOTEL["facts"][0]["keys"] if k in said.lower()), None)  # type: ignore[index]
            if " more than " in said:
                first, second = (side.lower() for side in said.rstrip(".").split(" costs more than "))
                assert target == (SUPPORTED if prices[first] > prices[second] else CONTRADICTORY)
                kinds.add("compared")
            elif key is not None and key in prices:
                assert target == (SUPPORTED if price(said) == prices[key] else CONTRADICTORY)
                kinds.add("bound" if target and price(said) in prices.values() else "priced")
            elif key is not None:
                assert target == UNVERIFIABLE
                kinds.add("open")
            elif "ets are" in said or "nimals may" in said:
                stated = [one for one in text.stated if one.fact is HOTEL["facts"][1]]  # type: ignore[index]
                denies = "forbidden" in said or "not" in said
                wanted = UNVERIFIABLE if not stated else SUPPORTED if stated[0].denied == denies else CONTRADICTORY
                assert target == wanted
                kinds.add("turned")
            for a, b in example.spans or ():
                assert target == CONTRADICTORY
                assert said[a:b]
            if target == SUPPORTED:
                assert said.rstrip(".") not in told  # in other words
                assert said != "Only some pay."  # beside "Nobody pays."
    assert kinds == {"compared", "bound", "priced", "open", "turned"}


def test_shipped_worlds_can_all_be_told() -> None:
    """Every fact is stated and asked about; nothing is left of the patterns."""
    made = worlds.texts(400, 0)
    assert made == worlds.texts(400, 0) != worlds.texts(400, 1)
    assert not any("{" in part for e in made for part in (e.question, e.sentence, *e.passages))
    targets = [e.target for e in made]
    assert min(targets.count(target) for target in (SUPPORTED, CONTRADICTORY)) > len(made) / 3
    assert targets.count(UNVERIFIABLE) > len(made) / 20
    told = {passage.split(".")[0] for e in made for passage in e.passages}
    assert len(told) > 1000
