"""The causal-LM discriminative annotator: one forward pass of a decoder judges every sentence of an answer.

Source: ANAH (ACL 2024), §3.2: a pre-trained LM, its last layer replaced by a linear one of four classes. A sentence is
read at its last token, so a verdict depends on nothing after it. It gives labels and scores, no fragments and no
corrections. In training, labels stand at these tokens, and rows of two-way sources ("unsupported") are a fifth class,
P(contradictory) + P(unverifiable); the loop is in ``mitigate/recipes/discriminative_annotator.py``.

A row is ``[bos] Question: … [eos] Reference: … [eos] Answer: …``. Fields are parted by the end token's id, which no
text can spell: control tokens inside a text are encoded as plain text. What is longer than the model reads is windowed:
first the reference (BM25 with the answer as query), then the answer is cut into runs of whole sentences.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, PositiveInt

from annotators.base import Annotator, Sentence
from annotators.evaluation.metrics import four_way
from annotators.records import LABELS, Label, SentenceAnnotation, Status, read_saved
from annotators.retrieval import index_references, select
from annotators.text.language import declared_or_found
from annotators.verifier.data import TARGET, UNSUPPORTED
from engines.checkpoint import HUB_ID, locate
from engines.embedding import batches, placed, tokenize

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

MAX_TOKENS = 16_384  # tokens of a row: the paper's 16k
BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # padded tokens of a batch


class CausalAnnotator(Annotator):
    """Judges sentences with a token classifier, or a sequence classifier of a decoder, and its fast tokenizer.

    Records with a true ``parametric`` are judged without their reference. ``languages`` are the codes it was trained on
    (None judges all); ``max_tokens`` is the longest row, capped by the model's positions.
    """

    reads = ("question", "reference", "answer", "sentence", "language")
    list_marks = True

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str = "causal",
        languages: Sequence[str] | None = None, max_tokens: int = MAX_TOKENS,
    ) -> None:  # fmt: skip
        control_ids(tokenizer)  # fails now rather than at the first answer
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.languages = None if languages is None else tuple(languages)
        self.max_tokens = longest(model, max_tokens)
        self._order = label_order(model.config.id2label or {}, name)
        self.fingerprint = self._fingerprint()

    @classmethod
    def from_pretrained(
        cls, name: str, *, device: str | None = None, dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    ) -> CausalAnnotator:
        """Load a folder written by ``save_pretrained`` or a trainer, or a hub id.

        OSError where there is no such checkpoint with safetensors; ValueError where these are damaged, its classes are
        not the four labels, or it has no trained head or no fast tokenizer.
        """
        import torch
        from safetensors import SafetensorError

        where, numbers = placed(device, dtype)
        wanted = "a folder or hub id of a token or sequence classifier (config.json names its architecture)"
        folder = folder_of(name, wanted, _is_classifier)
        settings = folder / "annotator.json"
        saved = read_saved(settings, Saved) if settings.is_file() else Saved()  # a checkpoint of another maker
        try:
            model: Any = load_classifier(folder, dtype=getattr(torch, numbers))
        except SafetensorError as error:
            raise ValueError(f"{folder}: expected whole weights: {error}; copy or train it again") from error
        made = cls(model.to(where), load_tokenizer(str(folder)), name=name, **saved.model_dump())
        return made.calibrated_by(folder)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model, tokenizer and annotator.json into a folder, which is made; weights as safetensors."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_settings(Path(folder), self.languages, self.max_tokens)
        self.save_calibration(Path(folder))

    def _fingerprint(self) -> str:
        """sha256 over weights, tokenizer, row form and settings, 16 hex digits."""
        import torch

        digest = hashlib.sha256(
            json.dumps([HEADINGS, self.languages, self.max_tokens, self._order, self.tokenizer.padding_side]).encode()
        )
        digest.update(self.tokenizer.backend_tokenizer.to_str().encode())
        for key, tensor in sorted(self.model.state_dict().items()):
            data = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
            digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode() + data.tobytes())
        return digest.hexdigest()[:16]

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """Sentences of one answer are read in one pass."""
        # One that is judged as given may have a row that says where it stands in an answer.
        starts = [{"start": s.start} if s.answer != s.text else {} for s in sentences]
        rows = [{**s.record, "sentence": s.text, **start} for s, start in zip(sentences, starts, strict=True)]
        readings, places = readings_of(rows)
        statuses = [self._unjudgeable(s, readings[n].answer) for s, (n, _) in zip(sentences, places, strict=True)]
        asked = sorted({n for (n, _), status in zip(places, statuses, strict=True) if status is None})
        read = encode(self.tokenizer, [readings[n] for n in asked], self.max_tokens)
        encoded = [(n, row) for n, one in zip(asked, read, strict=True) for row in one.rows if row.ends]
        found: dict[tuple[int, int], Status | np.ndarray] = {}  # by reading and sentence in it
        found |= {(n, number): "too_long" for n, one in zip(asked, read, strict=True) for number in one.too_long}
        for (n, row), chances_S4 in zip(encoded, self._probabilities([row for _, row in encoded]), strict=True):
            found |= {(n, number): own for number, own in zip(row.ends, chances_S4, strict=True)}
        verdicts = [status or found.get(place, "failed") for status, place in zip(statuses, places, strict=True)]
        return [
            sentence.judged(verdict) if isinstance(verdict, str) else sentence.scored(verdict)
            for sentence, verdict in zip(sentences, verdicts, strict=True)
        ]

    def _unjudgeable(self, sentence: Sentence, answer: str) -> Status | None:
        if not sentence.reference.strip() and not sentence.record.get("parametric"):
            return "no_reference"
        if self.languages is None:
            return None
        code = declared_or_found(sentence.language, answer)
        return None if code == "none" or code in self.languages else "language_unsupported"

    def _probabilities(self, rows: Sequence[Encoded]) -> list[np.ndarray]:
        """For each row (S, 4) probabilities at its sentence ends, in the order of ``ends`` and LABELS."""
        import torch

        device = next(self.model.parameters()).device
        budget = BATCH_TOKENS["cuda" if device.type == "cuda" else "cpu"]
        out: list[np.ndarray] = [np.zeros((0, len(LABELS)))] * len(rows)
        with torch.inference_mode():
            for numbers, width in batches([len(row.ids) for row in rows], budget, self.max_tokens):
                batch = collate(self.tokenizer, [rows[n].ids for n in numbers], width=width)
                logits_BTC = token_logits(self.model, {k: v.to(device) for k, v in batch.items()})
                for b, n in enumerate(numbers):
                    shift = width - len(rows[n].ids) if self.tokenizer.padding_side == "left" else 0
                    places = [shift + place for place in rows[n].ends.values()]
                    out[n] = logits_BTC[b, places].double().softmax(-1)[:, self._order].cpu().numpy()
        return out


# --- folders ----------------------------------------------------------------------------------------------


def recognises(name: str) -> bool:
    """Whether a name stands for a classifier of this module: a folder, or a hub id, which is fetched."""
    try:
        folder_of(name, "a classifier", _is_classifier)
    except OSError:  # none, or not there: loading it will tell
        return False
    return True


def _is_classifier(folder: Path) -> bool:
    """Whether a folder holds a token or sequence classifier, or what ``CausalAnnotator.save_pretrained`` wrote."""

    def said(name: str, key: str) -> Any:
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found.get(key, "") if isinstance(found, dict) else None

    if (kind := said("annotator.json", "kind")) is not None:
        return bool(kind == "causal")
    architectures = said("config.json", "architectures")
    names = architectures if isinstance(architectures, list) else ()
    return said("adapter_config.json", "task_type") == "TOKEN_CLS" or any(
        str(n).endswith(("ForTokenClassification", "ForSequenceClassification")) for n in names
    )


def folder_of(name: str, expected: str, holds: Callable[[Path], bool]) -> Path:
    """The folder of a path or a hub id, which brings no code; OSError says what was ``expected`` and is not there."""
    from huggingface_hub import snapshot_download

    folder = Path(name).expanduser()
    if not folder.exists():
        if not HUB_ID.fullmatch(name):
            raise OSError(f"annotator {name!r}: expected {expected} (OWNER/NAME); there is no such folder")
        try:
            folder = Path(snapshot_download(name, allow_patterns=["*.json"]))
            if holds(folder):  # gigabytes of another model are not fetched
                snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"])
        except Exception as error:
            why = f"no such folder, and the hub says: {' '.join(str(error).split())[:200]}"
            raise OSError(f"annotator {name!r}: expected {expected}; {why}") from error
    if not holds(folder):
        raise OSError(f"annotator {name!r}: expected {expected}, found none there")
    return folder


def write_settings(folder: Path, languages: Sequence[str] | None, max_tokens: int) -> None:
    """Write annotator.json beside a classifier's weights."""
    settings = {"kind": "causal", "languages": languages, "max_tokens": max_tokens}
    (folder / "annotator.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


class Saved(BaseModel, strict=True):
    """What annotator.json says beside its kind."""

    languages: list[str] | None = None
    max_tokens: PositiveInt = MAX_TOKENS


# --- rows: question, reference and answer as token ids, and where sentences end -----------------------------

HEADINGS = {"question": "Question: ", "reference": "Reference: ", "answer": "Answer: "}
IGNORED = -100  # label of tokens that are no sentence end; torch's cross entropy leaves it out
MIN_WINDOW = 64  # tokens of the reference that are always kept: an answer that leaves less is cut into runs


@dataclass(frozen=True)
class Reading:
    """One answer and the sentences in it to judge, as (start, end) offsets in order; no reference is ""."""

    question: str
    reference: str
    answer: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Encoded:
    """A row of token ids. ``ends``: number of a sentence in its reading → position of the token to read it at."""

    ids: list[int]
    ends: dict[int, int]


@dataclass
class Rows:
    """A reading as rows of ids, one unless it is too long; sentences in none are ``too_long``, or have no token."""

    rows: list[Encoded] = field(default_factory=list)
    too_long: list[int] = field(default_factory=list)


def readings_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Reading], list[tuple[int, int]]]:
    """Rows of one answer in one reading, and for each row the numbers of its reading and of its sentence in that.

    A row whose ``sentence`` stands in its ``answer`` (at ``start`` where that is given) is read there, with the other
    sentences of that answer; any other is an answer of its own. A true ``parametric`` hides the reference.
    """
    spans_of: dict[tuple[str, str, str], dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, row in enumerate(rows):
        sentence, answer = row["sentence"], row.get("answer") or ""
        bare = sentence.strip()
        start = row.get("start")
        if not (isinstance(start, int) and bare and answer[start : start + len(sentence)] == sentence):
            start = answer.find(sentence) if bare else -1
        if start < 0:
            answer, start = sentence, 0
        start += len(sentence) - len(sentence.lstrip())
        reference = "" if row.get("parametric") else row["reference"]
        spans_of[row.get("question") or "", reference, answer][start, start + len(bare)].append(number)
    places = [(0, 0)] * len(rows)
    readings: list[Reading] = []
    for key, members in spans_of.items():
        for sentence_number, span in enumerate(sorted(members)):
            for number in members[span]:
                places[number] = (len(readings), sentence_number)
        readings.append(Reading(*key, tuple(sorted(members))))
    return readings, places


def last_tokens(offsets_T2: np.ndarray, spans: Iterable[tuple[int, int]]) -> list[int]:
    """The last token that holds a span's (end > start) last character, for each span; -1 where none holds any of it."""
    found = []
    for start, end in spans:
        place = int(np.searchsorted(offsets_T2[:, 0], end - 1, side="right")) - 1
        found.append(place if place >= 0 and offsets_T2[place, 1] > start else -1)
    return found


def encode(tokenizer: PreTrainedTokenizerBase, readings: Sequence[Reading], max_tokens: int) -> list[Rows]:
    """Turn readings into rows of at most ``max_tokens`` ids; the tokenizer is a fast one."""
    fields = (
        tokenize(tokenizer, [heading + getattr(reading, name) for reading in readings])
        for name, heading in HEADINGS.items()
    )
    return [
        _rows(tokenizer, reading, question_T, reference_T, answer, max_tokens)
        for reading, (question_T, _), (reference_T, _), answer in zip(readings, *fields, strict=True)
    ]


def _rows(
    tokenizer: PreTrainedTokenizerBase, reading: Reading, question_T: np.ndarray, reference_T: np.ndarray,
    answer: tuple[np.ndarray, np.ndarray], max_tokens: int,
) -> Rows:  # fmt: skip
    first, between = control_ids(tokenizer)
    head = list(first)
    if reading.question.strip():
        head += [*question_T[: max_tokens // 8].tolist(), *between]
    ids_T, offsets_T2 = answer
    spans = [(a + len(HEADINGS["answer"]), b + len(HEADINGS["answer"])) for a, b in reading.spans]
    ends = last_tokens(offsets_T2, spans)
    out = Rows()
    has_reference = bool(reading.reference.strip())
    before = [*head, *reference_T.tolist(), *between] if has_reference else head
    if len(before) + len(ids_T) <= max_tokens:
        places = {n: len(before) + end for n, end in enumerate(ends) if end >= 0}
        out.rows.append(Encoded([*before, *ids_T.tolist()], places))
        return out

    kept = min(len(reference_T), max(MIN_WINDOW, max_tokens // 2)) if has_reference else 0
    room = max_tokens - len(head) - kept - len(between)  # for a run of the answer
    for numbers in _runs(offsets_T2, spans, ends, room, out):
        start = reading.spans[numbers[0]][0] if len(numbers) < len(spans) else 0
        text = reading.answer[start : reading.spans[numbers[-1]][1]]
        ((part_T, part_T2),) = tokenize(tokenizer, [HEADINGS["answer"] + text])
        part_ends = last_tokens(part_T2, [(spans[n][0] - start, spans[n][1] - start) for n in numbers])
        budget = max_tokens - len(head) - len(part_T) - len(between)
        window = _window(tokenizer, reading.reference, text, budget) if has_reference else []
        before = [*head, *window, *between] if window else head
        if len(before) + len(part_T) > max_tokens:
            out.too_long += numbers
            continue
        places = {n: len(before) + end for n, end in zip(numbers, part_ends, strict=True) if end >= 0}
        out.rows.append(Encoded([*before, *part_T.tolist()], places))
    return out


def _runs(
    offsets_T2: np.ndarray, spans: Sequence[tuple[int, int]], ends: Sequence[int], room: int, out: Rows
) -> list[list[int]]:
    """Numbers of sentences, in runs whose tokens fit into ``room`` with the heading; others are noted in ``out``."""
    heading = 4 + int(np.searchsorted(offsets_T2[:, 0], len(HEADINGS["answer"])))
    runs: list[list[int]] = []
    first = 0
    for n, end in enumerate(ends):
        if end < 0:
            continue
        start = int(np.searchsorted(offsets_T2[:, 1], spans[n][0], side="right"))
        if runs and end + 1 - first + heading <= room:
            runs[-1].append(n)
        elif end + 1 - start + heading <= room:
            runs.append([n])
            first = start
        else:
            out.too_long.append(n)
    return runs


def _window(tokenizer: PreTrainedTokenizerBase, reference: str, query: str, budget: int) -> list[int]:
    """Ids of the heading and of the passages that bear on the query, at most ``budget`` of them."""
    heading = len(tokenize(tokenizer, [HEADINGS["reference"]])[0][0])
    (index,) = index_references(
        [reference], lambda texts: tokenize(tokenizer, texts), budget=max(1, budget - heading - 1)
    )
    (window,) = select([(index, query)])
    text = HEADINGS["reference"] + window.text
    return tokenize(tokenizer, [text])[0][0][:budget].tolist()  # line breaks between passages are tokens too


def control_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The id that opens a row, if the tokenizer has one, and the id between fields."""
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    between = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if between is None:
        raise ValueError(
            f"expected a tokenizer with an end or separator token, got {type(tokenizer).__name__} with neither; "
            "set eos_token in its tokenizer_config.json"
        )
    return (() if first is None else (first,)), (between,)


def collate(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]],
    labels: Sequence[Mapping[int, int]] | None = None, width: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """Rows of token ids padded to one length, at least ``width``, on the tokenizer's side; (B, T) each.

    ``labels`` are {position: class} for each row; every other token gets IGNORED. On the left, position ids count real
    tokens, so that a model with learned positions reads both sides alike.
    """
    import torch

    left, width = tokenizer.padding_side == "left", max(width, *map(len, rows))

    def padded(rows: Iterable[Sequence[int]], value: int) -> Tensor:
        fills = ((row, [value] * (width - len(row))) for row in rows)
        return torch.tensor([[*fill, *row] if left else [*row, *fill] for row, fill in fills])

    mask_BT = padded([[1] * len(row) for row in rows], 0)
    batch = {"input_ids": padded(rows, tokenizer.pad_token_id or 0), "attention_mask": mask_BT}
    if left:
        batch["position_ids"] = (mask_BT.cumsum(1) - 1).clamp(min=0)
    if labels is not None:
        classes = [[own.get(t, IGNORED) for t in range(len(row))] for row, own in zip(rows, labels, strict=True)]
        batch["labels"] = padded(classes, IGNORED)
    return batch


# --- the network: any decoder with a linear head of four classes instead of its last layer ------------------

NAMES: dict[str, Label] = {
    **{label: label for label in LABELS},
    **dict.fromkeys(("none", "no hallucination", "无", "无幻觉"), LABELS[0]),
    **dict.fromkeys(("contradiction", "矛盾"), LABELS[1]),
    "无法验证": LABELS[2],
    **dict.fromkeys(("no fact", "no facts", "nofact", "无事实"), LABELS[3]),
}
"""What a checkpoint may call its classes: our labels and the tags of ANAH, in any case."""


def label_order(id2label: Mapping[Any, str], where: str) -> list[int]:
    """For each of LABELS the number of its class in a checkpoint's config.json; ValueError where names do not fit."""
    names = {int(number): str(name) for number, name in id2label.items()}
    found = {NAMES.get(name.strip().lower().replace("_", " "), NAMES.get(name)): n for n, name in names.items()}
    if set(found) != set(LABELS) or len(names) != len(LABELS):
        raise ValueError(
            f"{where}: expected four classes named {', '.join(LABELS)} (or by ANAH's tags), got "
            f"{', '.join(names[n] for n in sorted(names))[:200]}; name them in id2label of its config.json, or train a "
            "head with `mitigate train annotators/discriminative-lora`"
        )
    return [found[label] for label in LABELS]


def token_classifier(config: PreTrainedConfig) -> Any:
    """The token classifier of an architecture; made from its decoder where transformers has none."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, PreTrainedModel
    from transformers.modeling_layers import GenericForTokenClassification

    if type(config) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        return MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[type(config)]
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"expected a decoder or a token classifier, got a model of type {config.model_type!r}")
    decoder: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    base = next(c for c in decoder.__mro__ if PreTrainedModel in c.__bases__)
    name = decoder.__name__.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "ForTokenClassification"
    return type(name, (GenericForTokenClassification, base), {"__module__": __name__})


def new_head(checkpoint: str, *, dtype: Any = None, seed: int = 0) -> PreTrainedModel:
    """A language model or token classifier with a head of four classes to be trained; one that fits the labels is kept.

    ``dtype`` None takes float32; ``seed`` draws a new head's weights. OSError where there is no such checkpoint,
    ValueError where its architecture can't carry the head.
    """
    import torch
    from transformers import AutoConfig, set_seed

    folder = locate(checkpoint)
    config = AutoConfig.from_pretrained(folder)
    config.num_labels = len(LABELS)
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {label: n for n, label in enumerate(LABELS)}
    set_seed(seed)
    model: PreTrainedModel = token_classifier(config).from_pretrained(
        folder, config=config, dtype=dtype or torch.float32, ignore_mismatched_sizes=True
    )
    model.name_or_path = checkpoint  # an adapter names its base so, on whatever machine
    return model


def load_classifier(folder: Path, *, dtype: Any) -> PreTrainedModel:
    """A trained classifier, LoRA merged; ValueError without a trained head that can be read at every token."""
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig

    if (folder / "adapter_config.json").is_file():
        from peft import PeftConfig, PeftModel

        base = PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
        if not base:
            raise ValueError(f"{folder}: expected base_model_name_or_path in adapter_config.json, got none; add it")
        return PeftModel.from_pretrained(new_head(base, dtype=dtype), folder).merge_and_unload().eval()
    config = AutoConfig.from_pretrained(folder)
    sequence = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    kind: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)] if sequence else token_classifier(config)
    model, loading = kind.from_pretrained(folder, dtype=dtype, use_safetensors=True, output_loading_info=True)
    if sequence and not hasattr(model, "score"):
        raise ValueError(
            f"{folder}: {kind.__name__} reads a text at one place; expected a decoder or a token classifier (an NLI "
            "model is named nli:…)"
        )
    if missing := loading["missing_keys"] or loading["mismatched_keys"]:
        raise ValueError(
            f"{folder}: expected a trained head of {len(LABELS)} classes, but these weights are missing: "
            f"{', '.join(sorted(map(str, missing))[:3])}; train it with `mitigate train annotators/discriminative-lora`"
        )
    return model.eval()


def token_logits(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """(B, T, 4) logits at every token, also of a sequence classifier, whose own forward reads one."""
    if type(model).__name__.endswith("ForSequenceClassification"):
        score: Any = model.score
        return score(model.base_model(**batch, use_cache=False).last_hidden_state)
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    return model(**batch, **options).logits


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer; ValueError where it is not a fast one."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(locate(folder))
    if not tokenizer.is_fast:
        raise ValueError(
            f"{folder}: expected a fast tokenizer (tokenizer.json), which gives character offsets, got "
            f"{type(tokenizer).__name__}"
        )
    return tokenizer


def longest(model: PreTrainedModel, wanted: int) -> int:
    """Tokens of a row: what is wanted, at most what the model has positions for."""
    config = model.config.to_dict()
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    if not isinstance(limit, int) or limit <= 0:
        return wanted
    # RoBERTa and its kin begin to count behind the number of their padding.
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    return min(wanted, limit if padding is None else limit - padding - 1)


def training_rows(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]], max_tokens: int
) -> tuple[list[dict[str, Any]], int]:
    """Labelled sentences as rows of ids, all of one answer in one, and the number of those that stand in none.

    Rows are {"input_ids", "targets": {position: class}}; of two labels of one sentence the first counts.
    """
    readings, places = readings_of(rows)
    target_of: dict[tuple[int, int], int] = {}
    for row, place in zip(rows, places, strict=True):
        target_of.setdefault(place, TARGET[row["label"]])
    out: list[dict[str, Any]] = [
        {"input_ids": encoded.ids, "targets": {at: target_of[number, n] for n, at in encoded.ends.items()}}
        for number, found in enumerate(encode(tokenizer, readings, max_tokens))
        for encoded in found.rows
        if encoded.ends
    ]
    return out, len(target_of) - sum(len(row["targets"]) for row in out)


def collator(tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]:
    """A function that pads rows of :func:`training_rows`."""
    return lambda rows: collate(tokenizer, [row["input_ids"] for row in rows], [row["targets"] for row in rows])


def class_weights(targets: Iterable[int], balance: Literal["none", "sqrt", "full"]) -> np.ndarray:
    """Weights (5,) of the classes 0 to 4: 1 / n_c^p, scaled so that their mean over the given targets is 1.

    ``balance`` "none" is p = 0, "sqrt" p = ½, "full" p = 1: every class weighs the same in total.
    """
    power = {"none": 0.0, "sqrt": 0.5, "full": 1.0}[balance]
    count_C = np.bincount(list(targets), minlength=UNSUPPORTED + 1)
    raw_C = np.where(count_C > 0, np.maximum(count_C, 1) ** -power, 0.0)
    return raw_C * count_C.sum() / max(raw_C @ count_C, 1e-9)


def head_loss(
    logits_BTC: Tensor, labels_BT: Tensor, weights_C: Tensor, focal: float = 0.0, n_items: Tensor | int | None = None
) -> Tensor:
    """Σ w_y (1 − p_y)^γ (−log p_y) / n over labelled tokens; p of "unsupported" is P(contradictory) + P(unverifiable).

    Logits are (B, T, 4) in the order of LABELS, labels (B, T) 0 to 4 or -100, weights (5,); ``focal`` is γ ≥ 0, above 0
    easy sentences count less; ``n_items`` is n where it is not the number of labelled tokens here (gradient
    accumulation). Source: cross entropy; focal loss: Lin et al. 2017, equation 5.
    """
    import torch

    kept = labels_BT != IGNORED
    target_N = labels_BT[kept]
    log_p_N4 = logits_BTC[kept].float().log_softmax(-1)
    log_p_N5 = torch.cat([log_p_N4, torch.logsumexp(log_p_N4[:, 1:3], -1, keepdim=True)], -1)  # with "unsupported"
    log_p_N = log_p_N5.gather(-1, target_N[:, None])[:, 0]
    loss_N = -log_p_N * weights_C.to(log_p_N.device)[target_N]
    if focal > 0:
        loss_N = loss_N * (1 - log_p_N.exp()).clamp(min=0) ** focal
    return loss_N.sum() / (max(1, len(target_N)) if n_items is None else n_items)


def figures(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Four-way figures of the labelled tokens; (B, T) labels are 0 to 4, or -100, and 4 enters none."""
    kept = (labels != IGNORED) & (labels != UNSUPPORTED)
    found = four_way(labels[kept].astype(np.int64), predicted[kept].astype(np.int64))
    return {name: found[name] for name in ("accuracy", "macro_f1", "balanced_accuracy_4way") if found[name] is not None}
