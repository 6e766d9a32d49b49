"""What of a reference a generative annotator is shown: a window a sentence, one for the whole answer, or all of it.

    sentence   the passages that bear on the sentence, 400 tokens (Chinese: 540)
    answer     the windows of all sentences of the answer in one: their requests begin alike
    whole      the reference

Passages, ranking and second pass are those of ``annotators/window.py``; tokens are counted by the packaged embedder,
since a server does not say how it counts. A reference with no more characters than the budget has tokens is shown
whole without loading that embedder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from annotators.language import language_of
from annotators.passages import BUDGET, ReferenceIndex, index_references
from annotators.window import Window, second_pass, select

if TYPE_CHECKING:
    from engines.embedding import Embedder

Mode = Literal["sentence", "answer", "whole"]
GAP = "\n[…]\n"
"""What stands for text left out."""


@dataclass(frozen=True)
class Item:
    """A sentence to judge.

    Args:
        sentence: As it came.
        reference: As it came.
        question: "" without one.
        language: "en" or "zh": which prompts it gets.
        peers: The sentences of its answer, itself among them; they share one window in the mode "answer".
    """

    sentence: str
    reference: str
    question: str
    language: str
    peers: tuple[str, ...]


@dataclass(frozen=True)
class Shown:
    """A part of a reference: its text, the spans [start, end) of the reference in it, whether it is all of it."""

    text: str
    runs: tuple[tuple[int, int], ...]
    whole: bool


class Windows:
    """Chooses what to show.

    Args:
        mode: See above.
        tokens: Budget of a sentence's window; None for 400, and 540 where the reference is Chinese.
        embedder: Gives the embedder that counts tokens and ranks; called when it is needed first.
    """

    def __init__(self, mode: Mode, tokens: int | None, embedder: Callable[[], Embedder]) -> None:
        self.mode, self.tokens = mode, tokens
        self._embedder = embedder
        self._indexes: dict[str, ReferenceIndex] = {}

    def first(self, items: Sequence[Item]) -> list[Shown]:
        """What each item's request shows, in order."""
        self._indexes = {}
        return self._show(items, second=False)

    def second(self, items: Sequence[Item]) -> list[Shown]:
        """What is shown to look once more for the evidence of sentences found unverifiable: six times as much.

        References of the items of the last ``first`` are not cut and embedded again.
        """
        return self._show(items, second=True)

    def _show(self, items: Sequence[Item], *, second: bool) -> list[Shown]:
        indexes = self._indexes
        long = dict.fromkeys(item.reference for item in items if not self._short(item.reference))
        if new := [reference for reference in long if reference not in indexes]:
            model = self._embedder()
            found = index_references(new, model.tokenize, (model,), self.tokens)
            indexes.update(zip(new, found, strict=True))
        queries = {
            (item.reference, sentence): None
            for item in items
            if item.reference in indexes
            for sentence in (item.peers if self.mode == "answer" else (item.sentence,))
        }
        pairs = [(indexes[reference], sentence) for reference, sentence in queries]
        windows = second_pass(pairs) if second else [[window] for window in select(pairs)]
        window_of = dict(zip(queries, windows, strict=True))
        return [self._shown(item, indexes.get(item.reference), window_of) for item in items]

    def _shown(
        self, item: Item, index: ReferenceIndex | None, window_of: dict[tuple[str, str], list[Window]]
    ) -> Shown:
        if index is None or index.fits:
            return Shown(item.reference, ((0, len(item.reference)),), whole=True)
        sentences = item.peers if self.mode == "answer" else (item.sentence,)
        places = {p for s in sentences for window in window_of[item.reference, s] for p in window.places}
        return show(index, sorted(places))

    def _short(self, reference: str) -> bool:
        if self.mode == "whole":
            return True
        tokens = self.tokens or BUDGET["zh" if language_of(reference) == "zh" else "en"]
        return len(reference) <= tokens


def show(index: ReferenceIndex, places: Sequence[int]) -> Shown:
    """Passages of a reference in its order; neighbours keep the text between them, gaps are marked."""
    runs: list[tuple[int, int]] = []
    last = -2
    for place in places:
        passage = index.passages[place]
        if place == last + 1:
            runs[-1] = (runs[-1][0], passage.end)
        else:
            runs.append((passage.start, passage.end))
        last = place
    text = GAP.join(index.reference[start:end] for start, end in runs)
    return Shown(text, tuple(runs), whole=len(places) == len(index.passages))
