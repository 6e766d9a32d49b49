"""Judging sentences against windows: what ``DiscriminativeAnnotator`` does with a chunk of checked, clean sentences.

Each distinct text is embedded once per chunk (``memory``), whether it is wanted for the window or for the features.
A sentence found unverifiable in a reference longer than its window is judged again in up to six further windows;
the one that supports it best decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from annotators.records import LABELS, Fragment
from annotators.retrieval.passages import ReferenceIndex, index_references
from annotators.retrieval.window import Window, second_pass, select
from annotators.text.normalise import clean_text
from annotators.verifier.combiner import DOUBT, Combiner, votes_of
from annotators.verifier.encoder import EXCERPT_TOKENS, LEAST_GAIN, excerpt
from annotators.verifier.features import FEATURES, Evidence, Idf, coverage, feature_vector, word_alignment, words_of

if TYPE_CHECKING:
    from annotators.verifier.encoder import PairEncoder
    from engines.embedding import Embedder, TokenEmbeddings


SUPPORTED, CONTRADICTORY, UNVERIFIABLE, NO_FACT = range(len(LABELS))
CONFLICT_COVER = 0.6
CONFLICT_CAP = 0.1
"""See ``capped``."""
MAX_FRAGMENTS = 3
TokenScores = tuple[tuple[int, int, float], ...]
MIN_GAIN = 0.12
"""Share of a sentence's word weight that a further fragment must add."""


@dataclass(frozen=True)
class Item:
    """A sentence to judge: clean sentence, reference as it came, clean question ("" without one)."""

    sentence: str
    reference: str
    question: str = ""


@dataclass(frozen=True)
class Verdict:
    """A judgement: position in LABELS, probabilities (4,), and the window and passages that it rests on."""

    item: Item
    label: int
    probabilities: np.ndarray
    window: Window
    evidence: Evidence
    met: np.ndarray
    """(_W, _P) how well each passage meets each word, in [0, 1]; 1 where the word stands in it literally."""
    weight: np.ndarray
    """(_W,) idf of content words, 0 of others."""
    token_scores: TokenScores = ()
    """(start, end, P(unsupported)) of the encoder's tokens of the clean sentence; none without an encoder."""

    @property
    def support(self) -> float:
        """P(supported) / (1 − P(no_fact)), in [0, 1]."""
        return float(self.probabilities[SUPPORTED] / max(1.0 - self.probabilities[NO_FACT], 1e-9))


class Memory:
    """An embedder that remembers, for one chunk, every text it has embedded; texts are cleaned first."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.seen: dict[str, TokenEmbeddings] = {}
        self.reads_chinese = embedder.reads_chinese
        self.tokenize = embedder.tokenize

    def encode_tokens(self, texts: Sequence[str]) -> list[TokenEmbeddings]:
        """As ``Embedder.encode_tokens``, each distinct text once per chunk."""
        texts = [clean_text(text) for text in texts]
        new = [text for text in dict.fromkeys(texts) if text not in self.seen]
        if new:
            self.seen.update(zip(new, self.embedder.encode_tokens(new), strict=True))
        return [self.seen[text] for text in texts]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """As ``Embedder.encode``, (n, D)."""
        if not len(texts):
            return np.zeros((0, self.embedder.dimension), np.float32)
        return np.stack([tokens.pooled for tokens in self.encode_tokens(texts)])


class Judge:
    """Sentences to verdicts, through window, features and combiner."""

    def __init__(
        self,
        combiner: Combiner,
        idf: Idf,
        embedder: Embedder,
        window_tokens: int | None = None,
        encoder: PairEncoder | None = None,
    ) -> None:
        self.encoder = encoder
        self.window_tokens = window_tokens
        self.combiner = combiner
        self.idf = idf
        self.embedder = embedder
        self._memory: Memory | None = None

    @contextmanager
    def memory(self) -> Iterator[None]:
        """Keep embeddings until the end of the block."""
        self._memory = Memory(self.embedder)
        try:
            yield
        finally:
            self._memory = None

    def __call__(self, items: Sequence[Item]) -> list[Verdict]:
        """Judge items, in order; call inside ``memory()``."""
        if not items:
            return []
        indexes = self._index([item.reference for item in items])
        windows = self._windows(items, indexes)
        verdicts = self.judge_in(items, windows)
        again = [i for i, verdict in enumerate(verdicts) if verdict.label == UNVERIFIABLE and not windows[i].whole]
        wider = second_pass([(indexes[items[i].reference], items[i].sentence) for i in again])
        further = [(i, window) for i, group in zip(again, wider, strict=True) for window in group]
        for (i, _), other in zip(
            further, self.judge_in([items[i] for i, _ in further], [w for _, w in further]), strict=True
        ):
            if other.support > verdicts[i].support:
                verdicts[i] = other
        return verdicts

    def read(self, items: Sequence[Item]) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        """(n, F) features of items in their first windows, and what the encoder reads of these; for training.

        Call inside ``memory()``.
        """
        windows = self._windows(items, self._index([item.reference for item in items]))
        features, evidence = self._features(items, windows)
        texts = zip(self._met(items, evidence), windows, evidence, strict=True)
        return features, [self._excerpt(*met, window, e) for met, window, e in texts]

    def judge_in(self, items: Sequence[Item], windows: Sequence[Window]) -> list[Verdict]:
        """Judge each item against the window given for it."""
        if not items:
            return []
        features, evidence = self._features(items, windows)
        met = self._met(items, evidence)
        votes: np.ndarray | None = None
        tokens: list[TokenScores] = [()] * len(items)
        if self.encoder is not None:
            votes = foregone(self.combiner, features)
            asked = np.flatnonzero(np.isnan(votes[:, 0])).tolist()
            texts = [
                (items[i].question, items[i].sentence, self._excerpt(*met[i], windows[i], evidence[i])) for i in asked
            ]
            logits, read = self.encoder(texts)
            votes[asked] = votes_of(logits)
            for i, scores in zip(asked, read, strict=True):
                tokens[i] = scores
        probabilities = capped(features, self.combiner.predict_proba(features, votes))
        labels = self.combiner.decide(probabilities)
        verdicts = [
            Verdict(item, int(label), p, window, e, m[0], m[1], wrong)
            for item, label, p, window, e, m, wrong in zip(
                items, labels, probabilities, windows, evidence, met, tokens, strict=True
            )
        ]
        return verdicts

    def marked(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts; the encoder's marks are added to hallucinated ones for which it was not asked.

        For labels that changed after judging (a calibration); call inside ``memory()``.
        """
        out = list(verdicts)
        late = [i for i, v in enumerate(out) if v.label in (CONTRADICTORY, UNVERIFIABLE) and not v.token_scores]
        if self.encoder is not None and late:
            texts = [
                (v.item.question, v.item.sentence, self._excerpt(v.met, v.weight, v.window, v.evidence))
                for v in (out[i] for i in late)
            ]
            for i, scores in zip(late, self.encoder(texts)[1], strict=True):
                out[i] = replace(out[i], token_scores=scores)
        return out

    def _met(self, items: Sequence[Item], evidence: Sequence[Evidence]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each item ``Verdict.met`` and ``Verdict.weight``."""
        found_of = []
        for item, e, own in zip(items, evidence, self._embed([item.sentence for item in items]), strict=True):
            words = words_of(item.sentence)
            sims, _ = word_alignment(words, own, e.vectors)
            met = np.clip((sims - 0.3) / 0.6, 0.0, 0.9)
            found, _, at = coverage(item.sentence, e.texts, self.idf)
            met[at] = np.where(found, 1.0, met[at])
            weight = np.zeros(len(words))
            weight[at] = [self.idf(words.stems[j]) for j in at]
            found_of.append((met, weight))
        return found_of

    def _excerpt(self, met: np.ndarray, weight: np.ndarray, window: Window, evidence: Evidence) -> tuple[str, ...]:
        places = excerpt(met, weight, [p.tokens for p in window.passages], EXCERPT_TOKENS, LEAST_GAIN)
        return tuple(evidence.texts[i] for i in places)

    def _embed(self, texts: Sequence[str]) -> list[TokenEmbeddings]:
        return self._remembered().encode_tokens(texts)

    def _remembered(self) -> Memory:
        if self._memory is None:
            raise RuntimeError("a Judge is called inside its memory() block")
        return self._memory

    def _index(self, references: Sequence[str]) -> dict[str, ReferenceIndex]:
        distinct = list(dict.fromkeys(references))
        memory = self._remembered()
        return dict(
            zip(distinct, index_references(distinct, memory.tokenize, (memory,), self.window_tokens), strict=True)
        )

    def _windows(self, items: Sequence[Item], indexes: dict[str, ReferenceIndex]) -> list[Window]:
        return select([(indexes[item.reference], item.sentence) for item in items])

    def _features(self, items: Sequence[Item], windows: Sequence[Window]) -> tuple[np.ndarray, list[Evidence]]:
        texts = [[clean_text(p.text) for p in window.passages] for window in windows]
        wanted = [t for group in texts for t in group] + [
            s for item in items for s in (item.sentence, item.question) if s
        ]
        embedded = dict(zip(wanted, self._embed(wanted), strict=True))
        shared: dict[tuple[str, ...], Evidence] = {}
        for group in texts:
            key = tuple(group)
            if key not in shared:
                shared[key] = Evidence(group, [embedded[t] for t in group])
        evidence = [shared[tuple(group)] for group in texts]
        vectors = [
            feature_vector(
                item.sentence, embedded[item.sentence], e, self.idf, item.question, embedded.get(item.question)
            )
            for item, e in zip(items, evidence, strict=True)
        ]
        return np.stack(vectors), evidence


def foregone(combiner: Combiner, features: np.ndarray) -> np.ndarray:
    """Votes (n, 4) where the encoder need not be asked, NaN elsewhere.

    A row whose label stays "supported" or "no fact" whatever the encoder says: its agreement is taken for granted. Its
    words are not marked either, so reading it would be for nothing.
    """
    votes = np.full((len(features), len(LABELS)), np.nan)
    for label in (SUPPORTED, NO_FACT):
        against, agreeing = np.zeros(len(LABELS)), np.full(len(LABELS), -DOUBT)
        against[label], agreeing[label] = -DOUBT, 0.0
        worst = capped(features, combiner.predict_proba(features, against))
        votes[combiner.decide(worst) == label] = agreeing
    return votes


def as_judged(combiner: Combiner, features: np.ndarray, votes: np.ndarray) -> np.ndarray:
    """Votes (n, 4) as judging has them: the encoder's, but ``foregone`` where it is not asked."""
    known = foregone(combiner, features)
    return np.where(np.isnan(known), votes, known)


def capped(features: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Keep P(supported) low where the evidence has another number in the place of the sentence's.

    Where a number that the evidence lacks has one counterpart beside the same word, and the best passage has most of
    the sentence's words, labelled sentences are almost never supported (docs/LOG.md); the smooth combiner does not
    follow so sharp a sign. What is taken off goes to "contradictory".

    Args:
        features: (n, F).
        probabilities: (n, 4) in the order of LABELS.

    Returns:
        (n, 4), rows sum to 1.
    """
    near, cover = FEATURES.index("swap_number_near"), FEATURES.index("cover_best")
    conflict = (features[:, near] > 0) & (features[:, cover] >= CONFLICT_COVER)
    excess = np.where(conflict, np.maximum(probabilities[:, SUPPORTED] - CONFLICT_CAP, 0.0), 0.0)
    out = probabilities.copy()
    out[:, SUPPORTED] -= excess
    out[:, CONTRADICTORY] += excess
    return out


def fragments_of(verdict: Verdict) -> tuple[Fragment, ...]:
    """The passages that decide a verdict: greedily those that meet most of the sentence's word weight.

    None for "no fact", nor where not even the best passage meets a third of the sentence.
    """
    total = verdict.weight.sum()
    if verdict.label == NO_FACT or total <= 0 or not verdict.met.shape[1]:
        return ()
    chosen: list[int] = []
    met = np.zeros(len(verdict.weight))
    while len(chosen) < MAX_FRAGMENTS:
        gain = verdict.weight @ np.maximum(verdict.met, met[:, None]) - verdict.weight @ met
        best = int(gain.argmax())
        if gain[best] < (MIN_GAIN if chosen else 1 / 3) * total:
            break
        chosen.append(best)
        met = np.maximum(met, verdict.met[:, best])
    passages = [verdict.window.passages[i] for i in sorted(chosen)]
    return tuple(Fragment(p.text, p.start, p.end) for p in passages)
