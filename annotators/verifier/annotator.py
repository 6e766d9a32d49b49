"""The embedded discriminative annotator: every sentence of an answer against its window of the reference.

Sentences that cannot be judged are set aside; then each distinct reference is indexed once, each distinct text embedded
once, and the combiner turns alignment features into probabilities (``judging.py``). It judges English, and those
Chinese sentences that the reference plainly supports; all else gets the status "language_unsupported". It marks what is
wrong and proposes no corrections.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from annotators.base import Annotator, Sentence
from annotators.records import HALLUCINATED, LABELS, Fragment, Label, SentenceAnnotation, Span, Status
from annotators.text.language import language_of, reads_as_english
from annotators.text.normalise import clean, clean_text, original_span
from annotators.text.sentences import split_sentences
from annotators.text.words import words_of
from annotators.verifier.causal import snapshot
from annotators.verifier.claims import VERSION as CLAIMS_VERSION
from annotators.verifier.claims import claims_nothing, claims_nothing_chinese
from annotators.verifier.combiner import DOUBT, Combiner
from annotators.verifier.encoder import EXCERPT_TOKENS, LEAST_GAIN
from annotators.verifier.features import FEATURES, VERSION, Idf
from annotators.verifier.judging import CONFLICT_CAP, Item, Judge, Verdict, fragments_of, unsupported_spans
from annotators.verifier.judging import VERSION as SPANS_VERSION

if TYPE_CHECKING:
    from annotators.verifier.encoder import PairEncoder
    from engines.embedding import Embedder


EMBEDDED = Path(__file__).with_name("embedded")
MAX_WORDS = 150
"""Sentences of more words are not judged ("too_long"): the windows they need were never seen in training."""
CHUNK = 64  # distinct references whose texts are held in memory at once
NO_FACT_SCORES: dict[Label, float] = {label: float(label == "no_fact") for label in LABELS}
MADE_FOR = {"kind": "discriminative", "version": VERSION, "labels": list(LABELS), "features": list(FEATURES)}
"""What the annotator.json of a folder must say."""


class DiscriminativeAnnotator(Annotator):
    """Judges sentences by alignment features and a small trained combiner.

    ``idf`` weighs words for the features; ``embedder_id`` is what ``save_pretrained`` writes (None: the packaged one);
    ``window_tokens`` is the budget of a window (None: see ``passages.budget_of``); ``encoder`` reads sentence and
    evidence together, and without one the features alone decide.
    """

    languages = ("en",)  # of Chinese only what is plain
    embedder: Embedder

    def __init__(
        self, combiner: Combiner, idf: Idf, embedder: Embedder, *, name: str = "embedded",
        embedder_id: str | None = None, window_tokens: int | None = None, encoder: PairEncoder | None = None,
    ) -> None:  # fmt: skip
        self.encoder = encoder
        self.combiner = combiner
        self.idf = idf
        self.embedder = embedder
        self.name = name
        self.embedder_id = embedder_id
        digest = hashlib.sha256(
            f"{VERSION} {CLAIMS_VERSION} {CHINESE_VERSION} {SPANS_VERSION} "
            f"{CONFLICT_CAP} {DOUBT} {EXCERPT_TOKENS} {LEAST_GAIN} "
            f"{' '.join(FEATURES)} {embedder.fingerprint}".encode()
        )
        for key in sorted(combiner.tensors):
            digest.update(key.encode() + combiner.tensors[key].tobytes())
        digest.update(idf.table.tobytes() + str(window_tokens).encode())
        if encoder is not None:
            digest.update(f"{encoder.base} {encoder.fingerprint}".encode())
        self.fingerprint = digest.hexdigest()[:16]
        self._judge = Judge(combiner, idf, embedder, window_tokens, encoder)

    @classmethod
    def from_pretrained(
        cls, name: str = "embedded", *, device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto", window_tokens: int | None = None,
    ) -> DiscriminativeAnnotator:  # fmt: skip
        """Load "embedded" (shipped inside the package), or a folder or hub id written by ``save_pretrained``.

        ``device`` None takes cuda where there is one; ``dtype`` is the encoder's, "auto" bfloat16 where the hardware
        has it. OSError where there is no annotator; ValueError where it was made for other features than this version
        computes, or a file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        from engines.embedding import Embedder

        folder = EMBEDDED if name == "embedded" else _folder_of(name)
        try:
            config = json.loads((folder / "annotator.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder / 'annotator.json'}: expected JSON: {error}") from error
        for key, value in MADE_FOR.items():
            found = config.get(key) if isinstance(config, dict) else None
            if found != value:
                shown = f"{len(value)} names" if isinstance(value, list) else repr(value)
                raise ValueError(
                    f"{folder / 'annotator.json'}: expected {key} to be {shown} of this version, got "
                    f"{str(found)[:60]!r}; train it again with `mitigate train annotator`"
                )
        try:
            combiner = Combiner.load(folder / "combiner.safetensors")
            idf = Idf(load_file(folder / "idf.safetensors")["idf"])
            combiner.predict_proba(np.zeros((1, len(FEATURES))))  # fails where tensors do not fit together
            tensors = None
            if config.get("encoder") is not None:
                from safetensors.torch import load_file as load_tensors

                tensors = load_tensors(folder / "encoder.safetensors")
        except (SafetensorError, KeyError, ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"{folder}: expected whole combiner.safetensors, idf.safetensors and encoder.safetensors: {error}; "
                "copy or train it again"
            ) from error
        encoder = None
        if tensors is not None:
            from annotators.verifier.encoder import PairEncoder

            encoder = PairEncoder(config["encoder"].get("base"), tensors, device=device, dtype=dtype)
        embedder_id = config.get("embedder")
        embedder = Embedder(embedder_id, device=device, dtype=dtype)
        return cls(
            combiner, idf, embedder, name=name, embedder_id=embedder_id, window_tokens=window_tokens, encoder=encoder
        ).calibrated_by(folder)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write annotator.json and the weights into a folder, which is made; of an encoder what training changed."""
        from safetensors.numpy import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stored = None if self.encoder is None else self.encoder.stored
        config = {
            "kind": MADE_FOR["kind"], "version": MADE_FOR["version"], "embedder": self.embedder_id,
            "encoder": None if stored is None or self.encoder is None else {"base": self.encoder.base},
            "labels": MADE_FOR["labels"], "features": MADE_FOR["features"],
        }  # fmt: skip
        (folder / "annotator.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        self.combiner.save(folder / "combiner.safetensors")
        save_file({"idf": self.idf.table.astype(np.float16)}, folder / "idf.safetensors")
        if stored is not None:
            from safetensors.torch import save_file as save_tensors

            save_tensors(stored, folder / "encoder.safetensors")
        self.save_calibration(folder)

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """One judgement per sentence, in order."""
        out: list[SentenceAnnotation | None] = [_without_weights(sentence) for sentence in sentences]
        items = [
            (i, Item(clean_text(s.text), s.reference, clean_text(s.question)))
            for i, s in enumerate(sentences)
            if out[i] is None
        ]
        items.sort(key=lambda pair: pair[1].reference)  # each reference is indexed once
        starts = [i for i, (_, item) in enumerate(items) if i == 0 or item.reference != items[i - 1][1].reference]
        for first, last in pairwise([*starts[::CHUNK], len(items)]):
            chunk = items[first:last]
            with self._judge.memory():
                verdicts = self._judge([item for _, item in chunk])
            for (i, _), verdict in zip(chunk, verdicts, strict=True):
                out[i] = _annotation(sentences[i], verdict, marked=self.calibration is not None)
        return [sentence for sentence in out if sentence is not None]


def unjudgeable(sentence: str, reference: str, language: str | None = None, answer: str | None = None) -> Status | None:
    """Why a clean sentence can't be judged, or None where it can be; ``answer`` is None where it stands alone."""
    reference = clean_text(reference)
    if not reference.strip():
        return "no_reference"
    declared = (language or "en").lower()
    if not (declared == "en" or declared.startswith(("en-", "en_"))):
        return "language_unsupported"
    # An English sentence of a Chinese answer is judged; one of a French answer may be French that looks English.
    foreign = answer is not None and language_of(clean_text(answer)) not in {"en", "none", "zh"}
    if foreign or not (reads_as_english(reference) and reads_as_english(sentence)):
        return "language_unsupported"
    return "too_long" if len(sentence.split()) > MAX_WORDS or len(sentence) > 8 * MAX_WORDS else None


def _without_weights(sentence: Sentence) -> SentenceAnnotation | None:
    """The judgement of a sentence that no model need or can read; None for all others."""
    own = clean_text(sentence.text)
    status = unjudgeable(own, sentence.reference, sentence.language, sentence.answer)
    if status is not None:
        chinese = judged_chinese(sentence) if status == "language_unsupported" else None
        return chinese or sentence.judged(status)
    if not len(words_of(own)) or claims_nothing(own):  # dashes, emoji, talk
        return sentence.judged("checked", "no_fact", dict(NO_FACT_SCORES))
    return None


def _annotation(sentence: Sentence, verdict: Verdict, *, marked: bool) -> SentenceAnnotation:
    """With spans where it is hallucinated, or where it is ``marked`` since a calibration may yet call it so."""
    label, spans = LABELS[verdict.label], None
    if label in HALLUCINATED or (marked and label != "no_fact"):
        found = unsupported_spans(verdict.item.sentence, verdict.matched, verdict.weight, verdict.token_scores)
        origin = clean(sentence.text)[1]
        places = [original_span(sentence.text, origin, a, b) for a, b in found]
        spans = tuple(Span(sentence.start + a, sentence.start + b) for a, b in places)
    scores = {label: float(p) for label, p in zip(LABELS, verdict.probabilities, strict=True)}
    return sentence.judged("checked", label, scores, fragments=fragments_of(verdict), spans=spans)


def _folder_of(name: str) -> Path:
    """The local folder of an annotator: a path, or a snapshot of a hub id."""
    if (Path(name) / "annotator.json").is_file():
        return Path(name)
    if Path(name).exists():
        raise OSError(f"annotator {name!r}: expected a folder with annotator.json, found none there")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise OSError(
            f"annotator {name!r}: expected 'embedded', a folder or a hub id (OWNER/NAME); there is no such folder"
        )
    folder = snapshot(name, ["*.json", "*.safetensors"], "'embedded', a folder or a hub id")
    if not (folder / "annotator.json").is_file():
        raise OSError(f"annotator {name!r}: the repository on the hub holds no annotator.json")
    return folder


# A Chinese sentence counts as supported where one or two neighbouring sentences of the reference say it nearly word for
# word: all characters but function words in the same order, numbers whole, as many negations, no plan, hope, condition
# or hearsay. All else is left unjudged, so none is called hallucinated (docs/results/annotator.md).

CHINESE_VERSION = 2  # raised whenever the rule changes, since verdicts depend on it
MIN_ALIGNED = 0.9  # share of the sentence's characters that stand in the window in the same order
MAX_STRETCH = 2.5  # characters of the window from the first aligned one to the last, for each of the sentence
MIN_CHARACTERS, MAX_CHARACTERS = 4, 300
PRECISION = 0.9
"""P(supported) that is stated: about what the rule reached on rows it was not chosen on, where wording differs."""
SCORES: dict[Label, float] = {
    label: PRECISION if label == "supported" else (1 - PRECISION) / (len(LABELS) - 1) for label in LABELS
}
_FUNCTION = frozenset("的了在是和与及也都就而又着过地得之其这那为以于对将把会能说们并且但或等还该此吧呢啊呀嘛哦哎嗯")
_NEGATION = re.compile("不|没|未|无|非|莫|别|勿|否|毫|反对|拒绝|禁止|停止|取消")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*%?|[一二三四五六七八九十百千万亿零〇两]+")
_RANGE = re.compile(r"\d%?[-—~～至到]\d")
_UNREAL = re.compile(
    "据说|听说|据传|传闻|可能|也许|或许|大概|会不会|是不是|能不能|有没有|如果|要是|假如|倘若|若|即使|以为|认为|觉得|预期|预计|"
    "预测|计划|目标|希望|应该|应当|必须|需要|要|想|拟|将|吗|[？?]|说是|似乎|好像|仿佛|争取|力争|准备|打算|建议|以便|除非|只要|只有|"
    "差点|几乎|快"
)
"""Words that take what stands beside them out of the facts; abstain where only the reference has one."""


def plainly_supported(sentence: str, reference: str) -> Fragment | None:
    """The one or two sentences of the reference that say the same as a Chinese one, or None where none is sure to."""
    own = clean_text(sentence)
    characters = _characters(own)
    if not MIN_CHARACTERS <= len(characters) <= MAX_CHARACTERS or own.rstrip().endswith(("?", "？")):
        return None
    pairs = {characters[i : i + 2] for i in range(len(characters) - 1)}
    windows = _windows(reference)
    ranked = sorted(windows, key=lambda w: (-len(pairs & w[3]), len(w[2])))
    for start, end, text, _ in ranked[:2]:
        if _says(own, characters, text):
            return Fragment(reference[start:end], start, end)
    return None


def _characters(text: str) -> str:
    return "".join(c for c in text if c.isalnum())


@lru_cache(maxsize=256)
def _windows(reference: str) -> list[tuple[int, int, str, frozenset[str]]]:
    """(start, end, clean text, character pairs) of each sentence of a reference, and of each two neighbours."""
    cuts = split_sentences(reference)
    spans = [*cuts, *((a, d) for (a, _), (_, d) in pairwise(cuts))]
    out = []
    for start, end in spans:
        text = clean_text(reference[start:end])
        bare = _characters(text)
        out.append((start, end, text, frozenset(bare[i : i + 2] for i in range(len(bare) - 1))))
    return out


def _says(own: str, characters: str, text: str) -> bool:
    """Whether a window says what the sentence says."""
    there = _characters(text)
    blocks = [b for b in SequenceMatcher(None, characters, there, autojunk=False).get_matching_blocks() if b.size]
    aligned = {i for block in blocks for i in range(block.a, block.a + block.size)}
    if len(aligned) < MIN_ALIGNED * len(characters):
        return False
    if any(c not in _FUNCTION for i, c in enumerate(characters) if i not in aligned):
        return False
    stretch = there[blocks[0].b : blocks[-1].b + blocks[-1].size]
    numbers = _NUMBER.findall(own)
    if len(stretch) > MAX_STRETCH * len(characters):
        return False
    return (
        len(_NEGATION.findall(own)) == len(_NEGATION.findall(stretch))
        and not set(numbers) - set(_NUMBER.findall(text))
        and not set(_UNREAL.findall(text)) - set(_UNREAL.findall(own))
        and not (numbers and _RANGE.search(text) and not _RANGE.search(own))
    )


def judged_chinese(sentence: Sentence) -> SentenceAnnotation | None:
    """The judgement of a Chinese sentence against a Chinese reference, or None where there is none."""
    own, declared = clean_text(sentence.text), (sentence.language or "zh").lower()
    if not declared.startswith("zh") or {language_of(own), language_of(clean_text(sentence.reference))} != {"zh"}:
        return None
    if claims_nothing_chinese(own):
        return sentence.judged("checked", "no_fact", dict(NO_FACT_SCORES))
    fragment = plainly_supported(sentence.text, sentence.reference)
    return None if fragment is None else sentence.judged("checked", "supported", SCORES, fragments=(fragment,))
