"""Words of English texts: hand-derived offsets, stems, values and units."""

import numpy as np
import pytest

from annotators.text.words import number_value, units, words_of


@pytest.mark.parametrize(("word", "value"), [
    ("1,000", "1000"), ("3.50", "3.5"), ("007", "7"), ("0", "0"), ("12:30", "12:30"), ("0.5", "0.5"),
    ("half", "0.5"),
           ("-5", "-5"), ("0134", "0134"), ("0.0", "0"), ("seven", "7"), ("third", "3"), ("tower", None),
])  # fmt: skip
def test_number_value(word: str, value: str | None) -> None:
    assert number_value(word) == value


def test_words_have_offsets_stems_kinds_and_places() -> None:
    text = "In 1,048 Omar’s poems weren't read."
    words = words_of(text)
    assert [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)] == [
        "In", "1,048", "Omar’s", "poems", "weren't", "read",
    ]  # fmt: skip
    assert words.stems[1:4] == ("#1048", "omar", "poem")
    assert words.content == (False, True, True, True, True, True)
    assert words.names == (False, False, True, False, False, False)
    places = np.arange(-1, 8)  # "ab" holds 1 and 2, "cd" 4 and 5
    assert words_of(" ab cd ").holding(places).tolist() == [-1, -1, 0, 0, -1, 1, 1, -1, -1]
    assert words_of("…").holding(places[1:3]).tolist() == [-1, -1]


def test_units_are_numbers_years_months_and_names() -> None:
    found = units("The Alder Bridge opened in May 1902 with 12 lamps.")
    bridge, may = ("name", ("alder", "bridg"), "the", "open"), ("month", ("may",), "in", "#1902")
    numbers = [("year", ("#1902",), "may", "with"), ("number", ("#12",), "with", "lamp")]
    assert [(u.kind, u.key, u.before, u.after) for u in found] == [bridge, may, *numbers]
