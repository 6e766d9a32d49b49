"""The causal-LM discriminative annotator: one forward pass of a decoder judges every sentence of an answer.

    annotator = CausalAnnotator.from_pretrained("out/runs/annotators-discriminative/annotator")
    annotator.annotate(question=…, reference=…, answer=…)

Source: ANAH (ACL 2024), §3.2: a pre-trained LM, its last layer replaced by a linear one of four classes. A sentence is
read at its last token, so a verdict depends on question, reference and the answer up to there, on nothing after. What a
row looks like is in ``annotators/causal_input.py``, the network in ``annotators/causal_model.py``, training in
``mitigate/kinds/discriminative_annotator.py``. Gives labels and scores, no fragments and no corrections.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from annotators.calibration import Calibration
from annotators.causal_input import HEADINGS, Encoded, Reading, collate, control_ids, encode, readings_of
from annotators.causal_model import (
    is_classifier,
    label_order,
    load_classifier,
    load_tokenizer,
    longest,
    token_logits,
)
from annotators.language import declared_or_found
from annotators.records import LABELS, Annotation, SentenceAnnotation, Status, checked, input_record
from annotators.sentences import split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_TOKENS = 16_384
"""Of a row: the paper's 16k."""
BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}
"""Padded tokens of a batch."""
Judged = tuple[Status, np.ndarray | None]


class CausalAnnotator:
    """Judges sentences with a decoder and a head of four classes.

    ``reads`` names all that a verdict depends on, for whoever keeps verdicts.

    Args:
        model: A token classifier, or a sequence classifier of a decoder.
        tokenizer: Its fast tokenizer.
        name: What annotations call it.
        languages: Codes of the languages it was trained on; others are not judged. None judges all.
        max_tokens: Longest row; capped by the model's positions.
    """

    reads = ("question", "reference", "answer", "sentence", "language")

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "causal",
        languages: Sequence[str] | None = None,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        control_ids(tokenizer)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.languages = None if languages is None else tuple(languages)
        self.max_tokens = longest(model, max_tokens)
        self._order = label_order(model.config.id2label or {}, name)
        self.fingerprint = self._fingerprint()
        self._calibration: Calibration | None = None

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        max_tokens: int | None = None,
    ) -> CausalAnnotator:
        """Load a classifier: a folder written by ``save_pretrained`` or a trainer, or a hub id.

        Args:
            name: Folder or hub id.
            device: "cpu", "cuda"…; None takes cuda where there is one.
            dtype: Of the weights; "auto" is bfloat16 on cuda, float32 elsewhere.
            max_tokens: Longest row; None for what it was saved with, else 16,384.

        Raises:
            OSError: There is no such checkpoint.
            ValueError: Its classes are not the four labels, or it has no trained head or no fast tokenizer.
        """
        import torch

        if dtype not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"dtype: expected 'auto', 'float32' or 'bfloat16', got {dtype!r}")
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        half = dtype == "bfloat16" or (dtype == "auto" and where.startswith("cuda"))
        folder = str(local_folder(name))
        settings = _settings(Path(folder))
        model = load_classifier(folder, dtype=torch.bfloat16 if half else torch.float32)
        return cls(
            model.to(where),  # type: ignore[arg-type]
            load_tokenizer(folder),
            name=name,
            languages=settings.get("languages"),
            max_tokens=max_tokens or settings.get("max_tokens") or MAX_TOKENS,
        )

    def calibrated(self, calibration: Calibration) -> CausalAnnotator:
        """Itself, from now on with calibrated probabilities and thresholds, and the calibration's fingerprint."""
        self._calibration = calibration.for_annotator(self.fingerprint, self.name)
        self.fingerprint = calibration.fingerprint
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model, tokenizer and annotator.json into a folder, which is made; weights as safetensors."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_settings(folder, self.languages, self.max_tokens)

    def _fingerprint(self) -> str:
        """sha256 over weights, tokenizer, row form and settings, 16 hex digits."""
        import torch

        digest = hashlib.sha256(
            json.dumps(
                [HEADINGS, self.languages, self.max_tokens, self._order, self.tokenizer.padding_side]
            ).encode()
        )
        digest.update(self.tokenizer.backend_tokenizer.to_str().encode())
        for key, tensor in sorted(self.model.state_dict().items()):
            data = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
            digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode() + data.tobytes())
        return digest.hexdigest()[:16]

    def annotate(
        self, *, reference: str, answer: str, question: str | None = None, language: str | None = None
    ) -> Annotation:
        """Judge one answer; see ``annotate_batch``."""
        return self.annotate_batch([input_record(reference, answer, question, language)])[0]

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        """Judge every sentence of every answer, each answer in one pass.

        Args:
            records: {"reference": str, "answer": str, "question"?: str, "language"?: str, "parametric"?: bool};
                other keys pass through. A true ``parametric`` judges without the reference.

        Returns:
            One annotation per record, in order.

        Raises:
            ValueError: A record lacks a reference or an answer, or one is not a string.
        """
        records = checked(records, ("reference", "answer"))
        readings = [
            Reading(
                record.get("question") or "",
                "" if record.get("parametric") else record["reference"],
                record["answer"],
                tuple(split_sentences(record["answer"])),
            )
            for record in records
        ]
        judged = self._judge(readings, records)
        who = {"name": self.name, "fingerprint": self.fingerprint}
        return [
            Annotation(
                dict(record),
                tuple(
                    self._sentence(reading.answer[a:b], a, verdict)
                    for (a, b), verdict in zip(reading.spans, verdicts, strict=True)
                ),
                who,
            )
            for record, reading, verdicts in zip(records, readings, judged, strict=True)
        ]

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        """Judge ``row["sentence"]`` against ``row["reference"]``, at its place in ``row["answer"]`` where it is there.

        Sentences of one answer are judged in one pass; see ``causal_input.readings_of``.

        Args:
            rows: {"reference", "sentence", "question"?, "answer"?, "start"?, "language"? or "lang"?, "parametric"?}.

        Returns:
            One judgement per row, in order, with offsets into the sentence.

        Raises:
            ValueError: A row lacks a reference or a sentence, or one is not a string.
        """
        rows = checked(rows, ("reference", "sentence"))
        readings, places = readings_of(rows)
        records: list[Mapping[str, Any]] = [{}] * len(readings)
        for row, (reading, _) in zip(rows, places, strict=True):
            records[reading] = row
        judged = self._judge(readings, records)
        return [
            self._sentence(row["sentence"], 0, judged[reading][sentence])
            for row, (reading, sentence) in zip(rows, places, strict=True)
        ]

    def _sentence(self, text: str, start: int, verdict: Judged) -> SentenceAnnotation:
        sentence = _sentence(text, start, verdict)
        return sentence if self._calibration is None else self._calibration.apply(sentence)

    def _judge(self, readings: Sequence[Reading], records: Sequence[Mapping[str, Any]]) -> list[list[Judged]]:
        """Of each reading's sentences status and probabilities (4,), in the order of LABELS."""
        statuses = [
            self._unjudgeable(reading, record) for reading, record in zip(readings, records, strict=True)
        ]
        out: list[list[Judged]] = [
            [(status or "failed", None)] * len(reading.spans)
            for reading, status in zip(readings, statuses, strict=True)
        ]
        todo = [i for i, status in enumerate(statuses) if status is None and readings[i].spans]
        rows: list[tuple[int, Encoded]] = []
        for i, found in zip(
            todo, encode(self.tokenizer, [readings[i] for i in todo], self.max_tokens), strict=True
        ):
            rows += [(i, row) for row in found.rows if row.ends]
            for number, status in found.left_out.items():
                out[i][number] = (status, None)
        probabilities = self._probabilities([row for _, row in rows])
        for (i, row), scores_S4 in zip(rows, probabilities, strict=True):
            for number, scores in zip(row.ends, scores_S4, strict=True):
                out[i][number] = ("checked", scores)
        return out

    def _unjudgeable(self, reading: Reading, record: Mapping[str, Any]) -> Status | None:
        if not reading.reference.strip() and not record.get("parametric"):
            return "no_reference"
        if self.languages is None:
            return None
        declared = record.get("language") or record.get("lang")
        code = declared_or_found(None if declared is None else str(declared), reading.answer)
        return None if code == "none" or code in self.languages else "language_unsupported"

    def _probabilities(self, rows: Sequence[Encoded]) -> list[np.ndarray]:
        """Of each row (S, 4) probabilities at its sentence ends, in the order of ``ends``."""
        import torch

        device = next(self.model.parameters()).device
        budget = BATCH_TOKENS["cuda" if device.type == "cuda" else "cpu"]
        pad = self.tokenizer.pad_token_id
        out: list[np.ndarray] = [np.zeros((0, len(LABELS)))] * len(rows)
        with torch.inference_mode():
            for numbers in _batches([len(row.ids) for row in rows], budget):
                side = self.tokenizer.padding_side
                batch = collate([rows[n].ids for n in numbers], pad if pad is not None else 0, side)
                width = batch["input_ids"].shape[1]
                logits_BTC = token_logits(self.model, {k: v.to(device) for k, v in batch.items()})
                for b, n in enumerate(numbers):
                    shift = width - len(rows[n].ids) if side == "left" else 0
                    places = [shift + place for place in rows[n].ends.values()]
                    chances_SC = logits_BTC[b, places].double().softmax(-1)[:, self._order]
                    out[n] = chances_SC.cpu().numpy()
        return out


def recognises(name: str) -> bool:
    """Whether a name stands for a classifier of this module: a folder, or a hub id whose config.json says so."""
    folder = Path(name).expanduser()
    if folder.exists():
        return is_classifier(folder)
    from huggingface_hub import snapshot_download

    try:
        return is_classifier(
            Path(
                snapshot_download(
                    name, allow_patterns=["annotator.json", "config.json", "adapter_config.json"]
                )
            )
        )
    except Exception:  # no such repository, no connection, no valid id: whoever loads it will tell
        return False


def local_folder(name: str) -> Path:
    """The folder of a classifier: a path, or a snapshot of a hub id (safetensors and JSON only).

    Raises:
        OSError: There is none.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not is_classifier(folder):
            raise OSError(
                f"annotator {name!r}: expected a token or sequence classifier (config.json names its architecture), "
                "found none there"
            )
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"]))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(
            f"annotator {name!r}: expected a folder or a hub id; no such folder, and the hub says: {reason}"
        ) from error


def write_settings(folder: Path, languages: Sequence[str] | None, max_tokens: int) -> None:
    """Write annotator.json beside a classifier's weights; see ``CausalAnnotator``."""
    settings = {"kind": "causal", "languages": languages, "max_tokens": max_tokens}
    (folder / "annotator.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def _settings(folder: Path) -> dict[str, Any]:
    """What annotator.json says, {} for a checkpoint of another maker."""
    path = folder / "annotator.json"
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    languages, tokens = found.get("languages"), found.get("max_tokens")
    if not (
        languages is None or (isinstance(languages, list) and all(isinstance(c, str) for c in languages))
    ):
        raise ValueError(f"{path}: expected languages to be a list of codes or null, got {languages!r}")
    if not (tokens is None or (isinstance(tokens, int) and tokens > 0)):
        raise ValueError(f"{path}: expected max_tokens to be a whole number above 0, got {tokens!r}")
    return {"languages": languages, "max_tokens": tokens}


def _sentence(text: str, start: int, verdict: Judged) -> SentenceAnnotation:
    status, scores = verdict
    if scores is None:
        return SentenceAnnotation(text, start, start + len(text), status)
    named = {label: float(p) for label, p in zip(LABELS, scores, strict=True)}
    return SentenceAnnotation(text, start, start + len(text), status, LABELS[int(scores.argmax())], named)


def _batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows of like length together, at most ``budget`` padded tokens a batch (one row may be over)."""
    batches: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lambda n: (lengths[n], n)):
        if batches and lengths[n] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(n)
        else:
            batches.append([n])
    return batches
