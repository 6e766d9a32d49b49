"""Synthetic contradictions: one small edit of a supported sentence that makes it false.

A number or year is changed, a name exchanged for another one of the reference, a negation put in or taken out, a
word turned into its opposite. The sentences come from people, so their wording differs from the reference's as much
before the edit as after it: what is learned is the edit, not "verbatim means supported".
"""

from __future__ import annotations

import re
from random import Random

from annotators.lexical import Unit, units, words_of
from annotators.wordlists import FUNCTION_WORDS, MONTHS, NEGATIONS, OPPOSITES

FRAMES = (
    "It is a myth that {}.",
    "It is not true that {}.",
    "It is wrong to say that {}.",
    "Contrary to what is written, it is false that {}.",
    "{}, which is wrong.",
    "{} – but that is a lie.",
    "Some say {}, but this is untrue.",
)
"""Sentences that deny the statement put into them."""
UNITS = (
    "metres feet miles kilometres years days months weeks hours minutes percent million billion thousand people "
    "tonnes pounds kilograms dollars euros times"
).split()
_AUXILIARY = re.compile(
    r"\b(is|are|was|were|has|have|had|can|could|will|would|did|does|do|should|must)\b(?! not\b|n['’]t)"
)


def edit(sentence: str, reference: str, random: Random) -> str | None:
    """One false version of a sentence that the reference supports, or None where no edit applies.

    Args:
        sentence: The supported sentence.
        reference: Its reference; names are taken from it.
        random: Decides which edit and which value.
    """
    kinds = [_number, _number, _name, _name, _negation, _opposite, _unit]
    if random.random() < 0.08:
        return random.choice(FRAMES).format(_decapitalised(sentence.rstrip(" .")))
    random.shuffle(kinds)
    for kind in kinds:
        edited = kind(sentence, reference, random)
        if edited is not None and edited != sentence:
            return edited
    return None


def _put(sentence: str, unit: Unit, text: str) -> str:
    return sentence[: unit.start] + text + sentence[unit.end :]


def _number(sentence: str, reference: str, random: Random) -> str | None:
    found = [unit for unit in units(sentence) if unit.kind in {"number", "year", "month"}]
    if not found:
        return None
    unit = random.choice(found)
    if unit.kind == "month":
        return _put(
            sentence, unit, random.choice(sorted(MONTHS - {sentence[unit.start : unit.end].lower()})).title()
        )
    text = sentence[unit.start : unit.end]
    known = set(words_of(reference).stems)
    for _ in range(8):
        value = _changed(text, unit.kind, random)
        if value is not None and value != text and words_of(value).stems[0] not in known:
            return _put(sentence, unit, value)
    return None


def _changed(text: str, kind: str, random: Random) -> str | None:
    if not text[0].isdigit():
        word = random.choice("two three four five six seven eight nine ten twelve twenty thirty".split())
        return word.title() if text[0].isupper() else word
    if not re.fullmatch(r"\d{1,3}(,\d{3})*|\d+(\.\d+)?", text):
        return None
    value = float(text.replace(",", ""))
    if kind == "year":
        return str(int(value) + random.choice((-1, 1)) * random.randint(1, 40))
    value *= random.choice((0.5, 0.7, 0.9, 1.1, 1.2, 1.5, 2.0, 3.0))
    if "." in text:
        return f"{value:.{len(text.split('.')[1])}f}"
    return f"{round(value):,}" if "," in text else str(max(1, round(value)))


def _name(sentence: str, reference: str, random: Random) -> str | None:
    own = {stem for unit in units(sentence) for stem in unit.key}
    found = [unit for unit in units(sentence) if unit.kind == "name" and unit.start > 0]
    others = sorted(
        {reference[u.start : u.end] for u in units(reference) if u.kind == "name" and not own & set(u.key)}
    )
    if not found or not others:
        return None
    return _put(sentence, random.choice(found), random.choice(others))


def _negation(sentence: str, reference: str, random: Random) -> str | None:
    negated = re.search(r"\s+(?:not|never)\b|(?<=\w)n['’]t\b", sentence)
    if negated:
        return sentence[: negated.start()] + sentence[negated.end() :]
    if NEGATIONS & set(words_of(sentence).lower):
        return None
    places = list(_AUXILIARY.finditer(sentence))
    if not places or random.random() < 0.5:
        return None
    return sentence[: places[0].end()] + " not" + sentence[places[0].end() :]


def _opposite(sentence: str, reference: str, random: Random) -> str | None:
    words = words_of(sentence)
    found = [i for i, word in enumerate(words.lower) if word in OPPOSITES]
    if not found:
        return None
    i = random.choice(found)
    text = OPPOSITES[words.lower[i]]
    if sentence[words.starts[i]].isupper():
        text = text.title()
    return sentence[: words.starts[i]] + text + sentence[words.ends[i] :]


def _unit(sentence: str, reference: str, random: Random) -> str | None:
    """Another unit after a number."""
    words = words_of(sentence)
    places = [i for i in range(1, len(words)) if words.lower[i] in UNITS and words.numbers[i - 1] is not None]
    if not places:
        return None
    i = random.choice(places)
    unit = random.choice([unit for unit in UNITS if unit != words.lower[i]])
    return sentence[: words.starts[i]] + unit + sentence[words.ends[i] :]


def _decapitalised(sentence: str) -> str:
    """For the middle of another sentence: a function word at the start loses its capital."""
    first = sentence.split(" ", 1)[0]
    return (
        sentence[:1].lower() + sentence[1:] if first.lower() in FUNCTION_WORDS and first != "I" else sentence
    )
