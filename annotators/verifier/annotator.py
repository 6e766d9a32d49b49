"""The embedded discriminative annotator: every sentence of an answer against its window of the reference.

Path of a batch: split answers, check what can't be judged, index each distinct reference once, choose each
sentence's window, embed each distinct text once, alignment features, combiner, second pass for what was found
unverifiable in a long reference. English (whatever the embedder reads), and what Chinese ``chinese_verdict.py`` can
tell; all else gets the status "language_unsupported". It marks what is wrong and proposes no corrections. What the
evidence looks like is in ``annotators/verifier/judging.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from annotators.operating import UNSURE, Calibration
from annotators.records import (
    HALLUCINATED,
    LABELS,
    Annotation,
    Fragment,
    Label,
    SentenceAnnotation,
    Span,
    Status,
    checked,
    input_record,
)
from annotators.text.language import language_of, reads_as_english
from annotators.text.normalise import clean, clean_text, original_span
from annotators.text.sentences import split_sentences
from annotators.text.words import words_of
from annotators.verifier.claims import VERSION as CLAIMS_VERSION
from annotators.verifier.claims import claims_nothing, claims_nothing_chinese
from annotators.verifier.combiner import DOUBT, Combiner
from annotators.verifier.encoder import EXCERPT_TOKENS, LEAST_GAIN
from annotators.verifier.features import FEATURES, VERSION, Idf
from annotators.verifier.judging import CONFLICT_CAP, Item, Judge, Verdict, fragments_of
from annotators.verifier.spans import VERSION as SPANS_VERSION
from annotators.verifier.spans import unsupported_spans

if TYPE_CHECKING:
    import torch

    from annotators.verifier.encoder import PairEncoder
    from engines.embedding import Embedder


# ----------------------------------------------------------------------------------------------------
# The files of a trained annotator: written, read back and checked.
#
# annotator.json (what it was made for), combiner.safetensors, idf.safetensors and, with a pair encoder,
# encoder.safetensors (what training changed in its base).


@dataclass(frozen=True)
class Parts:
    """What an annotator is put together from; ids are hub ids or folders, None for the packaged MiniLM."""

    combiner: Combiner
    idf: Idf
    embedder: str | None
    base: str | None = None
    encoder: dict[str, torch.Tensor] | None = None


def write_parts(parts: Parts, folder: Path) -> None:
    """Write the files into a folder, which is made."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "kind": "discriminative",
        "version": VERSION,
        "embedder": parts.embedder,
        "encoder": None if parts.encoder is None else {"base": parts.base},
        "labels": list(LABELS),
        "features": list(FEATURES),
    }
    (folder / "annotator.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    parts.combiner.save(folder / "combiner.safetensors")
    save_file({"idf": parts.idf.table.astype(np.float16)}, folder / "idf.safetensors")
    if parts.encoder is not None:
        from safetensors.torch import save_file as save_tensors

        save_tensors(parts.encoder, folder / "encoder.safetensors")


def read_parts(folder: Path) -> Parts:
    """The parts of a folder written by ``write_parts``, all checked."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        config = json.loads((folder / "annotator.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / 'annotator.json'}: expected JSON: {error}") from error
    expected = {"kind": "discriminative", "version": VERSION, "labels": list(LABELS), "features": list(FEATURES)}
    for key, value in expected.items():
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
        combiner.predict_proba(np.zeros((1, len(FEATURES))))
        encoder = None
        if config.get("encoder") is not None:
            from safetensors.torch import load_file as load_tensors

            encoder = load_tensors(folder / "encoder.safetensors")
    except (SafetensorError, KeyError, ValueError, FileNotFoundError) as error:
        raise ValueError(
            f"{folder}: expected whole combiner.safetensors, idf.safetensors and encoder.safetensors: {error}; "
            "copy or train it again"
        ) from error
    base = (config.get("encoder") or {}).get("base")
    return Parts(combiner, idf, config.get("embedder"), base, encoder)


def folder_of(name: str) -> Path:
    """The local folder of an annotator: a path, or a snapshot of a hub id."""
    if (Path(name) / "annotator.json").is_file():
        return Path(name)
    if Path(name).exists():
        raise OSError(f"annotator {name!r}: expected a folder with annotator.json, found none there")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise OSError(
            f"annotator {name!r}: expected 'embedded', a folder or a hub id (OWNER/NAME); there is no such folder"
        )
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(
            f"annotator {name!r}: expected 'embedded', a folder or a hub id; no such folder, and the hub says: {reason}"
        ) from error
    if not (folder / "annotator.json").is_file():
        raise OSError(f"annotator {name!r}: the repository on the hub holds no annotator.json")
    return folder


# ----------------------------------------------------------------------------------------------------
# Chinese sentences that a reference plainly supports, told without weights: the first step beyond "unsupported".
#
# A sentence counts as supported where it stands in one or two neighbouring sentences of the reference nearly word for
# word: every character but function words is found there in the same order, numbers whole, with as many negations, and
# nothing in the reference makes it a plan, a hope, a condition or hearsay. All else is left unjudged, so no Chinese
# sentence is ever called hallucinated here. What this is worth is on docs/results/chinese-verdict.md.

CHINESE_VERSION = 2
"""Raised whenever the rule changes, since verdicts depend on it."""
MIN_ALIGNED = 0.9
"""Share of the sentence's characters that stand in the window in the same order."""
MAX_STRETCH = 2.5
"""Characters of the window from the first aligned one to the last, for each of the sentence."""
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
    """The one or two sentences of the reference that say the same, or None where that can't be told.

    Args:
        sentence: A Chinese sentence.
        reference: The reference as it came; the fragment's offsets are into it.
    """
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


def judged_chinese(row: Mapping[str, Any], start: int) -> SentenceAnnotation | None:
    """The judgement of a Chinese sentence against a Chinese reference, or None where there is none.

    Args:
        row: With ``sentence``, ``reference`` and maybe ``language``, as declared.
        start: Offset of the sentence in its answer.
    """
    text, declared = row["sentence"], (row.get("language") or "zh").lower()
    own = clean_text(text)
    if not declared.startswith("zh") or {language_of(own), language_of(clean_text(row["reference"]))} != {"zh"}:
        return None
    end = start + len(text)
    if claims_nothing_chinese(own):
        scores = {label: float(label == "no_fact") for label in LABELS}
        return SentenceAnnotation(text, start, end, "checked", "no_fact", scores)
    fragment = plainly_supported(text, row["reference"])
    if fragment is None:
        return None
    return SentenceAnnotation(text, start, end, "checked", "supported", SCORES, (fragment,))


EMBEDDED = Path(__file__).with_name("embedded")
MAX_WORDS = 150
"""Sentences of more words are not judged ("too_long"): the windows they need were never seen in training."""
CHUNK = 64
"""Records whose texts are held in memory at once."""


class DiscriminativeAnnotator:
    """Judges sentences by alignment features and a small trained combiner.

    ``reads`` names all that a verdict depends on, for whoever keeps verdicts.

    Args:
        combiner: Features to probabilities.
        idf: Word weights that the features use.
        embedder: Sentence and token embeddings.
        name: What annotations call it.
        embedder_id: What ``save_pretrained`` writes as the embedder: None for the packaged one.
        window_tokens: Budget of a window; None for 400 tokens of English, 540 of Chinese.
        encoder: Reads sentence and evidence together; without one the features alone decide.
    """

    reads = ("question", "reference", "sentence", "language")
    languages = ("en",)
    """Of which every sentence is judged; of Chinese only what is plain."""

    def __init__(
        self,
        combiner: Combiner,
        idf: Idf,
        embedder: Embedder,
        *,
        name: str = "embedded",
        embedder_id: str | None = None,
        window_tokens: int | None = None,
        encoder: PairEncoder | None = None,
    ) -> None:
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
        self._calibration: Calibration | None = None

    @classmethod
    def from_pretrained(
        cls,
        name: str = "embedded",
        *,
        device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        window_tokens: int | None = None,
        calibration: str | Path | None = None,
    ) -> DiscriminativeAnnotator:
        """Load "embedded" (shipped inside the package), or a folder or hub id written by ``save_pretrained``.

        Args:
            name: "embedded", a folder, or a hub id.
            device: "cpu", "cuda"…; None takes cuda where there is one.
            dtype: Of the encoder; "auto" is bfloat16 where the hardware has it.
            window_tokens: Budget of a window; None for 400 tokens of English, 540 of Chinese.
            calibration: File of `mitigate calibrate`, made for this annotator.

        Raises:
            OSError: The folder or hub id has no annotator, or there is no such calibration.
            ValueError: It was made for other features than this version computes, or the calibration for another one.
        """
        from engines.embedding import Embedder

        parts = read_parts(EMBEDDED if name == "embedded" else folder_of(name))
        encoder = None
        if parts.encoder is not None:
            from annotators.verifier.encoder import PairEncoder

            encoder = PairEncoder(parts.base, parts.encoder, device=device, dtype=dtype)
        annotator = cls(
            parts.combiner,
            parts.idf,
            Embedder(parts.embedder, device=device, dtype=dtype),
            name=name,
            embedder_id=parts.embedder,
            window_tokens=window_tokens,
            encoder=encoder,
        )
        return annotator if calibration is None else annotator.calibrated(Calibration.load(calibration))

    def calibrated(self, calibration: Calibration) -> DiscriminativeAnnotator:
        """Itself, from now on with calibrated probabilities and thresholds, and the calibration's fingerprint."""
        self._calibration = calibration.for_annotator(self.fingerprint, self.name)
        self.fingerprint = calibration.fingerprint
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files of ``annotators/verifier/annotator.py`` into a folder, which is made."""
        base, stored = (None, None) if self.encoder is None else (self.encoder.base, self.encoder.stored)
        write_parts(Parts(self.combiner, self.idf, self.embedder_id, base, stored), Path(folder))

    def annotate(
        self, *, reference: str, answer: str, question: str | None = None, language: str | None = None
    ) -> Annotation:
        """Judge one answer; see ``annotate_batch``."""
        return self.annotate_batch([input_record(reference, answer, question, language)])[0]

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        """Judge every sentence of every answer.

        Args:
            records: {"reference": str, "answer": str, "question"?: str, "language"?: str}; other keys pass through.

        Returns:
            One annotation per record, in order.

        Raises:
            ValueError: A record lacks a reference or an answer, or one is not a string.
        """
        records = checked(records, ("reference", "answer"))
        spans = [split_sentences(record["answer"]) for record in records]
        rows = [row for record, cuts in zip(records, spans, strict=True) for row in _rows(record, cuts)]
        offsets = [a for cuts in spans for a, _ in cuts]
        judged = self._annotate_rows(rows, offsets)
        done = 0
        annotations = []
        for record, cuts in zip(records, spans, strict=True):
            annotations.append(Annotation(dict(record), tuple(judged[done : done + len(cuts)]), self._who()))
            done += len(cuts)
        return annotations

    def annotate_spans(self, record: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[SentenceAnnotation]:
        """Judge some sentences of one answer as ``annotate`` judges them, for whoever shows them one by one.

        Args:
            record: As for ``annotate_batch``.
            spans: Offsets of sentences, of those that ``split_sentences`` finds in the answer.
        """
        checked([record], ("reference", "answer"))
        return self._annotate_rows(_rows(record, spans), [a for a, _ in spans])

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        """Judge ``row["sentence"]`` as it is given against ``row["reference"]``.

        Args:
            rows: {"reference": str, "sentence": str, "question"?: str, "language"? or "lang"?: str}.

        Returns:
            One judgement per row, in order, with offsets into the sentence.

        Raises:
            ValueError: A row lacks a reference or a sentence, or one is not a string.
        """
        rows = checked(
            [
                {**row, "language": row.get("language") or row.get("lang")} if isinstance(row, Mapping) else row
                for row in rows
            ],
            ("reference", "sentence"),
        )
        return self._annotate_rows([{**_context(r), "sentence": r["sentence"]} for r in rows], [0] * len(rows))

    def _who(self) -> dict[str, str]:
        return {"name": self.name, "fingerprint": self.fingerprint}

    def _annotate_rows(self, rows: Sequence[Mapping[str, Any]], offsets: Sequence[int]) -> list[SentenceAnnotation]:
        """Judge rows in chunks of equal references, so that each reference is indexed once."""
        out: list[SentenceAnnotation | None] = [None] * len(rows)
        items: list[tuple[int, Item]] = []
        for i, row in enumerate(rows):
            text, start = row["sentence"], offsets[i]
            item = Item(clean_text(text), row["reference"], clean_text(row["question"]))
            status = unjudgeable(row, item.sentence)
            if status is not None:
                chinese = judged_chinese(row, start) if status == "language_unsupported" else None
                out[i] = chinese or SentenceAnnotation(text, start, start + len(text), status)
            elif not len(words_of(item.sentence)) or claims_nothing(item.sentence):  # dashes, emoji, talk
                scores = {label: float(label == "no_fact") for label in LABELS}
                out[i] = SentenceAnnotation(text, start, start + len(text), "checked", "no_fact", scores)
            else:
                items.append((i, item))
        items.sort(key=lambda pair: pair[1].reference)
        for first, last in _chunks([item.reference for _, item in items]):
            chunk = items[first:last]
            with self._judge.memory():
                verdicts = self._recalibrated(self._judge([item for _, item in chunk]))
            for (i, _), verdict in zip(chunk, verdicts, strict=True):
                out[i] = _sentence_annotation(rows[i]["sentence"], offsets[i], verdict)
        return [sentence for sentence in out if sentence is not None]

    def _recalibrated(self, verdicts: list[Verdict]) -> list[Verdict]:
        if self._calibration is None or not verdicts:
            return verdicts
        chances, labels = self._calibration.judge(
            np.stack([v.probabilities for v in verdicts]), np.array([v.label for v in verdicts])
        )
        return self._judge.marked(
            [
                replace(v, probabilities=p, label=int(label))
                for v, p, label in zip(verdicts, chances, labels, strict=True)
            ]
        )


def unjudgeable(row: Mapping[str, Any], sentence: str) -> Status | None:
    """Why a sentence can't be judged, or None where it can be.

    Args:
        row: With ``reference``, ``language`` (declared, or None) and, of a whole answer, ``answer_language``.
        sentence: The clean sentence.
    """
    if not clean_text(row["reference"]).strip():
        return "no_reference"
    declared = (row.get("language") or "en").lower()
    if not (declared == "en" or declared.startswith(("en-", "en_"))):
        return "language_unsupported"
    whole = row.get("answer_language", "en")
    if (
        not reads_as_english(clean_text(row["reference"]))
        or not reads_as_english(sentence)
        or whole not in {"en", "none", "zh"}
    ):
        return "language_unsupported"
    return "too_long" if len(sentence.split()) > MAX_WORDS or len(sentence) > 8 * MAX_WORDS else None


def _sentence_annotation(text: str, start: int, verdict: Verdict) -> SentenceAnnotation:
    if verdict.label == UNSURE:
        return SentenceAnnotation(text, start, start + len(text), "unsure")
    return SentenceAnnotation(
        text=text,
        start=start,
        end=start + len(text),
        status="checked",
        label=LABELS[verdict.label],
        scores={label: float(p) for label, p in zip(LABELS, verdict.probabilities, strict=True)},
        fragments=fragments_of(verdict),
        spans=_spans(text, start, verdict) if LABELS[verdict.label] in HALLUCINATED else None,
    )


def _spans(text: str, start: int, verdict: Verdict) -> tuple[Span, ...]:
    """The unsupported words of a hallucinated sentence, as offsets into the answer."""
    found = unsupported_spans(verdict.item.sentence, verdict.matched, verdict.weight, verdict.token_scores)
    origin = clean(text)[1]
    places = [original_span(text, origin, a, b) for a, b in found]
    return tuple(Span(start + a, start + b) for a, b in places)


def _chunks(references: Sequence[str]) -> list[tuple[int, int]]:
    """Cut rows, sorted by reference, into runs of at most CHUNK distinct references (a run never splits one)."""
    starts = [i for i in range(len(references)) if i == 0 or references[i] != references[i - 1]]
    edges = [*starts[::CHUNK], len(references)]
    return list(pairwise(edges)) if references else []


def _rows(record: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    answer_language = language_of(clean_text(record["answer"]))
    shared = {**_context(record), "answer_language": answer_language}
    return [{**shared, "sentence": record["answer"][a:b]} for a, b in spans]


def _context(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "reference": record["reference"],
        "question": record.get("question") or "",
        "language": record.get("language"),
    }
