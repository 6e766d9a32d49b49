"""What TRL hands to a reward function, cut into answers and sentences, and what of these sentences is new.

Columns are checked before any model runs, so that a mistake shows at the first step; ``SentenceReward.check`` checks a
whole data set before training. All offsets are code points into the completion's text: the string itself, or the
content of the last assistant message. Leaves out what sentences are worth (``aspects.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from annotators.text.sentences import split_sentences
from annotators.text.words import FUNCTION_WORDS
from mitigate.recipes.config import Section

Tags = tuple[str, str]
"""An opening and a closing tag."""
Text = Annotated[str, Field(min_length=1)]


class Columns(Section):
    """Names of the data set's columns that a reward reads; only the one of references must be there."""

    reference: Text = "reference"  # the document to judge against
    question: Text = "question"  # without this column it is the last user message of the prompt
    points: Text = "points"  # lists of what a complete answer says; without it sentences of the reference
    language: Text = "language"  # "en", "zh"…, handed to the annotator


@dataclass(frozen=True)
class Answer:
    """One completion, ready to be judged."""

    text: str
    spans: tuple[tuple[int, int], ...]  # start and end of each sentence in the text, in order
    cut_off: bool  # the completion ran into its limit, so its last sentence is not whole
    reference: str
    question: str  # "" where there is none
    language: str | None  # as declared
    points: tuple[str, ...] | None

    @property
    def last_is_part(self) -> bool:
        """Whether the last sentence was cut off; thinking that was cut off leaves it whole."""
        return self.cut_off and bool(self.spans) and self.spans[-1][1] == len(self.text.rstrip())

    @property
    def sentences(self) -> list[str]:
        return [self.text[a:b] for a, b in self.spans]


class Reader:
    """Reads what TRL hands over; arguments as of ``SentenceReward``, and whether it needs a question."""

    def __init__(
        self,
        columns: Columns,
        thinking: Tags | None,
        response: Tags | None,
        eos_token_ids: int | Sequence[int] | None,
        *,
        needs_question: bool,
    ) -> None:
        for option, tags in (("thinking", thinking), ("response", response)):
            if tags is not None and (len(tags) != 2 or not all(isinstance(tag, str) and tag for tag in tags)):
                raise ValueError(f"{option}: expected an opening and a closing tag, or None, got {tags!r}")
        self.columns = columns
        self.thinking, self.response = thinking, response
        ids = [eos_token_ids] if isinstance(eos_token_ids, int) else eos_token_ids
        self.eos_token_ids = None if ids is None else frozenset(ids)
        self.needs_question = needs_question
        self._longest = 0  # tokens of the longest completion so far

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any] | None,
        completion_ids: Sequence[Sequence[int]] | None,
        data: Mapping[str, Any],
    ) -> list[Answer]:
        """Check the inputs and cut completions into the sentences of their answers.

        Raises:
            ValueError: A column is missing, or has another length or a value that can't be used.
            TypeError: A completion is neither text nor messages.
        """
        if isinstance(completions, str):
            raise ValueError("reward: expected a list of completions, got one string; put it into a list")
        for name, values in (("prompts", prompts), ("completion_ids", completion_ids)):
            if values is not None and len(values) != len(completions):
                raise ValueError(f"reward: expected {len(completions)} {name}, one per completion, got {len(values)}")
        self.check(data, len(completions), prompts=prompts is not None)
        texts = [completion_text(completion) for completion in completions]
        cut_off, self._longest = cut_offs(texts, completion_ids, self.eos_token_ids, self._longest)
        names, missing = self.columns, [None] * len(texts)
        questions = data.get(names.question) or missing
        points = data.get(names.points) or missing
        return [
            Answer(
                text=text,
                spans=tuple(sentence_spans(text, self.thinking, self.response)),
                cut_off=cut_off[i],
                reference=data[names.reference][i],
                question=(questions[i] or (question_of(prompts[i]) if prompts is not None else "")).strip(),
                language=(data.get(names.language) or missing)[i],
                points=tuple(point for point in points[i] or () if point.strip()) or None,
            )
            for i, text in enumerate(texts)
        ]

    def check(self, data: Mapping[str, Any], rows: int, *, prompts: bool) -> None:
        """Raise ValueError where a column is missing, or has not as many values as rows, or one that can't be used."""
        names = self.columns
        if names.reference not in data:
            raise ValueError(
                f"reward: expected a column {names.reference!r} with the text to judge against, got the columns "
                f"{sorted(data)}; add it to the data set or name another with columns=Columns(reference=…)"
            )
        for default, name in names:  # pairs of field and value, and each default is the field's own name
            if name != default and name not in data:
                raise ValueError(f"reward: expected a column {name!r}, got the columns {sorted(data)}")
        if self.needs_question and not prompts and names.question not in data:
            raise ValueError(
                f"reward: the aspects relevance and completeness need a column {names.question!r} or the prompts; got "
                f"the columns {sorted(data)}"
            )
        for name in (name for _, name in names if name in data):
            if isinstance(data[name], str) or len(data[name]) != rows:
                got = "one string" if isinstance(data[name], str) else len(data[name])
                raise ValueError(f"reward: expected {rows} values in column {name!r}, got {got}")
            kind, what = ((list, tuple), "a list of texts") if name == names.points else (str, "a text")
            for row, value in enumerate(data[name]):
                where = f"reward: expected {what} in column {name!r}, row {row}, got"
                if not isinstance(value, kind) and (value is not None or name == names.reference):
                    raise ValueError(f"{where} {type(value).__name__}")
                if name == names.points and not all(isinstance(point, str) for point in value or ()):
                    raise ValueError(f"{where} {value!r}")
        empty = [row for row, value in enumerate(data[names.reference]) if not value.strip()]
        if empty:
            raise ValueError(
                f"reward: expected a text in column {names.reference!r}, it is empty in {len(empty)} of {rows} rows "
                f"(row {empty[0]} first); drop these rows from the data set, nothing can be judged without a reference"
            )


def completion_text(completion: object) -> str:
    """The text of a completion: the string, or the content of the last assistant message.

    Raises:
        TypeError: It is neither a string nor a list of messages.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(m, Mapping) for m in completion):
        return _last_content(completion, "assistant")
    raise TypeError(
        f"completions: expected strings or lists of messages with role and content, got {type(completion).__name__}"
    )


def question_of(prompt: object) -> str:
    """The last user message of a conversational prompt, or the whole of a plain one."""
    if isinstance(prompt, str):
        return prompt
    return _last_content(prompt, "user") if isinstance(prompt, Sequence) else ""


def _last_content(messages: Sequence[Any], role: str) -> str:
    """The text of the last message of a role, "" where there is none; content may be a list of parts."""
    found = [m for m in messages if isinstance(m, Mapping) and m.get("role") == role]
    content = (found[-1].get("content") if found else None) or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def sentence_spans(text: str, thinking: Tags | None, response: Tags | None) -> list[tuple[int, int]]:
    """The sentences of a completion's answer, as offsets into the whole completion.

    A thinking block that is never closed goes to the end. A closing tag without an opening one ends a block that the
    prompt opened, so all before it is thinking. With response tags only what stands between them counts; an opened
    one that is never closed goes to the end.
    """
    parts = [(0, len(text))]
    if thinking:
        opened, closed = map(text.find, thinking)
        start = closed + len(thinking[1]) if closed >= 0 and (opened < 0 or closed < opened) else 0
        edges = [edge for outer, _, _, end in _blocks(text, thinking, start, len(text)) for edge in (outer, end)]
        edges = [start, *edges, len(text)]
        parts = list(zip(edges[::2], edges[1::2], strict=True))
    if response:
        parts = [(a, b) for start, end in parts for _, a, b, _ in _blocks(text, response, start, end)]
    return [(start + a, start + b) for start, end in parts for a, b in split_sentences(text[start:end])]


def _blocks(text: str, tags: Tags, start: int, end: int) -> list[tuple[int, int, int, int]]:
    """Blocks between tags: where the opening tag starts and ends, where the closing one starts and ends."""
    found, at = [], start
    while (outer := text.find(tags[0], at, end)) >= 0:
        inner = outer + len(tags[0])
        stop = text.find(tags[1], inner, end)
        stop, at = (end, end) if stop < 0 else (stop, stop + len(tags[1]))
        found.append((outer, inner, stop, at))
    return found


_FINISHED = re.compile(r"[.!?…。！？；][\"'”’»」』)\]）】*_`~]*$")


def cut_offs(
    texts: Sequence[str], ids: Sequence[Sequence[int]] | None, eos_token_ids: frozenset[int] | None, longest: int
) -> tuple[list[bool], int]:
    """Which completions ran into their limit.

    With ``eos_token_ids`` these are the completions whose last token is none of them; without, those as long as the
    longest ever seen whose text ends without a full stop; without ids, none.

    ``longest`` is the number of tokens of the longest completion in earlier calls; the new one is returned too.
    """
    if ids is None:
        return [False] * len(texts), longest
    longest = max([longest, *map(len, ids)])
    if eos_token_ids is not None:
        return [not len(row) or int(row[-1]) not in eos_token_ids for row in ids], longest
    return [
        len(row) == longest and not _FINISHED.search(t.rstrip()) for t, row in zip(texts, ids, strict=True)
    ], longest


# --- which sentences repeat or copy ----------------------------------------------------------------------------------

# Numbers with their separators, words of other letters, single Chinese characters (they have no spaces).
_WORD = re.compile(r"[0-9]+(?:[.,:][0-9]+)*|[^\W\d_\u3400-\u9fff]+|[\u3400-\u9fff]|\d")
COPY_RUN, COPY_RUN_HAN = 6, 10  # words (characters of Chinese) of a run; shorter ones are how one has to say it
COPY_SHARE, REPEAT_SHARE = 0.8, 0.85
# Questions that can't be answered in their own words: neither "is it …?" nor "which, A or B?".
_OPEN = re.compile(
    r"^\W*(?:(?:and|but|so|then|in|on|at|by|for|from|to|of|with|under|during|since|until|about)\W+){0,2}"
    r"(?:who|whom|whose|what|which|(?:when|where|why|how)\b"
    r"(?!.*,\W*(?:and\W+)?(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b))\b(?!.*\bor\b)",
    re.IGNORECASE | re.DOTALL,
)
_OPEN_HAN = re.compile(r"(?!.*(?:还是|吗|是否|任何|几乎)).*(?:谁|什么|哪|何|多少|几|怎)", re.S)


def words(text: str) -> list[str]:
    """Words in lower case; a Chinese character is one."""
    return _WORD.findall(text.lower())


def content_words(text: str) -> frozenset[str]:
    """Words without function words; pairs of neighbours for Chinese. All words where nothing else is left."""
    found = words(text)
    pairs = {a + b for a, b in pairwise(found) if _han(a) and _han(b)}
    single = {word for word in found if not _han(word) and word not in FUNCTION_WORDS}
    return frozenset(single | pairs) or frozenset(found)


def _han(word: str) -> bool:
    return "\u3400" <= word[0] <= "\u9fff"


def repeats(sentences: Sequence[str]) -> list[bool]:
    """Which sentences repeat one earlier sentence: at least 85 % of the content words and all numbers are in it."""
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

    A sentence of fewer words than a run is never a copy: a short answer can't help being literal.
    """

    def __init__(self, reference: str) -> None:
        found = words(reference)
        self._runs = {n: set(_runs(found, n)) for n in (COPY_RUN, COPY_RUN_HAN)}

    def __call__(self, sentence: str) -> bool:
        return self.share(sentence) >= COPY_SHARE

    def share(self, sentence: str) -> float:
        """Share of a sentence's words that stand in a run of the reference, in [0, 1].

        Source: extractive fragment coverage (Grusky et al. 2018, "Newsroom", §4.1), with shorter runs left out.
        """
        found = words(sentence)
        size = COPY_RUN_HAN if 2 * sum(map(_han, found)) > len(found) else COPY_RUN
        held = [False] * len(found)
        for i, run in enumerate(_runs(found, size)):
            if run in self._runs[size]:
                held[i : i + size] = [True] * size
        return sum(held) / max(len(held), 1)


def _runs(found: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(found[i : i + size]) for i in range(len(found) - size + 1)]
