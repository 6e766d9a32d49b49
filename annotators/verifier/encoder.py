"""The pair encoder: a pre-trained transformer that reads sentence and evidence together, with two small heads.

One head gives the four labels of the sentence, the other says of each of its tokens how likely it is unsupported.
Any encoder of transformers serves as the base; its token embeddings stay as they are, its layers are trained and
stored beside the combiner. What it reads is made by ``annotators/verifier/encoder.py``; imports torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from annotators.records import LABELS
from annotators.verifier.features import Words, words_of
from engines.embedding import batches, cpu_has_bfloat16, packaged_folder

# ----------------------------------------------------------------------------------------------------
# What the pair encoder reads: question, sentence and the passages of the window that bear on it, as tokens.
#
# Beside its id each token carries a kind: the part it stands in, and whether its word (by stem; numbers by value)
# occurs on the other side. A small encoder can't see that by itself, and it decides most verdicts.

EXCERPT_TOKENS = 88
LEAST_GAIN = 0.08
"""Share of a sentence's word weight that a further passage has to add to be read."""
QUESTION_TOKENS = 28
SENTENCE_TOKENS = 160
N_STATES = 7
"""Of a token: in no content word; content word, number or name that is found on the other side, or is not."""
N_KINDS = 3 * N_STATES
QUESTION, SENTENCE, EVIDENCE = range(3)
Tokenize = Callable[[Sequence[str]], list[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class Pair:
    """One input: ``ids`` (T,), ``kinds`` (T,) below N_KINDS, and where the sentence stands.

    The sentence is ``ids[first : first + len(offsets)]``; ``offsets`` (_S, 2) are code points into its text.
    """

    ids: np.ndarray
    kinds: np.ndarray
    first: int
    offsets: np.ndarray


def excerpt(met: np.ndarray, weight: np.ndarray, tokens: Sequence[int], budget: int, least: float = 0.0) -> list[int]:
    """Passages to read beside a sentence: greedily those that add most of its word weight, within a budget.

    What a passage adds is the weight that it meets better than those before it, and a quarter of what it meets at all.

    Args:
        met: (_W, _P) how well each passage meets each word, in [0, 1].
        weight: (_W,) ≥ 0.
        tokens: (_P,) length of each passage.
        budget: Tokens in all; the best passage is taken whatever its length.
        least: Share of the weight that a further passage has to add.

    Returns:
        Places of the passages in document order.
    """
    chosen: list[int] = []
    left = float(budget)
    covered = np.zeros(len(weight))
    alone = weight @ met
    open_ = np.ones(len(tokens), bool)
    lengths = np.array(tokens)
    while open_.any():
        gain = weight @ np.maximum(met - covered[:, None], 0.0) + 0.25 * alone
        best = int(np.where(open_, gain, -1.0).argmax())
        if chosen and gain[best] < least * weight.sum():
            break
        open_[best] = False
        chosen.append(best)
        left -= lengths[best]
        covered = np.maximum(covered, met[:, best])
        open_ &= lengths <= left
    return sorted(chosen)


def states(words: Words, others: frozenset[str]) -> np.ndarray:
    """(_W,) the state of each word of a text whose other side has the stems ``others``."""
    found = np.array([stem in others for stem in words.stems], dtype=bool)
    number = np.array([value is not None for value in words.numbers], dtype=bool)
    name = np.array(words.names, dtype=bool)
    state = np.where(number, 3, np.where(name, 5, 1)) + ~found
    return np.where(np.array(words.content, dtype=bool) | number, state, 0)


def _token_states(words: Words, offsets: np.ndarray, others: frozenset[str]) -> np.ndarray:
    """(_T,) the state of each token: that of the word it begins in, 0 outside words."""
    if not len(words) or not len(offsets):
        return np.zeros(len(offsets), np.int64)
    owner = np.searchsorted(np.array(words.starts), offsets[:, 0], side="right") - 1
    inside = (owner >= 0) & (offsets[:, 0] < np.array(words.ends)[np.maximum(owner, 0)])
    return np.where(inside, states(words, others)[np.maximum(owner, 0)], 0)


def build_pairs(
    texts: Sequence[tuple[str, str, Sequence[str]]], tokenize: Tokenize, specials: tuple[int, int], limit: int = 512
) -> list[Pair]:
    """Inputs of the encoder.

    Args:
        texts: (question or "", sentence, passages) of each input, clean.
        tokenize: Texts to ids and code-point offsets, without special tokens.
        specials: Ids that stand before the whole and after each part.
        limit: Tokens that the encoder reads at most.
    """
    distinct = list(dict.fromkeys(t for q, s, passages in texts for t in (q, s, *passages)))
    known = dict(zip(distinct, tokenize(distinct), strict=True))
    start, end = specials
    pairs = []
    for question, sentence, passages in texts:
        own = words_of(sentence)
        there = [words_of(p) for p in passages]
        evidence_stems = frozenset(stem for words in there for stem in words.stems)
        own_stems = frozenset(own.stems)
        ids, kinds = [np.array([start])], [np.array([0])]
        if question:
            tokens, offsets = known[question]
            tokens, offsets = tokens[-QUESTION_TOKENS:], offsets[-QUESTION_TOKENS:]
            ids += [tokens, np.array([end])]
            kinds += [QUESTION * N_STATES + _token_states(words_of(question), offsets, own_stems), np.array([0])]
        first = sum(map(len, ids))
        tokens, offsets = known[sentence]
        tokens, offsets = tokens[:SENTENCE_TOKENS], offsets[:SENTENCE_TOKENS]
        ids += [tokens, np.array([end])]
        kinds += [SENTENCE * N_STATES + _token_states(own, offsets, evidence_stems), np.array([0])]
        for passage, words in zip(passages, there, strict=True):
            p_ids, p_offsets = known[passage]
            ids.append(p_ids)
            kinds.append(EVIDENCE * N_STATES + _token_states(words, p_offsets, own_stems))
        ids = [np.concatenate(ids)[: limit - 1], np.array([end])]
        kinds = [np.concatenate(kinds)[: limit - 1], np.array([0])]
        pairs.append(Pair(np.concatenate(ids), np.concatenate(kinds), first, offsets))
    return pairs


BATCH_TOKENS = (2048, 65536)
"""Padded tokens of one pass, on a CPU and on cuda."""


class PairModel(nn.Module):
    """Base, kind embedding and heads.

    Args:
        base: An encoder of transformers that takes ``inputs_embeds``.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        width: int = base.config.hidden_size
        self.kind = nn.Embedding(N_KINDS, width)
        nn.init.zeros_(self.kind.weight)
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
        """Logits of the labels (B, 4), and of "this token is unsupported" (B, T), float32.

        Args:
            ids_BT: Token ids.
            kinds_BT: See ``Pair``.
            mask_BT: True where there is a token.
            sentence_BT: True on the tokens of the judged sentence.
        """
        base: Any = self.base
        embedded = base.get_input_embeddings()(ids_BT) + self.kind(kinds_BT)
        states = base(inputs_embeds=embedded, attention_mask=mask_BT.long()).last_hidden_state
        token_BT = self.token(states)[..., 0].float()
        inside = sentence_BT.to(states.dtype)[..., None]
        count = inside.sum(1).clamp(min=1)
        mean = (states * inside).sum(1) / count
        worst = token_BT.masked_fill(~sentence_BT, -1e4).amax(1, keepdim=True)
        average = (token_BT * sentence_BT).sum(1, keepdim=True) / count.float()
        pooled = torch.cat([states[:, 0], mean, worst.to(states.dtype), average.to(states.dtype)], -1)
        return self.label(torch.nn.functional.gelu(self.pool(pooled))).float(), token_BT


def packed(model: PairModel, original: nn.Module) -> dict[str, torch.Tensor]:
    """What training changed, for storing: of the base's matrices the change in 255 steps per row, the rest bfloat16.

    A change is small beside its weight, so its eighth bit is finer than the last one of a bfloat16 weight.
    """
    before = {f"base.{name}": value.detach() for name, value in original.named_parameters()}
    out = {}
    for name, parameter in model.named_parameters():
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


def unpack(model: PairModel, tensors: dict[str, torch.Tensor]) -> None:
    """Put what ``packed`` returned into a model whose base is as it came.

    Raises:
        ValueError: The tensors are of another base.
    """
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


def collate(pairs: Sequence[Pair], pad: int, width: int) -> dict[str, torch.Tensor]:
    """Pad inputs to one batch of ``width`` tokens."""
    ids, kinds = np.full((len(pairs), width), pad), np.zeros((len(pairs), width), np.int64)
    mask, sentence = np.zeros((len(pairs), width), bool), np.zeros((len(pairs), width), bool)
    for i, pair in enumerate(pairs):
        ids[i, : len(pair.ids)], kinds[i, : len(pair.ids)] = pair.ids, pair.kinds
        mask[i, : len(pair.ids)] = True
        sentence[i, pair.first : pair.first + len(pair.offsets)] = True
    return {
        "ids_BT": torch.from_numpy(ids),
        "kinds_BT": torch.from_numpy(kinds),
        "mask_BT": torch.from_numpy(mask),
        "sentence_BT": torch.from_numpy(sentence & mask),
    }


class PairEncoder:
    """A pair model with its tokenizer.

    Args:
        base: A hub id or folder; None for the packaged MiniLM.
        weights: What ``packed`` returned: ready to judge. None: untrained, in float32, to be trained.
        device: "cpu", "cuda"…; None takes cuda where there is one.
        dtype: It computes in; "auto" is bfloat16 where the hardware has it.
    """

    def __init__(
        self,
        base: str | None = None,
        weights: dict[str, torch.Tensor] | None = None,
        *,
        device: str | None = None,
        dtype: str = "auto",
    ) -> None:
        from transformers import AutoTokenizer

        self.base = base
        self.stored = weights
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if dtype == "auto":
            dtype = "bfloat16" if self.device.startswith("cuda") or cpu_has_bfloat16() else "float32"
        self.dtype = dtype
        self.tokenizer: Any = AutoTokenizer.from_pretrained(_folder(base))
        # The model's own attention code is faster than torch's in training on a CPU, and slower in judging.
        self.model = PairModel(_load(base, "eager" if weights is None else "sdpa"))
        if weights is not None:
            unpack(self.model, weights)
            self.model.to(getattr(torch, dtype))
        self.model.eval().to(self.device)

    def packed(self) -> dict[str, torch.Tensor]:
        """The trained weights, for storing."""
        return packed(self.model, _load(self.base, "eager"))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (64 hex digits) of the stored weights."""
        digest = hashlib.sha256()
        for name, value in sorted((self.stored or {}).items()):
            digest.update(name.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def limit(self) -> int:
        return min(int(getattr(self.model.base.config, "max_position_embeddings", 512)), 512)

    def tokenize(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids and code-point offsets of texts; special tokens in a text are read as plain text."""
        if not texts:
            return []
        found = self.tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True,
            return_attention_mask=False, return_token_type_ids=False, truncation=False, verbose=False,
        )  # fmt: skip
        return [
            (np.asarray(ids, np.int64), np.asarray(offsets, np.int64).reshape(-1, 2))
            for ids, offsets in zip(found["input_ids"], found["offset_mapping"], strict=True)
        ]

    def pairs(self, texts: Sequence[tuple[str, str, Sequence[str]]]) -> list[Pair]:
        """Inputs of (question, sentence, passages)."""
        t = self.tokenizer
        start = t.cls_token_id if t.cls_token_id is not None else t.bos_token_id
        end = t.sep_token_id if t.sep_token_id is not None else t.eos_token_id
        return build_pairs(texts, self.tokenize, (start, end), self.limit)

    def batch(self, pairs: Sequence[Pair], width: int | None = None) -> dict[str, torch.Tensor]:
        """Tensors of inputs, on the device, padded to ``width`` or to the longest."""
        pad = self.tokenizer.pad_token_id or 0
        width = width or max(len(pair.ids) for pair in pairs)
        return {name: value.to(self.device) for name, value in collate(pairs, pad, width).items()}

    def __call__(
        self, texts: Sequence[tuple[str, str, Sequence[str]]]
    ) -> tuple[np.ndarray, list[tuple[tuple[int, int, float], ...]]]:
        """Logits of the labels (n, 4); of each sentence (start, end, P(unsupported)) of its tokens."""
        pairs = self.pairs(texts)
        labels = np.zeros((len(pairs), len(LABELS)), np.float32)
        tokens: list[tuple[tuple[int, int, float], ...]] = [()] * len(pairs)
        kind = self.device.split(":")[0]
        lengths = [len(pair.ids) for pair in pairs]
        for numbers, width in batches(lengths, BATCH_TOKENS[kind == "cuda"], self.limit):
            with torch.inference_mode():
                label_B4, token_BT = self.model(**self.batch([pairs[i] for i in numbers], width))
            labels[numbers] = label_B4.cpu().numpy()
            scores = token_BT.sigmoid().cpu().numpy()
            for row, i in enumerate(numbers):
                first, places = pairs[i].first, pairs[i].offsets.tolist()
                wrong = scores[row, first : first + len(places)].tolist()
                tokens[i] = tuple((a, b, p) for (a, b), p in zip(places, wrong, strict=True))
        return labels, tokens


def _folder(base: str | None) -> str:
    return str(packaged_folder()) if base is None else base


def _load(base: str | None, attention: str) -> nn.Module:
    from transformers import AutoModel

    model: nn.Module = AutoModel.from_pretrained(
        _folder(base), use_safetensors=True, dtype=torch.float32, attn_implementation=attention
    )
    return model
