"""A small invented world (simulated): towns, novels, machines and animals, six attributes each, and their values.

Everything follows from one seed. An entity has a true value for each attribute; its reference document states
all but one of them, so that a claim about the last is unverifiable. Nothing here exists.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from examples.pocket.phrases import DOCUMENTS, FILLERS, OPENINGS, PAIRS, listed

NOUNS = {"place": "town", "work": "novel", "device": "machine", "species": "animal"}
KINDS = tuple(NOUNS)
ATTRIBUTES = {
    "place": ("river", "founder", "craft", "dish", "month", "roofs"),
    "work": ("author", "setting", "hero", "year", "prize", "chapters"),
    "device": ("inventor", "material", "power", "purpose", "built", "museum"),
    "species": ("habitat", "food", "colour", "time", "describer", "enemy"),
}
# The values that each attribute can take.
POOLS = listed(
    """
river: Orvel, Tamsin, Brede, Lunna, Skarn, Wesk, Ilmen, Dorra, Pellis, Varda, Ness, Quern, Sorrel, Arle, Teth, Mossa
founder author inventor describer: Ada Brenn, Tobin Harle, Mira Solt, Jonas Quill, Edda Varn, Piet Lomas, Runa Fisk,
  Oskar Dell, Nell Tarrow, Ivo Marsh, Greta Holm, Silas Wren, Clara Voss, Hugo Pell, Lena Crane, Milo Thorne
craft: ropes, clocks, bells, carpets, barrels, kites, candles, violins, tiles, knives, saddles, pots, mirrors,
  baskets, boots, lanterns
dish: onion soup, plum pie, eel stew, barley cakes, goat cheese, smoked trout, rye dumplings, honey bread, pickled
  beets, lentil porridge, duck sausage, chestnut jam, turnip fritters, pear tart, nettle broth, roast goose
month: January, February, March, April, May, June, July, August, September, October, November, December
roofs colour: red, blue, green, yellow, black, white, grey, brown, orange, purple, pink, silver
setting: a lighthouse, a monastery, a mining camp, a circus, a hospital, a harbour, a desert inn, a palace, a prison,
  a ship, a railway station, a vineyard, a school, a farm, a bakery, a theatre
hero: a clockmaker, a thief, a nurse, a shepherd, a judge, a sailor, a painter, a cook, a spy, a widow, a beekeeper, a
  soldier, a tailor, a printer, a gravedigger, a teacher
year built: 1702, 1718, 1731, 1745, 1756, 1763, 1779, 1784, 1792, 1807, 1815, 1826, 1838, 1849, 1853, 1861
prize: Halden, Corvin, Amstel, Lorne, Bixby, Tarn, Everard, Sable, Pomfret, Wick, Juniper, Ostrava, Gale, Merrow,
  Finch, Rook
chapters: twelve, fourteen, fifteen, eighteen, twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety
material: copper, brass, oak, iron, glass, steel, clay, bamboo, ivory, tin, marble, leather, wax, zinc, bronze, cork
power: steam, wind, running water, a spring, hot air, sunlight, a hand crank, a falling weight, a magnet, burning oil,
  a treadmill, coal gas, alcohol, a battery, a pedal, the tides
purpose: measuring rain, sorting seeds, folding letters, tuning harps, counting coins, drying fruit, copying maps,
  grinding lenses, cutting hair, weighing gold, printing stamps, winding wool, peeling eggs, lifting stones, polishing
  shoes, mixing paint
museum: Almond House, Carver Hall, Dunmore Gallery, Elm Court, Fenwick Rooms, Garnet Tower, Hazel Lodge, Iris Hall,
  Jasper House, Kestrel Rooms, Linden Court, Maple Gallery, Nettle Lodge, Opal Tower, Pine House, Quarry Hall
habitat: salt marshes, pine forests, limestone caves, river islands, sand dunes, peat bogs, mountain meadows, coral
  reefs, city parks, frozen lakes, orchards, bamboo groves, sea cliffs, hot springs, wheat fields, old ruins
food: beetles, clover, snails, moss, acorns, minnows, berries, spiders, mushrooms, pollen, worms, reeds, crickets,
  lichen, shrimps, thistles
time: at dawn, at dusk, at midnight, at noon, after rain, in thick fog, in moonlight, before storms, in snow, in deep
  shade
enemy: owls, foxes, snakes, pikes, wolves, eagles, rats, herons, badgers, otters, weasels, crows, cats, hawks, bears,
  toads
""",
    ", ",
)
SLOT = re.compile(r"\{(\w+)\}")
ONSETS = "b br d dr f fl g gr h k kl l m n p pr r s sk st t tr v z".split()
VOWELS = "a e i o u ai ea".split()
CODAS = "l n r s th m nd rk st x".split()
TITLES = (
    "Amber Silent Broken Paper Winter Crooked Hollow Golden Second Borrowed Velvet Salt".split(),
    "Ledger Orchard Staircase Mirror Compass Harvest Letter Garden Bridge Feather Window Anchor".split(),
)
DEVICE_ENDINGS = "scope graph meter phone mat lator".split()
ANIMALS = "finch newt moth lark mouse crab lizard heron beetle toad".split()


@dataclass(frozen=True)
class Document:
    """A reference text and where it states each attribute: ``places[attribute] = (start, end)`` of a sentence."""

    text: str
    places: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Entity:
    name: str  # as in the middle of a sentence ("Brendal", "The Amber Ledger", "the Kroscope")
    kind: str  # one of ``KINDS``
    facts: Mapping[str, str]  # attribute → true value, all six
    document: Document  # states five of them
    rarity: str  # "common", "middling" or "rare": how often training texts speak of it


@dataclass(frozen=True)
class World:
    """All entities of a seed, by kind in turn (simulated)."""

    seed: int
    entities: tuple[Entity, ...]

    @cached_property
    def by_name(self) -> dict[str, Entity]:
        return {entity.name: entity for entity in self.entities}

    @cached_property
    def by_document(self) -> dict[str, Entity]:
        return {entity.document.text: entity for entity in self.entities}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything in the world; 16 hexadecimal digits."""
        rows = (f"{e.name}|{e.rarity}|{sorted(e.facts.items())}|{e.document.text}" for e in self.entities)
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def build_world(seed: int = 0, n_per_kind: int = 50) -> World:
    """Invent a world; equal seeds give equal worlds. ValueError where ``n_per_kind`` is not 1 to 144."""
    if not 1 <= n_per_kind <= len(TITLES[0]) * len(TITLES[1]):
        raise ValueError(f"n_per_kind: expected 1 to {len(TITLES[0]) * len(TITLES[1])}, got {n_per_kind}")
    rng = random.Random(f"pocket world {seed}")
    entities: list[Entity] = []
    for i in range(n_per_kind):
        for kind in KINDS:
            taken = {entity.name for entity in entities}
            name = invent_name(rng, kind)
            while name in taken:
                name = invent_name(rng, kind)
            facts = {attribute: rng.choice(POOLS[attribute]) for attribute in ATTRIBUTES[kind]}
            rarity = ("common", "middling", "rare")[i % 3]
            entities.append(Entity(name, kind, facts, write_document(rng, kind, name, facts), rarity))
    return World(seed, tuple(entities))


def invent_name(rng: random.Random, kind: str) -> str:
    """A name of that kind, as in the middle of a sentence."""
    if kind == "work":
        return f"The {rng.choice(TITLES[0])} {rng.choice(TITLES[1])}"
    stem = rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
    if kind == "place":
        return (stem + rng.choice(VOWELS[:5]) + rng.choice(CODAS)).capitalize()
    if kind == "device":
        return "the " + (stem + "o" + rng.choice(DEVICE_ENDINGS)).capitalize()
    return f"the {(stem + rng.choice(VOWELS[:5])).capitalize()} {rng.choice(ANIMALS)}"


def fill(template: str, subject: str, values: Mapping[str, str]) -> str:
    """Put a subject ("it", "the town" or a name) and attribute values into a template; it begins with a capital."""
    its = "its" if subject == "it" else f"{subject}'s"
    text = SLOT.sub(lambda slot: {"it": subject, "its": its}.get(slot[1].lower()) or values[slot[1]], template)
    return text[0].upper() + text[1:]


def slots(template: str) -> tuple[str, ...]:
    """The attributes that a template speaks of."""
    return tuple(name for name in SLOT.findall(template) if name.lower() not in {"it", "its"})


def write_document(rng: random.Random, kind: str, name: str, facts: Mapping[str, str]) -> Document:
    """A reference text of five to nine sentences that states all attributes but one, in any order."""
    stated = set(rng.sample(ATTRIBUTES[kind], len(ATTRIBUTES[kind]) - 1))
    todo = sorted(stated)
    rng.shuffle(todo)
    bodies = []
    for template in rng.sample(PAIRS[kind], 2):
        if set(slots(template)) <= set(todo) and rng.random() < 0.5:
            bodies.append(template)
            todo = [attribute for attribute in todo if attribute not in slots(template)]
    bodies += [rng.choice(DOCUMENTS[attribute]) for attribute in todo]
    if rng.random() < 0.7:
        bodies.append(rng.choice(FILLERS))
    rng.shuffle(bodies)
    text = fill(rng.choice(OPENINGS[kind]), name, {})
    places = {}
    for template in bodies:
        subject = rng.choice([name, f"the {NOUNS[kind]}", f"the {NOUNS[kind]}"])
        sentence = fill(template, subject, facts)
        for attribute in slots(template):
            places[attribute] = (len(text) + 1, len(text) + 1 + len(sentence))
        text += " " + sentence
    return Document(text, places)
