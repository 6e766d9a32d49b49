"""The annotator that cannot err: it invented the pocket world, so it knows the truth of every sentence (simulated).

A sentence is read back through the wordings it can have been made from. It is supported when every claim in it
is in the reference document or it is copied from there, contradictory when a stated attribute has another
value, unverifiable when the document is silent (the attribute left out, another entity, or no sentence of this
world's language), and ``no_fact`` when it claims nothing. It gives evidence and corrections.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from annotators.base import Annotator, Sentence
from annotators.records import Edit, Fragment, Label, SentenceAnnotation
from examples.pocket.phrases import ABOUT, ABSTENTIONS, ANSWERS, DOCUMENTS, INTRODUCTIONS, PAIRS
from examples.pocket.world import ATTRIBUTES, KINDS, NOUNS, POOLS, SLOT, Entity, World

WORDS = re.compile(r"\w")


class Oracle(Annotator):
    """Judges sentences about one world by knowing it."""

    reads = ("reference", "sentence")

    def __init__(self, world: World) -> None:
        self.world = world
        self.name = "oracle of the pocket world (simulated truth)"
        self.fingerprint = world.fingerprint
        self.claims = lru_cache(maxsize=100_000)(self._claims)

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """Judge each sentence against the entity whose document is its reference; "failed" outside the world."""
        return [self._judge(one.text, one.reference, one.start) for one in sentences]

    def entity_of(self, reference: str) -> Entity | None:
        """The entity that a reference is about: its document, or the first name that occurs in it."""
        entity = self.world.by_document.get(reference)
        if entity is None:
            found = [(reference.find(name), name) for name in self.world.by_name if name in reference]
            entity = self.world.by_name[min(found)[1]] if found else None
        return entity

    def _claims(self, sentence: str) -> tuple[tuple[str, str, str, int], ...] | None:
        """What a sentence claims, remembered as ``claims``: (subject, attribute, value, where the value starts).

        Returns:
            Nothing where it claims nothing, None where it is no sentence of this world's language.
        """
        if not WORDS.search(sentence):
            return ()
        for attributes, pattern in patterns():
            match = pattern.fullmatch(sentence)
            if match is None:
                continue
            subject = match.groupdict().get("subject") or "it"
            subject = subject.removesuffix("'s") if subject.lower() != "its" else "it"
            name = self._resolve(subject)
            if name is not None:
                return tuple((name, a, match[a], match.start(a)) for a in attributes)
        return None

    def _resolve(self, subject: str) -> str | None:
        """ "it", or the name of an entity, or None where it is neither."""
        plain = subject[0].lower() + subject[1:]
        if plain == "it" or plain in {f"the {noun}" for noun in NOUNS.values()}:
            return "it"
        return next((name for name in (subject, plain) if name in self.world.by_name), None)

    def _judge(self, sentence: str, reference: str, offset: int) -> SentenceAnnotation:
        whole = SentenceAnnotation(sentence, offset, offset + len(sentence), "checked")
        entity = self.entity_of(reference)
        if entity is None:
            return replace(whole, status="failed" if reference.strip() else "no_reference")
        claims = self.claims(sentence)
        at = reference.find(sentence) if claims is None else -1
        if at >= 0:  # copied from the document, though no claim about an attribute
            return replace(whole, label="supported", fragments=(Fragment(sentence, at, at + len(sentence)),))
        if claims is None or any(
            name not in {"it", entity.name} or attribute not in ATTRIBUTES[entity.kind]
            for name, attribute, _, _ in claims
        ):
            return replace(whole, label="unverifiable")
        places = entity.document.places
        stated = [claim for claim in claims if claim[1] in places]
        wrong = [claim for claim in stated if entity.facts[claim[1]] != claim[2]]
        label: Label = "contradictory" if wrong else "unverifiable"
        if not wrong and len(stated) == len(claims):
            label = "supported" if claims else "no_fact"
        text = entity.document.text
        spans = dict.fromkeys(places[claim[1]] for claim in stated)
        return replace(
            whole,
            label=label,
            fragments=tuple(Fragment(text[a:b], a, b) for a, b in spans) if reference == text else (),
            correction=tuple(
                Edit(value, entity.facts[attribute], offset + at, offset + at + len(value))
                for _, attribute, value, at in wrong
            ),
        )


@lru_cache(maxsize=1)
def patterns() -> tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]:
    """Every wording as a pattern, with the attributes that it claims."""
    templates = [*INTRODUCTIONS, *ABSTENTIONS]
    for kind in KINDS:
        templates += PAIRS[kind]
        for attribute in ATTRIBUTES[kind]:
            templates += [*ANSWERS[attribute], *DOCUMENTS[attribute]]
    return tuple(_pattern(template) for template in templates)


def _pattern(template: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    attributes: list[str] = []
    named = False

    def group(slot: re.Match[str]) -> str:
        nonlocal named
        name = slot[1]
        if name == "about":
            return "(?:" + "|".join(map(re.escape, ABOUT.values())) + ")"
        if name.lower() in {"it", "its"}:
            ending = "(?:'s)?" if name.lower() == "its" else ""
            first = "(?P<subject>" if not named else "(?:"
            named = True
            return rf"{first}[\w ]+?{ending})"
        attributes.append(name)
        return rf"(?P<{name}>{'|'.join(map(re.escape, POOLS[name]))})"

    pieces = re.split(r"(\{\w+\})", template)
    pattern = "".join(SLOT.sub(group, p) if p.startswith("{") else re.escape(p) for p in pieces)
    return tuple(attributes), re.compile(pattern)
