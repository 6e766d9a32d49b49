"""Chinese words by jieba, with its dictionary read from the package: no log lines, no cache file used or trusted."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _jieba() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in its sources, and pkg_resources
        import jieba

    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def chinese_words(text: str) -> list[str]:
    """The words of a text, in order, punctuation among them; together they are the text."""
    return list(_jieba().lcut(text))
