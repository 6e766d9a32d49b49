"""How near texts are: sentence embeddings where the model reads the language, else character TF-IDF.

The packaged embedding model knows hardly any Chinese; there the cosine is that of character 1-2-grams, weighted over
the texts of one call. A model that reads Chinese can be named in the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engines.embedding import Embedder


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ASKED = {
    name: re.compile(pattern, re.I)
    for name, pattern in {
        "time": r"\b(when|(what|which) (time|year|date|day|month|century))\b"
        r"|何时|什么时候|[哪何]一?[年天月]|什么年份|几[年月点号]",
        "place": r"\b(where|(what|which) place)\b|哪里|哪儿|何处|什么地方",
        "person": r"\b(who|whom|whose|(what|which) person)\b|谁|哪位|何人",
        "reason": r"\b(why|(what|which) reason|how come)\b|为什么|为何|什么原因",
        "amount": r"\bhow (many|much)\b|\bwhat number\b|多少|几[个次人位种座]",
    }.items()
}


def ask_apart(first: str, second: str) -> bool:
    """Whether two questions can't be the same: other numbers in them, or one asks when and the other where.

    Embeddings hardly see such a difference (docs/results/dataset.md).
    """
    if sorted(_NUMBER.findall(first)) != sorted(_NUMBER.findall(second)):
        return True
    a, b = ({name for name, pattern in _ASKED.items() if pattern.search(text)} for text in (first, second))
    return bool(a and b) and not a & b


@lru_cache(maxsize=1)
def embedder(model: str | None) -> Embedder:
    """The embedding model, loaded once; None is the packaged one."""
    from engines.embedding import Embedder

    return Embedder(model, dtype="float32")  # the same figures on every machine


def reads(model: str | None, language: str) -> bool:
    """Whether a model can embed texts in a language ("en", "zh"); the packaged one reads no Chinese."""
    return language != "zh" or (model is not None and embedder(model).reads_chinese)


def vectors_of(texts: Sequence[str], language: str, model: str | None = None) -> np.ndarray:
    """(n, D) vectors of length 1 of texts in one language.

    Args:
        texts: All texts that are to be compared.
        language: "en" or "zh".
        model: Embedding model; None is the packaged one.
    """
    if reads(model, language):
        return embedder(model).encode(list(texts))
    from fewl.similarity import char_tfidf

    return np.asarray(char_tfidf()(list(texts)))


def head_of(text: str, characters: int) -> str:
    """The beginning of a text, cut at white space or after a Chinese stop where that is not far back."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    cut = max(head.rfind(stop) + 1 for stop in (" ", "\n", "。", "！", "？"))
    return head[: cut if cut > characters // 2 else characters].rstrip()
