"""Who did what: sentences with their parts in other places, some still true, some false.

For synthetic rows. Marks on tokens say which words the evidence has, not where they stand, so the encoder has to be
shown sentences that differ from a true one in order alone, beside true ones whose order differs too.
"""

from __future__ import annotations

import re
from itertools import combinations
from random import Random

from annotators.lexical import units
from annotators.wordlists import FUNCTION_WORDS

PAST = {
    "written": "wrote", "won": "won", "built": "built", "led": "led", "held": "held", "made": "made", "sung": "sang",
    "sold": "sold", "bought": "bought", "drawn": "drew", "taken": "took", "given": "gave", "beaten": "beat",
    "chosen": "chose", "caught": "caught", "fought": "fought", "shot": "shot", "found": "found", "seen": "saw",
    "taught": "taught", "worn": "wore", "eaten": "ate", "hit": "hit", "sent": "sent", "paid": "paid", "kept": "kept",
}  # fmt: skip
"""Of participles that do not end in "ed"."""
_DONE = {past: participle for participle, past in PAST.items()}
_BETWEEN = re.compile(r"\b(?!(?:and|or|the|an?)\b)[a-z]{2,}")
"""A word that parts two phrases, beyond "and" and articles."""
_WORD = r"[A-Z][\w-]+"
_NAME = rf"(?:[Tt]he )?{_WORD}(?: (?:of |the )?{_WORD}){{0,4}}"
_PLAIN = r"(?:[Tt]he|[Aa]n?) (?:[a-z-]+ ){0,2}?[a-z-]+"
_PHRASE = rf"(?:{_NAME}|{_PLAIN})"
_NEXT = (
    r"(?=[,.;]| (?:is|are|was|were|has|had|in|on|at|to|from|with|by|for|that|which|who|during|after|before|[a-z]+ed)"
    r"\b|$)"
)
"""What may follow a whole phrase: so that "the state" of "the state highway" is not taken for one."""
_IRREGULAR = "|".join(sorted({*PAST, *PAST.values()}))
_PARTICIPLE = rf"(?P<verb>(?!seemed|appeared|remained|based)[a-z]{{2,}}ed|{_IRREGULAR})"
_PASSIVE = re.compile(
    rf"(?P<a>{_PHRASE}) (?:was|were) (?:[a-z]+ly )?{_PARTICIPLE} by (?P<b>{_PHRASE}){_NEXT}"
)
_ACTIVE = re.compile(rf"(?P<a>{_NAME}) {_PARTICIPLE} (?P<b>{_PHRASE}){_NEXT}")
_JOINED = re.compile(rf"(?P<a>\b{_NAME}) (?P<and>and|or) (?P<b>{_NAME}){_NEXT}")
_NOUN = re.compile(rf"\b(?:[Tt]he|[Aa]n?|[Hh]is|[Hh]er|[Tt]heir|[Ii]ts) (?P<noun>[a-z-]{{3,}}){_NEXT}")
Place = tuple[int, int]


_GOES_ON = re.compile(
    r",? (?:who|whom|whose|which|that|where|of|named|called)\b|, (?:an?|the|his|her|its|their)\b"
)
"""After the second phrase: said of it, so that it can't stay behind where another phrase moves there."""


def voices(sentence: str) -> tuple[str, str] | None:
    """The sentence in the other voice, and a false one with doer and done-to exchanged; None where it does not apply.

    "A was bought by B." gives ("B bought A.", "A bought B."); "A bought B." gives ("B was bought by A.", "A was
    bought by B.").
    """
    passive = _PASSIVE.match(sentence)
    match = passive or _ACTIVE.match(sentence)
    if match is None or match["a"].split()[0].lower() in FUNCTION_WORDS - {"the", "a", "an"}:
        return None
    if match["b"].endswith("day") or _GOES_ON.match(sentence, match.end()):  # "announced Wednesday"
        return None
    a, b, rest = match["a"], match["b"], sentence[match.end() :]
    if passive:
        done = PAST.get(match["verb"], match["verb"])
        return f"{_upper(b)} {done} {_lower(a)}{rest}", f"{a} {done} {b}{rest}"
    done = _DONE.get(match["verb"], match["verb"])
    return f"{_upper(b)} {_was(b)} {done} by {_lower(a)}{rest}", f"{a} {_was(a)} {done} by {b}{rest}"


def rejoined(sentence: str) -> str | None:
    """ "A and B" as "B and A": still true."""
    match = _JOINED.search(sentence)
    if match is None or match["a"].split()[0].lower() in FUNCTION_WORDS:
        return None
    return f"{sentence[: match.start()]}{match['b']} {match['and']} {match['a']}{sentence[match.end() :]}"


def exchanged(sentence: str, random: Random) -> tuple[str, Place, Place] | None:
    """Two names, two numbers of one kind or two nouns, not merely joined by "and", in each other's place: false.

    Returns:
        (the sentence, where the one and where the other stands in it), or None where it has no two.
    """
    found = [(u.kind, frozenset(u.key), u.start, u.end) for u in units(sentence)]
    found += [("noun", frozenset({m["noun"]}), *m.span("noun")) for m in _NOUN.finditer(sentence)]
    pairs = [
        (a[2:], b[2:])
        for a, b in combinations(sorted(found, key=lambda unit: unit[2]), 2)
        if a[0] == b[0] and not a[1] & b[1] and _BETWEEN.search(sentence[a[3] : b[2]])
    ]
    if not pairs:
        return None
    (start, middle), (after, end) = random.choice(pairs)
    first, second = sentence[start:middle], sentence[after:end]
    out = sentence[:start] + second + sentence[middle:after] + first + sentence[end:]
    return out, (start, start + len(second)), (end - len(first), end)


def _was(phrase: str) -> str:
    """ "were" after what reads as many: "the mills", "The Beatles"; a bare name such as "Norland Mills" is one."""
    article, _, rest = phrase.partition(" ")
    many = article.lower() == "the" and rest.endswith("s") and not rest.endswith(("ss", "us", "is"))
    return "were" if many else "was"


def _upper(phrase: str) -> str:
    return phrase[:1].upper() + phrase[1:]


def _lower(phrase: str) -> str:
    return phrase[:1].lower() + phrase[1:] if phrase.split()[0] in ("The", "A", "An") else phrase
