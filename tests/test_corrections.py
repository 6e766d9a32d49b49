"""Proposals of corrections: what is exchanged, what is deleted, what is left alone."""

from __future__ import annotations

import pytest

from annotators.corrections import Candidate, candidates, deletions, exchanges, replacements
from annotators.lexical import words_of


def results(sentence: str, fragments: list[str]) -> list[str]:
    return [c.apply(sentence) for c in replacements(sentence, fragments)]


def missing(sentence: str, fragments: list[str]) -> list[bool]:
    known = {s for f in fragments for s in words_of(f).stems}
    words = words_of(sentence)
    return [c and s not in known for c, s in zip(words.content, words.stems, strict=True)]


@pytest.mark.parametrize(
    ("sentence", "fragments", "expected"),
    [
        ("He was born in 1050.", ["Omar was born in 1048."], ["He was born in 1048."]),
        # two years stand in the fragment; "born in" decides
        ("He was born in 1050.", ["Omar was born in 1048 and moved around 1070."], ["He was born in 1048."]),
        # both stand after "in": ambiguous
        ("He lived in 1050.", ["Omar was there in 1048 and in 1070."], []),
        ("The tower is 320 metres tall.", ["The tower is 330 metres tall and weighs 10100 tonnes."],
         ["The tower is 330 metres tall."]),
        ("It opened in March.", ["It opened in May."], ["It opened in May."]),
        ("She was born in Lyon.", ["She was born in Paris."], ["She was born in Paris."]),
        # what the fragment has is never exchanged
        ("It opened in 1889.", ["It opened in 1889 after two years, in 1887 it was begun."], []),
        # a year is no counterpart of a plain number
        ("It has 12 floors.", ["It was built in 1999."], []),
    ],
)  # fmt: skip
def test_replacements(sentence: str, fragments: list[str], expected: list[str]) -> None:
    assert results(sentence, fragments) == expected


def test_two_edits_come_singly_then_together() -> None:
    got = results("It was built in 1899 and stands in Lyon.", ["It was built in 1889 and stands in Paris."])
    assert got == [
        "It was built in 1889 and stands in Lyon.",
        "It was built in 1899 and stands in Paris.",
        "It was built in 1889 and stands in Paris.",
    ]


@pytest.mark.parametrize(
    ("sentence", "fragments", "expected"),
    [
        # neither a number nor a name: what stands between the same words decides
        ("Their sales rose sharply in spring.", ["In Ostby their sales fell sharply in spring."],
         ["Their sales fell sharply in spring."]),
        ("The bridge was never painted green.", ["The bridge was painted green."], ["The bridge was painted green."]),
        ("The mill was sold to a local bank.", ["The mill was sold to the council."],
         ["The mill was sold to the council."]),
        # the fewest words first, whichever fragment they come from
        ("Anna Berg sold the old mill.", ["Anna Berg at last mended the old mill.", "Anna Berg painted the old mill."],
         ["Anna Berg painted the old mill.", "Anna Berg at last mended the old mill."]),
        # only little words around it, more words than may go, and nothing wrong in it
        ("It rose in it.", ["It fell in it."], []),
        ("The mill was sold to four very rich brothers there.", ["The mill was sold to Ostby there."], []),
        ("The mill was sold.", ["The mill was sold.", "The old mill was sold."], []),
    ],
)  # fmt: skip
def test_exchanges(sentence: str, fragments: list[str], expected: list[str]) -> None:
    assert [
        c.apply(sentence) for c in exchanges(sentence, fragments, missing(sentence, fragments))
    ] == expected


def test_what_is_marked_unsupported_is_exchanged_though_the_fragments_have_it() -> None:
    sentence, fragments = (
        "The mill was red in spring.",
        ["The mill was green in spring.", "A red bus passed."],
    )
    assert exchanges(sentence, fragments, [False] * 6) == []
    marks = [word == "red" for word in words_of(sentence).lower]
    assert [c.apply(sentence) for c in exchanges(sentence, fragments, marks)] == [
        "The mill was green in spring."
    ]


def test_a_clause_is_deleted_only_if_half_of_it_is_unsupported() -> None:
    sentence = "The bridge crosses the river, and Anna Berg painted the tower green."
    words = words_of(sentence).lower
    assert deletions(sentence, [word == "green" for word in words]) == []  # one of five
    marked = ("painted", "tower", "green")
    assert [c.apply(sentence) for c in deletions(sentence, [word in marked for word in words])] == [
        "The bridge crosses the river."
    ]


def test_deletions_are_smallest_first_and_hold_unsupported_words() -> None:
    sentence = "The bridge, painted green by Anna Berg, crosses the river."
    fragments = ["The bridge crosses the river."]
    got = [c.apply(sentence) for c in deletions(sentence, missing(sentence, fragments))]
    # "by Anna Berg" alone is no proposal: "painted green" would stay, and no fragment has it
    assert got == ["The bridge crosses the river."]
    assert deletions(sentence, [False] * len(words_of(sentence))) == []
    sentence = "The bridge crosses the river in 1932, and the tower was sold in Leeds in 1950."
    got = [
        c.apply(sentence)
        for c in deletions(sentence, missing(sentence, ["The bridge crosses the river in 1932."]))
    ]
    assert got == ["The bridge crosses the river in 1932."]
    sentence = "The bridge (a gift of Spain) crosses the river."
    got = [c.apply(sentence) for c in deletions(sentence, missing(sentence, fragments))]
    assert "The bridge crosses the river." in [" ".join(text.split()) for text in got]


@pytest.mark.parametrize(
    ("sentence", "fragments"),
    [
        ("The mill was “never” ruined there.", ["The mill was ruined there."]),
        ("The mill was sold to a local bank.", ["The mill was sold to the council (in Ostby)."]),
        ("The bank sold the red mill.", ["The bank sold the old one. Then the mill."]),
        ("The bridge was, in 1931, painted green.", ["The bridge was painted green."]),
        ("The bridge (in 1931) was painted green.", ["The bridge was painted green."]),
    ],
)
def test_no_candidate_tears_the_sentence(sentence: str, fragments: list[str]) -> None:
    found = [c.apply(sentence) for c in candidates(sentence, fragments, missing(sentence, fragments))]
    for text in found:
        assert text.count("(") == text.count(")")
        assert text.count("“") == text.count("”")
        assert ",," not in text
        assert ", ," not in text
        assert ". Then" not in text


def test_a_candidate_stays_where_the_sentence_was_torn_before() -> None:
    sentence, fragments = "The tower (is 320 metres tall.", ["The tower is 330 metres tall."]
    assert candidates(sentence, fragments, missing(sentence, fragments))


def test_candidate_edits_from_the_right() -> None:
    assert Candidate(((0, 1, "X"), (4, 5, ""))).apply("abcdefg") == "Xbcdfg"


def test_candidates_are_few_on_long_input() -> None:
    sentence = "It has " + ", ".join(f"{n} birds in {n} cages" for n in range(300)) + "."
    assert len(candidates(sentence, ["It has 5000 birds."], [True] * len(words_of(sentence)))) <= 6
