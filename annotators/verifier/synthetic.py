"""Synthetic rows for training: sentences of documents, reworded and then, half of the time, made false.

What is false is mostly known to the character, so the encoder's token head learns from the same rows. Four families:
one small contradicting edit; the same words in another order, beside a true sentence whose order differs too; a clause
of something else added; and a sentence whose own passage is taken out of the evidence. People's supported sentences are
edited in the same ways, so that what is learned is the edit, not "verbatim means supported".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from typing import Any

from annotators.text import words as lexicon
from annotators.text.words import stem_set, units, words_of
from annotators.verifier import data
from annotators.verifier.data import CONTRADICTORY, NO_FACT, SUPPORTED, UNSUPPORTED, UNVERIFIABLE, Example

Span = tuple[int, int]
PER_DOCUMENT = 8
TALK_REFERENCES = 6

# --- one edit of a supported sentence makes it false ---------------------------------------------------------------

_LISTS = lexicon.tables(__file__)
FRAMES, CHATTY = tuple[str, ...](_LISTS["frames"]), tuple[str, ...](_LISTS["chatty"])
UNITS: list[str] = _LISTS["units"].split()
_AUXILIARY = re.compile(
    r"\b(is|are|was|were|has|have|had|can|could|will|would|did|does|do|should|must)\b(?! not\b|n['’]t)"
)


def edit(sentence: str, reference: str, random: Random) -> str | None:
    """One false version of a sentence that the reference supports, or None; other names come from the reference."""
    kinds = [_number, _number, _name, _name, _negation, _opposite, _unit, _phrase, _phrase]  # the first two twice
    if random.random() < 0.08:
        return random.choice(FRAMES).format(decapitalised(sentence.rstrip(" .")))
    random.shuffle(kinds)
    for kind in kinds:
        edited = kind(sentence, reference, random)
        if edited is not None and edited != sentence:
            return edited
    return None


def _put(sentence: str, start: int, end: int, text: str) -> str:
    return sentence[:start] + text + sentence[end:]


_BOUND = re.compile(r"\b(?:than|over|under|above|below|least|most|before|after|since|until|by|nearly|almost) [^\s\w]?$")
"""Before a number: another one may leave the sentence true ("more than 300" of 500)."""


def _number(sentence: str, reference: str, random: Random) -> str | None:
    """Another number, year or month: half of the time one that the reference says of something else, else a new one."""
    kinds = ("number", "year", "month")
    found = [unit for unit in units(sentence) if unit.kind in kinds and not _BOUND.search(sentence, 0, unit.start)]
    if not found:
        return None
    unit = random.choice(found)
    text = sentence[unit.start : unit.end]
    own = {stem for other in found for stem in other.key}
    others = sorted(
        {reference[u.start : u.end] for u in units(reference) if u.kind == unit.kind and not own & set(u.key)}
    )
    if others and random.random() < 0.5:
        return _put(sentence, unit.start, unit.end, random.choice(others))
    if unit.kind == "month":
        return _put(sentence, unit.start, unit.end, random.choice(sorted(lexicon.MONTHS - {text.lower()})).title())
    known = stem_set(reference)
    for _ in range(8):
        value = _other_number(text, unit.kind, random)
        if value is not None and value != text and words_of(value).stems[0] not in known:
            return _put(sentence, unit.start, unit.end, value)
    return None


def _other_number(text: str, kind: str, random: Random) -> str | None:
    """A number of the same form nearby: years within 40, others between half and three times as much."""
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
    """Another name of the reference in the place of one."""
    own = {stem for unit in units(sentence) for stem in unit.key}
    found = [unit for unit in units(sentence) if unit.kind == "name" and unit.start > 0]
    others = sorted({reference[u.start : u.end] for u in units(reference) if u.kind == "name" and not own & set(u.key)})
    if not found or not others:
        return None
    unit = random.choice(found)
    return _put(sentence, unit.start, unit.end, random.choice(others))


def _negation(sentence: str, reference: str, random: Random) -> str | None:
    """The negation taken out, or one put in."""
    negated = re.search(r"\s+(?:not|never)\b|(?<=\w)n['’]t\b", sentence)
    if negated:
        return _put(sentence, *negated.span(), "")
    if lexicon.NEGATIONS & set(words_of(sentence).lower):
        return None
    place = _AUXILIARY.search(sentence)
    if place is None or random.random() < 0.5:
        return None
    return _put(sentence, place.end(), place.end(), " not")


def _opposite(sentence: str, reference: str, random: Random) -> str | None:
    """A word turned into its opposite."""
    words = words_of(sentence)
    found = [i for i, word in enumerate(words.lower) if word in lexicon.OPPOSITES]
    if not found:
        return None
    i = random.choice(found)
    text = lexicon.OPPOSITES[words.lower[i]]
    return _put(sentence, words.starts[i], words.ends[i], text.title() if sentence[words.starts[i]].isupper() else text)


def _unit(sentence: str, reference: str, random: Random) -> str | None:
    """Another unit after a number."""
    words = words_of(sentence)
    places = [i for i in range(1, len(words)) if words.lower[i] in UNITS and words.numbers[i - 1] is not None]
    if not places:
        return None
    i = random.choice(places)
    other = random.choice([unit for unit in UNITS if unit != words.lower[i]])
    return _put(sentence, words.starts[i], words.ends[i], other)


TURNS = [tuple(pair.split("|")) for pair in _LISTS["turns"].split("; ")]
_TURN = {first: second for pair in reversed(TURNS) for first, second in (pair[::-1], pair)}  # the first pair wins
_ANY_TURN = re.compile(r"\b(" + "|".join(sorted(map(re.escape, _TURN), key=len, reverse=True)) + r")\b")
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_WEEKDAY = re.compile(r"\b(" + "|".join(WEEKDAYS) + r")(?=s?\b)")
_LIMIT = re.compile(r",? (?:unless|except|only if|provided that|if|but not) [^,.;]{6,80}(?=[,.;]|$)")


def _phrase(sentence: str, reference: str, random: Random) -> str | None:
    """A weekday, a bound, a quantifier or a condition exchanged; or a condition or exception left out."""
    if (day := _WEEKDAY.search(sentence)) and random.random() < 0.8:
        return _put(sentence, *day.span(), random.choice([other for other in WEEKDAYS if other != day[0]]))
    if (limit := _LIMIT.search(sentence)) and random.random() < 0.5:
        return _put(sentence, *limit.span(), "")
    if not (found := list(_ANY_TURN.finditer(sentence))):
        return None
    place = random.choice(found)
    return _put(sentence, *place.span(), _TURN[place[0]])


# --- rewordings that keep a sentence true --------------------------------------------------------------------------
# Each gives another wording, or the sentence where it does not apply.

_GROUPS = [group.split("|") for group in _LISTS["synonyms"].split("; ")]
_SWAP = {word: [other for other in group if other != word] for group in _GROUPS for word in group}
_ANY = re.compile(r"\b(" + "|".join(sorted(map(re.escape, _SWAP), key=len, reverse=True)) + r")\b")
_CARDINALS = "two three four five six seven eight nine ten eleven twelve".split()
_DIGITS = {word: lexicon.NUMBER_WORDS[word] for word in _CARDINALS}
_SPELLED = _DIGITS | {digits: word for word, digits in _DIGITS.items()}
_RELATIVE = re.compile(
    r"^(?P<head>[A-Z][^,;()]{2,60}), (?:which|who) (?P<rest>(?:is|was|are|were|has|had)\b[^,;]{8,}),"
)
_LEAD = re.compile(r"^((?:In|On|During|After|Before|Since|By|At|From|Until|For) [^,;()]{2,50}), (\w[^;]{15,}?)([.!]?)$")
_TAIL = re.compile(
    r"^(\w[^;]{15,}?) ((?:in|on|during|since|by|until) (?:[A-Z][a-z]+ )?(?:\d{1,2},? )?(?:1\d|20)\d\d)([.!]?)$"
)

_ASIDE = re.compile(r", (?:which|who|where|including|such as|as well as|after|while|although|when|with|an? )")


def decapitalised(sentence: str) -> str:
    """For the middle of another sentence: a function word at the start loses its capital."""
    first = sentence.split(" ", 1)[0]
    return sentence[:1].lower() + sentence[1:] if first.lower() in lexicon.FUNCTION_WORDS and first != "I" else sentence


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def without_brackets(sentence: str, random: Random) -> str:
    """Text in round or square brackets left out."""
    return re.sub(r"\s*[(\[][^()\[\]]*[)\]]", "", sentence)


def without_clause(sentence: str, random: Random) -> str:
    """One clause between commas, or after the last comma, left out."""
    commas = [m.start() for m in re.finditer(r", ", sentence)]
    if not commas or " not " in sentence:
        return sentence
    found = [
        (a, b)
        for a, b in pairwise([*commas, len(sentence.rstrip(" .!?"))])
        if b - a > 8 and len(sentence) - (b - a) > 25 and a > 15 and _ASIDE.match(sentence[a:b])
    ]
    if not found:
        return sentence
    a, b = random.choice(found)
    return sentence[:a] + sentence[b:].removeprefix(",")


def without_adverbs(sentence: str, random: Random) -> str:
    """Adverbs and fillers left out."""
    out = re.sub(
        r"\b(?:also|very|really|then|currently|originally|especially|particularly|additionally|furthermore|"
        r"moreover|however|therefore|thus|in fact|of course|overall)\b,? ", "", sentence, flags=re.IGNORECASE,
    )  # fmt: skip
    return _capitalised(out) if out != sentence else sentence


def moved(sentence: str, random: Random) -> str:
    """A leading time or place moved to the end, or a time at the end moved to the front."""
    lead, tail = _LEAD.match(sentence), _TAIL.match(sentence)
    if lead:
        return f"{_capitalised(lead[2])} {decapitalised(lead[1])}{lead[3]}"
    return f"{_capitalised(tail[2])}, {decapitalised(tail[1])}{tail[3]}" if tail else sentence


def reworded(sentence: str, random: Random) -> str:
    """One to three words or phrases exchanged for others of the same meaning."""
    found = list(_ANY.finditer(sentence))
    if not found:
        return sentence
    for match in sorted(random.sample(found, min(len(found), random.randint(1, 3))), key=lambda m: -m.start()):
        sentence = _put(sentence, *match.span(), random.choice(_SWAP[match[0]]))  # the last first: offsets hold
    return sentence


def numbers_written(sentence: str, random: Random) -> str:
    """Dates the other way, else thousands without commas, else numbers up to twelve as words and words as digits."""
    out = re.sub(r"\b([A-Z][a-z]{2,8}) (\d{1,2}), ((?:1\d|20)\d\d)\b", r"\2 \1 \3", sentence)
    if out == sentence:
        out = re.sub(r"(?<=\d),(?=\d{3}\b)", "", sentence)
    if out == sentence:
        out = re.sub(r"\b[a-z]+\b|(?<![\d.,:/⁄–-])\d+\b(?![\d.,:%/⁄–-])", lambda m: _SPELLED.get(m[0], m[0]), sentence)
    return out


def relative_apart(sentence: str, random: Random) -> str:
    """ "X, which was built in 1890, …" as "X was built in 1890."."""
    match = _RELATIVE.match(sentence)
    return f"{match['head']} {match['rest']}." if match else sentence


def chatty(sentence: str, random: Random) -> str:
    """As it is said in a conversation: an opening, sometimes small letters and no full stop."""
    out = random.choice(CHATTY).format(decapitalised(sentence)) if random.random() < 0.7 else sentence
    return out.lower().rstrip(".") if random.random() < 0.5 else out


KEEPING: tuple[Callable[[str, Random], str], ...] = (
    without_brackets, without_clause, without_adverbs, moved, reworded, reworded, numbers_written, relative_apart,
)  # fmt: skip


def rewrite(sentence: str, random: Random) -> str:
    """Several rewordings after each other; the sentence itself where none applies."""
    for change in random.sample(KEEPING, random.randint(2, 6)):
        other = change(sentence, random)
        if len(other.split()) >= 4:
            sentence = other
    return sentence


# --- who did what: sentences with their parts in other places, some still true, some false -------------------------
# Marks on tokens say which words the evidence has, not where they stand, so order has to be taught by itself.

PAST: dict[str, str] = dict(pair.split("=") for pair in _LISTS["past"].split())
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
_PASSIVE = re.compile(rf"(?P<a>{_PHRASE}) (?:was|were) (?:[a-z]+ly )?{_PARTICIPLE} by (?P<b>{_PHRASE}){_NEXT}")
_ACTIVE = re.compile(rf"(?P<a>{_NAME}) {_PARTICIPLE} (?P<b>{_PHRASE}){_NEXT}")
_JOINED = re.compile(rf"(?P<a>\b{_NAME}) (?P<and>and|or) (?P<b>{_NAME}){_NEXT}")
_NOUN = re.compile(rf"\b(?:[Tt]he|[Aa]n?|[Hh]is|[Hh]er|[Tt]heir|[Ii]ts) (?P<noun>[a-z-]{{3,}}){_NEXT}")
_GOES_ON = re.compile(r",? (?:who|whom|whose|which|that|where|of|named|called)\b|, (?:an?|the|his|her|its|their)\b")
"""What says more of the second phrase, and so can't stay behind where another phrase moves there."""


def voices(sentence: str) -> tuple[str, str] | None:
    """The sentence in the other voice, and a false one with doer and done-to exchanged; None where it does not apply.

    "A was bought by B." gives ("B bought A.", "A bought B."), and the other way round.
    """
    passive = _PASSIVE.match(sentence)
    match = passive or _ACTIVE.match(sentence)
    if match is None or match["a"].split()[0].lower() in lexicon.FUNCTION_WORDS - {"the", "a", "an"}:
        return None
    if match["b"].endswith("day") or _GOES_ON.match(sentence, match.end()):  # "announced Wednesday"
        return None
    a, b, rest = match["a"], match["b"], sentence[match.end() :]
    if passive:
        done = PAST.get(match["verb"], match["verb"])
        return f"{_capitalised(b)} {done} {_lower(a)}{rest}", f"{a} {done} {b}{rest}"
    done = _DONE.get(match["verb"], match["verb"])
    return f"{_capitalised(b)} {_was(b)} {done} by {_lower(a)}{rest}", f"{a} {_was(a)} {done} by {b}{rest}"


def rejoined(sentence: str) -> str | None:
    """ "A and B" as "B and A": still true."""
    match = _JOINED.search(sentence)
    if match is None or match["a"].split()[0].lower() in lexicon.FUNCTION_WORDS:
        return None
    return f"{sentence[: match.start()]}{match['b']} {match['and']} {match['a']}{sentence[match.end() :]}"


def exchanged(sentence: str, random: Random) -> tuple[str, Span, Span] | None:
    """Two names, numbers of one kind or nouns, not merely joined by "and", in each other's place (false), and where
    they stand; None where the sentence has no two.
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


def _lower(phrase: str) -> str:
    return phrase[:1].lower() + phrase[1:] if phrase.split()[0] in ("The", "A", "An") else phrase


# --- examples for the encoder --------------------------------------------------------------------------------------

SMALL_TALK = tuple(_LISTS["small_talk"].split(" | "))  # sentences without a fact to check, as assistants write them


def with_addition(sentence: str, other: str, random: Random) -> tuple[str, Span] | None:
    """The sentence with a clause of another one behind it, and where that clause stands."""
    clauses = [c for c in re.split(r"[,;:()]\s*", other.strip().rstrip(".!?")) if 3 <= len(c.split()) <= 14]
    if not clauses:
        return None
    clause = random.choice(clauses)
    bare = sentence.rstrip().rstrip(".!?")
    joint = random.choice((", and ", ", where ", " and ", "; ", ", while ", ", "))
    return f"{bare}{joint}{decapitalised(clause)}.", (len(bare + joint), len(bare + joint + clause))


class Maker:
    """Makes examples of documents and people's supported sentences; all ``sentences`` of the documents say what may be
    added, and which words stand between which others."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = sentences
        self.between: dict[tuple[str, str], set[str]] = defaultdict(set)  # words by their two neighbours
        for sentence in sentences:
            lower = words_of(sentence).lower
            for a, b, c in zip(lower, lower[1:], lower[2:], strict=False):
                if len(b) > 3 and b.isalpha():
                    self.between[a, c].add(b)

    def substitute(self, sentence: str, reference: str, random: Random) -> str | None:
        """The sentence with one content word exchanged for another that stands between the same two words elsewhere
        and is not in the reference; None without one."""
        words = words_of(sentence)
        known = stem_set(reference) | set(words.stems)
        lower = words.lower
        places = [i for i in range(1, len(words) - 1) if words.content[i] and len(lower[i]) > 3 and not words.names[i]]
        random.shuffle(places)
        for i in places:
            near = self.between.get((lower[i - 1], lower[i + 1]), set())
            fits = sorted(w for w in near if w[-2:] == lower[i][-2:] and words_of(w).stems[0] not in known)
            if fits:  # the same ending keeps the grammar
                return _put(sentence, words.starts[i], words.ends[i], random.choice(fits))
        return None

    def false(self, sentence: str, reference: str, random: Random) -> tuple[str, int, tuple[Span, ...]] | None:
        """A false version: (sentence, target, spans that are wrong)."""
        roll = random.random()
        if roll < 0.14:
            added = with_addition(sentence, random.choice(self.sentences), random)
            if added is not None:
                return added[0], UNVERIFIABLE, (added[1],)
        edited = (lambda: edit(sentence, reference, random), CONTRADICTORY)
        turned = (lambda: (exchanged(sentence, random) or (None,))[0], CONTRADICTORY)
        replaced = (lambda: self.substitute(sentence, reference, random), UNSUPPORTED)  # which kind is not known
        order = (edited, turned, replaced) if roll < 0.6 else (turned, replaced, edited)
        for make, target in order if roll < 0.75 else (replaced, edited, turned):
            other = make()
            if other is not None and other != sentence and (spans := data.changed(sentence, other)):
                return other, target, spans
        return None

    def of_document(self, sentences: Sequence[str], question: str, source: str, random: Random) -> list[Example]:
        """Examples of one document's sentences, in order."""
        good = [i for i, s in enumerate(sentences) if proper(s)]
        random.shuffle(good)
        out: list[Example] = []
        reference = " ".join(sentences)
        for i in good[:PER_DOCUMENT]:
            text = rewrite(sentences[i], random) if random.random() < 0.9 else sentences[i]
            sources = {i}
            if random.random() < 0.15 and i + 1 < len(sentences) and proper(sentences[i + 1]):
                text = f"{text.rstrip().rstrip('.')}, and {decapitalised(rewrite(sentences[i + 1], random))}"
                sources.add(i + 1)
            true, target, passages = text, SUPPORTED, tuple(sentences)
            spans: tuple[Span, ...] | None = ()
            roll = random.random()
            if roll < 0.12 and len(sentences) > 3:
                target, spans = UNVERIFIABLE, None
                passages = tuple(s for n, s in enumerate(sentences) if n not in sources)
            elif roll < 0.55 and (made := self.false(text, reference, random)) is not None:
                text, target, spans = made
            if random.random() < 0.12:
                text, spans = _as_talk(text, spans, random)
            asked = question if random.random() < 0.5 else ""
            out.append(Example(asked, text, passages, target, spans, source, 1.0, f"{source} {sentences[i]}"))
            if target not in (SUPPORTED, UNVERIFIABLE) and random.random() < 0.5:  # the true one beside the false one
                out.append(replace(out[-1], sentence=true, target=SUPPORTED, spans=()))
        return out

    def of_roles(self, sentences: Sequence[str], source: str, random: Random) -> list[Example]:
        """Pairs of a true and a false sentence that differ from the document's in order alone."""
        order = [s for s in sentences if proper(s)]
        random.shuffle(order)
        pairs: list[tuple[str, str, tuple[Span, ...] | None]] = []
        enough = False
        for sentence in order:
            if (both := voices(sentence)) is not None:
                pairs.append((*both, None))
                continue
            right = rejoined(sentence) or rewrite(sentence, random)
            wrong = None if enough else exchanged(right if random.random() < 0.5 else sentence, random)
            if wrong is not None:
                enough = True
                pairs.append((right, wrong[0], wrong[1:]))
        out: list[Example] = []
        for right, false, spans in pairs:
            true = Example("", right, tuple(sentences), SUPPORTED, (), source, 1.0, f"{source} roles {right}")
            out += [true, replace(true, sentence=false, target=CONTRADICTORY, spans=spans)]
        return out

    def of_supported(self, row: Mapping[str, Any], passages: Sequence[str], random: Random) -> list[Example]:
        """A person's supported sentence reworded, and false versions of it."""
        sentence, question, source = row["sentence"], row["question"] or "", row["source"]
        if len(sentence.split()) < 4:
            return []
        reference, case = " ".join(passages), f"{source} edits {row['id']}"
        out = [Example(question, rewrite(sentence, random), tuple(passages), SUPPORTED, (), source, 1.0, case)]
        for _ in range(2):
            base = sentence if random.random() < 0.6 else rewrite(sentence, random)
            if (made := self.false(base, reference, random)) is not None:
                text, target, spans = made
                out.append(replace(out[0], sentence=text, target=target, spans=spans))
            elif base != sentence:
                out.append(replace(out[0], sentence=base))
        return out


def talk(questions: Sequence[str], references: Sequence[Sequence[str]], random: Random) -> list[Example]:
    """Each sentence of SMALL_TALK beside TALK_REFERENCES references, as "no fact"."""
    out = []
    for sentence in SMALL_TALK:
        for _ in range(TALK_REFERENCES):
            asked = random.choice(questions or ["that"])
            text = sentence.replace("{question}", asked.strip().rstrip("?").lower())
            out.append(Example(asked, text, tuple(random.choice(references)), NO_FACT, None, "talk"))
    return out


def _as_talk(text: str, spans: tuple[Span, ...] | None, random: Random) -> tuple[str, tuple[Span, ...] | None]:
    """The sentence as it is said in a conversation; where its wrong words would get lost, the sentence itself."""
    spoken, bare = chatty(text, random), text.rstrip(".").lower()
    if not spans:
        return spoken, spans
    if not spoken.rstrip(".").lower().endswith(bare):
        return text, spans
    shift = spoken.lower().find(bare)
    return spoken, tuple((a + shift, b + shift) for a, b in spans)


def proper(sentence: str) -> bool:
    """Whether a sentence of a document states something in prose: 7 to 45 words, mostly letters, no heading."""
    words = sentence.split()
    letters = sum(c.isalpha() or c == " " for c in sentence)
    return (
        7 <= len(words) <= 45
        and letters > 0.8 * len(sentence)
        and "|" not in sentence
        and "http" not in sentence
        and "(meta data)" not in sentence
        and not sentence.rstrip().endswith("?")
    )
