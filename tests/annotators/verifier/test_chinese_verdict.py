"""Chinese without weights: what is called supported, and what never is."""

from __future__ import annotations

from typing import Any

import pytest

from annotators.base import Sentence
from annotators.text.normalise import clean
from annotators.verifier.annotator import SCORES, judged_chinese, plainly_supported
from annotators.verifier.claims import claims_nothing_chinese
from tests.helpers.small_talk import FACTS, read_suite
from tests.helpers.small_talk import REFERENCE as SUITE_REFERENCE

REFERENCE = (
    "悉尼海港大桥于1932年3月19日通车。大桥有八条车道和两条铁路，高134米，由道门朗公司设计。据说工程师们曾想再建一座。"
    "政府没有公布造价。如果资金到位，大桥将在2030年加宽。道门朗公司打败了克虏伯公司。"
)


@pytest.mark.parametrize(
    "sentence",
    [
        "悉尼海港大桥于1932年3月19日通车。",
        "悉尼海港大桥1932年3月19日通车",  # a function word less
        "大桥有八条车道和两条铁路。",
        "大桥高134米，由道门朗公司设计。",
        "**政府没有公布造价。**",
        "悉尼海港大桥于１９３２年３月１９日通车。",  # full width
    ],
)
def test_supported(sentence: str) -> None:
    fragment = plainly_supported(sentence, REFERENCE)
    assert fragment is not None
    assert REFERENCE[fragment.start : fragment.end] == fragment.text


@pytest.mark.parametrize(
    "sentence",
    [
        "悉尼海港大桥于1933年3月19日通车。",
        "悉尼海港大桥于193年3月19日通车。",
        "大桥有十八条车道和两条铁路。",
        "大桥高34米，由道门朗公司设计。",
        "政府公布造价。",
        "政府没有不公布造价。",
        "工程师们曾再建一座。",
        "大桥在2030年加宽。",
        "克虏伯公司打败了道门朗公司。",
        "大桥有八条车道和两条铁路吗？",
        "墨尔本海港大桥于1932年3月19日通车。",
        "大桥",
        "大桥很美。",
    ],
)
def test_not_called_supported(sentence: str) -> None:
    assert plainly_supported(sentence, REFERENCE) is None


def test_judgement() -> None:
    def judged(
        text: str = "大桥高134米。", reference: str = REFERENCE, language: str | None = None, start: int = 0
    ) -> Any:
        return judged_chinese(Sentence(text, start, text, {"reference": reference}, language))

    found = judged(start=7)
    assert found is not None
    assert (found.status, found.label, found.start, found.end) == ("checked", "supported", 7, 15)
    assert found.scores == SCORES
    assert sum(SCORES.values()) == pytest.approx(1.0)
    assert judged("大桥高135米。") is None
    assert judged(language="en") is None
    assert judged(reference="The bridge is 134 metres high.") is None
    talk = judged("抱歉，我无法回答这个问题。")
    assert talk is not None
    assert talk.label == "no_fact"


def test_chinese_small_talk_is_told_and_facts_are_not() -> None:
    chinese = [row for row in read_suite() if row["lang"] == "zh"]
    assert len(chinese) >= 60
    told = {row["sentence"] for row in chinese if claims_nothing_chinese(clean(row["sentence"])[0])}
    facts = {row["sentence"] for row in chinese if row["kind"] in FACTS}
    assert not told & facts
    false = [row["sentence"] for row in chinese if row["kind"] == "false"]
    assert [s for s in false if plainly_supported(s, SUITE_REFERENCE["zh"])] == []
    assert len({row["sentence"] for row in chinese} - facts - told) <= 1
