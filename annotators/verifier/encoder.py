"""The pair encoder: a pre-trained transformer that reads sentence and evidence together, with two small heads.

One head gives the four labels of the sentence, the other says of each of its tokens how likely it is unsupported.
Beside its id each token carries a kind: the part it stands in, and whether its word (by stem; numbers by value) occurs
on the other side, which a small encoder can't see by itself and which decides most verdicts. The base's token
embeddings stay as they are, its layers are trained, and what training changed is stored beside the combiner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from annotators.records import LABELS
from annotators.text.words import Words, stem_set, words_of
from annotators.verifier.causal import tokenize
from engines.checkpoint import locate
from engines.embedding import batches, cpu_has_bfloat16

EXCERPT_TOKENS = 88
LEAST_GAIN = 0.08  # share of a sentence's word weight that a further passage has to add to be read
QUESTION_TOKENS = 28
SENTENCE_TOKENS = 160
N_STATES = 7
"""States of a token: in no content word; in a content word, number or name that is found on the other side, or not."""
QUESTION, SENTENCE, EVIDENCE = range(3)
N_KINDS = 3 * N_STATES
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}  # padded tokens of one pass
Text = tuple[str, str, Sequence[str]]  # (question or "", sentence, passages), all clean


@dataclass(frozen=True)
class Pair:
    """One input: ``ids`` (T,), ``kinds`` (T,) below N_KINDS, and ``offsets`` (_S, 2) of the sentence's tokens in its
    text, which are ``ids[first : first + len(offsets)]``.
    """

    ids: np.ndarray
    kinds: np.ndarray
    first: int
    offsets: np.ndarray


def excerpt(
    matched: np.ndarray, weight: np.ndarray, tokens: Sequence[int], budget: int, least: float = 0.0
) -> list[int]:
    """Passages to read beside a sentence: greedily those that add most of its word weight, within a budget of tokens.

    What a passage adds is the weight that it matches better than those before it, and a quarter of what it matches at
    all. ``matched`` (_W, _P) is in [0, 1], ``weight`` (_W,) ≥ 0, ``tokens`` (_P,) the lengths; the best passage is
    taken whatever its length, a further one has to add the share ``least`` of the weight. Positions come in document
    order.
    """
    chosen: list[int] = []
    left = float(budget)
    covered = np.zeros(len(weight))
    alone = weight @ matched
    open_ = np.ones(len(tokens), bool)
    lengths = np.array(tokens)
    while open_.any():
        gain = weight @ np.maximum(matched - covered[:, None], 0.0) + 0.25 * alone
        best = int(np.where(open_, gain, -1.0).argmax())
        if chosen and gain[best] < least * weight.sum():
            break
        open_[best] = False
        chosen.append(best)
        left -= lengths[best]
        covered = np.maximum(covered, matched[:, best])
        open_ &= lengths <= left
    return sorted(chosen)


def states(words: Words, others: frozenset[str]) -> np.ndarray:
    """(_W,) the state of each word of a text whose other side has the stems ``others``."""
    found = np.array([stem in others for stem in words.stems], dtype=bool)
    number = np.array([value is not None for value in words.numbers], dtype=bool)
    name = np.array(words.names, dtype=bool)
    state = np.where(number, 3, np.where(name, 5, 1)) + ~found
    return np.where(np.array(words.content, dtype=bool) | number, state, 0)


def _token_kinds(part: int, words: Words, offsets: np.ndarray, others: frozenset[str]) -> np.ndarray:
    """(_T,) the kind of each token: its part, and the state of the word it begins in, 0 outside words."""
    state = np.append(states(words, others), 0)[words.holding(offsets[:, 0])]  # outside words −1, which is the 0
    return part * N_STATES + state


class PairModel(nn.Module):
    """A base of transformers that takes ``inputs_embeds``, with an embedding of kinds and two heads."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base: Any = base
        width: int = base.config.hidden_size
        self.kind = nn.Embedding(N_KINDS, width)
        nn.init.zeros_(self.kind.weight)  # at first the base reads as it was pre-trained
        self.token = nn.Linear(width, 1)
        self.pool = nn.Linear(2 * width + 2, width)
        self.label = nn.Linear(width, len(LABELS))
        for name, parameter in base.named_parameters():
            if "pooler" in name:  # not used, and new in bases that come without
                parameter.requires_grad_(False)
        for parameter in base.get_input_embeddings().parameters():
            parameter.requires_grad_(False)

    def forward(
        self, ids_BT: torch.Tensor, kinds_BT: torch.Tensor, mask_BT: torch.Tensor, sentence_BT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the labels (B, 4), and of "this token is unsupported" (B, T), float32; masks are boolean."""
        embedded = self.base.get_input_embeddings()(ids_BT) + self.kind(kinds_BT)
        hidden = self.base(inputs_embeds=embedded, attention_mask=mask_BT.long()).last_hidden_state
        token_BT = self.token(hidden)[..., 0].float()
        inside = sentence_BT.to(hidden.dtype)[..., None]
        count = inside.sum(1).clamp(min=1)
        mean = (hidden * inside).sum(1) / count
        # The label sees the first token, the mean of the sentence, and the worst and the average of its tokens.
        worst = token_BT.masked_fill(~sentence_BT, -1e4).amax(1, keepdim=True)
        average = (token_BT * sentence_BT).sum(1, keepdim=True) / count.float()
        pooled = torch.cat([hidden[:, 0], mean, worst.to(hidden.dtype), average.to(hidden.dtype)], -1)
        return self.label(torch.nn.functional.gelu(self.pool(pooled))).float(), token_BT


def unpack(model: PairModel, tensors: dict[str, torch.Tensor]) -> None:
    """Put what ``PairEncoder.packed`` returned into an untrained model; ValueError for tensors of another base."""
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    given = {name: t for name, t in tensors.items() if not name.endswith(".scale")}
    wrong = [n for n in {*wanted, *given} if n not in wanted or n not in given or wanted[n].shape != given[n].shape]
    if wrong:
        raise ValueError(f"encoder weights: expected those of this base, but {sorted(wrong)[0]} differs")
    with torch.no_grad():
        for name, value in given.items():
            if value.dtype == torch.int8:
                wanted[name].add_(value.float() * tensors[f"{name}.scale"].float())
            else:
                wanted[name].copy_(value.float())


class PairEncoder:
    """A pair model on ``base`` (hub id or folder; None for the packaged MiniLM) with its tokenizer.

    ``weights`` are what ``packed()`` returned, ready to judge; None is an untrained model in float32. ``device`` None
    takes cuda where there is one; ``dtype`` "auto" is bfloat16 where the hardware has it.
    """

    def __init__(
        self, base: str | None = None, weights: dict[str, torch.Tensor] | None = None, *, device: str | None = None,
        dtype: str = "auto",
    ) -> None:  # fmt: skip
        from transformers import AutoTokenizer

        self.base = base
        self.stored = weights
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if dtype == "auto":
            dtype = "bfloat16" if self.device.startswith("cuda") or cpu_has_bfloat16() else "float32"
        self.dtype = dtype
        self._folder = locate(base or "packaged:minilm")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self._folder)
        # The model's own attention code is faster than torch's in training on a CPU, and slower in judging.
        self.model = PairModel(self._load("eager" if weights is None else "sdpa"))
        if weights is not None:
            unpack(self.model, weights)
            self.model.to(getattr(torch, dtype))
        self.model.eval().to(self.device)
        self.limit = min(int(getattr(self.model.base.config, "max_position_embeddings", 512)), 512)
        """Tokens that it reads at most."""

    def packed(self) -> dict[str, torch.Tensor]:
        """What training changed: the change of the base's matrices in 255 steps a row (finer than bfloat16), the rest
        bfloat16.
        """
        before = {f"base.{name}": value.detach() for name, value in self._load("eager").named_parameters()}
        out = {}
        for name, parameter in self.model.named_parameters():
            value = parameter.detach().float().cpu()
            if not parameter.requires_grad:
                continue
            if name in before and value.ndim == 2:
                change = value - before[name]
                scale = (change.abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
                out[name], out[f"{name}.scale"] = (change / scale).round().to(torch.int8), scale
            else:
                out[name] = value.to(torch.bfloat16)
        return out

    def _load(self, attention: str) -> nn.Module:
        from transformers import AutoModel

        return AutoModel.from_pretrained(
            self._folder, use_safetensors=True, dtype=torch.float32, attn_implementation=attention
        )

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (64 hex digits) of the stored weights."""
        digest = hashlib.sha256()
        for name, value in sorted((self.stored or {}).items()):
            digest.update(name.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def tokenize(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids and code-point offsets of texts; special tokens in a text are read as plain text."""
        return tokenize(self.tokenizer, texts)

    def pairs(self, texts: Sequence[Text]) -> list[Pair]:
        """Inputs: [start] question [end] sentence [end] passages [end], without the first part where none was asked."""
        t = self.tokenizer
        start, end = (
            np.array([first if first is not None else second])
            for first, second in ((t.cls_token_id, t.bos_token_id), (t.sep_token_id, t.eos_token_id))
        )
        distinct = list(dict.fromkeys(part for q, s, passages in texts for part in (q, s, *passages)))
        known = dict(zip(distinct, self.tokenize(distinct), strict=True))
        pairs = []
        for question, sentence, passages in texts:
            own_stems = stem_set(sentence)
            ids, kinds = [start], [np.array([0])]
            if question:
                tokens, offsets = (array[-QUESTION_TOKENS:] for array in known[question])
                ids += [tokens, end]
                kinds += [_token_kinds(QUESTION, words_of(question), offsets, own_stems), np.array([0])]
            first = sum(map(len, ids))
            tokens, places = (array[:SENTENCE_TOKENS] for array in known[sentence])
            there = frozenset[str]().union(*map(stem_set, passages))
            ids += [tokens, end]
            kinds += [_token_kinds(SENTENCE, words_of(sentence), places, there), np.array([0])]
            for passage in passages:
                tokens, offsets = known[passage]
                ids.append(tokens)
                kinds.append(_token_kinds(EVIDENCE, words_of(passage), offsets, own_stems))
            cut_ids, cut_kinds = (np.concatenate(parts)[: self.limit - 1] for parts in (ids, kinds))
            pairs.append(Pair(np.append(cut_ids, end), np.append(cut_kinds, 0), first, places))
        return pairs

    def batch(self, pairs: Sequence[Pair], width: int | None = None) -> dict[str, torch.Tensor]:
        """Arguments of the model, on the device, padded to ``width`` tokens or to the longest."""
        shape = (len(pairs), width or max(len(pair.ids) for pair in pairs))
        ids, kinds = np.full(shape, self.tokenizer.pad_token_id or 0), np.zeros(shape, np.int64)
        mask, sentence = np.zeros(shape, bool), np.zeros(shape, bool)
        for i, pair in enumerate(pairs):
            n = len(pair.ids)
            ids[i, :n], kinds[i, :n], mask[i, :n] = pair.ids, pair.kinds, True
            sentence[i, pair.first : pair.first + len(pair.offsets)] = True
        arrays = {"ids_BT": ids, "kinds_BT": kinds, "mask_BT": mask, "sentence_BT": sentence & mask}
        return {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}

    def __call__(self, texts: Sequence[Text]) -> tuple[np.ndarray, list[tuple[tuple[int, int, float], ...]]]:
        """Logits of the labels (n, 4), and for each sentence (start, end, P(unsupported)) of its tokens."""
        pairs = self.pairs(texts)
        labels = np.zeros((len(pairs), len(LABELS)), np.float32)
        tokens: list[tuple[tuple[int, int, float], ...]] = [()] * len(pairs)
        budget = BATCH_TOKENS["cuda" if self.device.startswith("cuda") else "cpu"]
        for numbers, width in batches([len(pair.ids) for pair in pairs], budget, self.limit):
            with torch.inference_mode():
                label_B4, token_BT = self.model(**self.batch([pairs[i] for i in numbers], width))
            labels[numbers] = label_B4.cpu().numpy()
            scores = token_BT.sigmoid().cpu().numpy()
            for row, i in enumerate(numbers):
                first, places = pairs[i].first, pairs[i].offsets.tolist()
                wrong = scores[row, first : first + len(places)].tolist()
                tokens[i] = tuple((a, b, p) for (a, b), p in zip(places, wrong, strict=True))
        return labels, tokens
