"""A reward for TRL that judges every sentence: `GRPOTrainer(reward_funcs=SentenceReward("embedded"), …)`.

It reads the reference (and the question) from the data set's columns, cuts each completion into sentences, judges all
sentences of all completions in one batch, and returns for each completion a float that carries its sentences
(`SentenceScore`), or None where nothing could be judged. What labels are worth is in `aspects.py`, what of a
completion is judged in `reward_texts.py`, what is kept in `verdicts.py`. No torch is loaded before the first call
unless an annotator is named by a string. Leaves token credit to `grpo.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from annotators.base import Annotator
from annotators.records import LABELS, Label, Status, hallucination_rate
from annotators.text.language import declared_or_found, language_of
from annotators.text.sentences import split_sentences
from mitigate.rewards.aspects import (
    DEFAULT_WEIGHTS,
    Aspect,
    Judged,
    aspect_values,
    check_aspects,
    check_label_rewards,
    relevance_reward,
    sentence_reward,
    total,
)
from mitigate.rewards.inputs import (
    Answer,
    Columns,
    Copies,
    Tags,
    check_columns,
    check_lengths,
    completion_text,
    content_words,
    cut_offs,
    open_question,
    read_answers,
    repeats,
    words,
)
from mitigate.rewards.segments import Segment, SentenceScore

if TYPE_CHECKING:
    from engines.embedding import Embedder


# ----------------------------------------------------------------------------------------------------
# How the sentences of an answer lie to its question and its reference: embeddings in, judged sentences out.
#
# A sentence bears on the question when it is near it, or near a sentence of the reference that does ("It opened in
# 1931." is near no question). Sentences of the reference are compared together with the first of their paragraph too,
# which says what "it" is; those of an answer alone, or filler would profit from its neighbours.

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
    return tuple(pair for pair in found if len(words(pair[0])) >= MIN_POINT_WORDS) or ((reference, reference),)


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
    order = [i for i in np.argsort(-bearing, kind="stable") if bearing[i] >= RELEVANT] or [int(bearing.argmax())]
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
        repeat = again[i] or content_words(sentence) <= known  # an open question said back is nothing new either
        out.append(Judged(label, len(words(sentence)), relevant, repeat, copied(sentence)))
    return out


# ----------------------------------------------------------------------------------------------------
# Verdicts and embeddings that are asked for once: what stands between a reward and its models.
#
# Verdicts are kept by the annotator's fingerprint and every input that the annotator reads, so a changed reference or
# question, or another annotator, is judged anew. Kept in memory, the least recently used is dropped first. Failed
# verdicts are not kept.

_ONE_AT_A_TIME = threading.Lock()
"""Models are not re-entrant, and rewards may share one: async rewards run in threads."""


@dataclass(frozen=True)
class Verdict:
    """What is kept of a sentence's judgement."""

    status: Status
    label: Label | None


@dataclass(frozen=True)
class Judging:
    """Verdicts in the order of the rows, with the number of distinct sentences judged and rows found in the cache."""

    verdicts: list[Verdict]
    asked: int
    hits: int


class Verdicts:
    """Judges sentences in one batch, each distinct one once.

    Args:
        annotator: Judges ``{"question", "reference", "sentence", "language", "answer"}``.
        size: Verdicts to keep, 0 for none.
    """

    def __init__(self, annotator: Annotator, size: int) -> None:
        self.annotator = annotator
        self.size = size
        self.reads = annotator.reads
        self._kept: OrderedDict[bytes, Verdict] = OrderedDict()

    def key(self, row: Mapping[str, Any]) -> bytes:
        """sha256 over the fingerprint and the fields that the annotator reads, each with its length."""
        digest = hashlib.sha256(self.annotator.fingerprint.encode())
        for field in self.reads:
            value = row.get(field)
            data = b"" if value is None else str(value).encode("utf-8", "surrogatepass")
            digest.update(f"|{field}:{'none' if value is None else len(data)}|".encode() + data)
        return digest.digest()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Judging:
        """Judge rows, in order, with one call of the annotator for those that are not known."""
        keys = [self.key(row) for row in rows]
        with _ONE_AT_A_TIME:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            hits = sum(key in found for key in keys)
            new = {key: row for key, row in zip(keys, rows, strict=True) if key not in found}
            if new:
                fields = [{f: row[f] for f in self.reads if row.get(f) is not None} for row in new.values()]
                judged = self.annotator.predict(fields)
                if len(judged) != len(new):
                    raise ValueError(
                        f"annotator {self.annotator.name!r}: expected {len(new)} judgements, got {len(judged)}"
                    )
                for key, sentence in zip(new, judged, strict=True):
                    found[key] = Verdict(sentence.status, sentence.label)
            self._keep(found)
        return Judging([found[key] for key in keys], len(new), hits)

    def _keep(self, found: Mapping[bytes, Verdict]) -> None:
        for key, verdict in found.items():
            if verdict.status != "failed":
                self._kept[key] = verdict
                self._kept.move_to_end(key)
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)


class Vectors:
    """Sentence embeddings, each distinct text once as long as it is kept.

    Args:
        embedder: Where they come from.
        size: Vectors to keep; 20,000 of MiniLM take 31 MB.
    """

    def __init__(self, embedder: Embedder, size: int) -> None:
        self.embedder = embedder
        self.size = size
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()

    def __call__(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Text → (D,) float32 of length 1."""
        with _ONE_AT_A_TIME:
            found = {text: self._kept[text] for text in texts if text in self._kept}
            new = [text for text in dict.fromkeys(texts) if text not in found]
            if new:
                found.update(zip(new, self.embedder.encode(new), strict=True))
            for text, vector in found.items():
                self._kept[text] = vector
                self._kept.move_to_end(text)
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)
        return found


VECTORS_KEPT = 20_000


@dataclass(frozen=True)
class Scored:
    """One completion: its answer, its judged sentences, the values of its aspects and its total (None: not judged)."""

    answer: Answer
    sentences: list[Judged]
    values: dict[Aspect, float]
    total: float | None


class SentenceReward:
    """A reward function: completions in, scores with sentences out.

    Args:
        annotator: Judges sentences; a string is loaded by ``load_annotator`` ("embedded", a folder, a hub id).
        label_rewards: Label → reward or None (no opinion); "supported" must be worth the most. Labels left out keep
            their default: supported 1, contradictory −1, unverifiable −1, no_fact None.
        aspects: Aspect → weight, of "factuality", "relevance", "completeness" and "length"; those left out are not
            computed. Default 1, 0.3, 0.3, 0.3. The score is their weighted mean.
        embedder: For relevance and completeness; None takes the annotator's own, else the packaged MiniLM.
        columns: Names of the data set's columns.
        thinking: Opening and closing tag of what is not judged, or None.
        response: Opening and closing tag of what alone is judged, or None for all but the thinking.
        eos_token_ids: Tokens that end a completion. With them a completion cut off at its limit is known for sure,
            without them it is one as long as the longest seen that ends without a stop.
        target_sentences: Credited sentences that earn the full length reward.
        max_words: Words (characters of Chinese) from which length is punished.
        cache_size: Verdicts to keep, 0 for none.
        calibration: File of `mitigate calibrate` for an annotator named by a string; None leaves it as it is. Worth
            a few hundred labelled sentences of the policy: a threshold that is off is what a policy learns to exploit.
        device: Of an annotator named by a string: "cpu", "cuda:1"…; None takes cuda where there is one.
        dtype: Likewise; "auto" is bfloat16 where the hardware has it.
        name: What trainers call it in their logs.

    Raises:
        ValueError: An argument is not as described.
    """

    def __init__(
        self,
        annotator: Annotator | str = "embedded",
        *,
        label_rewards: Mapping[str, float | None] | None = None,
        aspects: Mapping[str, float] = DEFAULT_WEIGHTS,
        embedder: Embedder | None = None,
        columns: Columns | None = None,
        thinking: Tags | None = ("<think>", "</think>"),
        response: Tags | None = None,
        eos_token_ids: int | Sequence[int] | None = None,
        target_sentences: int = 4,
        max_words: int = 150,
        cache_size: int = 100_000,
        calibration: str | Path | None = None,
        device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        name: str = "factuality",
    ) -> None:
        self.label_rewards = check_label_rewards(label_rewards or {})
        self.aspects = check_aspects(aspects)
        for option, tags in (("thinking", thinking), ("response", response)):
            if tags is not None and (len(tags) != 2 or not all(isinstance(tag, str) and tag for tag in tags)):
                raise ValueError(f"{option}: expected an opening and a closing tag, or None, got {tags!r}")
        for option, value, least in (("target_sentences", target_sentences, 1), ("max_words", max_words, 1),
                                     ("cache_size", cache_size, 0)):  # fmt: skip
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{option}: expected a whole number of at least {least}, got {value!r}")
        if isinstance(annotator, str):
            from annotators import load_annotator

            annotator = load_annotator(annotator, device=device, dtype=dtype, calibration=calibration)
        elif calibration is not None:
            raise ValueError(
                f"calibration: expected an annotator named by a string, got {annotator.name!r}, already loaded; give "
                "the file to load_annotator"
            )
        self.annotator = annotator
        self.columns = columns or Columns()
        self.thinking, self.response = thinking, response
        ids = [eos_token_ids] if isinstance(eos_token_ids, int) else eos_token_ids
        self.eos_token_ids = None if ids is None else frozenset(ids)
        self.target_sentences, self.max_words = target_sentences, max_words
        self.__name__ = name
        self._verdicts = Verdicts(annotator, cache_size)
        self._embedder = embedder
        self._device: str | None = device
        self._vectors: Vectors | None = None
        self._longest = 0

    @property
    def needs_question(self) -> bool:
        """Whether an aspect is in use that looks at the question."""
        return "relevance" in self.aspects or "completeness" in self.aspects

    def check(self, data: Mapping[str, Any]) -> None:
        """Check a whole data set before training: ``reward.check(dataset[:])``.

        Raises:
            ValueError: A column is missing, or a value can't be used; the message names the first row.
        """
        rows = len(data[self.columns.reference]) if self.columns.reference in data else 0
        check_columns(data, self.columns, rows, question=self.needs_question and "prompt" not in data)

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[SentenceScore | None]:
        """Score completions, as TRL calls it (all by keyword).

        Args:
            completions: Strings, or lists of messages.
            prompts: Strings, or lists of messages; the question where there is no such column.
            completion_ids: Token ids of each completion, unpadded, with EOS; tells which were cut off.
            log_metric: Takes (name, value) to log.
            log_extra: Takes (column, one value a completion) for the table of completions.
            columns: The data set's columns, one value a completion, and what else the trainer passes.

        Returns:
            One score a completion, in order; None where no sentence could be judged.

        Raises:
            ValueError: A column is missing, empty or of another length.
            TypeError: A completion is neither text nor messages.
        """
        started = time.perf_counter()
        check_lengths(completions, prompts=prompts, completion_ids=completion_ids)
        check_columns(columns, self.columns, len(completions), question=self.needs_question and prompts is None)
        texts = [completion_text(completion) for completion in completions]
        cut, self._longest = cut_offs(texts, completion_ids, self.eos_token_ids, self._longest)
        answers = read_answers(completions, prompts, cut, columns, self.columns, self.thinking, self.response)
        scored, judging = self._score(answers)
        if log_metric is not None:
            for metric, value in _metrics(scored, judging, time.perf_counter() - started).items():
                log_metric(f"{self.__name__}/{metric}", value)
        if log_extra is not None:
            log_extra(f"{self.__name__}/labels", [" ".join(s.label or "?" for s in one.sentences) for one in scored])
            log_extra(f"{self.__name__}/aspects", [_shown(one.values) for one in scored])
        return [self._with_sentences(one) for one in scored]

    def as_async(self) -> AsyncSentenceReward:
        """The same reward as an async function, run beside other async ones (for annotators behind HTTP)."""
        return AsyncSentenceReward(self)

    def _score(self, answers: Sequence[Answer]) -> tuple[list[Scored], Judging]:
        """Judge all whole sentences of all answers in one batch and value each answer."""
        counts = [len(answer.spans) - answer.last_is_part for answer in answers]
        rows = [
            {
                "sentence": sentence,
                "reference": answer.reference,
                "question": answer.question or None,
                "language": answer.language,
                "answer": answer.text,
            }
            for answer, count in zip(answers, counts, strict=True)
            for sentence in answer.sentences[:count]
        ]
        judging = self._verdicts(rows)
        edges = [0, *accumulate(counts)]
        labels = [
            [v.label if self._reads(answer) else None for v in judging.verdicts[a : a + count]]
            for answer, a, count in zip(answers, edges, counts, strict=False)
        ]
        similar = self._similar(answers, labels) if self.needs_question else [None] * len(answers)
        copies = {answer.reference: Copies(answer.reference) for answer in answers}
        scored = []
        for answer, own, near in zip(answers, labels, similar, strict=True):
            sentences = judged_sentences(answer, own, near, copies[answer.reference])
            scored.append(self._value(answer, sentences, near))
        return scored, judging

    def _reads(self, answer: Answer) -> bool:
        """Whether the annotator judges all of the answer's language: where it judges only copies, copies would win."""
        languages = self.annotator.languages
        return languages is None or declared_or_found(answer.language, answer.text) in (*languages, "none")

    def _similar(self, answers: Sequence[Answer], labels: Sequence[Sequence[Label | None]]) -> list[Similar | None]:
        """Cosines of each judged sentence with its question and points; None for answers without judged sentences."""
        judged = [[s for s, label in zip(a.sentences, own, strict=False) if label] for a, own in
                  zip(answers, labels, strict=True)]  # fmt: skip
        wanted = [answer if some else None for answer, some in zip(answers, judged, strict=True)]
        vectors = self._vectors_of(wanted, judged)
        return [
            similarity(answer, own, vectors) if answer is not None else None
            for answer, own in zip(wanted, labels, strict=True)
        ]

    def _vectors_of(
        self, answers: Sequence[Answer | None], judged: Sequence[Sequence[str]]
    ) -> Mapping[str, np.ndarray]:
        if not any(answers):
            return {}
        if self._vectors is None:
            from engines.embedding import Embedder

            own = self._embedder or self.annotator.embedder
            self._vectors = Vectors(own or Embedder(device=self._device), VECTORS_KEPT)
        texts: list[str] = []
        for answer, sentences in zip(answers, judged, strict=True):
            if answer is None:
                continue
            if not answer.question:
                raise ValueError(
                    "reward: the aspects relevance and completeness need a question, one is empty; fill the column "
                    f"{self.columns.question!r} or name other aspects"
                )
            if language_of(answer.question) == "zh" and not self._vectors.embedder.reads_chinese:
                raise ValueError(
                    f"reward: the embedder {self._vectors.embedder.name!r} does not read Chinese; give embedder=… one "
                    "that does, or leave out the aspects relevance and completeness"
                )
            texts += [*texts_of(answer), *sentences]
        return self._vectors(texts)

    def _value(self, answer: Answer, sentences: list[Judged], near: Similar | None) -> Scored:
        found = aspect_values(
            sentences,
            self.label_rewards,
            near.points_SP if near is not None else None,
            target_sentences=self.target_sentences,
            max_words=self.max_words,
        )
        if found is None or (answer.cut_off and not sentences):  # cut off before the answer began
            return Scored(answer, sentences, {}, None)
        values = {name: found[name] for name in self.aspects}
        return Scored(answer, sentences, values, total(values, self.aspects))

    def _with_sentences(self, scored: Scored) -> SentenceScore | None:
        """The score with one segmentation for each aspect: sentences, or the whole answer."""
        if scored.total is None:
            return None
        spans = scored.answer.spans
        pairs = list(zip(spans, scored.sentences, strict=True))
        segments: dict[str, tuple[Segment, ...]] = {}
        for name in self.aspects:
            if name == "factuality":
                rewards = [sentence_reward(s, self.label_rewards) for s in scored.sentences]
            elif name == "relevance":
                rewards = [relevance_reward(s) for s in scored.sentences]
            else:
                whole = [Segment(spans[0][0], spans[-1][1], None, scored.values[name])] if spans else []
                segments[name] = tuple(whole)
                continue
            segments[name] = tuple(Segment(a, b, s.label, r) for ((a, b), s), r in zip(pairs, rewards, strict=True))
        scale = sum(self.aspects.values())
        return SentenceScore(scored.total, segments, {n: w / scale for n, w in self.aspects.items()})


class AsyncSentenceReward:
    """A `SentenceReward` whose call is a coroutine; the work is done in a thread.

    Args:
        reward: The reward.
    """

    def __init__(self, reward: SentenceReward) -> None:
        self.reward = reward
        self.__name__ = reward.__name__

    async def __call__(self, **arguments: Any) -> list[SentenceScore | None]:
        """As `SentenceReward.__call__`."""
        return await asyncio.to_thread(self.reward, **arguments)


def _metrics(scored: Sequence[Scored], judging: Judging, seconds: float) -> dict[str, float]:
    """What is logged, by name; shares of nothing are left out."""
    sentences = [s for one in scored for s in one.sentences]
    judged = [s for s in sentences if s.label is not None]
    found: dict[str, float | None] = {
        "seconds": seconds,
        "sentences": len(sentences) / len(scored) if scored else None,
        "judged_share": len(judged) / len(sentences) if sentences else None,
        "cache_hit_share": judging.hits / len(judging.verdicts) if judging.verdicts else None,
        "unscored_share": sum(one.total is None for one in scored) / len(scored) if scored else None,
        "hallucination_rate": hallucination_rate(s.label for s in judged),
    }
    if judged:
        found |= {f"share_{label}": sum(s.label == label for s in judged) / len(judged) for label in LABELS}
        found["share_repeated"] = sum(s.repeat for s in judged) / len(judged)
        found["share_copied"] = sum(s.copied for s in judged) / len(judged)
        found["share_off_question"] = sum(not s.relevant for s in judged) / len(judged)
    valued = [one.values for one in scored if one.total is not None]
    if valued:
        found |= {f"aspect_{name}": sum(v[name] for v in valued) / len(valued) for name in valued[0]}
    return {name: float(value) for name, value in found.items() if value is not None}


def _shown(values: Mapping[Aspect, float]) -> str:
    return " ".join(f"{name}={value:.2f}" for name, value in values.items())
