"""How near texts are: sentence embeddings where the model reads the language, else character TF-IDF.

The packaged embedding model knows hardly any Chinese; there the cosine is that of character 1-2-grams, weighted over
the texts of one call. A model that reads Chinese can be named in the recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engines.embedding import Embedder


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
