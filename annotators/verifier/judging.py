"""Judging sentences against windows: what ``DiscriminativeAnnotator`` does with a chunk of checked, clean sentences.

Each distinct text is embedded once per chunk (``memory``). A sentence found unverifiable in a reference longer than its
window is judged again in up to six further windows; the one that supports it best decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from annotators.records import LABELS, Fragment
from annotators.retrieval.passages import ReferenceIndex, index_references
from annotators.retrieval.window import Window, second_pass, select
from annotators.text.normalise import clean_text
from annotators.text.words import Words, units, words_of
from annotators.verifier.combiner import CONTRADICTORY, DOUBT, NO_FACT, SUPPORTED, UNVERIFIABLE, Combiner, votes_of
from annotators.verifier.encoder import EXCERPT_TOKENS, LEAST_GAIN, excerpt
from annotators.verifier.features import FEATURES, Evidence, Idf, coverage, feature_vector, word_alignment

if TYPE_CHECKING:
    from annotators.verifier.encoder import PairEncoder
    from engines.embedding import Embedder, TokenEmbeddings


# --- spans: which words of a hallucinated sentence its evidence does not back --------------------------------------

VERSION = 1  # raised whenever a constant or rule changes, since records depend on it
UNBACKED = 0.3  # doubt from which a word is unsupported
NEAREST = 3  # passages that count: those that match most of the sentence. What stands elsewhere backs nothing
BRIDGE = 4  # most words without content between two unsupported ones that are taken along
ENCODER_SHARE = 0.5  # share of the pair encoder in the doubt about a word; the rest is the alignment's
Tokens = Sequence[tuple[int, int, float]]
"""(start, end, P(unsupported)) of the pair encoder's tokens, offsets into the sentence."""


def doubts(words: Words, matched: np.ndarray, tokens: Tokens = ()) -> np.ndarray:
    """(_W,) how little the evidence backs each word, in [0, 1]; NaN for words without content.

    ``matched`` (_W, _P) in [0, 1] says how well each passage matches each word; ``tokens`` may be ().
    """
    doubt = 1.0 - matched.max(1, initial=0.0)
    if tokens:
        encoder = np.zeros(len(words))
        for start, end, p in tokens:
            i = int(np.searchsorted(words.starts, start, side="right")) - 1
            if i >= 0 and end <= words.ends[i]:
                encoder[i] = max(encoder[i], p)
        doubt = (1 - ENCODER_SHARE) * doubt + ENCODER_SHARE * encoder
    return np.where(np.array(words.content, dtype=bool), doubt, np.nan)


def unsupported_spans(
    sentence: str, matched: np.ndarray, weight: np.ndarray, tokens: Tokens = ()
) -> list[tuple[int, int]]:
    """The unsupported stretches of a hallucinated sentence in code points, in order, from a word's start to a word's
    end.

    The arguments are those of its ``judging.Verdict``. The most doubtful word is always among them, unless there is no
    doubt about any: what is wrong then (an order, a negation) is no single word.
    """
    words = words_of(sentence)
    if not len(words):
        return []
    nearest = np.argsort(-(weight @ matched), kind="stable")[:NEAREST]
    doubt = np.nan_to_num(doubts(words, matched[:, nearest], tokens))
    flagged = doubt >= min(UNBACKED, max(doubt.max(), 1e-9))
    for unit in units(sentence):
        inside = [i for i in range(len(words)) if unit.start <= words.starts[i] < unit.end]
        if flagged[inside].any():
            flagged[inside] = True
    at = np.flatnonzero(flagged).tolist()
    for i, j in pairwise(at):
        between = range(i + 1, j)
        if len(between) <= BRIDGE and not any(words.content[k] for k in between):
            flagged[i:j] = True
    runs: list[tuple[int, int]] = []
    for i in np.flatnonzero(flagged).tolist():
        start = words.starts[i]
        if runs and flagged[i - 1] and sentence[words.ends[i - 1] : start].isspace():  # only spaces join two words
            start, _ = runs.pop()
        runs.append((start, words.ends[i]))
    return runs


CONFLICT_COVER, CONFLICT_CAP = 0.6, 0.1  # see ``capped``
MAX_FRAGMENTS = 3
MIN_GAIN = 0.12  # share of a sentence's word weight that a further fragment must add
TokenScores = tuple[tuple[int, int, float], ...]


@dataclass(frozen=True)
class Item:
    """A sentence to judge: clean sentence, reference as it came, clean question ("" without one)."""

    sentence: str
    reference: str
    question: str = ""


@dataclass(frozen=True)
class Comparison:
    """An item beside one window: features (F,), and how the window's _P passages match the sentence's _W words.

    ``matched`` (_W, _P) is in [0, 1], 1 where the word stands in the passage literally; ``weight`` (_W,) is the idf of
    content words, 0 of others.
    """

    item: Item
    window: Window
    evidence: Evidence
    features: np.ndarray
    matched: np.ndarray
    weight: np.ndarray

    def text(self) -> tuple[str, str, tuple[str, ...]]:
        """What the encoder reads: question, sentence, and the passages that match most of it."""
        tokens = [p.tokens for p in self.window.passages]
        places = excerpt(self.matched, self.weight, tokens, EXCERPT_TOKENS, LEAST_GAIN)
        return self.item.question, self.item.sentence, tuple(self.evidence.texts[i] for i in places)


@dataclass(frozen=True)
class Verdict(Comparison):
    """A judgement: position in LABELS and probabilities (4,), with the comparison that it rests on."""

    label: int
    probabilities: np.ndarray
    token_scores: TokenScores = ()
    """(start, end, P(unsupported)) of the encoder's tokens of the clean sentence; none where it was not asked."""

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
    """Sentences to verdicts, through window, features, combiner and, where there is one, the pair encoder."""

    def __init__(
        self, combiner: Combiner, idf: Idf, embedder: Embedder, window_tokens: int | None = None,
        encoder: PairEncoder | None = None,
    ) -> None:  # fmt: skip
        self.combiner = combiner
        self.idf = idf
        self.embedder = embedder
        self.window_tokens = window_tokens
        self.encoder = encoder
        self._memory: Memory | None = None

    @contextmanager
    def memory(self) -> Iterator[None]:
        """Keep embeddings until the end of the block; everything else is called inside one."""
        self._memory = Memory(self.embedder)
        try:
            yield
        finally:
            self._memory = None

    def __call__(self, items: Sequence[Item]) -> list[Verdict]:
        """Judge items, in order."""
        indexes, windows = self._windows(items)
        verdicts = self.judge_in(items, windows)
        again = [i for i, verdict in enumerate(verdicts) if verdict.label == UNVERIFIABLE and not windows[i].whole]
        wider = second_pass([(indexes[items[i].reference], items[i].sentence) for i in again])
        further = [(i, window) for i, group in zip(again, wider, strict=True) for window in group]
        others = self.judge_in([items[i] for i, _ in further], [window for _, window in further])
        for (i, _), other in zip(further, others, strict=True):
            if other.support > verdicts[i].support:
                verdicts[i] = other
        return verdicts

    def read(self, items: Sequence[Item]) -> list[Comparison]:
        """Items beside their first windows, for training."""
        return self._compare(items, self._windows(items)[1])

    def judge_in(self, items: Sequence[Item], windows: Sequence[Window]) -> list[Verdict]:
        """Judge each item against the window given for it."""
        if not items:
            return []
        compared = self._compare(items, windows)
        features = np.stack([comparison.features for comparison in compared])
        votes: np.ndarray | None = None
        tokens: list[TokenScores] = [()] * len(items)
        if self.encoder is not None:
            votes = foregone(self.combiner, features)
            asked = np.flatnonzero(np.isnan(votes[:, 0])).tolist()
            logits, scores = self.encoder([compared[i].text() for i in asked])
            votes[asked] = votes_of(logits)
            for i, found in zip(asked, scores, strict=True):
                tokens[i] = found
        chances = capped(features, self.combiner.predict_proba(features, votes))
        labels = self.combiner.decide(chances).tolist()
        return [
            Verdict(**vars(comparison), label=label, probabilities=p, token_scores=scores)
            for comparison, label, p, scores in zip(compared, labels, chances, tokens, strict=True)
        ]

    def _remembering(self) -> Memory:
        if self._memory is None:
            raise RuntimeError("a Judge is called inside its memory() block")
        return self._memory

    def _windows(self, items: Sequence[Item]) -> tuple[dict[str, ReferenceIndex], list[Window]]:
        """The index of each reference, and each item's first window."""
        distinct = list(dict.fromkeys(item.reference for item in items))
        memory = self._remembering()
        found = index_references(distinct, memory.tokenize, (memory,), self.window_tokens)
        indexes = dict(zip(distinct, found, strict=True))
        return indexes, select([(indexes[item.reference], item.sentence) for item in items])

    def _compare(self, items: Sequence[Item], windows: Sequence[Window]) -> list[Comparison]:
        texts = [tuple(clean_text(p.text) for p in window.passages) for window in windows]
        wanted = [t for group in texts for t in group] + [
            s for item in items for s in (item.sentence, item.question) if s
        ]
        embedded = dict(zip(wanted, self._remembering().encode_tokens(wanted), strict=True))
        shared = {group: Evidence(group, [embedded[t] for t in group]) for group in dict.fromkeys(texts)}
        out = []
        for item, window, group in zip(items, windows, texts, strict=True):
            evidence, own, words = shared[group], embedded[item.sentence], words_of(item.sentence)
            asked = embedded.get(item.question)
            features = feature_vector(item.sentence, own, evidence, self.idf, item.question, asked)
            # Cosines below 0.3 are chance, and no paraphrase counts as much as the word itself.
            matched = np.clip((word_alignment(words, own, evidence)[0] - 0.3) / 0.6, 0.0, 0.9)
            found, idf, at = coverage(item.sentence, evidence.texts, self.idf)
            matched[at] = np.where(found, 1.0, matched[at])
            weight = np.zeros(len(words))
            weight[at] = idf
            out.append(Comparison(item, window, evidence, features, matched, weight))
        return out


def foregone(combiner: Combiner, features: np.ndarray) -> np.ndarray:
    """Votes (n, 4) where the encoder need not be asked, NaN elsewhere: rows that stay "supported" or "no fact" whatever
    it says. Their words are not marked either, so its agreement is taken for granted.
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
    """Probabilities (n, 4) with a low P(supported) where the evidence has another number in the sentence's place.

    With one such counterpart beside the same word, and most of the sentence's words in the best passage, labelled
    sentences are almost never supported (docs/LOG.md); the smooth combiner does not follow so sharp a sign.
    """
    near, cover = FEATURES.index("swap_number_near"), FEATURES.index("cover_best")
    conflict = (features[:, near] > 0) & (features[:, cover] >= CONFLICT_COVER)
    excess = np.where(conflict, np.maximum(probabilities[:, SUPPORTED] - CONFLICT_CAP, 0.0), 0.0)
    out = probabilities.copy()
    out[:, SUPPORTED] -= excess
    out[:, CONTRADICTORY] += excess
    return out


def fragments_of(verdict: Verdict) -> tuple[Fragment, ...]:
    """The passages that match most of the sentence's word weight; none for "no fact" or a match below a third."""
    weight, matched = verdict.weight, verdict.matched
    if verdict.label == NO_FACT or weight.sum() <= 0 or not matched.shape[1]:
        return ()
    chosen: list[int] = []
    covered = np.zeros(len(weight))
    while len(chosen) < MAX_FRAGMENTS:
        gain = weight @ np.maximum(matched, covered[:, None]) - weight @ covered
        best = int(gain.argmax())
        if gain[best] < (MIN_GAIN if chosen else 1 / 3) * weight.sum():
            break
        chosen.append(best)
        covered = np.maximum(covered, matched[:, best])
    passages = [verdict.window.passages[i] for i in sorted(chosen)]
    return tuple(Fragment(p.text, p.start, p.end) for p in passages)
