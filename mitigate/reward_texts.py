"""What of a completion is judged, and which of its sentences repeat or copy: pure functions over text.

All offsets are code points into the completion's text: the string itself, or the content of the last assistant
message. Thinking is not part of the answer, nor is anything outside the response tags where some are given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from annotators.sentences import split_sentences
from annotators.wordlists import FUNCTION_WORDS

Tags = tuple[str, str]
_WORD = re.compile(r"[0-9]+(?:[.,:][0-9]+)*|[^\W\d_\u3400-\u9fff]+|[\u3400-\u9fff]|\d")
_FINISHED = re.compile(r"[.!?…。！？；][\"'”’»」』)\]）】*_`~]*$")
COPY_RUN, COPY_RUN_HAN = 6, 10
"""Consecutive words (characters of Chinese) in common that make a run; shorter ones are how one has to say it."""
COPY_SHARE = 0.8
REPEAT_SHARE = 0.85
_OPEN = re.compile(
    r"^\W*(?:(?:and|but|so|then|in|on|at|by|for|from|to|of|with|under|during|since|until|about)\W+){0,2}"
    r"(?:who|whom|whose|what|which|(?:when|where|why|how)\b"
    r"(?!.*,\W*(?:and\W+)?(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b))\b(?!.*\bor\b)",
    re.IGNORECASE | re.DOTALL,
)
_OPEN_HAN = re.compile(r"(?!.*(?:还是|吗|是否|任何|几乎)).*(?:谁|什么|哪|何|多少|几|怎)", re.S)
"""Questions that can't be answered in their own words: not "is it …?", not "which, A or B?"."""


def completion_text(completion: object) -> str:
    """The text of a completion, plain or conversational.

    Args:
        completion: A string, or messages {"role", "content"} of which the last assistant's counts; content may be a
            list of {"type": "text", "text"} parts.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(m, Mapping) for m in completion):
        said = [message for message in completion if message.get("role") == "assistant"]
        return _content(said[-1]) if said else ""
    raise TypeError(
        f"completions: expected strings or lists of messages with role and content, got {type(completion).__name__}"
    )


def question_of(prompt: object) -> str:
    """The last user message of a conversational prompt, or the whole of a plain one."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence):
        asked = [m for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
        return _content(asked[-1]) if asked else ""
    return ""


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def answer_spans(text: str, thinking: Tags | None, response: Tags | None) -> list[tuple[int, int]]:
    """The stretches of a completion that are its answer.

    A thinking block that is never closed goes to the end. A closing tag without an opening one ends a block that the
    prompt opened, so all before it is thinking. With response tags only what stands between them counts; an opened
    one that is never closed goes to the end.

    Args:
        text: The completion.
        thinking: Opening and closing tag of what is not judged, or None.
        response: Opening and closing tag of what alone is judged, or None.
    """
    spans = _outside(text, thinking) if thinking else [(0, len(text))]
    if response:
        spans = [span for a, b in spans for span in _inside(text, a, b, response)]
    return [(a, b) for a, b in spans if text[a:b].strip()]


def _outside(text: str, tags: Tags) -> list[tuple[int, int]]:
    opening, closing = tags
    spans: list[tuple[int, int]] = []
    at = 0
    first_open, first_close = text.find(opening), text.find(closing)
    if first_close >= 0 and (first_open < 0 or first_close < first_open):
        at = first_close + len(closing)
    while (start := text.find(opening, at)) >= 0:
        spans.append((at, start))
        end = text.find(closing, start + len(opening))
        if end < 0:
            return spans
        at = end + len(closing)
    return [*spans, (at, len(text))]


def _inside(text: str, start: int, end: int, tags: Tags) -> list[tuple[int, int]]:
    opening, closing = tags
    spans: list[tuple[int, int]] = []
    at = start
    while (found := text.find(opening, at, end)) >= 0:
        begin = found + len(opening)
        stop = text.find(closing, begin, end)
        if stop < 0:
            return [*spans, (begin, end)]
        spans.append((begin, stop))
        at = stop + len(closing)
    return spans


def sentence_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sentences of the answer, as offsets into the whole completion."""
    return [(start + a, start + b) for start, end in spans for a, b in split_sentences(text[start:end])]


def finished(text: str) -> bool:
    """Whether a text ends as sentences do, with a stop."""
    return _FINISHED.search(text.rstrip()) is not None


def words(text: str) -> list[str]:
    """Words in lower case; a Chinese character is one."""
    return _WORD.findall(text.lower())


def content_words(text: str) -> frozenset[str]:
    """Words that say something; pairs of neighbours for Chinese. All words where nothing else is left."""
    found = words(text)
    pairs = {a + b for a, b in pairwise(found) if _han(a) and _han(b)}
    single = {word for word in found if not _han(word) and word not in FUNCTION_WORDS}
    return frozenset(single | pairs) or frozenset(found)


def _han(word: str) -> bool:
    return "\u3400" <= word[0] <= "\u9fff"


def repeats(sentences: Sequence[str]) -> list[bool]:
    """Which sentences say again what one earlier sentence of the same answer said.

    That is so when at least 85 % of its content words, and all of its numbers, are in one earlier sentence.

    Args:
        sentences: In order.

    Returns:
        One flag a sentence. Linear in the text for each pair of sentences.
    """
    seen: list[frozenset[str]] = []
    flags = []
    for sentence in sentences:
        own = content_words(sentence)
        numbers = {word for word in own if word[0].isdigit()}
        flags.append(
            bool(own)
            and any(len(own & before) >= REPEAT_SHARE * len(own) and numbers <= before for before in seen)
        )
        seen.append(own)
    return flags


def open_question(text: str) -> str:
    """The question that a text ends with, if no answer to it can be made of its own words alone; else ""."""
    spans = split_sentences(text)
    last = text[spans[-1][0] : spans[-1][1]] if spans else ""
    if not last.rstrip(" \"'”’」』)").endswith(("?", "？")):
        return ""
    return last if _OPEN.search(last) or _OPEN_HAN.match(last) else ""


class Copies:
    """Finds sentences copied from one reference: at least 80 % of the words stand in runs of six shared words.

    The share is the extractive fragment coverage of Grusky et al. 2018 ("Newsroom", §4.1) with shorter runs left out.
    A sentence of fewer words than a run is never a copy: a short answer can't help being literal.

    Args:
        reference: The document.
    """

    def __init__(self, reference: str) -> None:
        found = words(reference)
        self._runs = {n: set(runs_of(found, n)) for n in (COPY_RUN, COPY_RUN_HAN)}

    def __call__(self, sentence: str) -> bool:
        """Whether the sentence is a copy."""
        found = words(sentence)
        size = COPY_RUN_HAN if 2 * sum(map(_han, found)) > len(found) else COPY_RUN
        return copied_share(found, self._runs[size], size) >= COPY_SHARE


def runs_of(found: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """All runs of ``size`` consecutive words, in order."""
    return [tuple(found[i : i + size]) for i in range(len(found) - size + 1)]


def copied_share(sentence: Sequence[str], runs: Set[tuple[str, ...]], size: int) -> float:
    """Share of a sentence's words that stand in a run of ``size`` words that is among ``runs``, in [0, 1]."""
    held = [False] * len(sentence)
    for i, run in enumerate(runs_of(sentence, size)):
        if run in runs:
            held[i : i + size] = [True] * size
    return sum(held) / max(len(held), 1)
