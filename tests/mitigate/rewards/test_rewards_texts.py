"""What of a completion is judged, which sentences repeat or copy, and which completions were cut off."""

from dataclasses import replace

import pytest

from mitigate.rewards.inputs import (
    Answer,
    Copies,
    answer_spans,
    completion_text,
    copied_share,
    cut_offs,
    finished,
    open_question,
    question_of,
    repeats,
    sentence_spans,
    words,
)
from mitigate.rewards.reward import judged_sentences

THINK = ("<think>", "</think>")


def judged(text, thinking=THINK, response=None):
    return [text[a:b] for a, b in answer_spans(text, thinking, response)]


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("It is red.", "It is red."),
        ([{"role": "assistant", "content": "It is red."}], "It is red."),
        ([{"role": "assistant", "content": "First."}, {"role": "tool", "content": "x"},
          {"role": "assistant", "content": "Last."}], "Last."),
        ([{"role": "assistant", "content": [{"type": "text", "text": "A."}, {"type": "text", "text": " B."}]}],
         "A. B."),
        ([{"role": "assistant", "content": None, "tool_calls": []}], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_text_of_a_completion(completion, text):
    assert completion_text(completion) == text


def test_a_completion_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="strings or lists of messages with role and content, got int"):
        completion_text(3)


def test_question_of_a_prompt():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When?"}]
    assert (question_of(chat), question_of("When?"), question_of([])) == ("When?", "When?", "")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>No.</think> Yes.", [" Yes."]),
        ("No.</think> Yes.", [" Yes."]),  # the prompt opened the block
        ("Yes. <think>No, no", ["Yes. "]),  # never closed
        ("A. <think>no</think> B. <think>no</think> C.", ["A. ", " B. ", " C."]),
        ("<think>all</think>", []),
        ("plain", ["plain"]),
        ("", []),
    ],
)
def test_thinking_is_left_out(text, parts):
    assert judged(text) == parts


def test_tags_of_ones_own():
    tags = ("<answer>", "</answer>")
    assert judged("<think>x</think>so <answer>Yes.</answer> done", response=tags) == ["Yes."]
    assert judged("<answer>Yes. And", response=tags) == ["Yes. And"]
    assert judged("no tags", response=tags) == []
    assert judged("<think>kept</think>", thinking=None) == ["<think>kept</think>"]


def test_sentence_offsets_point_into_the_whole_completion():
    text = "<think>A. B.</think>\nIt opened in 1931. 它很长。<think>c</think>Done 🎉."
    spans = sentence_spans(text, answer_spans(text, THINK, None))
    assert [text[a:b] for a, b in spans] == ["It opened in 1931.", "它很长。", "Done 🎉."]


@pytest.mark.parametrize(
    ("text", "is_finished"),
    [("Yes.", True), ('He said "yes."', True), ("完了。", True), ("Yes", False), ("a,", False), ("", False)],
)
def test_finished(text, is_finished):
    assert finished(text) is is_finished


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
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
    ],
)
def test_open_questions(text, found):
    assert bool(open_question(text)) == found
    assert open_question(text) in text


def test_the_question_said_back_is_a_repeat():
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
    runs = {tuple("abcdef")}
    assert copied_share(list("abcdefxyzw"), runs, 6) == 0.6
    assert copied_share(list("abcdefgxyz"), runs | {tuple("bcdefg")}, 6) == 0.7
    assert copied_share(list("abcde"), runs, 6) == 0.0
    assert copied_share([], runs, 6) == 0.0


def test_copies_of_chinese_are_found_by_characters():
    copied = Copies("这座桥于一九三一年建成，全长四百一十二米。")
    assert copied("这座桥于一九三一年建成。")
    assert not copied("它有四百多米长，三十年代初完工。")


def test_cut_off_by_the_end_token_where_it_is_known():
    ids = [[5, 6, 2], [5, 6, 7], []]
    assert cut_offs(["a.", "b.", ""], ids, frozenset({2}), 0) == ([False, True, True], 3)


def test_cut_off_by_length_where_it_is_not_known():
    texts = ["It is red and", "It is red and long.", "Red"]
    assert cut_offs(texts, [[1] * 4, [1] * 4, [1] * 2], None, 0) == ([True, False, False], 4)
    assert cut_offs(["Red"], [[1] * 2], None, 4) == ([False], 4)  # longer ones were seen before
    assert cut_offs(["Red"], None, None, 0) == ([False], 0)


def test_only_a_sentence_at_the_end_is_part():
    def answer(text):
        spans = sentence_spans(text, answer_spans(text, THINK, None))
        return Answer(text, tuple(spans), True, "r", "q", None, None)

    assert answer("It is red. It is lo").last_is_part
    assert not answer("It is red. <think>and").last_is_part
    assert not answer("").last_is_part
