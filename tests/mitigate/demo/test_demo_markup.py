"""The page of the demo without a browser: texts are kept whole and are never markup; word differences."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mitigate.demo.view import annotated_view, answer_html, edit_pieces, flattened, reference_html, word_pieces
from tests.helpers.demo_parts import ANSWER, read, sentence


def test_overlapping_spans_are_cut_where_they_begin_and_end():
    # 0: [0, 5), 1: [3, 8) twice, 2: [8, 9); the empty span of 3 owns nothing
    spans = [(0, 5, 0), (3, 8, 1), (3, 8, 1), (8, 9, 2), (4, 4, 3)]
    assert flattened(spans) == [(0, 3, (0,)), (3, 5, (0, 1)), (5, 8, (1,)), (8, 9, (2,))]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 3)), max_size=8))
def test_flattened_pieces_own_what_the_spans_own(spans):
    def owners(place: int) -> tuple[int, ...]:
        return tuple(sorted({owner for start, end, owner in spans if start <= place < end}))

    pieces = flattened(spans)
    assert all(a[1] <= b[0] for a, b in pairwise(pieces))
    found = {place: who for start, end, who in pieces for place in range(start, end)}
    assert found == {place: owners(place) for place in range(12) if owners(place)}


HOSTILE = st.text(
    alphabet=st.sampled_from("ab <>&\"'`${}\n\r\t\u202e\u2066\u200f文。.\ufeff\u2028=/"), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(HOSTILE, st.data())
def test_the_page_holds_the_answer_and_the_reference_and_nothing_of_them_as_markup(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pairs = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b]
    fragments = [
        {"start": a, "end": b, "text": text[a:b]}
        for a, b in data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4))
        if a < b <= len(text)
    ]
    sentences = [sentence(text, a, b, fragments=fragments, spans=[{"start": a, "end": b}]) for a, b in pairs]
    record = {"answer": text, "reference": text, "sentences": sentences}
    answer = read(answer_html(record), "answer")
    assert answer.text == text
    assert answer.tags <= {"div", "span", "b"}
    reference = read(reference_html(text, sentences), "reference")
    assert reference.text == text
    assert reference.tags <= {"div", "mark", "span"}
    page = read(annotated_view({**record, "hallucination_rate": 0.0}, run="x"), "answer")
    assert not page.tags & {"script", "img", "a", "iframe", "style", "input"}
    assert not [value for value in page.values if "javascript" in value or "<" in value]


def test_waiting_sentences_are_there_and_stopped_ones_are_not_checked():
    first = sentence(ANSWER, 0, 27)
    record = {"answer": ANSWER, "reference": "", "sentences": [first], "hallucination_rate": 0.0}
    waiting = [(28, 50), (51, 74)]
    assert read(answer_html(record, waiting), "answer").text == ANSWER
    page = annotated_view(record, waiting, run="r")
    assert page.count('class="s waiting"') == 2
    assert "1 of 3 judged so far" in page
    page = annotated_view(record, waiting, run="r", stopped=True)
    assert page.count('class="s not_checked"') == 2
    assert "2 sentences were not checked:</b> 2 because it was stopped" in page


def test_word_differences():
    assert word_pieces("built in 1840", "built in 1804") == [("same", "built in "), ("gone", "1840"), ("new", "1804")]
    assert word_pieces("用丝绸换马", "用茶叶换马") == [
        ("same", "用"),
        ("gone", "丝绸"),
        ("new", "茶叶"),
        ("same", "换马"),
    ]
    edits = [
        {"start": 5, "end": 7, "from": "in", "to": "at"},
        {"start": 6, "end": 9, "from": "n B", "to": "x"},  # overlaps: left out
        {"start": 8, "end": 9, "from": "C", "to": "D"},  # does not stand there: left out
    ]
    pieces = edit_pieces("Live in Bern", edits)
    assert pieces == [("same", "Live "), ("gone", "in"), ("new", "at"), ("same", " Bern")]
    assert edit_pieces("Bern", [{"start": 8, "end": 12, "from": "Bern", "to": ""}], start=8) == [("gone", "Bern")]


@given(st.text(alphabet="ab 文.", max_size=12), st.text(alphabet="ab 文.", max_size=12))
def test_a_word_difference_joins_to_both_texts(old, new):
    pieces = word_pieces(old, new)
    assert "".join(text for kind, text in pieces if kind != "new") == old
    assert "".join(text for kind, text in pieces if kind != "gone") == new
