"""What a part of a corpus must know of the whole to be scored by itself: neighbour questions, their reference answers,
how many samples each reference LLM gave, how common words are.

    whole = Whole("all")
    for record in corpus:                       # one pass; holds distinct questions and their reference answers
        whole.add(record)
    around = whole.around(questions_of_a_part, neighbours_QK)
    score_records(part, …, surroundings=around)  # the scores that the whole corpus gives it
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewl.records import FewlRecord


class Frequencies(NamedTuple):
    """How many distinct texts there are, and in how many of them each item (word, character n-gram) stands."""

    texts: int
    items: Mapping[str, int]


@dataclass(frozen=True)
class Surroundings:
    """Of a part of a corpus.

    Args:
        samples: The most answers that each LLM gave to one record, LLMs in the corpus's order of first appearance.
        neighbours: Question → its neighbour questions in the corpus.
        pool: Question → LLM → its reference answers; place by place the first that any record of the question has.
    """

    samples: Mapping[str, int]
    neighbours: Mapping[str, Sequence[str]]
    pool: Mapping[str, Mapping[str, Sequence[str]]]


@dataclass
class Whole:
    """Gathers what the parts need, record by record in the order of the corpus.

    Args:
        references: As in ``FewlOptions``: which reference LLMs are used; of the others no text is counted.
        weak: As in ``FewlOptions``.
        items_of: Of a text, for the frequencies; None gathers none.
    """

    references: str = "all"
    weak: Sequence[str] = ()
    items_of: Callable[[str], Iterable[str]] | None = None
    records: int = 0
    has_pairs: bool = False
    samples: dict[str, int] = field(default_factory=dict)
    pool: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)
    _items: Counter[str] = field(default_factory=Counter)

    def add(self, record: FewlRecord) -> None:
        """Take one record into account."""
        self.records += 1
        self.has_pairs |= bool(record.raw.get("iw") and record.raw.get("co"))
        known = self.pool.setdefault(record.question, {})
        for name, texts in record.references.items():
            self.samples[name] = max(self.samples.get(name, 0), len(texts))
            known[name] = (*known.get(name, ()), *texts[len(known.get(name, ())) :])
        if self.items_of is None:
            return
        for text in self._compared(record):
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if text.strip() and digest not in self._seen:
                self._seen.add(digest)
                self._items.update(set(self.items_of(text)))

    def _compared(self, record: FewlRecord) -> Iterator[str]:
        """The texts that ``score_records`` hands to the similarity."""
        only = None if self.references == "all" else {self.references.partition(":")[2], *self.weak}
        yield record.question
        yield from (answer.text for answer in record.answers)
        yield from (*record.iw, *record.co)
        for name, texts in record.references.items():
            if only is None or name in only:
                yield from texts

    @property
    def questions(self) -> list[str]:
        """The distinct questions, in order of first appearance: what ``neighbours_QK`` counts."""
        return list(self.pool)

    @property
    def frequencies(self) -> Frequencies:
        return Frequencies(len(self._seen), self._items)

    def around(self, rows: Mapping[str, NDArray[np.int64]], questions: Sequence[str]) -> Surroundings:
        """The surroundings of a part.

        Args:
            rows: Of each question of the part its neighbours, numbers of ``questions``; −1 pads.
            questions: ``self.questions``.
        """
        neighbours = {q: [questions[n] for n in row.tolist() if n >= 0] for q, row in rows.items()}
        needed = dict.fromkeys(n for names in neighbours.values() for n in names)
        return Surroundings(self.samples, neighbours, {q: self.pool[q] for q in needed})
