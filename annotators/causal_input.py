"""What a token classifier reads: question, reference and answer as one row of token ids, and where sentences end.

    [bos] Question: … [eos] Reference: … [eos] Answer: …

A sentence is read at the token that holds its last character, found by the tokenizer's character offsets; nothing is
tokenised twice. Fields are parted by the end token's id, which no text can spell: control tokens inside a text are
encoded as plain text. What is longer than the model reads is windowed: first the reference (``annotators/window.py``,
BM25 with the answer as query), then the answer, cut into runs of whole sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from annotators.records import Status
from annotators.window import index_references, select

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

HEADINGS = {"question": "Question: ", "reference": "Reference: ", "answer": "Answer: "}
IGNORED = -100
"""Label of tokens that are no sentence end; torch's cross entropy leaves it out."""
MIN_WINDOW = 64
"""Tokens of the reference that are always kept: an answer that leaves less is cut into runs."""


@dataclass(frozen=True)
class Reading:
    """One answer and the sentences in it to judge, as (start, end) offsets in order; no reference is ""."""

    question: str
    reference: str
    answer: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Encoded:
    """A row of token ids. ``ends``: number of a sentence in its reading → position of the token to read it at."""

    ids: list[int]
    ends: dict[int, int]


@dataclass
class Rows:
    """A reading as rows of ids, one unless it is too long; ``left_out`` says which sentences are in none, and why."""

    rows: list[Encoded] = field(default_factory=list)
    left_out: dict[int, Status] = field(default_factory=dict)


def readings_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Reading], list[tuple[int, int]]]:
    """Join labelled rows of one answer into one reading.

    A row whose ``sentence`` stands in its ``answer`` (at ``start`` where that is given) is read there, with the other
    sentences of that answer; any other is an answer of its own.

    Args:
        rows: {"sentence", "reference", "question"?, "answer"?, "start"?, "parametric"?}; a true ``parametric`` hides
            the reference.

    Returns:
        The readings, and of each row its reading and its sentence in it.
    """
    spans_of: dict[tuple[str, str, str], dict[tuple[int, int], list[int]]] = {}
    for number, row in enumerate(rows):
        sentence, answer = row["sentence"], row.get("answer") or ""
        bare = sentence.strip()
        start = row.get("start")
        if not (isinstance(start, int) and bare and answer[start : start + len(sentence)] == sentence):
            start = answer.find(sentence) if bare else -1
        if start < 0:
            answer, start = sentence, 0
        start += len(sentence) - len(sentence.lstrip())
        reference = "" if row.get("parametric") else row["reference"]
        key = (row.get("question") or "", reference, answer)
        spans_of.setdefault(key, {}).setdefault((start, start + len(bare)), []).append(number)
    places = [(0, 0)] * len(rows)
    readings: list[Reading] = []
    for key, members in spans_of.items():
        spans = sorted(members)
        for sentence_number, span in enumerate(spans):
            for number in members[span]:
                places[number] = (len(readings), sentence_number)
        readings.append(Reading(*key, tuple(spans)))
    return readings, places


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Token ids (T,) and code-point offsets (T, 2) of each text; control tokens in it are plain text."""
    if not texts:
        return []
    found = tokenizer(
        [text.encode("utf-8", "replace").decode() for text in texts],  # lone surrogates, one "?" each
        add_special_tokens=False,
        split_special_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    return [
        (np.array(ids, dtype=np.int64), np.array(offsets, dtype=np.int64).reshape(-1, 2))
        for ids, offsets in zip(found["input_ids"], found["offset_mapping"], strict=True)
    ]


def last_tokens(offsets_T2: np.ndarray, spans: Iterable[tuple[int, int]]) -> list[int]:
    """The token that holds the last character of each span; -1 where no token holds any of it.

    A character of several tokens (bytes) is held by the last of them. A token that runs over the end of a sentence is
    its last one all the same.

    Args:
        offsets_T2: (T, 2) character offsets, in order.
        spans: (start, end), end > start.
    """
    found = []
    for start, end in spans:
        place = int(np.searchsorted(offsets_T2[:, 0], end - 1, side="right")) - 1
        found.append(place if place >= 0 and offsets_T2[place, 1] > start else -1)
    return found


def encode(tokenizer: PreTrainedTokenizerBase, readings: Sequence[Reading], max_tokens: int) -> list[Rows]:
    """Turn readings into rows of at most ``max_tokens`` ids.

    Args:
        tokenizer: A fast one, with an end or separator token.
        readings: What to read.
        max_tokens: What the model takes.
    """
    fields = [
        tokenize(tokenizer, [HEADINGS[name] + getattr(reading, name) for reading in readings])
        for name in ("question", "reference", "answer")
    ]
    return [
        _rows(tokenizer, reading, question[0], reference[0], answer, max_tokens)
        for reading, question, reference, answer in zip(readings, *fields, strict=True)
    ]


def _rows(
    tokenizer: PreTrainedTokenizerBase,
    reading: Reading,
    question_T: np.ndarray,
    reference_T: np.ndarray,
    answer: tuple[np.ndarray, np.ndarray],
    max_tokens: int,
) -> Rows:
    first, between = control_ids(tokenizer)
    head = list(first)
    if reading.question.strip():
        head += [*question_T[: max_tokens // 8].tolist(), *between]
    ids_T, offsets_T2 = answer
    spans = [(a + len(HEADINGS["answer"]), b + len(HEADINGS["answer"])) for a, b in reading.spans]
    ends = last_tokens(offsets_T2, spans)
    out = Rows(left_out={n: "failed" for n, end in enumerate(ends) if end < 0})
    has_reference = bool(reading.reference.strip())
    middle = [*reference_T.tolist(), *between] if has_reference else []
    if len(head) + len(middle) + len(ids_T) <= max_tokens:
        row = [*head, *middle, *ids_T.tolist()]
        shift = len(head) + len(middle)
        out.rows.append(Encoded(row, {n: shift + end for n, end in enumerate(ends) if end >= 0}))
        return out

    kept = min(len(reference_T), max(MIN_WINDOW, max_tokens // 2)) if has_reference else 0
    room = max_tokens - len(head) - kept - len(between)  # for a run of the answer
    for numbers in _runs(offsets_T2, spans, ends, room, out):
        start = reading.spans[numbers[0]][0] if len(numbers) < len(spans) else 0
        text = reading.answer[start : reading.spans[numbers[-1]][1]]
        ((part_T, part_T2),) = tokenize(tokenizer, [HEADINGS["answer"] + text])
        part_ends = last_tokens(part_T2, [(spans[n][0] - start, spans[n][1] - start) for n in numbers])
        budget = max_tokens - len(head) - len(part_T) - len(between)
        window = _window(tokenizer, reading.reference, text, budget) if has_reference else []
        shift = len(head) + len(window) + (len(between) if window else 0)
        row = [*head, *window, *(between if window else ()), *part_T.tolist()]
        if len(row) > max_tokens:
            out.left_out |= dict.fromkeys(numbers, "too_long")
            continue
        out.rows.append(
            Encoded(row, {n: shift + end for n, end in zip(numbers, part_ends, strict=True) if end >= 0})
        )
    return out


def _runs(
    offsets_T2: np.ndarray,
    spans: Sequence[tuple[int, int]],
    ends: Sequence[int],
    room: int,
    out: Rows,
) -> list[list[int]]:
    """Sentences in runs whose tokens, with the heading's and what lies between, fit; others are too long."""
    heading = 4 + int(np.searchsorted(offsets_T2[:, 0], len(HEADINGS["answer"])))
    runs: list[list[int]] = []
    first = 0
    for n, end in enumerate(ends):
        if end < 0:
            continue
        start = int(np.searchsorted(offsets_T2[:, 1], spans[n][0], side="right"))
        if runs and end + 1 - first + heading <= room:
            runs[-1].append(n)
        elif end + 1 - start + heading <= room:
            runs.append([n])
            first = start
        else:
            out.left_out[n] = "too_long"
    return runs


def _window(tokenizer: PreTrainedTokenizerBase, reference: str, query: str, budget: int) -> list[int]:
    """Ids of the heading and of the passages that bear on the query, at most ``budget`` of them."""
    heading = len(tokenize(tokenizer, [HEADINGS["reference"]])[0][0])
    (index,) = index_references(
        [reference], lambda texts: tokenize(tokenizer, texts), budget=max(1, budget - heading - 1)
    )
    (window,) = select([(index, query)])
    text = HEADINGS["reference"] + window.text
    ids: list[int] = tokenize(tokenizer, [text])[0][0][
        :budget
    ].tolist()  # line breaks between passages are tokens too
    return ids


def control_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The id that opens a row, if the tokenizer has one, and the id between fields.

    Raises:
        ValueError: The tokenizer has neither a separator nor an end token.
    """
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    between = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if between is None:
        raise ValueError(
            f"expected a tokenizer with an end or separator token, got {type(tokenizer).__name__} with neither; "
            "set eos_token in its tokenizer_config.json"
        )
    return (() if first is None else (first,)), (between,)


def collate(
    rows: Sequence[Sequence[int]],
    pad: int,
    side: str,
    labels: Sequence[Mapping[int, int]] | None = None,
) -> dict[str, Tensor]:
    """Pad rows to one length, on the left or the right.

    Position ids count real tokens, so that a model with learned positions reads both sides alike; on the right they
    are left to the model.

    Args:
        rows: Token ids of each row.
        pad: What to pad with; it is masked.
        side: "left" or "right".
        labels: Of each row, position → class; every other token gets IGNORED.

    Returns:
        ``input_ids``, ``attention_mask``, ``position_ids`` (left only) and ``labels`` (if given), (B, T) each.
    """
    import torch

    width = max(map(len, rows))
    shape = (len(rows), width)
    ids_BT = torch.full(shape, pad)
    mask_BT = torch.zeros(shape, dtype=torch.long)
    labels_BT = torch.full(shape, IGNORED)
    for b, row in enumerate(rows):
        start = width - len(row) if side == "left" else 0
        ids_BT[b, start : start + len(row)] = torch.tensor(row)
        mask_BT[b, start : start + len(row)] = 1
        for place, label in (labels[b] if labels else {}).items():
            labels_BT[b, start + place] = label
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT}
    if side == "left":
        batch["position_ids"] = (mask_BT.cumsum(1) - 1).clamp(min=0)
    return batch | ({"labels": labels_BT} if labels is not None else {})
