"""How the sentences of an answer lie to its question and its reference: embeddings in, judged sentences out.

A sentence bears on the question when it is near it, or near a sentence of the reference that does ("It opened in
1931." is near no question). Sentences of the reference are compared together with the first of their paragraph too,
which says what "it" is; those of an answer alone, or filler would profit from its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from annotators.records import Label
from annotators.sentences import split_sentences
from mitigate.aspects import Judged
from mitigate.reward_inputs import Answer
from mitigate.reward_texts import content_words, open_question, repeats, words

RELEVANT = 0.3
"""Cosine (MiniLM) from which a sentence bears on the question; see docs/rewards.md for what it separates."""
MAX_POINTS = 5
"""Sentences of the reference, nearest to the question, that stand for what an answer should say."""
MIN_POINT_WORDS = 4


@dataclass(frozen=True)
class Similar:
    """Cosines of the sentences of one answer, −1 for those that were not judged.

    Attributes:
        near_S: (_S,) with the question, or with the sentence of the reference that bears on it, whichever is higher.
        points_SP: (_S, _P) with each point that a complete answer makes.
    """

    near_S: np.ndarray
    points_SP: np.ndarray


@lru_cache(maxsize=1024)
def reference_sentences(reference: str) -> tuple[tuple[str, str], ...]:
    """Sentences of a reference that may be points, each with the first sentence of its paragraph.

    Those of fewer than MIN_POINT_WORDS words are left out, unless there are no others.
    """
    found: list[tuple[str, str]] = []
    opening, last = "", 0
    for a, b in split_sentences(reference):
        if not found or "\n" in reference[last:a]:
            opening = reference[a:b]
        found.append((reference[a:b], opening))
        last = b
    return tuple(pair for pair in found if len(words(pair[0])) >= MIN_POINT_WORDS) or (
        (reference, reference),
    )


def texts_of(answer: Answer) -> list[str]:
    """What has to be embedded of an answer beside its sentences."""
    return [
        answer.question,
        *(answer.points or ()),
        *(t for pair in reference_sentences(answer.reference) for t in pair),
    ]


def similarity(answer: Answer, labels: Sequence[Label | None], vectors: Mapping[str, np.ndarray]) -> Similar:
    """Compare the judged sentences of an answer.

    Args:
        answer: The answer.
        labels: Of its sentences; a last one that was cut off may be missing.
        vectors: Text → (D,) of length 1, for ``texts_of`` and the judged sentences.
    """
    question = vectors[answer.question]
    pairs = reference_sentences(answer.reference)
    alone = np.stack([vectors[sentence] for sentence, _ in pairs])
    both = alone + np.stack([vectors[opening] for _, opening in pairs])  # stands for the two read together
    both /= np.maximum(np.linalg.norm(both, axis=1, keepdims=True), 1e-9)
    bearing = np.maximum(alone @ question, both @ question)
    order = [i for i in np.argsort(-bearing, kind="stable") if bearing[i] >= RELEVANT] or [
        int(bearing.argmax())
    ]
    on_question = np.stack([question, *(vectors[pairs[i][0]] for i in order if bearing[i] >= RELEVANT)])
    points = np.stack([vectors[text] for text in answer.points or [pairs[i][0] for i in order[:MAX_POINTS]]])
    near_S = np.full(len(answer.spans), -1.0, np.float32)
    points_SP = np.full((len(answer.spans), len(points)), -1.0, np.float32)
    for i, (sentence, label) in enumerate(zip(answer.sentences, labels, strict=False)):
        if label is not None:
            near_S[i] = (on_question @ vectors[sentence]).max()
            points_SP[i] = points @ vectors[sentence]
    return Similar(near_S, points_SP)


def judged_sentences(
    answer: Answer, labels: Sequence[Label | None], near: Similar | None, copied: Callable[[str], bool]
) -> list[Judged]:
    """The sentences with all that was found out; of those without a label only the words are counted."""
    again = repeats([s for s, _ in zip(answer.sentences, labels, strict=False)])
    asked = open_question(answer.question)
    known = content_words(asked) if asked else frozenset()
    out = []
    for i, sentence in enumerate(answer.sentences):
        label = labels[i] if i < len(labels) else None
        if label is None:
            out.append(Judged(None, len(words(sentence))))
            continue
        relevant = near is None or bool(near.near_S[i] >= RELEVANT)
        repeat = (
            again[i] or content_words(sentence) <= known
        )  # an open question said back is nothing new either
        out.append(Judged(label, len(words(sentence)), relevant, repeat, copied(sentence)))
    return out
