"""Made-up texts of ordinary kinds (a hotel, a lease), and sentences that they support, contradict or leave open.

Labelled pairs have one sentence of evidence. In a text that people write, every sentence is about the same thing, and
what is false of one part is often true of another. worlds.yaml states facts in several wordings; a text takes one of
each, and a sentence takes another: with the same values, with a value that the text has elsewhere, or turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from annotators.text.words import tables
from annotators.verifier.data import CONTRADICTORY, SUPPORTED, UNVERIFIABLE, Example, changed

_WORLDS = tables(__file__)
FACTS = (4, 8)  # of a text
CLAIMS = 4  # cases about one text
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_ORDINALS = "zeroth first second third fourth fifth sixth seventh eighth ninth".split()
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()
_RIVALS = "Brevia Calmont Dorvex Estrana Ferrolin Galvo Hexley Ironwell Juno Kaldera".split()
_SUBJECTS = "chemistry law medicine music history geology economics architecture philosophy botany".split()
Value = int | str


@dataclass(frozen=True)
class Kind:
    """Values of a kind: ``draw`` takes one, ``forms`` are the ways to write it; values of one ``pool`` look alike."""

    draw: Callable[[Random], Value]
    forms: Callable[[Any], Sequence[str]] = lambda value: [str(value)]
    pool: str = "few"


def _number(least: int, most: int, step: int = 1, form: str = "{}", *more: str, pool: str = "few") -> Kind:
    def forms(value: int) -> list[str]:
        written = f"{value:,}" if pool == "many" else str(value)
        spelled = [_WORDS[value]] if value < len(_WORDS) and form == "{}" else []
        return [one.format(written) for one in (form, *more)] + spelled

    return Kind(lambda random: step * random.randint(least // step, most // step), forms, pool)


def _clock(value: int) -> list[str]:
    hour, minute = divmod(value, 60)
    tail = f":{minute:02d}" if minute else ""
    return [f"{hour}:{minute:02d}", f"{(hour - 1) % 12 + 1}{tail} {'a.m.' if hour < 12 else 'p.m.'}"]


def _date(value: int) -> list[str]:
    month, day = _MONTHS[value // 31], value % 31 % 28 + 1
    return [f"{day} {month}", f"{month} {day}"]


def _word(words: Sequence[str], pool: str) -> Kind:
    return Kind(lambda random: random.choice(words), pool=pool)


def _place_in(words: Sequence[str], pool: str) -> Kind:
    return Kind(lambda random: random.randrange(len(words)), lambda value: [words[value]], pool)


KINDS: Mapping[str, Kind] = {
    "small": _number(2, 12), "count": _number(13, 60), "minutes": _number(10, 90, 5),
    "large": _number(300, 90_000, 100, pool="many"), "number_age": _number(14, 80),
    "year": _number(1850, 2023, pool="year"),
    "percent": _number(3, 90, 1, "{}%", "{} percent", "{} per cent", pool="percent"),
    "price": _number(4, 400, 2, "€{}", "{} euros", pool="price"),
    "seconds": _number(5, 90, 5, "{} seconds", pool="seconds"),
    "temperature": _number(60, 240, 10, "{} °C", "{} degrees", pool="temperature"),
    "grams": _number(50, 900, 50, "{} g", "{} grams", pool="grams"),
    "metres": _number(15, 140, 1, "{} m", "{} metres", pool="metres"),
    "kilometres": _number(2, 30, 1, "{} km", "{} kilometres", pool="kilometres"),
    "watts": _number(300, 2500, 100, "{} W", "{} watts", pool="watts"),
    "area": _number(6, 45, 1, "{} m²", "{} square metres", pool="area"),
    "time": Kind(lambda random: 30 * random.randint(12, 45), _clock, "time"),
    "date": Kind(lambda random: random.randrange(12 * 31), _date, "date"),
    "month": _place_in(_MONTHS, "month"), "weekday": _place_in(_WEEKDAYS, "weekday"),
    "floor": _place_in(_ORDINALS[1:6], "floor"), "stop": _place_in(_ORDINALS[2:], "stop"),
    "side": _word(("left", "right", "northern", "southern"), "side"), "subject": _word(_SUBJECTS, "subject"),
    "rival": _word(_RIVALS, "rival"), "place": _word(_WORLDS["places"], "place"),
    "name": Kind(lambda r: f"{r.choice(_WORLDS['first'])} {r.choice(_WORLDS['last'])}", pool="name"),
}  # fmt: skip


@dataclass(frozen=True)
class Stated:
    """A fact as a text states it, about ``key`` ("": none); ``denied`` says that its opposite is stated."""

    fact: Mapping[str, Any]
    values: Mapping[str, Value]
    key: str = ""
    denied: bool = False
    wording: str = ""

    @property
    def side(self) -> list[str]:
        return list(self.fact["deny" if self.denied else "say"])


def texts(number: int, seed: int) -> list[Example]:
    """Examples about ``number`` made-up texts, those of one case together."""
    out: list[Example] = []
    for n in range(number):
        random = Random(f"worlds {seed} {n}")
        out += _Text(random.choice(_WORLDS["worlds"]), random).examples(f"worlds {n}")
    return out


class _Text:
    """One text: its subject, the facts that it states, and its sentences."""

    def __init__(self, world: Mapping[str, Any], random: Random) -> None:
        self.random = random
        name = random.choice(world["subject"])
        self.subject = name.format(p=random.choice(_WORLDS["places"]), n=random.choice(_WORLDS["last"]))
        self.names = [self.subject, self.subject, world["it"]]
        facts = random.sample(world["facts"], min(len(world["facts"]), random.randint(*FACTS)))
        self.left_out = [fact for fact in world["facts"] if fact not in facts]
        self.stated: list[Stated] = []
        for fact in facts:
            self.stated += self._stated(fact)
        parts = [self._part(one.wording, one, self.subject if n == 0 else "") for n, one in enumerate(self.stated)]
        self.passages: tuple[str, ...] = ()
        while parts:  # some of them are joined
            text = parts.pop(0)
            if parts and random.random() < 0.2:
                text += random.choice(("; ", ", and ")) + parts.pop(0)
            self.passages += (_whole(text),)

    def _stated(self, fact: Mapping[str, Any]) -> list[Stated]:
        random = self.random
        keys = random.sample(fact["keys"], min(len(fact["keys"]), random.choice((2, 2, 3)))) if "keys" in fact else [""]
        slots: Mapping[str, str] = fact.get("slots", {})
        made: list[Stated] = []
        for key in keys:
            values = self._values(slots)
            while any(one.values == values for one in made):
                values = self._values(slots)
            denied = "deny" in fact and random.random() < 0.4
            one = Stated(fact, values, key, denied)
            made.append(replace(one, wording=random.choice(one.side)))
        return made

    def _values(self, slots: Mapping[str, str]) -> dict[str, Value]:
        """A value for each slot; two of one kind differ, and the lesser comes first where they have an order."""
        while True:
            drawn = {slot: KINDS[kind].draw(self.random) for slot, kind in slots.items()}
            if len({(slots[slot], value) for slot, value in drawn.items()}) == len(drawn):
                break
        numbers = [slot for slot, value in drawn.items() if isinstance(value, int)]
        for first, second in pairwise(numbers):
            if slots[first] == slots[second] and drawn[first] > drawn[second]:  # type: ignore[operator]
                drawn[first], drawn[second] = drawn[second], drawn[first]
        return drawn

    def _part(self, wording: str, one: Stated, subject: str = "", other: str = "") -> str:
        random = self.random
        kinds = one.fact.get("slots", {})
        written = {slot: random.choice(KINDS[kinds[slot]].forms(value)) for slot, value in one.values.items()}
        return wording.format(s=subject or random.choice(self.names), k=one.key, l=other, **written)

    def _sentence(self, wording: str, one: Stated, other: str = "") -> str:
        return _whole(self._part(wording, one, other=other))

    def examples(self, name: str) -> list[Example]:
        """Sentences about the text: true ones beside false ones, and a few that it leaves open."""
        random = self.random
        asked = f"What is known about {self.subject}?" if random.random() < 0.3 else ""
        out: list[Example] = []

        def add(text: str, target: int, case: str, spans: tuple[tuple[int, int], ...] | None = None) -> None:
            out.append(Example(asked, text, self.passages, target, spans, "worlds", 1.0, case))

        for n, one in enumerate(random.sample(self.stated, min(CLAIMS, len(self.stated)))):
            case = f"{name} {n}"
            others = [two for two in self.stated if two.fact is one.fact and two is not one]
            if others and "more" in one.fact and random.random() < 0.4:
                first, second = self._ordered(one, random.choice(others))
                wording = random.choice(one.fact["more"])
                add(self._sentence(wording, first, second.key), SUPPORTED, case, ())
                add(self._sentence(wording, second, first.key), CONTRADICTORY, case)
                continue
            same = [wording for wording in one.side if wording != one.wording]
            usable = same and not (one.denied and one.fact.get("unlike"))
            true = self._sentence(random.choice(same), one) if usable else None
            if true is not None:
                add(true, SUPPORTED, case, ())
            if "deny" in one.fact and (one.denied or not one.values or random.random() < 0.5):
                turned = random.choice(one.fact["say" if one.denied else "deny"])
                add(self._sentence(turned, one), CONTRADICTORY, case)
            elif one.values:
                changed_to = self._changed(one, others)
                state = random.getstate()
                wording = random.choice(same or one.side)
                false = self._sentence(wording, changed_to)
                random.setstate(state)
                wording = random.choice(same or one.side)
                add(false, CONTRADICTORY, case, changed(self._sentence(wording, one), false) or None)
            unsaid = [key for key in one.fact.get("keys", ()) if key not in {two.key for two in (one, *others)}]
            if unsaid and random.random() < 0.4:  # the text says it of others
                other = replace(one, key=random.choice(unsaid))
                add(self._sentence(random.choice(one.side), other), UNVERIFIABLE, case)
        for fact in random.sample(self.left_out, min(len(self.left_out), random.randint(0, 2))):
            one = random.choice(self._stated(fact))
            add(self._sentence(one.wording, one), UNVERIFIABLE, f"{name} open")
        return out

    def _ordered(self, one: Stated, two: Stated) -> tuple[Stated, Stated]:
        """The one with the larger first value, and the other."""
        slot = next(iter(one.values))
        return (one, two) if one.values[slot] > two.values[slot] else (two, one)  # type: ignore[operator]

    def _changed(self, one: Stated, others: Sequence[Stated]) -> Stated:
        """One value exchanged: for that of another key, for one that the text has elsewhere, or for a new one."""
        random = self.random
        kinds: Mapping[str, str] = one.fact["slots"]
        slot = random.choice(sorted(one.values))
        own, kind = one.values[slot], KINDS[kinds[slot]]
        near = [two.values[slot] for two in others if two.values[slot] != own]
        if not near or random.random() < 0.3:
            near = [
                value for two in self.stated for other, value in two.values.items()
                if KINDS[two.fact["slots"][other]].pool == kind.pool and value != own
            ]  # fmt: skip
        if not near or random.random() < 0.25:
            near = [value for value in (kind.draw(random) for _ in range(4)) if value != own]
        taken = set(one.values.values())
        near = [value for value in near if value not in taken]
        while not near:
            near = [value for value in (kind.draw(random),) if value not in taken]
        return replace(one, values={**one.values, slot: random.choice(near)})


def _whole(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
