"""Exchanged roles: what is true stays true, what is false differs in order alone."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from annotators.verifier.features import words_of
from annotators.verifier.synthetic import CONTRADICTORY, SUPPORTED, Company, Maker, exchanged, rejoined, voices


@pytest.mark.parametrize(
    ("sentence", "true", "false"),
    [
        ("Ostby was bought by Norland Mills in 1906, at last.", "Norland Mills bought Ostby in 1906, at last.",
         "Ostby bought Norland Mills in 1906, at last."),
        ("Anna Berg wrote the novel.", "The novel was written by Anna Berg.", "Anna Berg was written by the novel."),
        ("The bridge was quickly painted by Anna Berg.", "Anna Berg painted the bridge.",
         "The bridge painted Anna Berg."),
        ("Anna Berg repaired the old mills.", "The old mills were repaired by Anna Berg.",
         "Anna Berg was repaired by the old mills."),
        ("The Beatles praised the bus.", "The bus was praised by the Beatles.", "The Beatles were praised by the bus."),
    ],
)  # fmt: skip
def test_voices_by_hand(sentence: str, true: str, false: str) -> None:
    assert voices(sentence) == (true, false)


@pytest.mark.parametrize(
    "sentence",
    [
        "The mill was bought by Anna Berg, who was born in Ostby.",  # said of her, not of the mill
        "The mill was bought by Anna Berg, a painter.",
        "Anna Berg painted the bridge that led to Ostby.",
        "Anna Berg walked home in the rain.",  # nothing is done to anything
        "She praised Robert Wilson.",  # "by she"
        "The mill announced Wednesday that it closes.",
        "Anna Berg painted the big old bridge railing twice.",  # the phrase goes on
    ],
)
def test_no_other_voice(sentence: str) -> None:
    assert voices(sentence) is None


def test_rejoined_by_hand() -> None:
    assert rejoined("In 1950 Anna Berg and Robert Wilson painted it.") == (
        "In 1950 Robert Wilson and Anna Berg painted it."
    )
    assert rejoined("The Ostby and Norland railway closed.") is None  # "Norland and The Ostby railway"
    assert rejoined("Anna Berg painted and repaired it.") is None


def test_exchanged_by_hand() -> None:
    for seed in range(5):
        made = exchanged("Anna Berg praised Robert Wilson in 1950.", Random(seed))
        assert made is not None
        text, (a, b), (c, d) = made
        assert text == "Robert Wilson praised Anna Berg in 1950."
        assert (text[a:b], text[c:d]) == ("Robert Wilson", "Anna Berg")
    assert exchanged("Anna Berg and Robert Wilson met.", Random(0)) is None  # the same thing said
    assert exchanged("Anna praised Anna.", Random(0)) is None
    nouns = exchanged("The dog bit the man.", Random(0))
    assert nouns is None  # "dog bit" is not known to be a whole phrase: the verb has no ending to tell it
    nouns = exchanged("The dog was bitten in the house.", Random(0))
    assert nouns is not None
    assert nouns[0] == "The house was bitten in the dog."


def test_role_pairs_of_a_document() -> None:
    document = [
        "Ostby Works was bought by Norland Mills in the dry summer of 1906.",
        "Anna Berg praised Robert Wilson in a long letter of May 1950.",
        "Robert Wilson thanked Anna Berg in a short letter of June 1950.",
        "Nothing else ever happened there, as far as anybody knows today.",
    ]
    maker = Maker(Company(document), document)
    for seed in range(8):
        made = maker.of_roles(document, "made", Random(seed))
        assert Counter(e.target for e in made)[SUPPORTED] == len(made) // 2
        assert made[0].passages == tuple(document)
        bags = [Counter(words_of(s).lower) for s in document]
        for example in made:
            if example.target == CONTRADICTORY:
                assert example.sentence not in document
                names = Counter(w for w in words_of(example.sentence).lower if w not in ("was", "by"))
                assert any(not names - bag for bag in bags)  # no word that the document's sentence lacks
        turned = {(e.target, e.sentence) for e in made if "Norland" in e.sentence}
        assert turned == {
            (SUPPORTED, "Norland Mills bought Ostby Works in the dry summer of 1906."),
            (CONTRADICTORY, "Ostby Works bought Norland Mills in the dry summer of 1906."),
        }
        assert {e.sentence for e in made if e.target == CONTRADICTORY and "letter" in e.sentence} == {
            "Anna Berg was praised by Robert Wilson in a long letter of May 1950.",
            "Robert Wilson was thanked by Anna Berg in a short letter of June 1950.",
        }
