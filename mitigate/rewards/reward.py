"""A reward for TRL that judges every sentence: `GRPOTrainer(reward_funcs=SentenceReward("embedded"), …)`.

It reads the reference (and the question) from the data set's columns, cuts each completion into sentences, judges all
sentences of all completions in one batch, and returns for each completion a float that carries its sentences
(`SentenceScore`), or None where nothing could be judged. No torch is loaded before the first call unless an annotator
is named by a string. Leaves out what labels are worth (`aspects.py`), the reading of completions (`inputs.py`) and
token credit (`mitigate/rl/grpo.py`).

Dimension suffixes: _S sentences of one answer, _P points that a complete answer makes, _D embedding.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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
from mitigate.rewards.inputs import Answer, Columns, Copies, Reader, Tags, content_words, open_question, repeats, words
from mitigate.rewards.segments import Segment, SentenceScore

if TYPE_CHECKING:
    from engines.embedding import Embedder

RELEVANT = 0.3
"""Cosine (MiniLM) from which a sentence bears on the question; see docs/rewards.md for what it separates."""
MAX_POINTS = 5
"""Sentences of the reference, nearest to the question, that stand for what an answer should say."""
MIN_POINT_WORDS = 4
VECTORS_KEPT = 20_000  # of MiniLM they take 31 MB
_ONE_AT_A_TIME = threading.Lock()  # models are not re-entrant, and async rewards, which run in threads, may share one
Key = TypeVar("Key")
Value = TypeVar("Value")


# --- verdicts and embeddings, asked for once -------------------------------------------------------------------------


class _Memo(OrderedDict[Key, Value]):
    """Values computed once for each key, as long as they are kept; those used last stay."""

    def __init__(self, size: int) -> None:
        self.size = size

    def values_of(
        self, keys: Sequence[Key], compute: Callable[[list[Key]], Iterable[Value]]
    ) -> tuple[dict[Key, Value], int]:
        """Key → value, all new ones by one call, and how many of the keys were known before."""
        with _ONE_AT_A_TIME:
            found = {key: self[key] for key in keys if key in self}
            hits = sum(key in found for key in keys)
            if new := [key for key in dict.fromkeys(keys) if key not in found]:
                found.update(zip(new, compute(new), strict=True))
            for key, value in found.items():
                self[key] = value
                self.move_to_end(key)
            while len(self) > self.size:
                self.popitem(last=False)
        return found, hits


class Verdicts:
    """Judges sentences in one batch, each distinct one once; keeps ``size`` verdicts, but no failed ones.

    They are kept by the annotator's fingerprint and every input that the annotator reads, so a changed reference or
    question, or another annotator, is judged anew.
    """

    def __init__(self, annotator: Annotator, size: int) -> None:
        self.annotator = annotator
        self._kept: _Memo[bytes, tuple[Label | None, Status]] = _Memo(size)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Label | None], int]:
        """The labels of rows, in order, by one call of the annotator, and how many were known before."""
        keys = [self._key(row) for row in rows]
        by_key = dict(zip(keys, rows, strict=True))

        def judge(new: list[bytes]) -> list[tuple[Label | None, Status]]:
            fields = [
                {f: by_key[key][f] for f in self.annotator.reads if by_key[key].get(f) is not None} for key in new
            ]
            judged = self.annotator.predict(fields)
            if len(judged) != len(new):
                raise ValueError(
                    f"annotator {self.annotator.name!r}: expected {len(new)} judgements, got {len(judged)}"
                )
            return [(sentence.label, sentence.status) for sentence in judged]

        found, hits = self._kept.values_of(keys, judge)
        for key, (_, status) in found.items():
            if status == "failed":
                self._kept.pop(key, None)
        return [found[key][0] for key in keys], hits

    def _key(self, row: Mapping[str, Any]) -> bytes:
        """sha256 over the fingerprint and the fields that the annotator reads, each with its length."""
        digest = hashlib.sha256(self.annotator.fingerprint.encode())
        for field in self.annotator.reads:
            value = row.get(field)
            data = b"" if value is None else str(value).encode("utf-8", "surrogatepass")
            digest.update(f"|{field}:{'none' if value is None else len(data)}|".encode() + data)
        return digest.digest()


class Vectors:
    """Sentence embeddings, each distinct text once as long as it is among the ``size`` used last."""

    def __init__(self, embedder: Embedder, size: int) -> None:
        self.embedder = embedder
        self._kept: _Memo[str, np.ndarray] = _Memo(size)

    def __call__(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Text → (_D,) float32 of length 1."""
        return self._kept.values_of(texts, self.embedder.encode)[0]


# --- how the sentences of an answer lie to its question and its reference --------------------------------------------


@dataclass(frozen=True)
class Similar:
    """Cosines of the sentences of one answer, −1 for those that were not judged."""

    near_S: np.ndarray  # with the question, or with the sentence of the reference that bears on it if that is higher
    points_SP: np.ndarray  # with each point that a complete answer makes


@lru_cache(maxsize=1024)
def _reference_sentences(reference: str) -> tuple[tuple[str, str], ...]:
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
    """What has to be embedded for an answer beside its sentences."""
    pairs = _reference_sentences(answer.reference)
    return [answer.question, *(answer.points or ()), *(text for pair in pairs for text in pair)]


def similarity(answer: Answer, labels: Sequence[Label | None], vectors: Mapping[str, np.ndarray]) -> Similar:
    """Compare the judged sentences of an answer with its question, its reference and its points.

    A sentence bears on the question when it is near it, or near a sentence of the reference that does ("It opened in
    1931." is near no question). Sentences of the reference are compared together with the first of their paragraph too,
    which says what "it" is; those of an answer alone, or filler would profit from its neighbours.

    Args:
        answer: The answer.
        labels: The labels of its sentences, but for a last one that was cut off.
        vectors: Text → (_D,) of length 1, for ``texts_of`` and the judged sentences.
    """
    question = vectors[answer.question]
    pairs = _reference_sentences(answer.reference)
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
    again = repeats(answer.sentences[: len(labels)])
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


# --- the reward ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scored:
    """One completion: its judged sentences, the values of its aspects, its score (None: it could not be judged)."""

    sentences: list[Judged]
    values: dict[Aspect, float]
    score: SentenceScore | None


class SentenceReward:
    """A reward function: completions in, scores with sentences out.

    Args:
        annotator: Judges sentences; a string is loaded by ``load_annotator`` ("embedded", a hub id, "nli:ID", …).
        label_rewards: Label → reward or None (no opinion); "supported" must be worth the most. Default: supported 1,
            contradictory and unverifiable −1, no_fact None.
        aspects: Aspect → weight; those left out are not computed. The score is their weighted mean. Default:
            factuality 1, relevance, completeness and length 0.3.
        embedder: For relevance and completeness; None takes the annotator's own, else the packaged MiniLM.
        columns: Names of the data set's columns.
        thinking: Opening and closing tag of what is not judged, or None.
        response: Opening and closing tag of what alone is judged, or None for all but the thinking.
        eos_token_ids: Tokens that end a completion. With them a completion cut off at its limit is known for sure,
            without them it is one as long as the longest seen that ends without a full stop.
        target_sentences: Credited sentences that earn the full length reward.
        max_words: Words (characters of Chinese) from which length is punished.
        cache_size: Verdicts to keep, 0 for none.
        calibration: File of `mitigate calibrate` for an annotator named by a string; None leaves it as it is. Worth
            a few hundred labelled sentences of the policy: a threshold that is off is what a policy learns to exploit.
        expected_rate: Likewise, the rate of hallucination at which probabilities hold.
        device: Where an annotator named by a string runs: "cpu", "cuda:1"…; None takes cuda where there is one.
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
        expected_rate: float | None = None,
        device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        name: str = "factuality",
    ) -> None:
        self.label_rewards = check_label_rewards(label_rewards or {})
        self.aspects = check_aspects(aspects)
        self._needs_question = "relevance" in self.aspects or "completeness" in self.aspects
        self._read = Reader(
            columns or Columns(), thinking, response, eos_token_ids, needs_question=self._needs_question
        )
        whole = {"target_sentences": (target_sentences, 1), "max_words": (max_words, 1), "cache_size": (cache_size, 0)}
        for option, (value, least) in whole.items():
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{option}: expected a whole number of at least {least}, got {value!r}")
        if isinstance(annotator, str):
            from annotators import load_annotator

            operating: Any = {"calibration": calibration, "expected_rate": expected_rate}
            annotator = load_annotator(annotator, device=device, dtype=dtype, **operating)
        elif calibration is not None or expected_rate is not None:
            raise ValueError(
                f"calibration: expected an annotator named by a string, got {annotator.name!r}, already loaded; give "
                "the file, or the expected rate, to load_annotator"
            )
        self.annotator = annotator
        self.target_sentences, self.max_words = target_sentences, max_words
        self.__name__ = name
        self._verdicts = Verdicts(annotator, cache_size)
        self._embedder, self._device = embedder, device
        self._vectors: Vectors | None = None

    def check(self, data: Mapping[str, Any]) -> None:
        """Raise ValueError where a data set can't be used: ``reward.check(dataset[:])`` before training."""
        rows = len(data.get(self._read.columns.reference, ()))
        self._read.check(data, rows, prompts="prompt" in data)

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
            log_extra: Takes (column, one value per completion) for the table of completions.
            columns: The data set's columns, one value per completion, and what else the trainer passes.

        Returns:
            One score per completion, in order; None where no sentence could be judged.

        Raises:
            ValueError: A column is missing, empty or of another length.
            TypeError: A completion is neither text nor messages.
        """
        started = time.perf_counter()
        scored, hit_share = self._score(self._read(completions, prompts, completion_ids, columns))
        if log_metric is not None:
            metrics = {**self._metrics(scored), "cache_hit_share": hit_share, "seconds": time.perf_counter() - started}
            for metric, value in metrics.items():
                if value is not None:
                    log_metric(f"{self.__name__}/{metric}", float(value))
        if log_extra is not None:
            log_extra(f"{self.__name__}/labels", [" ".join(s.label or "?" for s in one.sentences) for one in scored])
            shown = [" ".join(f"{name}={value:.2f}" for name, value in one.values.items()) for one in scored]
            log_extra(f"{self.__name__}/aspects", shown)
        return [one.score for one in scored]

    def as_async(self) -> Callable[..., Coroutine[Any, Any, list[SentenceScore | None]]]:
        """The same reward as an async function, run beside other async ones (for annotators behind HTTP)."""

        async def reward(**arguments: Any) -> list[SentenceScore | None]:
            return await asyncio.to_thread(self, **arguments)

        reward.__name__ = self.__name__
        return reward

    def _score(self, answers: Sequence[Answer]) -> tuple[list[_Scored], float | None]:
        """Judge all whole sentences of all answers in one batch; also the share of verdicts known before."""
        counts = [len(answer.spans) - answer.last_is_part for answer in answers]
        rows = [
            {"sentence": sentence, "reference": answer.reference, "question": answer.question or None,
             "language": answer.language, "answer": answer.text}
            for answer, count in zip(answers, counts, strict=True)
            for sentence in answer.sentences[:count]
        ]  # fmt: skip
        verdicts, hits = self._verdicts(rows)
        rest = iter(verdicts)
        labels = [list(islice(rest, count)) for count in counts]
        # In an answer of another language the annotator may judge copies only, and a copy would win: none of it counts.
        if self.annotator.languages is not None:
            reads = (*self.annotator.languages, "none")
            for answer, own in zip(answers, labels, strict=True):
                if declared_or_found(answer.language, answer.text) not in reads:
                    own[:] = [None] * len(own)
        similar = self._similar(answers, labels) if self._needs_question else [None] * len(answers)
        copies = {answer.reference: Copies(answer.reference) for answer in answers}
        scored = [
            self._value(answer, judged_sentences(answer, own, near, copies[answer.reference]), near)
            for answer, own, near in zip(answers, labels, similar, strict=True)
        ]
        return scored, hits / len(rows) if rows else None

    def _similar(self, answers: Sequence[Answer], labels: Sequence[Sequence[Label | None]]) -> list[Similar | None]:
        """Cosines of each judged sentence with its question and points; None for answers without judged sentences."""
        texts: list[str] = []
        for answer, own in zip(answers, labels, strict=True):
            if not any(own):
                continue
            if self._vectors is None:
                from engines.embedding import Embedder

                mine = self._embedder or self.annotator.embedder
                self._vectors = Vectors(mine or Embedder(device=self._device), VECTORS_KEPT)
            if not answer.question:
                raise ValueError(
                    "reward: the aspects relevance and completeness need a question, one is empty; fill the column "
                    f"{self._read.columns.question!r} or name other aspects"
                )
            if language_of(answer.question) == "zh" and not self._vectors.embedder.reads_chinese:
                raise ValueError(
                    f"reward: the embedder {self._vectors.embedder.name!r} does not read Chinese; give embedder=… one "
                    "that does, or leave out the aspects relevance and completeness"
                )
            texts += [*texts_of(answer), *(s for s, label in zip(answer.sentences, own, strict=False) if label)]
        vectors = self._vectors(texts) if self._vectors and texts else {}
        return [similarity(a, own, vectors) if any(own) else None for a, own in zip(answers, labels, strict=True)]

    def _value(self, answer: Answer, sentences: list[Judged], near: Similar | None) -> _Scored:
        """The score, with one segmentation for each aspect: sentences, or the whole answer."""
        points_SP = near.points_SP if near is not None else None
        limits = {"target_sentences": self.target_sentences, "max_words": self.max_words}
        found = aspect_values(sentences, self.label_rewards, points_SP, **limits)
        if found is None or (answer.cut_off and not sentences):  # cut off before the answer began
            return _Scored(sentences, {}, None)
        values = {name: found[name] for name in self.aspects}
        by_sentence = {
            "factuality": [sentence_reward(s, self.label_rewards) for s in sentences],
            "relevance": [relevance_reward(s) for s in sentences],
        }
        segments: dict[str, list[Segment]] = {}
        for name in self.aspects:
            if name in by_sentence:
                rows = zip(answer.spans, sentences, by_sentence[name], strict=True)
                segments[name] = [Segment(a, b, s.label, reward) for (a, b), s, reward in rows]
            else:
                ends = [(answer.spans[0][0], answer.spans[-1][1])] if sentences else []
                segments[name] = [Segment(a, b, None, values[name]) for a, b in ends]
        scale = sum(self.aspects.values())
        weights = {str(name): weight / scale for name, weight in self.aspects.items()}
        return _Scored(sentences, values, SentenceScore(total(values, self.aspects), segments, weights))

    def _metrics(self, scored: Sequence[_Scored]) -> dict[str, float | None]:
        """What is logged, by name; None is a mean over nothing."""

        def mean(values: Iterable[float]) -> float | None:
            values = list(values)
            return sum(values) / len(values) if values else None

        sentences = [s for one in scored for s in one.sentences]
        judged = [s for s in sentences if s.label is not None]
        valued = [one.values for one in scored if one.score is not None]
        return {
            "sentences": mean(len(one.sentences) for one in scored),
            "judged_share": mean(s.label is not None for s in sentences),
            "unscored_share": mean(one.score is None for one in scored),
            "hallucination_rate": hallucination_rate(s.label for s in judged),
            **{f"share_{label}": mean(s.label == label for s in judged) for label in LABELS},
            "share_repeated": mean(s.repeat for s in judged),
            "share_copied": mean(s.copied for s in judged),
            "share_off_question": mean(not s.relevant for s in judged),
            **{f"aspect_{name}": mean(values[name] for values in valued) for name in self.aspects},
        }
