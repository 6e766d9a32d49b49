"""The sentence splitter: labelled cases, invariants on any text, and linear time.

The labelled cases (`sentence_cases.jsonl`) are tricky texts in which ``¦`` marks each cut that a careful editor would
make. All but the group "Found by reading" were written before looking at what any splitter does with them.
"""

from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotators.text.sentences import MAX_QUOTE, split_sentences, without_mark
from tests.helpers.jsonl import read_rows

ROWS = read_rows(Path(__file__).with_name("sentence_cases.jsonl"))
CASES = [(r["lang"], r["name"], r["text"].replace("¦", ""), [p.strip() for p in r["text"].split("¦")]) for r in ROWS]


def pieces(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def assert_lossless(text: str, spans: list[tuple[int, int]] | None = None) -> None:
    spans = split_sentences(text) if spans is None else spans
    assert all(start < end for start, end in spans), spans
    position = 0
    for start, end in [*spans, (len(text), len(text))]:
        assert text[position:start].strip() == "", text[position:start]
        assert text[start:end] == text[start:end].strip()
        position = end


@pytest.mark.parametrize("text", [
    "5. ¦She won.", "（2） ¦她赢了。", "3、¦它很高。", "• ¦It is.", "**(a)** ¦It is.", "7、8月份是旺季。",
    "3．14是圆周率。", "- 40 °C is cold.", "3.5 metres.", "A tower.", "1.", "1990. It rose.",
])  # fmt: skip
def test_list_markers_are_no_part_of_a_claim(text: str) -> None:
    assert without_mark(text.replace("¦", "")) == max(text.find("¦"), 0)


@pytest.mark.parametrize(("text", "expected"), [pytest.param(c[2], c[3], id=f"{c[0]}-{c[1]}") for c in CASES])
def test_labelled_case(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected
    assert_lossless(text)
    windows = pieces(text.replace("\r\n", "\n").replace("\n", "\r\n"))  # these line ends change nothing
    assert [p.replace("\r\n", "\n") for p in windows] == [p.replace("\r\n", "\n") for p in expected]


def test_offsets_are_code_points() -> None:
    #         0123 4 567
    assert split_sentences("😀 A.\n好。") == [(0, 4), (5, 7)]
    assert split_sentences("") == split_sentences(" \n\t\u3000\r\n") == []


def test_only_long_quotations_are_cut() -> None:
    short = "a" * (MAX_QUOTE - 5) + ". Be."  # MAX_QUOTE characters
    assert len(short) == MAX_QUOTE
    assert pieces(f'"{short}" Then.') == [f'"{short}"', "Then."]
    assert pieces(f'"a{short}" Then.') == [f'"a{short[:-4]}', 'Be."', "Then."]


def test_unclosed_marks_do_not_swallow_the_rest() -> None:
    for opener in ("(", '"', "“", "「", "[", "（", "《", "`", "```\n"):
        text = f"One {opener}two. Three. " + "Four. " * 50
        assert len(pieces(text)) >= 51, opener


MARKS = "aAbI 1.!?…。！？,:;\"'“”‘’「」()（）[]*_`#-•、，\n\r\t\x00\u200b\u2028好他说🎉/|~<>"
HARD = st.text(alphabet=st.sampled_from(list(MARKS)), max_size=60)


@settings(max_examples=400, deadline=None)
@given(st.one_of(HARD, st.text(max_size=60)))
def test_any_text_is_covered_in_order(text: str) -> None:
    assert_lossless(text)


# A marker alone joins what follows, an open fence reaches it, and a text without capitals sets a style.
MARKERS = ("only a marker", "answer broken off after a marker", "number as an answer", "code fence that never closes")
APART = [c for c in CASES if c[1] not in MARKERS and (c[0] == "zh" or c[2] != c[2].lower())]


@pytest.mark.parametrize(("first", "second"), list(zip(APART, APART[1:] + APART[:1], strict=True)))
def test_a_blank_line_separates(first, second):
    assert pieces(f"{first[2]}\n\n{second[2]}") == first[3] + second[3]


WORDS = st.lists(st.sampled_from("river bridge water stone light seven north quiet".split()), min_size=3, max_size=9)
PROSE = st.lists(st.tuples(WORDS, st.sampled_from(".!?")), min_size=1, max_size=8)
HAN = st.text(alphabet="山水木石田土火光明白", min_size=2, max_size=12)
HAN_PROSE = st.lists(st.tuples(HAN, st.sampled_from("。！？")), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(PROSE, HAN_PROSE)
def test_plain_prose_is_cut_at_every_stop(english: list[tuple[list[str], str]], chinese: list[tuple[str, str]]) -> None:
    for gap, expected in (
        (" ", [" ".join(words).capitalize() + stop for words, stop in english]),
        ("", [words + stop for words, stop in chinese]),
    ):
        assert pieces(gap.join(expected)) == expected
        assert all(pieces(piece) == [piece] for piece in expected)


# unit, and how many sentences 50,000 characters of it are (None: only the shape of the time is looked at)
RUNS: list[tuple[str, int | None]] = [
    (".", 1), ("(", 1), (")", 1), ('"', 1), ("“", 1), ("'", 1), ("`", 1), ("*", 1), ("[", 1), ("-", 1), ("…", 1),
    ("\n", 0), (" ", 0), ("\r\n", 0), ("\x00", 1), ("a", 1), ("字", 1), ("。", 1), ("a.", 1), ("1. ", None),
    ("Yes. ", 10_000), ("好。", 25_000), ("No (a. ", None), ("Dr. ", 1), ("U.S. ", 1), (". . ", 1),
    ("Well ... ", None), ("x\n", None), ("aa bb cc,\n", None), ("of the,\n", None), ("---\n", None), ("```\n", None),
    ("```a\nb\n", None), ("- a\n", None), ("1.\n", None), (": 1. A", None), ("：1. 字", None), ("1.字2.字", None),
    ("1、", None), (".[1]", None), (". [1]", None), (".[", None), (". (a ", None), (".(", None), ("</a>.", None),
    ("。**字", None), ("😊", None), (". 😊", None), ('." ', None), ('"a. ', None), ("“a。", None), ("（字。", None),
    ("：“", None), ("‘", None), (" 'a", None), ("``a", None), ("• ", None), (" 1) A", None), ("| a |\n", None),
    (".\u200b", None), ("#", None), ("?\"A said ", None), ("\\", None), ("a@b.c/", None), ("<br>", None),
]  # fmt: skip


@pytest.mark.parametrize(("unit", "count"), RUNS)
def test_time_is_linear_on_monotonous_text(unit: str, count: int | None) -> None:
    """Four times the text takes about four times the time; a quadratic step would take sixteen times."""

    def seconds(length: int) -> float:
        text = (unit * (length // len(unit) + 1))[:length]
        begin = process_time()
        found = split_sentences(text)
        taken = process_time() - begin
        if count is not None and length == 50_000:
            assert len(found) == count
        assert_lossless(text, found)
        return taken

    small, large = seconds(12_500), seconds(50_000)
    for _ in range(4):  # a busy machine or a collection of garbage: once more, calmly
        if large > min(8 * small + 0.02, 1.0):
            small, large = min(small, seconds(12_500)), min(large, seconds(50_000))
    assert large <= 8 * small + 0.02
    assert large < 1.0  # measured: 0.001 to 0.15 s
    # Long runs without a space.
    assert pieces("It is " + "ab.cd/e?f=g" * 2_000 + ". Yes.")[-1] == "Yes."
    assert len(pieces("字" * 20_000 + "。好。")) == 2
