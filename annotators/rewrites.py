"""Rewordings that keep a sentence true: for synthetic rows whose supported sentences must not be copies.

Each function takes a sentence and a random generator and gives another wording, or None where it does not apply.
They only leave things out, move them, or exchange words for words of the same meaning; the lists are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from random import Random

from annotators.wordlists import FUNCTION_WORDS, NUMBER_WORDS

SYNONYMS = (
    """
    began|started;because of|due to|owing to;approximately|roughly;however|but;large|big;received|got
    near|close to;died|passed away;built|constructed;located in|situated in|found in;also|too
    company|firm;children|kids;film|movie;purchased|bought|acquired;became|turned into;many|numerous;including|such as
    often|frequently;main|primary|principal;helps|assists|aids;shows|demonstrates|indicates;
    showed|demonstrated
    used|employed|utilised;important|significant;start|begin;ended|finished;large number of|great many
    nearly|almost;whole|entire;usually|normally|generally;famous|well-known;quickly|rapidly;said|stated;
    increase in|rise in;increased|grew|rose;decreased|fell|declined;get|obtain;needs|requires;need|require;lets|allows
    requires|calls for;wrote|authored;several|a number of;until|till;United States|U.S.
    study|research;people|persons;reduce|lower;reduces|lowers;difficult|hard;easy|simple;buy|purchase;job|occupation
    doctor|physician;car|automobile;city|town;writer|author;child|kid;ill|sick;sea|ocean;road|street
    produce|make;produces|makes;provide|give;provides|gives;provided|gave;allow|permit;allowed|let;show|reveal
    won|was awarded;lives in|resides in;moved to|relocated to;left|departed from
    consists of|is made up of;contains|includes;published|issued;discovered|found
    """.strip()
    .replace("\n", ";")
    .split(";")
)
"""Words and phrases of about the same meaning, one group between semicolons."""
_GROUPS = [[word.strip() for word in group.split("|")] for group in SYNONYMS if group.strip()]
_SWAP = {word: [other for other in group if other != word] for group in _GROUPS for word in group}
_ANY = re.compile(r"\b(" + "|".join(sorted(map(re.escape, _SWAP), key=len, reverse=True)) + r")\b")
CHATTY = (
    "Yes, {}", "Did you know that {}", "I think {}", "Well, {}", "Actually, {}", "Yeah, {}", "I know that {}",
    "I heard that {}", "It is known that {}", "According to the text, {}", "That's true, {}", "Interestingly, {}",
)  # fmt: skip
_CARDINALS = "two three four five six seven eight nine ten eleven twelve".split()
_DIGITS = {NUMBER_WORDS[word]: word for word in _CARDINALS}
_RELATIVE = re.compile(
    r"^(?P<head>[A-Z][^,;()]{2,60}), (?:which|who) (?P<rest>(?:is|was|are|were|has|had)\b[^,;]{8,}),"
)
_LEAD = re.compile(
    r"^((?:In|On|During|After|Before|Since|By|At|From|Until|For) [^,;()]{2,50}), (\w[^;]{15,}?)([.!]?)$"
)
_TAIL = re.compile(
    r"^(\w[^;]{15,}?) ((?:in|on|during|since|by|until) (?:[A-Z][a-z]+ )?(?:\d{1,2},? )?(?:1\d|20)\d\d)([.!]?)$"
)

_ASIDE = re.compile(r", (?:which|who|where|including|such as|as well as|after|while|although|when|with|an? )")


def decapitalised(sentence: str) -> str:
    """For the middle of another sentence: a function word at the start loses its capital."""
    first = sentence.split(" ", 1)[0]
    lower = first.lower() in FUNCTION_WORDS and first != "I"
    return sentence[:1].lower() + sentence[1:] if lower else sentence


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def without_brackets(sentence: str, random: Random) -> str | None:
    """No text in round or square brackets."""
    out = re.sub(r"\s*[(\[][^()\[\]]*[)\]]", "", sentence)
    return out if out != sentence else None


def without_clause(sentence: str, random: Random) -> str | None:
    """One clause between commas, or after the last comma, left out."""
    commas = [m.start() for m in re.finditer(r", ", sentence)]
    if not commas or " not " in sentence:
        return None
    end = len(sentence.rstrip(" .!?"))
    spans = [*pairwise(commas), (commas[-1], end)]
    kept = [
        (a, b) for a, b in spans
        if b - a > 8 and len(sentence) - (b - a) > 25 and a > 15
        and _ASIDE.match(sentence[a:b])
    ]  # fmt: skip
    if not kept:
        return None
    a, b = random.choice(kept)
    return sentence[:a] + sentence[(b + 1 if sentence[b : b + 1] == "," else b) :]


def without_adverbs(sentence: str, random: Random) -> str | None:
    """Adverbs and fillers left out."""
    out = re.sub(
        r"\b(?:also|very|really|then|currently|originally|especially|particularly|additionally|furthermore|"
        r"moreover|however|therefore|thus|in fact|of course|overall)\b,? ", "", sentence, flags=re.IGNORECASE,
    )  # fmt: skip
    return _capitalised(out) if out != sentence else None


def moved(sentence: str, random: Random) -> str | None:
    """A leading time or place moved to the end, or a time at the end moved to the front."""
    lead = _LEAD.match(sentence)
    if lead:
        return f"{_capitalised(lead[2])} {decapitalised(lead[1])}{lead[3]}"
    tail = _TAIL.match(sentence)
    return f"{_capitalised(tail[2])}, {decapitalised(tail[1])}{tail[3]}" if tail else None


def reworded(sentence: str, random: Random) -> str | None:
    """One to three words or phrases exchanged for others of the same meaning."""
    found = list(_ANY.finditer(sentence))
    if not found:
        return None
    out = sentence
    for match in sorted(
        random.sample(found, min(len(found), random.randint(1, 3))), key=lambda m: -m.start()
    ):
        out = out[: match.start()] + random.choice(_SWAP[match[0]]) + out[match.end() :]
    return out if out != sentence else None


def numbers_written(sentence: str, random: Random) -> str | None:
    """Numbers up to twelve as words, words as digits, thousands with or without commas, dates the other way."""

    def one(match: re.Match[str]) -> str:
        word = match[0]
        if word.isdigit() and word in _DIGITS:
            return _DIGITS[word]
        return NUMBER_WORDS[word] if word in _CARDINALS else word

    out = re.sub(r"\b([A-Z][a-z]{2,8}) (\d{1,2}), ((?:1\d|20)\d\d)\b", r"\2 \1 \3", sentence)
    if out == sentence:
        out = re.sub(r"(?<=\d),(?=\d{3}\b)", "", sentence)
    if out == sentence:
        out = re.sub(r"\b[a-z]+\b|(?<![\d.,:/-])\d+\b(?![\d.,:%/-])", one, sentence)
    return out if out != sentence else None


def relative_apart(sentence: str, random: Random) -> str | None:
    """ "X, which was built in 1890, …" as "X was built in 1890."."""
    match = _RELATIVE.match(sentence)
    return f"{match['head']} {match['rest']}." if match else None


def chatty(sentence: str, random: Random) -> str | None:
    """As it is said in a conversation: an opening, sometimes small letters and no full stop."""
    out = random.choice(CHATTY).format(decapitalised(sentence)) if random.random() < 0.7 else sentence
    if random.random() < 0.5:
        out = out.lower().rstrip(".")
    return out if out != sentence else None


KEEPING: tuple[Callable[[str, Random], str | None], ...] = (
    without_brackets, without_clause, without_adverbs, moved, reworded, reworded, numbers_written, relative_apart,
)  # fmt: skip


def rewrite(sentence: str, random: Random) -> str:
    """Several rewordings after each other; the sentence itself where none applies."""
    for change in random.sample(KEEPING, random.randint(2, 6)):
        other = change(sentence, random)
        if other is not None and len(other.split()) >= 4:
            sentence = other
    return sentence
