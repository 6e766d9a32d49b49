"""From what TRL hands to a reward function to answers with sentences, with errors that say what is wrong.

Columns are checked before any model runs, so a mistake shows at the first step; ``SentenceReward.check`` does the same
for a whole data set before training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mitigate.reward_texts import Tags, answer_spans, completion_text, finished, question_of, sentence_spans


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
                    raise ValueError(
                        f"reward: expected a list of texts in column {name!r}, row {row}, got {value!r}"
                    )
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
            raise ValueError(
                f"reward: expected {len(completions)} {name}, one a completion, got {len(values)}"
            )


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
    texts: Sequence[str],
    ids: Sequence[Sequence[int]] | None,
    eos_token_ids: frozenset[int] | None,
    longest: int,
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
