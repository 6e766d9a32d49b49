"""What LLMs are asked for: reference answers, IW/CO pairs parsed strictly and counted, own expertise, agreement."""

import re

import pytest

from engines.types import Sample
from fewl import expertise
from fewl.records import read_record
from fewl.similarity import from_function
from tests.helpers.engines_server import Scripted


def template(*numbers):
    return "\n".join(f"{i}. Wrong Answer: wrong {i}\n{i}. Non-Wrong Answer: right {i}" for i in numbers)


@pytest.mark.parametrize(("reply", "pairs", "problems"), [
    (template(1, 2, 3), [("wrong 1", "right 1"), ("wrong 2", "right 2"), ("wrong 3", "right 3")], {}),
    ("I cannot do that.", [], {"no_pairs": 1}),
    ("", [], {"no_pairs": 1}),
    ("**1. Wrong Answer:** a\n**1. Non-Wrong Answer:** b", [("a", "b")], {}),
    ("Sure!\n1. Wrong Answer: a\nand more\n1. Non-Wrong Answer: b\n", [("a and more", "b")], {}),
    ("1. Wrong Answer: a\n2. Wrong Answer: c\n2. Non-Wrong Answer: d", [("c", "d")], {"unpaired": 1}),
    ("1. Wrong Answer:\n1. Non-Wrong Answer: b", [], {"empty": 1}),
    ("1. Wrong Answer: <...>\n1. Non-Wrong Answer: <>", [], {"empty": 1}),
    ("1. Wrong Answer: A.\n1. Non-Wrong Answer: a", [], {"same_text": 1}),
    (template(1) + "\n" + template(1), [("wrong 1", "right 1")], {"repeated_number": 2}),
    ("Wrong Answer: a\nNon-Wrong Answer: b", [], {"no_pairs": 1}),
    ("1. Non-Wrong Answer: b\n1. Wrong Answer: a", [("a", "b")], {}),
    ("1. Wrong Answer：a\n1. Non‑Wrong Answer： b", [("a", "b")], {}),
    ("1. Wrong Answer: 月亮是奶酪\n1. Non-Wrong Answer: 月亮由岩石构成", [("月亮是奶酪", "月亮由岩石构成")], {}),
])  # fmt: skip
def test_readable_pairs_are_kept_and_problems_named(reply, pairs, problems):
    assert expertise.parse_pairs(reply) == (pairs, problems)


def test_truncated_reply_loses_its_last_answer():
    expected = {"truncated": 1, "unpaired": 1}
    assert expertise.parse_pairs(template(1, 2), truncated=True) == ([("wrong 1", "right 1")], expected)


def test_missing_pairs_are_asked_for_again():
    replies = {1: template(1, 2), 2: "1. Wrong Answer: WRONG 2!\n1. Non-Wrong Answer: x\n" + template(3, 4)}
    engine = Scripted(lambda text, call: replies[call])
    (pairs,) = expertise.generate_pairs(engine, ["Why?"], n=4)
    assert pairs.iw == ["wrong 1", "wrong 2", "wrong 3", "wrong 4"]
    assert pairs.co[2] == "right 3"
    assert pairs.problems == {"duplicate": 1}
    (first, first_sampling), (second, second_sampling) = engine.asked
    assert "Invent 4 " in first
    assert "Invent 2 " in second
    assert "- wrong 1" in second  # told what it has
    assert first_sampling.seed != second_sampling.seed


def test_rounds_end_and_failures_are_counted():
    engine = Scripted(lambda text, call: None if call == 1 else "no")
    counted = expertise.report(expertise.generate_pairs(engine, ["Why?", "How?"], n=2), 2)
    assert counted["problems"] == {"failed": 1, "no_pairs": 5}
    assert (counted["pairs_wanted"], counted["pairs"], counted["replies"]) == (4, 0, 6)
    assert counted["questions_without_pairs"] == 2


def test_agreement_counts_by_hand():
    references = {"m": "red", "n": ["blue", "red"]}
    raw = {"question": "q", "answers": [], "reference_answers": references, "iw": ["red", "blue", "green"]}
    raw |= {"co": ["red", "red!"]}
    same = from_function(lambda c, r, q: [0.7 if a[:3] == b[:3] else 0.69 for a, b in zip(c, r, strict=True)])
    # m = red: one of three wrong ones, both corrected; n = blue: one wrong, none corrected
    assert expertise.agreement_counts([raw, {**raw, "iw": []}], same) == {"m": [(1, 2)], "n": [(1, 0)]}
    assert expertise.agreement_counts([{**raw, "iw": []}], same) == {}


def test_prompted_expertise_by_hand():
    pairs = {"iw": ["w1", "w2"], "co": ["c1", "c2", "c3", "c4"]}
    record = read_record({"question": "q", "answers": [], "reference_answers": {"m": "own"}, **pairs})
    says = {"c1": "Yes.", "c2": "yes", "c3": "No", "c4": "Perhaps", "w1": "No.", "w2": "Yes, it does"}

    def reply(text, _):
        assert "Your answer: own" in text
        return says[re.search(r"Another answer: (\w+)", text).group(1)]

    # of the CO answered with yes or no: 2 of 3; of the IW: 1 of 2
    engine = Scripted(reply)
    assert expertise.prompted_expertise(engine, "m", [record]) == [pytest.approx(2 / 3 - 1 / 2)]
    assert {sampling.max_tokens for _, sampling in engine.asked} == {expertise.TOKENS}  # room to think first
    assert expertise.prompted_expertise(Scripted(reply), "other", [record]) == [None]


UNCLEAR = "Maybe||Nothing|Yesterday|Not sure.|No idea.|Not necessarily.|不确定|不太确定。|不能确定|是否如此，不清楚"
UNCLEAR += "|是不是这个主题，我不清楚"


@pytest.mark.parametrize(("replies", "verdict"), [
    ("Yes| **Yes**, both|是的", True), ("No.|Not quite|不是|否", False), (UNCLEAR, None),
])  # fmt: skip
def test_yes_or_no(replies, verdict):
    assert {reply: expertise.yes_or_no(reply) for reply in replies.split("|")} == dict.fromkeys(
        replies.split("|"), verdict
    )


def test_reference_answers_are_greedy_or_drawn():
    engine = Scripted(lambda text, call: f" answer {call} ")
    assert expertise.reference_answers(engine, ["a", "b"]) == [["answer 1"], ["answer 2"]]
    assert engine.asked[0][1].temperature == 0
    drawn = expertise.reference_answers(engine, ["a"], samples=3, seed=7)
    assert drawn == [["answer 3", "answer 4", "answer 5"]]
    assert [sampling.seed for _, sampling in engine.asked[2:]] == [7, 8, 9]
    assert expertise.reference_answers(Scripted(lambda text, call: None), ["a"]) == [[]]


@pytest.mark.parametrize(("reply", "whole", "cut"), [
    (" It is so. ", "It is so.", "It is so."),
    ("It is so. And then", "It is so. And then", "It is so."),
    ("It is because", "It is because", ""),
    ("<think>It is not.\nOr?</think>\nIt is.", "It is.", "It is."),
    ("not so?</think>It is.", "It is.", "It is."),
    ("<think>It is not. Or", "", ""),
    ("是的。因为它", "是的。因为它", "是的。"),
])  # fmt: skip
def test_replies_lose_thinking_and_cut_sentences(reply, whole, cut):
    assert [expertise.whole_answer(Sample(reply, reason)) for reason in ("stop", "length")] == [whole, cut]
