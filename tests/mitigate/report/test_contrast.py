"""What differs between a claim and its evidence, by hand, and the sentence made of it."""

import pytest

from mitigate.report.contrast import contrast, reason
from tests.helpers.report_cases import sentence

FRAGMENT = [{"text": "x", "start": 0, "end": 1}]


@pytest.mark.parametrize(("claim", "passage", "ours", "theirs"), [
    ("Goods go back within 60 days of delivery.", "Goods go back within 30 days.", ["60", "delivery"], ["30"]),
    ("The shop is open on Sundays.", "The shop is not open on Sundays.", [], ["not"]),
    ("Prices rose by 5 percent in May.", "In May prices fell by 5 percent.", ["rose"], ["fell"]),
    ("The tower, built by Douglass, is 94 metres high.", "Douglass built the tower, 49 metres high.", ["94"], ["49"]),
    ("It opened in 1901.", "It opened in 1901.", [], []),
    ("商人用丝绸换取马匹。", "商人用茶叶换取西藏的马匹。", ["丝绸"], ["茶叶"]),
    ("售价为6999元。", "售价5999元，很贵。", ["为6999"], ["5999"]),
    ("2020年人口为1,189万。", "2020年人口为2189万。", ["1,189"], ["2189"]),
    ("iPhone 15长3.5米。", "iPhone 15长5.3米。", ["3.5"], ["5.3"]),
])  # fmt: skip
def test_words_that_differ_are_marked_on_both_sides(
    claim: str, passage: str, ours: list[str], theirs: list[str]
) -> None:
    found = contrast(claim, (passage,))
    assert [claim[a:b] for a, b in found.claim] == ours
    assert [passage[a:b] for a, b in found.passages[0]] == theirs


def test_words_are_looked_for_in_all_passages() -> None:
    found = contrast("Anna built the tower in 1901.", ("Anna was born in Bern.", "The tower was built in 1903."))
    assert [pair for pair in found.words if all(pair)] == [("1901", "1903")]
    assert found.passages == ([], [(23, 27)])
    # An unrelated passage has no counterparts, and a text too long to align still has its missing words.
    found = contrast("A voucher worth twenty euros.", ("Labels are free; from abroad one pays.",))
    assert found.words == [("voucher worth twenty euros", "")]
    assert contrast("word " * 700 + "new", ("word " * 700,)).words == [("new", "")]


def test_reason_is_one_sentence_of_what_differs() -> None:
    def said(claim: str, passage: str, **verdict: object) -> str:
        return reason(sentence(claim, 0, len(claim), fragments=FRAGMENT, **verdict), contrast(claim, (passage,)))

    days = ("It takes 60 days.", "It takes 30 days.")
    assert said(*days, label="contradictory") == "The answer says “60”, the source “30”."
    assert said(*days, label="supported") == "Judged supported, although the answer says “60”, the source “30”."
    unsure = said(*days, label=None, status="unsure")
    assert unsure == "Not sure: the answer says “60”, the source “30”. Compare the two."
    new = said("It takes a rare voucher.", "It takes time.", label="unverifiable")
    assert new == "The source does not have “rare voucher”."
    assert said(*days[:1] * 2, label="supported") == "The source has all of its words."
    assert said("A.", "A.", label=None, status="too_long") == "Not checked: it is too long for this annotator."
    lone = reason(sentence("A.", 0, 2, label="unverifiable"), contrast("A.", ()))
    assert lone == "No passage of the source was found that speaks of it."
