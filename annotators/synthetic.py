"""Synthetic rows for the pair encoder: sentences of documents, reworded and then, half of the time, made false.

What is false is mostly known to the character, so the token head learns from the same rows. Four families: one small
edit that contradicts (``annotators/edits.py``, words in the same company), the same words in another order, beside a
true sentence whose order differs too (``annotators/roles.py``), a clause of something else added (not verifiable), and
a sentence whose own passage is taken out of the evidence (not verifiable). People's supported sentences are edited in
the same ways, since their wording differs from the document's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from random import Random
from typing import Any

from annotators.edits import edit
from annotators.lexical import stem_set, words_of
from annotators.records import LABELS
from annotators.rewrites import chatty, decapitalised, rewrite
from annotators.roles import exchanged, rejoined, voices

SUPPORTED, CONTRADICTORY, UNVERIFIABLE, NO_FACT, UNSUPPORTED = range(5)
TARGET: dict[str, int] = {**{str(label): i for i, label in enumerate(LABELS)}, "unsupported": UNSUPPORTED}
"""Of a label in a data file: its position in LABELS, or UNSUPPORTED."""
PER_DOCUMENT = 8
Span = tuple[int, int]


@dataclass(frozen=True)
class Example:
    """A row for the encoder: texts, target (position in LABELS, or UNSUPPORTED), spans of unsupported characters.

    ``spans`` is None where it is not known which words are wrong.
    """

    question: str
    sentence: str
    passages: tuple[str, ...]
    target: int
    spans: tuple[Span, ...] | None
    source: str
    weight: float = 1.0


def changed(before: str, after: str) -> tuple[Span, ...]:
    """Character spans of ``after`` whose words are not in ``before``; at a deletion, the words around it."""
    first, second = words_of(before), words_of(after)
    spans: list[Span] = []
    for tag, _, _, c, d in SequenceMatcher(None, first.lower, second.lower, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if c == d:
            c, d = max(0, c - 1), min(len(second), d + 1)
        if c < d:
            spans.append((second.starts[c], second.ends[d - 1]))
    return tuple(spans)


class Company:
    """Words that occur between the same two neighbours somewhere in the documents: plausible, other words."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.between: dict[tuple[str, str], set[str]] = defaultdict(set)
        for text in texts:
            lower = words_of(text).lower
            for a, b, c in zip(lower, lower[1:], lower[2:], strict=False):
                if len(b) > 3 and b.isalpha():
                    self.between[a, c].add(b)

    def substitute(self, sentence: str, reference: str, random: Random) -> str | None:
        """One content word exchanged for another that fits between its neighbours and is not in the reference."""
        words = words_of(sentence)
        known = stem_set(reference) | set(words.stems)
        places = [
            i
            for i in range(1, len(words) - 1)
            if words.content[i] and len(words.lower[i]) > 3 and not words.names[i]
        ]
        random.shuffle(places)
        for i in places:
            near = self.between.get((words.lower[i - 1], words.lower[i + 1]), set())
            suffix = words.lower[i][-2:]
            fits = sorted(w for w in near if w[-2:] == suffix and words_of(w).stems[0] not in known)
            if fits:
                return sentence[: words.starts[i]] + random.choice(fits) + sentence[words.ends[i] :]
        return None


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
    """Makes examples out of documents and out of people's supported sentences.

    Args:
        company: Words in the same company in the documents.
        others: Sentences of other documents, for additions.
    """

    def __init__(self, company: Company, others: Sequence[str]) -> None:
        self.company = company
        self.others = others

    def false(
        self, sentence: str, reference: str, random: Random
    ) -> tuple[str, int, tuple[Span, ...]] | None:
        """A false version: (sentence, target, spans that are wrong)."""
        roll = random.random()
        if roll < 0.14:
            added = with_addition(sentence, random.choice(self.others), random)
            if added is not None:
                return added[0], UNVERIFIABLE, (added[1],)
        changes: list[tuple[Callable[[], str | None], int]] = [
            (lambda: edit(sentence, reference, random), CONTRADICTORY),
            (lambda: (exchanged(sentence, random) or (None,))[0], CONTRADICTORY),
            (lambda: self.company.substitute(sentence, reference, random), UNSUPPORTED),
        ]
        order = [0, 1, 2] if roll < 0.6 else [1, 2, 0] if roll < 0.75 else [2, 0, 1]
        for n in order:
            make, target = changes[n]
            other = make()
            if other is not None and other != sentence:
                spans = changed(sentence, other)
                if spans:
                    return other, target, spans
        return None

    def of_document(
        self, sentences: Sequence[str], question: str, source: str, random: Random
    ) -> list[Example]:
        """Examples of one document's sentences, in order."""
        good = [i for i, s in enumerate(sentences) if proper(s)]
        random.shuffle(good)
        out: list[Example] = []
        reference = " ".join(sentences)
        for i in good[:PER_DOCUMENT]:
            text = rewrite(sentences[i], random) if random.random() < 0.9 else sentences[i]
            sources = [i]
            if random.random() < 0.15 and i + 1 < len(sentences) and proper(sentences[i + 1]):
                text = f"{text.rstrip().rstrip('.')}, and {decapitalised(rewrite(sentences[i + 1], random))}"
                sources.append(i + 1)
            target = SUPPORTED
            spans: tuple[Span, ...] | None = ()
            roll = random.random()
            drop: set[int] = set()
            if roll < 0.12 and len(sentences) > 3:
                drop, target, spans = set(sources), UNVERIFIABLE, None
            elif roll < 0.55:
                made = self.false(text, reference, random)
                if made is not None:
                    text, target, spans = made
            if random.random() < 0.12:
                text, spans = _as_talk(text, spans, random)
            kept = [n for n in range(len(sentences)) if n not in drop]
            passages = [sentences[n] for n in kept]
            if not passages:
                continue
            asked = question if random.random() < 0.5 else ""
            out.append(Example(asked, text, tuple(passages), target, spans, source))
        return out

    def of_roles(self, sentences: Sequence[str], source: str, random: Random) -> list[Example]:
        """Pairs of a true and a false sentence that differ from the document's in order: every voice, and one other."""
        passages, order = tuple(sentences), [s for s in sentences if proper(s)]
        random.shuffle(order)
        out: list[Example] = []
        other = False
        for sentence in order:
            both = voices(sentence)
            if both is not None:
                out += [Example("", both[0], passages, SUPPORTED, (), source)]
                out += [Example("", both[1], passages, CONTRADICTORY, None, source)]
                continue
            right = rejoined(sentence) or rewrite(sentence, random)
            wrong = None if other else exchanged(right if random.random() < 0.5 else sentence, random)
            if wrong is not None:
                other = True
                out += [Example("", right, passages, SUPPORTED, (), source)]
                out += [Example("", wrong[0], passages, CONTRADICTORY, wrong[1:], source)]
        return out

    def of_supported(self, row: Mapping[str, Any], passages: Sequence[str], random: Random) -> list[Example]:
        """A person's supported sentence reworded, and false versions of it."""
        sentence, question, source = row["sentence"], row["question"] or "", row["source"]
        if len(sentence.split()) < 4:
            return []
        reference = " ".join(passages)
        out = [Example(question, rewrite(sentence, random), tuple(passages), SUPPORTED, (), source)]
        for _ in range(2):
            base = sentence if random.random() < 0.6 else rewrite(sentence, random)
            made = self.false(base, reference, random)
            if made is not None:
                text, target, spans = made
                out.append(Example(question, text, tuple(passages), target, spans, source))
            elif base != sentence:
                out.append(Example(question, base, tuple(passages), SUPPORTED, (), source))
        return out


def _as_talk(
    text: str, spans: tuple[Span, ...] | None, random: Random
) -> tuple[str, tuple[Span, ...] | None]:
    spoken = chatty(text, random)
    if spoken is None:
        return text, spans
    shift = (
        max(0, len(spoken) - len(text))
        if spoken.rstrip(".").lower().endswith(text.rstrip(".").lower())
        else None
    )
    if shift is None or spans is None:
        return (spoken, spans) if not spans else (text, spans)
    shift = spoken.lower().find(text.rstrip(".").lower())
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
