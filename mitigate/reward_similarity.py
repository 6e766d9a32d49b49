"""How the sentences of an answer lie to its question and its reference: embeddings in, judged sentences out.

A sentence bears on the question when it is near it, or near one of the points that an answer should make (a sentence
without a name, "It opened in 1931.", is often near a point only). Points are gold ones where given, else the
sentences of the reference nearest to the question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from annotators.records import Label
from annotators.sentences import split_sentences
from mitigate.aspects import Judged
from mitigate.reward_inputs import Answer
from mitigate.reward_texts import repeats, words

RELEVANT = 0.3
"""Cosine (MiniLM) from which a sentence bears on the question; see docs/rewards.md for what it separates."""
MAX_POINTS = 5
"""Sentences of the reference, nearest to the question, that stand for what an answer should say."""
MIN_POINT_WORDS = 4


@dataclass(frozen=True)
class Similar:
    """Cosines of the sentences of one answer: (_S,) with the question and (_S, _P) with the points."""

    question_S: np.ndarray
    points_SP: np.ndarray


def reference_sentences(reference: str) -> list[str]:
    """Sentences of a reference that may be points: those of at least MIN_POINT_WORDS words, else all of it."""
    found = [reference[a:b] for a, b in split_sentences(reference)]
    return [s for s in found if len(words(s)) >= MIN_POINT_WORDS] or [reference]


def similarity(answer: Answer, labels: Sequence[str | None], vectors: Mapping[str, np.ndarray]) -> Similar:
    """Cosines, −1 for sentences that were not judged; points are the gold ones or the nearest of the reference."""
    question = vectors[answer.question]
    texts = list(answer.points or reference_sentences(answer.reference))
    points = np.stack([vectors[text] for text in texts])
    if answer.points is None:
        cosine = points @ question
        best = np.argsort(-cosine, kind="stable")[:MAX_POINTS]
        points = points[[i for i in best if cosine[i] >= RELEVANT] or best[:1]]
    question_S = np.full(len(answer.spans), -1.0, np.float32)
    points_SP = np.full((len(answer.spans), len(points)), -1.0, np.float32)
    for i, (sentence, label) in enumerate(zip(answer.sentences, labels, strict=False)):
        if label is not None:
            question_S[i] = vectors[sentence] @ question
            points_SP[i] = points @ vectors[sentence]
    return Similar(question_S, points_SP)


def judged_sentences(
    answer: Answer, labels: Sequence[Label | None], near: Similar | None, copied: Callable[[str], bool]
) -> list[Judged]:
    """The sentences with all that was found out; those without a label are only counted."""
    again = repeats([s for s, _ in zip(answer.sentences, labels, strict=False)])
    out = []
    for i, sentence in enumerate(answer.sentences):
        label = labels[i] if i < len(labels) else None
        if label is None:
            out.append(Judged(None, len(words(sentence))))
            continue
        relevant = near is None or max(near.question_S[i], near.points_SP[i].max()) >= RELEVANT
        out.append(Judged(label, len(words(sentence)), bool(relevant), again[i], copied(sentence)))
    return out
