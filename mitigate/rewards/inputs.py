"""From what TRL hands to a reward function to answers with sentences, with errors that say what is wrong.

Columns are checked before any model runs, so a mistake shows at the first step; ``SentenceReward.check`` does the same
for a whole data set before training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from annotators.text.sentences import split_sentences
from annotators.text.words import FUNCTION_WORDS

# ----------------------------------------------------------------------------------------------------
# What of a completion is judged, and which of its sentences repeat or copy: pure functions over text.
#
# All offsets are code points into the completion's text: the string itself, or the content of the last assistant
# message. Thinking is not part of the answer, nor is anything outside the response tags where some are given.

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
            bool(own) and any(len(own & before) >= REPEAT_SHARE * len(own) and numbers <= before for before in seen)
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


@dataclass(frozen=True)
class Columns:
    """Names of the data set's columns that a reward reads; only ``reference`` must be there.

    Attributes:
        reference: The document to judge against, a text a row.
        question: What was asked; without such a column the last user message of the prompt.
        points: Gold points that a complete answer makes, a list of texts a row; without it they are taken from the
            reference.
        language: "en", "zh"…, handed to the annotator.
    """

    reference: str = "reference"
    question: str = "question"
    points: str = "points"
    language: str = "language"


@dataclass(frozen=True)
class Answer:
    """One completion, ready to be judged.

    Attributes:
        text: The completion's text, which ``spans`` point into.
        spans: Start and end of each sentence of the answer, in order.
        cut_off: Whether the completion ran into its limit, so that its last sentence is not whole.
        reference: The document.
        question: The question, "" where there is none.
        language: As declared, or None.
        points: Gold points, or None.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    cut_off: bool
    reference: str
    question: str
    language: str | None
    points: tuple[str, ...] | None

    @property
    def last_is_part(self) -> bool:
        """Whether the last sentence was cut off."""
        return self.cut_off and bool(self.spans) and self.spans[-1][1] == len(self.text.rstrip())

    @property
    def sentences(self) -> list[str]:
        return [self.text[a:b] for a, b in self.spans]


def check_columns(data: Mapping[str, Any], names: Columns, rows: int, *, question: bool) -> None:
    """Check the columns that a reward reads.

    Args:
        data: Column name → values.
        names: Which columns to read.
        rows: How many rows there must be.
        question: Whether a question is needed and no prompt can stand in.

    Raises:
        ValueError: A column is missing, has another length, or a value that can't be used.
    """
    if names.reference not in data:
        raise ValueError(
            f"reward: expected a column {names.reference!r} with the text to judge against, got the columns "
            f"{sorted(data)}; add it to the data set or name another with columns=Columns(reference=…)"
        )
    for wanted, default in ((names.question, Columns.question), (names.points, Columns.points),
                            (names.language, Columns.language)):  # fmt: skip
        if wanted != default and wanted not in data:
            raise ValueError(f"reward: expected a column {wanted!r}, got the columns {sorted(data)}")
    if question and names.question not in data:
        raise ValueError(
            f"reward: the aspects relevance and completeness need a column {names.question!r} or the prompts; got the "
            f"columns {sorted(data)}"
        )
    for name in (names.reference, names.question, names.points, names.language):
        if name in data:
            if isinstance(data[name], str) or len(data[name]) != rows:
                got = "one string" if isinstance(data[name], str) else f"{len(data[name])}"
                raise ValueError(f"reward: expected {rows} values in column {name!r}, got {got}")
            kind: Any = (list, tuple) if name == names.points else str
            for row, value in enumerate(data[name]):
                if not isinstance(value, kind) and (value is not None or name == names.reference):
                    what = "a list of texts" if name == names.points else "a text"
                    raise ValueError(
                        f"reward: expected {what} in column {name!r}, row {row}, got {type(value).__name__}"
                    )
                if name == names.points and not all(isinstance(point, str) for point in value or ()):
                    raise ValueError(f"reward: expected a list of texts in column {name!r}, row {row}, got {value!r}")
    empty = [row for row, value in enumerate(data[names.reference]) if not value.strip()]
    if empty:
        raise ValueError(
            f"reward: expected a text in column {names.reference!r}, it is empty in {len(empty)} of {rows} rows "
            f"(row {empty[0]} first); drop these rows from the data set, nothing can be judged without a reference"
        )


def check_lengths(completions: Sequence[Any], **others: Sequence[Any] | None) -> None:
    """Raise ValueError where prompts or ids are given in another number than completions."""
    if isinstance(completions, str):
        raise ValueError("reward: expected a list of completions, got one string; put it into a list")
    for name, values in others.items():
        if values is not None and len(values) != len(completions):
            raise ValueError(f"reward: expected {len(completions)} {name}, one a completion, got {len(values)}")


def read_answers(
    completions: Sequence[Any],
    prompts: Sequence[Any] | None,
    cut_off: Sequence[bool],
    data: Mapping[str, Any],
    names: Columns,
    thinking: Tags | None,
    response: Tags | None,
) -> list[Answer]:
    """Cut completions into the sentences of their answers; ``data`` was checked by ``check_columns``."""
    questions = data.get(names.question) or [None] * len(completions)
    languages = data.get(names.language) or [None] * len(completions)
    points = data.get(names.points) or [None] * len(completions)
    answers = []
    for i, completion in enumerate(completions):
        text = completion_text(completion)
        question = questions[i] or (question_of(prompts[i]) if prompts is not None else "")
        answers.append(
            Answer(
                text=text,
                spans=tuple(sentence_spans(text, answer_spans(text, thinking, response))),
                cut_off=cut_off[i],
                reference=data[names.reference][i],
                question=question.strip(),
                language=languages[i],
                points=tuple(point for point in points[i] or () if point.strip()) or None,
            )
        )
    return answers


def cut_offs(
    texts: Sequence[str], ids: Sequence[Sequence[int]] | None, eos_token_ids: frozenset[int] | None, longest: int
) -> tuple[list[bool], int]:
    """Which completions ran into their limit.

    With ``eos_token_ids``: those whose last token is none of them. Without: those as long as the longest ever seen
    whose text ends without a stop. No ids: none.

    Args:
        texts: Texts of the completions.
        ids: Their token ids without padding, or None.
        eos_token_ids: The tokens that end a completion, or None if they are not known.
        longest: Most tokens of a completion in earlier calls.

    Returns:
        A flag for each completion, and the new ``longest``.
    """
    if ids is None:
        return [False] * len(texts), longest
    longest = max([longest, *map(len, ids)])
    if eos_token_ids is not None:
        return [not len(row) or int(row[-1]) not in eos_token_ids for row in ids], longest
    return [len(row) == longest and not finished(text) for text, row in zip(texts, ids, strict=True)], longest
