"""The discriminative annotator: every sentence of an answer beside the passages of its reference that bear on it.

Sentences that cannot be judged are set aside. Each distinct reference is cut and indexed once; BM25 picks the passages
that fit the budget, the verifier reads them (``model.py``), and a sentence that they leave unverifiable is read once
more beside further windows. What is not supported is marked word by word; corrections are not proposed.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, PositiveInt

from annotators.base import Annotator, Sentence
from annotators.operating import logit
from annotators.records import LABELS, Fragment, SentenceAnnotation, Span, Status, read_saved
from annotators.retrieval import Window, index_references, second_pass, select
from annotators.text.language import MIN_WORDS, OTHERS, language_of, stated
from annotators.text.normalise import clean, clean_text, original_span
from annotators.text.words import holding, words_of
from annotators.verifier.causal import folder_of
from engines.embedding import Dtype
from engines.packaged import NotHereError

if TYPE_CHECKING:
    from annotators.verifier.model import Verifier

log = logging.getLogger(__name__)
SHIPPED = {
    name: Path(__file__).with_name(name.replace("-", "_")) for name in ("embedded", "embedded-fast", "embedded-zh")
}
"""Folders of the annotators inside the package: the better one, on a language model that is fetched once, a small one
that is there whole, and one of Chinese and English, whose base is fetched too."""
VERSION = 1  # of what is stored
FURTHER_TOKENS = 768  # of further windows that the second look reads at most
RELEVANT = 0.3
"""Passages with less than this share of the most words that one has in common with the sentence, or of the best BM25
score, are not read, though there be room: unrelated text changes fewer verdicts so, and judging is faster. Chosen on
fold 1, see docs/LOG.md."""
MAX_WORDS = 150
"""Sentences of more words are not judged ("too_long"): the windows they need were never seen in training."""
CHUNK = 4096  # sentences that are judged at once; it bounds what is held in memory
MARKED, LACKING = 0.0, 2.0
"""Log-odds of "unsupported" from which a word of a hallucinated sentence is marked, and what is added to them where the
evidence lacks the word: what the token head says of it is the weaker sign. Chosen on folds that do not test."""
MAX_FRAGMENTS, FIRST_GAIN, NEXT_GAIN = 3, 0.25, 0.12
"""Passages shown as evidence, and which share of the sentence's words the first and each further one has to match."""


class Saved(BaseModel, strict=True):
    """What annotator.json says."""

    kind: Literal["verifier"]
    version: Literal[1]  # VERSION
    base: str
    layers: PositiveInt | None
    lora: PositiveInt | None
    languages: list[str] | None = Field(min_length=1)
    evidence_tokens: int = Field(ge=1, le=FURTHER_TOKENS)
    narrow_tokens: int | None = Field(default=None, ge=1, le=FURTHER_TOKENS)
    labels: tuple[Literal["supported"], Literal["contradictory"], Literal["unverifiable"], Literal["no_fact"]]


@dataclass(frozen=True)
class Verdict:
    """The (4,) probabilities of a clean sentence beside a window, and (start, end, P(unsupported)) of its tokens."""

    window: Window
    probabilities: np.ndarray
    tokens: tuple[tuple[int, int, float], ...]

    @property
    def support(self) -> float:
        """P(supported) / (1 − P(no_fact)), in [0, 1]."""
        return float(self.probabilities[0] / max(1.0 - self.probabilities[3], 1e-9))


def pooled(wide: Verdict, narrow: Verdict) -> Verdict:
    """What two windows say together; the wide one's evidence is shown, marked are the words of what supports better.

    Given that there is a fact, the greater P(supported), the mean P(contradictory) and the lesser P(unverifiable),
    divided by their sum: either window may lack what the other has, and what one contradicts is not simply supported.
    """
    both = np.stack([wide.probabilities, narrow.probabilities])
    verdict = both[:, :3] + 1e-9
    verdict /= verdict.sum(1, keepdims=True)
    said = np.array([verdict[:, 0].max(), verdict[:, 1].mean(), verdict[:, 2].min()])
    no_fact = both[:, 3].mean()
    found = np.append(said / said.sum() * (1 - no_fact), no_fact)
    return Verdict(wide.window, found, narrow.tokens if narrow.support > wide.support else wide.tokens)


def stored(name: str) -> tuple[Path, Saved]:
    """The folder of "embedded", …, a path or a hub id, and what its annotator.json says; loads no weights.

    OSError where there is no annotator; ValueError where it is of another kind or was made by another version.
    """
    wanted = f"{', '.join(SHIPPED)}, or a folder or hub id with annotator.json"
    folder = SHIPPED.get(name) or folder_of(name, wanted, lambda place: (place / "annotator.json").is_file())
    return folder, read_saved(folder / "annotator.json", Saved)


class DiscriminativeAnnotator(Annotator):
    """Judges sentences by a trained verifier.

    ``languages`` are those it was trained on, None for any; ``evidence_tokens`` (of the verifier's tokenizer) is what
    it reads of a reference at once. With ``narrow_tokens`` it also reads the best so many alone, since what stands
    around hides much from a small model (``pooled``). Of further windows the one that supports best decides.
    """

    def __init__(
        self, verifier: Verifier, *, evidence_tokens: int, narrow_tokens: int | None = None,
        name: str = "embedded", languages: Sequence[str] | None = ("en",),
    ) -> None:  # fmt: skip
        self.verifier, self.name = verifier, name
        self.languages = None if languages is None else tuple(languages)
        self.evidence_tokens, self.narrow_tokens = evidence_tokens, narrow_tokens
        self.further = FURTHER_TOKENS // evidence_tokens  # windows
        self.fingerprint = fingerprint_of(self.settings, verifier.base_identity, verifier.fingerprint)

    @property
    def settings(self) -> dict[str, Any]:
        """What annotator.json says of it, but for its kind."""
        settings = {name: getattr(self.verifier, name) for name in ("base", "layers", "lora")}
        return settings | {name: getattr(self, name) for name in ("languages", "evidence_tokens", "narrow_tokens")}

    @classmethod
    def from_pretrained(
        cls, name: str = "embedded", *, device: str | None = None, dtype: Dtype = "auto"
    ) -> DiscriminativeAnnotator:
        """Load one of SHIPPED, or a folder or hub id written by ``save_pretrained``.

        "embedded" changes a packaged language model; where that is not here and can't be fetched, a warning says so
        and "embedded-fast" is returned. OSError where there is no annotator; ValueError where it was made by another
        version, a file is damaged, or the operating point beside it is of other weights.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from annotators.verifier.model import Verifier, WeightsError

        folder, saved = stored(name)
        try:
            weights = load_file(folder / "verifier.safetensors")
        except (SafetensorError, OSError) as error:
            raise _damaged(folder, error) from error
        try:
            verifier = Verifier(saved.base, weights, layers=saved.layers, lora=saved.lora, device=device, dtype=dtype)
        except NotHereError as error:
            if name != "embedded":
                raise
            log.warning("%s. Until then embedded-fast judges, which is worse at it.", error)
            return cls.from_pretrained("embedded-fast", device=device, dtype=dtype)
        except WeightsError as error:
            raise _damaged(folder, error) from error
        own = saved.model_dump(include={"languages", "evidence_tokens", "narrow_tokens"})
        return cls(verifier, name=name, **own).calibrated_by(folder, strictly=True)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write annotator.json, and the weights that training changed, into a folder, which is made."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"kind": "verifier", "version": VERSION, **self.settings, "labels": LABELS}
        save_file(self.verifier.packed(), folder / "verifier.safetensors")
        (folder / "annotator.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        self.save_calibration(folder)

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        out = [self._without_weights(sentence) for sentence in sentences]
        todo = [i for i, found in enumerate(out) if found is None]
        todo.sort(key=lambda i: sentences[i].reference)  # each reference is indexed once
        for at in range(0, len(todo), CHUNK):
            chunk = todo[at : at + CHUNK]
            for i, verdict in zip(chunk, self.verdicts([sentences[i] for i in chunk]), strict=True):
                out[i] = _annotation(sentences[i], verdict)
        return [found for found in out if found is not None]

    def verdicts(self, sentences: Sequence[Sentence]) -> list[Verdict]:
        """What the verifier says of each sentence beside its best window, in order."""
        texts = [clean_text(sentence.text) for sentence in sentences]
        references = [sentence.reference for sentence in sentences]
        indexes = index_references(references, self.verifier.tokenize, None, self.evidence_tokens, RELEVANT)
        windows = select(list(zip(indexes, texts, strict=True)))
        found = self._read(sentences, list(enumerate(windows)))
        again = [
            i for i, verdict in enumerate(found)
            if LABELS[int(verdict.probabilities.argmax())] == "unverifiable" and not verdict.window.whole
        ]  # fmt: skip
        wider = second_pass([(indexes[i], texts[i]) for i in again], self.further)
        further = [(i, window) for i, group in zip(again, wider, strict=True) for window in group]
        for (i, _), other in zip(further, self._read(sentences, further), strict=True):
            if other.support > found[i].support:
                found[i] = other
        if self.narrow_tokens is None:
            return found
        indexes = index_references(references, self.verifier.tokenize, None, self.narrow_tokens, RELEVANT)
        longer = [i for i, index in enumerate(indexes) if not index.fits]
        narrow = select([(indexes[i], texts[i]) for i in longer])
        both = dict(zip(longer, self._read(sentences, list(zip(longer, narrow, strict=True))), strict=True))
        return [pooled(verdict, both.get(i, verdict)) for i, verdict in enumerate(found)]

    def _read(self, sentences: Sequence[Sentence], windows: Sequence[tuple[int, Window]]) -> list[Verdict]:
        """A verdict of the sentence with each number beside its window."""
        from annotators.verifier.model import probabilities

        logits, tokens = self.verifier([
            (clean_text(sentences[i].question), clean_text(sentences[i].text), [clean_text(p.text) for p in w.passages])
            for i, w in windows
        ])  # fmt: skip
        return [Verdict(w, *said) for (_, w), *said in zip(windows, probabilities(logits), tokens, strict=True)]

    def _without_weights(self, sentence: Sentence) -> SentenceAnnotation | None:
        """The judgement of a sentence that no model need or can read; None for all others."""
        from annotators.verifier.model import SENTENCE_TOKENS

        own = clean_text(sentence.text)
        status = unjudgeable(own, sentence.reference, self.languages, sentence.language, sentence.answer)
        if status is not None:
            return sentence.judged(status)
        if not len(words_of(own)):  # dashes, emoji
            return sentence.scored((0, 0, 0, 1))
        # A token has at least a byte. The end of a longer sentence would not be read.
        if len(own.encode()) > SENTENCE_TOKENS and len(self.verifier.tokenize([own])[0][0]) > SENTENCE_TOKENS:
            return sentence.judged("too_long")
        return None


def fingerprint_of(settings: Mapping[str, Any], base: str, weights: str) -> str:
    """16 hex digits over all that verdicts without a calibration depend on: settings, the identity of the base
    (``Verifier.base_identity``) and the digest of what training changed (``model.digest_of``).
    """
    narrow = "" if settings["narrow_tokens"] is None else f" {settings['narrow_tokens']} {RELEVANT} pooled"
    languages, tokens = settings["languages"] and tuple(settings["languages"]), settings["evidence_tokens"]
    parts = (
        f"{VERSION} {base} {settings['layers']} {settings['lora']} {languages} {tokens} {FURTHER_TOKENS // tokens} "
        f"near {RELEVANT}{narrow} {MARKED} {LACKING} {MAX_FRAGMENTS} {FIRST_GAIN} {NEXT_GAIN} {MAX_WORDS}{weights}"
    )
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def unjudgeable(
    sentence: str, reference: str, languages: Sequence[str] | None = ("en",), language: str | None = None,
    answer: str | None = None,
) -> Status | None:  # fmt: skip
    """Why a clean sentence can't be judged, or None where it can be; ``answer`` is None where it stands alone.

    ``language`` is the declared one. Where ``languages`` are given, sentence and reference have to be in one of them.
    """
    reference = clean_text(reference)
    if not reference.strip():
        return "no_reference"
    if languages is not None:
        declared = stated({"language": language or languages[0]})
        # An English sentence of a Chinese answer is judged; one of a French answer may be French that looks English.
        foreign = answer is not None and language_of(clean_text(answer)) not in {"en", "none", "zh", *languages}
        told, own = language_of(reference), language_of(sentence)
        if own == "en" and told in OTHERS and ("en" not in languages or len(sentence.split()) < MIN_WORDS):
            own = told  # too short, or too much like English, to be told from it
        if declared not in languages or foreign or not {told, own} <= {"none", *languages}:
            return "language_unsupported"
    return "too_long" if len(sentence.split()) > MAX_WORDS or len(sentence) > 8 * MAX_WORDS else None


def _annotation(sentence: Sentence, verdict: Verdict) -> SentenceAnnotation:
    if LABELS[int(verdict.probabilities.argmax())] == "no_fact":
        return sentence.scored(verdict.probabilities)
    # Also where it is supported there are spans: the operating point may yet flag it, and else drops them.
    own, origin = clean(sentence.text)
    marked = unsupported_spans(own, verdict.tokens, [p.text for p in verdict.window.passages])
    places = [original_span(sentence.text, origin, a, b) for a, b in marked]
    spans = tuple(Span(sentence.start + a, sentence.start + b) for a, b in places)
    return sentence.scored(verdict.probabilities, fragments=fragments_of(own, verdict.window), spans=spans)


def unsupported_spans(
    sentence: str, tokens: Sequence[tuple[int, int, float]], passages: Sequence[str]
) -> list[tuple[int, int]]:
    """The unsupported stretches of a clean sentence in code points, in order, from a word's start to a word's end.

    A word is as doubtful as its worst token, and more so if the passages lack it; the most doubtful one is always
    marked, and neighbours are joined.
    """
    from annotators.verifier.model import cells, keys_of

    words = cells(sentence)
    if not len(words.starts):
        return []
    worst = np.zeros(len(words.starts) + 1)  # the last is of tokens in no word
    places = holding(words.starts, words.ends, np.array([b - 1 for _, b, _ in tokens]))
    np.maximum.at(worst, places, [p for *_, p in tokens])
    known = frozenset[str]().union(*(keys_of(clean_text(passage)) for passage in passages))
    doubt = logit(worst[:-1]) + LACKING * (words.states(known) > words.kinds)
    runs: list[tuple[int, int]] = []
    for i in np.flatnonzero(doubt >= min(MARKED, doubt.max())).tolist():
        start = int(words.starts[i])
        if runs and not sentence[runs[-1][1] : start].strip():  # only spaces join two words
            start, _ = runs.pop()
        runs.append((start, int(words.ends[i])))
    return runs


def fragments_of(sentence: str, window: Window) -> tuple[Fragment, ...]:
    """The passages of a window that match most of a clean sentence's words; names and numbers count twice."""
    from annotators.verifier.model import cells, keys_of

    own = cells(sentence)
    weight = np.where(own.kinds > 1, 2.0, own.kinds)
    if not weight.sum():
        return ()
    matched = [own.states(keys_of(clean_text(p.text))) == own.kinds for p in window.passages]
    chosen: list[int] = []
    covered = np.zeros(len(weight), bool)
    while len(chosen) < min(MAX_FRAGMENTS, len(matched)):
        gain = [float(weight[found & ~covered].sum()) for found in matched]
        best = int(np.argmax(gain))
        if gain[best] < (NEXT_GAIN if chosen else FIRST_GAIN) * weight.sum():
            break
        chosen.append(best)
        covered |= matched[best]
    return tuple(Fragment(p.text, p.start, p.end) for p in (window.passages[i] for i in sorted(chosen)))


def _damaged(folder: Path, error: Exception) -> ValueError:
    return ValueError(f"{folder}: expected a whole verifier.safetensors: {error}; copy or train it again")
