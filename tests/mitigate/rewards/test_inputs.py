"""Which part of a completion is judged, which sentences repeat or copy, and which completions were cut off."""

from dataclasses import replace

import pytest

from mitigate.rewards.inputs import (
    Answer,
    Copies,
    completion_text,
    cut_offs,
    open_question,
    question_of,
    repeats,
    sentence_spans,
    words,
)
from mitigate.rewards.reward import judged_sentences

THINK = ("<think>", "</think>")


def judged(text, thinking=THINK, response=None):
    return [text[a:b] for a, b in sentence_spans(text, thinking, response)]


@pytest.mark.parametrize(("completion", "text"), [
    ("It is red.", "It is red."),
    ([{"role": "assistant", "content": "It is red."}], "It is red."),
    ([{"role": "assistant", "content": "First."}, {"role": "tool", "content": "x"},
      {"role": "assistant", "content": "Last."}], "Last."),
    ([{"role": "assistant", "content": [{"type": "text", "text": "A."}, {"type": "text", "text": " B."}]}],
     "A. B."),
    ([{"role": "assistant", "content": None, "tool_calls": []}], ""),
    ([], ""),
])  # fmt: skip
def test_text_of_a_completion(completion, text):
    assert completion_text(completion) == text


def test_a_completion_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="strings or lists of messages with role and content, got int"):
        completion_text(3)


def test_question_of_a_prompt():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When?"}]
    assert (question_of(chat), question_of("When?"), question_of([])) == ("When?", "When?", "")


@pytest.mark.parametrize(("text", "sentences"), [
    ("<think>No.</think> Yes.", ["Yes."]),
    ("No.</think> Yes.", ["Yes."]),  # the prompt opened the block
    ("Yes. <think>No, no", ["Yes."]),  # never closed
    ("It is. <think>no</think> So be it. <think>no</think> Yes.", ["It is.", "So be it.", "Yes."]),
    ("<think>all</think>", []),
    ("plain", ["plain"]),
    ("", []),
    ("<think>A. B.</think>\nIt opened in 1931. 它很长。<think>c</think>Done 🎉.",
     ["It opened in 1931.", "它很长。", "Done 🎉."]),
])  # fmt: skip
def test_thinking_is_left_out(text, sentences):
    assert judged(text) == sentences


def test_other_tags_can_be_named():
    tags = ("<answer>", "</answer>")
    assert judged("<think>x</think>so <answer>Yes.</answer> done", response=tags) == ["Yes."]
    assert judged("<answer>Yes. And", response=tags) == ["Yes.", "And"]
    assert judged("no tags", response=tags) == []
    assert judged("<think>kept</think>", thinking=None) == ["<think>kept</think>"]
    assert judged("##not this## but this", thinking=("##", "##")) == ["but this"]


def test_words():
    assert words("It's 1,200 km²: 北京 is No. 1") == ["it", "s", "1,200", "km²", "北", "京", "is", "no", "1"]


def test_repeats():
    sentences = [
        "The bridge was opened in 1931.",
        "In 1931, the bridge opened was.",  # the same words
        "The bridge was opened in 1932.",  # another number
        "The bridge was opened in 1931 by the queen.",  # says more
        "The bridge opened.",  # says less
        "它在1931年开放。",
        "它在1931年开放！",
        "...",
    ]
    assert repeats(sentences) == [False, True, False, False, True, False, True, False]
    assert repeats([]) == []


@pytest.mark.parametrize(("text", "found"), [
    ("What is known about the Harrow Bridge?", True),
    ("Read this. The bridge is old. In which year, and how, was it built?", True),
    ("who built it?", True),
    ("哈罗桥是谁设计的？", True),
    ("Is the place where it stands in Wexley?", False),
    ("What is larger, the Sun or the Moon?", False),
    ("太阳和月亮，哪个大，太阳还是月亮？", False),
    ("When the bridge opened in 1931, was it the longest in Wexley?", False),
    ("How many people live there, and did the Harrow Bridge open in spring?", False),
    ("他是否获得任何奖项？", False),
    ("这座桥几乎全是木头的吗？", False),
    ("Tell me about the bridge.", False),
    ("What is it? Answer in one sentence.", False),
    ("", False),
])  # fmt: skip
def test_open_questions(text, found):
    assert bool(open_question(text)) == found
    assert open_question(text) in text


def test_restated_question_counts_as_a_repeat():
    question = "What is known about the Harrow Bridge and its history?"
    text = "What is known about the Harrow Bridge and its history. The Harrow Bridge opened in 1931."
    cut = text.index("The Harrow Bridge opened")
    answer = Answer(text, ((0, cut - 1), (cut, len(text))), False, "", question, None, None)
    flags = [s.repeat for s in judged_sentences(answer, ["supported", "supported"], None, lambda _: False)]
    assert flags == [True, False]
    long = "Who wrote the plays Hamlet, Macbeth, Othello and King Lear?"
    text = "Shakespeare wrote the plays Hamlet, Macbeth, Othello and King Lear."  # one new word is the answer
    short = Answer(text, ((0, len(text)),), False, "", long, None, None)
    assert [s.repeat for s in judged_sentences(short, ["supported"], None, lambda _: False)] == [False]
    closed = replace(answer, question="Did the Harrow Bridge open in 1931?")
    assert [s.repeat for s in judged_sentences(closed, ["supported"] * 2, None, lambda _: False)] == [False] * 2


def test_copies():
    reference = "The bridge crosses the river at its widest point and carries two lanes of traffic. It opened in 1931."
    copied = Copies(reference)
    assert copied("The bridge crosses the river at its widest point and carries two lanes of traffic.")
    assert copied("THE bridge crosses the river at its widest point, and carries two lanes.")
    assert not copied("Two lanes of traffic go over the river on it, where that is widest.")
    assert not copied("It opened in 1931.")  # too short to be said otherwise
    assert Copies("Its fur turns white in winter.")("Its fur turns white in winter!")  # six words
    # 10 words of which the first 6 are a run, so 6 / 10; the pair of runs 0–5 and 1–6 holds 7.
    assert Copies("a b c d e f").share("a b c d e f x y z w") == 0.6
    assert Copies("a b c d e f g").share("a b c d e f g x y z") == 0.7
    assert Copies("a b c d e f").share("a b c d e") == 0.0
    assert Copies("a b c d e f").share("") == 0.0


def test_copies_of_chinese_are_found_by_characters():
    copied = Copies("这座桥于一九三一年建成，全长四百一十二米。")
    assert copied("这座桥于一九三一年建成。")
    assert not copied("它有四百多米长，三十年代初完工。")


def test_cut_off_by_the_end_token_where_known():
    ids = [[5, 6, 2], [5, 6, 7], []]
    assert cut_offs(["a.", "b.", ""], ids, frozenset({2}), 0) == ([False, True, True], 3)


def test_cut_off_by_length_and_full_stop_otherwise():
    ends = {"It is red and": True, "a,": True, "": True}  # whether they are cut off
    ends |= {"It is red and long.": False, 'He said "yes."': False, "完了。": False}
    assert cut_offs(list(ends), [[1] * 4] * 6, None, 0) == (list(ends.values()), 4)
    assert cut_offs(["Red", "Red"], [[1] * 2, [1] * 4], None, 0) == ([False, True], 4)  # the short one ended by itself
    assert cut_offs(["Red"], [[1] * 2], None, 4) == ([False], 4)  # longer ones were seen before
    assert cut_offs(["Red"], None, None, 0) == ([False], 0)


def test_only_a_sentence_at_the_end_is_part():
    def last_is_part(text):
        return Answer(text, tuple(sentence_spans(text, THINK, None)), True, "r", "q", None, None).last_is_part

    assert last_is_part("It is red. It is lo")
    assert not last_is_part("It is red. <think>and")
    assert not last_is_part("")
