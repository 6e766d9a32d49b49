"""Synthetic rows: what is true stays true, what is false differs by what is said."""

from collections import Counter
from random import Random

import pytest

from annotators.text.words import words_of
from annotators.verifier import synthetic
from annotators.verifier.data import CONTRADICTORY, NO_FACT, SUPPORTED

REFERENCE = (
    "The Alder Bridge was opened in May 1902 by Queen Maud. It is 134 metres long and was not painted until 1950."
)
DOCUMENT = (
    "The Alder Bridge was opened in May 1902 by Queen Maud of Norland.",
    "In 1950, Anna Berg painted the bridge, which was grey before, in green.",
    "It is 134 metres long and carries about 2,000 cars a day (most of them in summer).",
    "Robert Wilson began to repair the northern arch because of a flood in 1987.",
)


BRIDGE = "was opened in 1902.|was opened by Queen Maud.|is 134 metres long.|was not painted until 1950."


@pytest.mark.parametrize("sentence", [f"The bridge {said}" for said in BRIDGE.split("|")])
def test_edits_change_one_thing(sentence: str) -> None:
    made = {synthetic.edit(sentence, REFERENCE, Random(seed)) for seed in range(60)} - {None}
    assert len(made) >= 2
    before = words_of(sentence).lower
    for text in made:
        assert text not in (None, sentence)
        after = words_of(str(text)).lower
        # framed, or one word (or a name of some words) exchanged, put in or taken out
        assert any(set(words_of(f.format("")).lower) <= set(after) for f in synthetic.FRAMES) or (
            abs(len(after) - len(before)) <= 2 and sum(word in after for word in before) >= len(before) - 2
        )


def test_edited_numbers_are_new_or_of_other_things() -> None:
    reference = "The house has 134 rooms, 150 windows and 99 doors, since 1950."
    texts = [synthetic.edit("It has 134 rooms.", reference, Random(seed)) or "" for seed in range(200)]
    numbers = {words_of(t).numbers[2] for t in texts if t.startswith("It has ") and " rooms" in t} - {"134", None}
    assert numbers > {"150", "99"}
    assert len(numbers) > 4
    assert "1950" not in numbers
    made = {synthetic.edit("They walked slowly.", "They walked slowly.", Random(seed)) for seed in range(50)}
    assert made - {None} <= {frame.format("they walked slowly") for frame in synthetic.FRAMES}


def test_phrases_are_turned_by_hand() -> None:
    said = "It is open on Sunday unless it rains, at most twice."
    seen = {synthetic._phrase(said, "", Random(seed)) for seed in range(300)}
    expected = "Sunday, at most twice|Sunday if it rains, at most twice|Sunday unless it rains, at least twice"
    expected += "|Monday unless it rains, at most twice"  # the first leaves out the exception
    assert {f"It is open on {end}." for end in expected.split("|")} | {said.replace("open", "closed")} <= seen
    assert synthetic._phrase("It rained.", "", Random(0)) is None


def test_additions() -> None:
    text, (a, b) = synthetic.with_addition("It is long.", "Fish swim, birds fly south in winter.", Random(0))
    assert text[a:b] == "birds fly south in winter"
    assert text.startswith("It is long")


def test_rewordings_only_leave_out_move_or_exchange() -> None:
    assert synthetic.without_brackets("It is old (very old) and big.", Random(0)) == "It is old and big."
    moved = synthetic.moved("In 1950, Anna Berg painted the bridge in green.", Random(0))
    assert moved == "Anna Berg painted the bridge in green in 1950."
    assert synthetic.numbers_written("It opened on May 5, 1902 here.", Random(0)) == "It opened on 5 May 1902 here."
    for sentence in DOCUMENT:
        for seed in range(20):
            text = synthetic.rewrite(sentence, Random(seed))
            digits = {w for w in words_of(text).stems if w[0] == "#"}
            assert digits <= {w for w in words_of(sentence).stems if w[0] == "#"}
    assert synthetic.chatty("It is long.", Random(3)).lower().rstrip(".").endswith("it is long")


def test_made_examples_say_what_is_wrong() -> None:
    maker = synthetic.Maker(DOCUMENT)
    seen = set()
    for seed in range(60):
        for example in maker.of_document(DOCUMENT, "What is it?", "made", Random(seed)):
            seen.add(example.target)
            if example.target == 0:
                assert example.spans == ()
            elif example.spans is not None:
                assert example.spans
                assert all(0 <= a < b <= len(example.sentence) for a, b in example.spans)
            else:  # its own passage was taken out
                assert example.target == 2
                assert len(example.passages) < len(DOCUMENT)
    assert {0, 1, 2} <= seen


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
    assert synthetic.voices(sentence) == (true, false)


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
    assert synthetic.voices(sentence) is None


def test_names_rejoined_and_exchanged_by_hand() -> None:
    rejoined = synthetic.rejoined("In 1950 Anna Berg and Robert Wilson painted it.")
    assert rejoined == "In 1950 Robert Wilson and Anna Berg painted it."
    assert synthetic.rejoined("The Ostby and Norland railway closed.") is None  # "Norland and The Ostby railway"
    assert synthetic.rejoined("Anna Berg painted and repaired it.") is None
    for seed in range(5):
        text, (a, b), (c, d) = synthetic.exchanged("Anna Berg praised Robert Wilson in 1950.", Random(seed))
        assert text == "Robert Wilson praised Anna Berg in 1950."
        assert (text[a:b], text[c:d]) == ("Robert Wilson", "Anna Berg")
    assert synthetic.exchanged("Anna Berg and Robert Wilson met.", Random(0)) is None  # the same thing said
    assert synthetic.exchanged("Anna praised Anna.", Random(0)) is None
    # "dog bit" is not known to be a whole phrase: the verb has no ending to tell it.
    assert synthetic.exchanged("The dog bit the man.", Random(0)) is None
    assert synthetic.exchanged("The dog was bitten in the house.", Random(0))[0] == "The house was bitten in the dog."


def test_role_pairs_of_a_document() -> None:
    document = [
        "Ostby Works was bought by Norland Mills in the dry summer of 1906.",
        "Anna Berg praised Robert Wilson in a long letter of May 1950.",
        "Robert Wilson thanked Anna Berg in a short letter of June 1950.",
        "Nothing else ever happened there, as far as anybody knows today.",
    ]
    maker = synthetic.Maker(document)
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
        turned = {(e.target, e.sentence.partition(" in the dry")[0]) for e in made if "Norland" in e.sentence}
        true, false = "Norland Mills bought Ostby Works", "Ostby Works bought Norland Mills"
        assert turned == {(SUPPORTED, true), (CONTRADICTORY, false)}
        assert {e.sentence for e in made if e.target == CONTRADICTORY and "letter" in e.sentence} == {
            "Anna Berg was praised by Robert Wilson in a long letter of May 1950.",
            "Robert Wilson was thanked by Anna Berg in a short letter of June 1950.",
        }


def test_small_talk_is_no_fact_beside_references() -> None:
    made = synthetic.talk(["Who built it?"], [("a",), ("b",)], Random(0))
    assert len(made) == synthetic.TALK_REFERENCES * len(synthetic.SMALL_TALK)
    assert {e.target for e in made} == {NO_FACT}
    assert not any("{" in e.sentence for e in made)
    assert "I don't know who built it." in {e.sentence for e in made}
