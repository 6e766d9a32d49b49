"""The verifier: a pre-trained transformer reads question, sentence and evidence at once, and three heads judge.

One head says whether the evidence supports the sentence, contradicts it or says neither; one whether the sentence
states anything to check; one which of its tokens are unsupported. The base is an encoder or a causal language model.
Before an encoder, each token carries a kind beside its id: the part it stands in, and whether its word occurs on the
other side, which a small model can't see by itself. Token embeddings stay as they are; all else that is trained is
stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from annotators.text.words import holding, words_of
from engines.checkpoint import content_identity, locate, quiet_loading
from engines.embedding import Dtype, batches, placed, tokenize

QUESTION, SENTENCE, EVIDENCE = range(3)
N_STATES = 7
"""States of a token: in no content word; in a content word, number or name that is found on the other side, or not."""
N_KINDS = 3 * N_STATES
QUESTION_TOKENS, SENTENCE_TOKENS = 32, 160  # what is read of a question (its end) and of a sentence (its beginning)
MAX_TOKENS = 512
UNTOUCHED = 0.3
"""Share of a base's layers, the first ones, that LoRA leaves as they are: training is a quarter faster for it."""
LORA, LORA_SCALE = "base.{}.lora_{}.default.weight", 2
"""Names under which peft keeps the two matrices of a change, and α / r, by which it is scaled."""
PACK_TOKENS = 1024  # of one row, where sentences share the evidence before them
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}  # padded tokens of one pass
CUES = {EVIDENCE: "Evidence:", QUESTION: "\nQuestion:", SENTENCE: "\nStatement:"}
VERDICT = "\nVerdict:"
"""What a language model reads before each part and at the end; an encoder has separator tokens."""
_HAN = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
Text = tuple[str, str, Sequence[str]]
"""(question or "", sentence, passages of evidence in document order), all clean."""


@dataclass(frozen=True)
class Cells:
    """The words (_W,) of a text as they are matched.

    A run of Han or kana is cut into characters, each with the pairs that it forms with its neighbours as keys.
    """

    starts: np.ndarray  # in code points
    ends: np.ndarray
    kinds: np.ndarray  # 0 for function words, 1 for content, 3 for numbers, 5 for names
    keys: tuple[tuple[str, ...], ...]  # of each word, one of which must be found

    def states(self, others: frozenset[str]) -> np.ndarray:
        """(_W,) the state of each word beside a text with the keys ``others``."""
        missing = np.array([not any(key in others for key in own) for own in self.keys], dtype=np.int64)
        return np.where(self.kinds > 0, self.kinds + missing, 0)


@lru_cache(maxsize=8192)
def cells(text: str) -> Cells:
    """Cut a text into the words that are matched."""
    words = words_of(text)
    rows: list[tuple[int, int, int, tuple[str, ...]]] = []
    for i, (start, end) in enumerate(zip(words.starts, words.ends, strict=True)):
        if _HAN.search(text, start, end):
            run = text[start:end]
            for k in range(len(run)):
                near = (run[max(0, k - 1) : k + 1], run[k : k + 2])
                rows.append((start + k, start + k + 1, 1, tuple(pair for pair in near if len(pair) == 2) or (run,)))
        else:
            kind = 3 if words.numbers[i] is not None else 5 if words.names[i] else int(words.content[i])
            rows.append((start, end, kind, (words.stems[i],)))
    starts, ends, kinds = (np.array([row[n] for row in rows], dtype=np.int64) for n in range(3))
    return Cells(starts, ends, kinds, tuple(row[3] for row in rows))


@lru_cache(maxsize=8192)
def keys_of(text: str) -> frozenset[str]:
    """What a text offers to be matched: the keys of all its words."""
    return frozenset(key for own in cells(text).keys for key in own)


def kinds_of(part: int, text: str, offsets: np.ndarray, others: frozenset[str]) -> np.ndarray:
    """(T,) the kind of each token of a text at ``offsets`` (T, 2): its part, and the state of the word it ends in."""
    own = cells(text)
    # The last character decides: the first one of a token may be the space before its word.
    return part * N_STATES + np.append(own.states(others), 0)[holding(own.starts, own.ends, offsets[:, 1] - 1)]


@dataclass(frozen=True)
class Input:
    """What is read of one text."""

    ids: np.ndarray  # (T,)
    kinds: np.ndarray  # (T,)
    first: int  # the sentence's tokens are ids[first : first + _S]
    offsets: np.ndarray  # (_S, 2) of these in its text
    shared: int  # before a language model so many tokens, the first ones, do not depend on the sentence


def packs_of(inputs: Sequence[Input]) -> list[list[int]]:
    """Inputs that begin with the same shared tokens, together in rows of at most PACK_TOKENS; all others alone."""
    rows: list[list[int]] = []
    open_row: dict[bytes, tuple[list[int], int]] = {}  # the last row of each beginning, and its tokens
    for i, read in enumerate(inputs):
        key = read.ids[: read.shared].tobytes()
        row, used = open_row.get(key, ([], PACK_TOKENS)) if read.shared else ([], PACK_TOKENS)
        if used + len(read.ids) - read.shared > PACK_TOKENS:
            row, used = [], read.shared
            rows.append(row)
        row.append(i)
        open_row[key] = row, used + len(read.ids) - read.shared
    return rows


class Network(nn.Module):
    """A base of transformers that takes ``inputs_embeds``, with three heads and, before an encoder, kinds of tokens.

    ``causal`` says that the base reads from left to right: its summary is at the last token, and it has learned by
    itself to find what it reads again.
    """

    def __init__(self, base: Any, causal: bool) -> None:
        super().__init__()
        self.base: Any = base
        self.causal = causal
        width: int = base.config.hidden_size
        if not causal:
            self.kind = nn.Embedding(N_KINDS, width)
            nn.init.zeros_(self.kind.weight)  # at first the base reads as it was pre-trained
        self.token = nn.Linear(width, 1)
        self.pool = nn.Linear(2 * width + 2, width)
        self.label = nn.Linear(width, 4)
        for name, parameter in base.named_parameters():
            if "pooler" in name:  # not used, and new in bases that come without
                parameter.requires_grad_(False)
        base.get_input_embeddings().requires_grad_(False)

    def forward(
        self, ids_BT: torch.Tensor, kinds_BT: torch.Tensor, mask: torch.Tensor, position_BT: torch.Tensor,
        row_N: torch.Tensor, last_N: torch.Tensor, sentence_NT: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Logits (N, 4) of the three verdicts and of "no fact", and (N, T) of "this token is unsupported", float32.

        N sentences stand in B rows, padded on the right: sentence n in row ``row_N[n]``, its tokens at
        ``sentence_NT[n]``, what it ends with at ``last_N[n]``. ``mask`` (B, T) are the tokens; (B, 1, T, T) says which
        token sees which, where sentences share a row.
        """
        embedded = self.base.get_input_embeddings()(ids_BT)
        if self.causal:
            options: dict[str, Any] = {"use_cache": False, "position_ids": position_BT}
        else:
            embedded, options = embedded + self.kind(kinds_BT).to(embedded.dtype), {}
        if mask.ndim == 4:  # attention adds it to its scores
            mask = torch.where(mask, 0.0, torch.finfo(embedded.dtype).min).to(embedded.dtype)
        hidden = self.base(inputs_embeds=embedded, attention_mask=mask, **options).last_hidden_state
        token_NT = self.token(hidden)[..., 0].float()[row_N]
        count = sentence_NT.sum(1, keepdim=True).clamp(min=1)
        # A sentence's mean is a product with its weights: gathering its row first would copy a long row for each.
        share_NBT = torch.zeros(len(row_N), *ids_BT.shape, dtype=hidden.dtype, device=hidden.device)
        share_NBT[torch.arange(len(row_N), device=row_N.device), row_N] = (sentence_NT / count).to(hidden.dtype)
        mean = share_NBT.flatten(1) @ hidden.flatten(0, 1)
        whole = hidden[row_N, last_N if self.causal else torch.zeros_like(last_N)]
        # The verdict sees the whole, the mean of the sentence, and the worst and the average of its tokens.
        worst = token_NT.masked_fill(~sentence_NT, -1e4).amax(1, keepdim=True).clamp(min=-30)
        average = (token_NT * sentence_NT).sum(1, keepdim=True) / count.float()
        pooled = torch.cat([whole, mean, worst.to(hidden.dtype), average.to(hidden.dtype)], -1)
        return self.label(nn.functional.gelu(self.pool(pooled))).float(), token_NT


def probabilities(logits: np.ndarray) -> np.ndarray:
    """(n, 4) probabilities in the order of LABELS: P(no fact) by a sigmoid, the rest shared by a softmax of three."""
    none = 1 / (1 + np.exp(-logits[:, 3].astype(np.float64)))
    shifted = np.exp(logits[:, :3] - logits[:, :3].max(1, keepdims=True))
    return np.column_stack([shifted / shifted.sum(1, keepdims=True) * (1 - none)[:, None], none])


class WeightsError(ValueError):
    """Stored weights are not those that training changed of a base."""


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 (64 hex digits) over the names and bytes of stored weights."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


class Verifier:
    """A network on ``base`` (hub id, folder or packaged model) with its tokenizer.

    ``layers`` takes the first so many layers of the base, None all; with ``lora`` its matrices stay as they are but for
    a change of that rank (LoRA), so that what is stored of a large base is small. ``weights`` are what ``packed()``
    returned, ready to judge; None is an untrained network, whose trained parts are in float32. ``device`` None takes
    cuda where there is one; ``dtype`` "auto" is bfloat16 where the hardware has it. ValueError for another type, and
    where the base has fewer layers; WeightsError where the weights are of another base.
    """

    def __init__(
        self, base: str, weights: dict[str, torch.Tensor] | None = None, *, layers: int | None = None,
        lora: int | None = None, device: str | None = None, dtype: Dtype = "auto",
    ) -> None:  # fmt: skip
        from transformers import (
            MODEL_FOR_CAUSAL_LM_MAPPING,
            MODEL_FOR_MASKED_LM_MAPPING,
            AutoConfig,
            AutoModel,
            AutoTokenizer,
        )

        self.base, self.layers, self.lora = base, layers, lora
        self.device, self.dtype = placed(device, dtype)
        self._folder = folder = locate(base)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        config = AutoConfig.from_pretrained(folder)
        causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
        if layers is not None:
            if not 1 <= layers <= config.num_hidden_layers:  # transformers would add layers of random weights
                raise ValueError(
                    f"layers: expected 1 to {config.num_hidden_layers}, which {base} has, got {layers}; null takes all"
                )
            config.num_hidden_layers = layers
        with quiet_loading():
            model = AutoModel.from_pretrained(
                folder, config=config, use_safetensors=True,
                dtype=torch.float32 if lora is None else getattr(torch, self.dtype),
            )  # fmt: skip
        targets: list[str] = []
        if lora is not None:
            first = round(UNTOUCHED * config.num_hidden_layers)
            linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
            targets = [name for name in linear if any(int(n) >= first for n in re.findall(r"\.(\d+)\.", name))]
            model.requires_grad_(False)
        if lora is not None and weights is None:
            from peft import LoraConfig, inject_adapter_in_model

            made = LoraConfig(r=lora, lora_alpha=LORA_SCALE * lora, target_modules=targets)
            model = inject_adapter_in_model(made, model)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        self.network = Network(model, causal)
        self._stored = weights  # as they were given: an adapter is merged in
        if weights is not None:
            self.take(weights, targets)
            self.network.to(getattr(torch, self.dtype))
        self.network.eval().to(self.device)
        self.limit = min(int(getattr(config, "max_position_embeddings", MAX_TOKENS)), MAX_TOKENS)
        t = self.tokenizer
        self._start: list[int] = [] if causal else [t.cls_token_id]
        self._between: list[int] = self._ids("\n") if causal else [t.sep_token_id]
        self._cues = {part: self._ids(cue) if causal else [] for part, cue in CUES.items()}
        self._end = self._ids(VERDICT) if causal else self._between
        self._order = (EVIDENCE, QUESTION, SENTENCE) if causal else (QUESTION, SENTENCE, EVIDENCE)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def fingerprint(self) -> str:
        """The digest of what training changed."""
        return digest_of(self.packed())

    @cached_property
    def base_identity(self) -> str:
        """What tells the base from others by its content; files of a folder are read whole for it."""
        return content_identity(self.base, self._folder)

    def tokenize(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids and code-point offsets of texts; special tokens in a text are read as plain text."""
        return tokenize(self.tokenizer, texts)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that training changes, by their names in the network."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def packed(self) -> dict[str, torch.Tensor]:
        """What training changed, float16."""
        if self._stored is not None:
            return self._stored
        return {name: p.detach().cpu().half() for name, p in self.trained.items()}

    def take(self, tensors: dict[str, torch.Tensor], targets: Sequence[str] = ()) -> None:
        """Put in what training changed. The matrices of ``targets`` get W + (α / r) B A (LoRA, Hu et al. 2022, section
        4.1), here rather than by peft, whose import takes longer than to load the model."""
        wanted = {name: p.shape for name, p in self.trained.items()}
        matrices = {name: self.network.base.get_submodule(name).weight for name in targets}
        for name, matrix in matrices.items():
            wanted[LORA.format(name, "A")] = torch.Size([self.lora or 0, matrix.shape[1]])
            wanted[LORA.format(name, "B")] = torch.Size([matrix.shape[0], self.lora or 0])
        for name in sorted({*wanted, *tensors}):
            if name not in wanted or name not in tensors or wanted[name] != tensors[name].shape:
                raise WeightsError(f"verifier weights: expected those of this base, but {name} differs")
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(tensors[name].float())
            for name, matrix in matrices.items():
                a, b = (tensors[LORA.format(name, part)].float() for part in "AB")
                matrix += LORA_SCALE * (b @ a)

    def inputs(self, texts: Sequence[Text]) -> list[Input]:
        """What is read of each text; evidence is cut where the model has no room for more."""
        distinct = list(dict.fromkeys(part for q, s, passages in texts for part in (q, s, *passages)))
        known = dict(zip(distinct, self.tokenize(distinct), strict=True))
        return [self._input(*text, known) for text in texts]

    def _input(self, question: str, sentence: str, passages: Sequence[str], known: Any) -> Input:
        own = keys_of(sentence)
        there = frozenset[str]().union(*map(keys_of, passages))
        tokens, offsets = (array[:SENTENCE_TOKENS] for array in known[sentence])
        parts = {SENTENCE: [(tokens, kinds_of(SENTENCE, sentence, offsets, there))], EVIDENCE: []}
        if question:
            asked, places = (array[-QUESTION_TOKENS:] for array in known[question])
            parts[QUESTION] = [(asked, kinds_of(QUESTION, question, places, own))]
        for passage in passages:
            read, places = known[passage]
            parts[EVIDENCE].append((read, kinds_of(EVIDENCE, passage, places, own)))
        fixed = sum(len(ids) for part in (SENTENCE, QUESTION) for ids, _ in parts.get(part, ()))
        room = self.limit - fixed - 3 * max(len(self._between), *map(len, self._cues.values())) - len(self._end)
        ids: list[int] = list(self._start)
        kinds: list[int] = [0] * len(ids)
        first = 0
        for part in (part for part in self._order if part in parts):
            lead = self._cues[part] or (self._between if len(ids) > len(self._start) else [])
            ids += lead
            kinds += [0] * len(lead)
            first = len(ids) if part == SENTENCE else first
            for n, (read, marks) in enumerate(parts[part]):
                if part == EVIDENCE:
                    if n and self._cues[part]:  # a language model reads passages on lines of their own
                        read, marks = np.concatenate([self._between, read]), np.concatenate([[0], marks])
                    read, marks = read[: max(room, 0)], marks[: max(room, 0)]
                    room -= len(read)
                ids += read.tolist()
                kinds += marks.tolist()
        ids += self._end
        shared = first - len(self._cues[SENTENCE]) if self.network.causal else 0
        return Input(np.array(ids), np.array(kinds + [0] * len(self._end)), first, offsets, shared)

    def batch(self, packs: Sequence[Sequence[Input]], width: int) -> dict[str, torch.Tensor]:
        """Arguments of the network, on the device: a row for each pack, padded to ``width`` tokens.

        The inputs of a pack stand behind the tokens that they share, and none sees another.
        """
        shape = (len(packs), width)
        ids, kinds = np.full(shape, self.tokenizer.pad_token_id or 0), np.zeros(shape, np.int64)
        position, owner = np.zeros(shape, np.int64), np.full(shape, -2)  # of the pack's inputs; −1 shared, −2 padding
        sentence = np.zeros((sum(map(len, packs)), shape[1]), bool)
        rows, last = list[int](), list[int]()
        for b, pack in enumerate(packs):
            at = 0
            for n, read in enumerate(pack):
                skip = read.shared if n else 0
                place = slice(at, at + len(read.ids) - skip)
                ids[b, place], kinds[b, place] = read.ids[skip:], read.kinds[skip:]
                position[b, place] = np.arange(skip, len(read.ids))
                owner[b, place] = n
                owner[b, : read.shared] = -1
                first = at - skip + read.first
                sentence[len(rows), first : first + len(read.offsets)] = True
                at = place.stop
                rows.append(b)
                last.append(at - 1)
        mask = owner > -2
        if any(len(pack) > 1 for pack in packs):
            one, other = owner[:, None, :, None], owner[:, None, None, :]
            mask = ((one == other) | (other == -1)) & np.tri(shape[1], dtype=bool)
        arrays = {
            "ids_BT": ids, "kinds_BT": kinds, "mask": mask, "position_BT": position, "row_N": np.array(rows),
            "last_N": np.array(last), "sentence_NT": sentence,
        }  # fmt: skip
        return {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}

    @staticmethod
    def length_of(pack: Sequence[Input]) -> int:
        """Tokens of the row of a pack."""
        return pack[0].shared + sum(len(read.ids) - read.shared for read in pack)

    def __call__(self, texts: Sequence[Text]) -> tuple[np.ndarray, list[tuple[tuple[int, int, float], ...]]]:
        """Logits (n, 4) of ``Network.forward``, and for each sentence (start, end, P(unsupported)) of its tokens."""
        inputs = self.inputs(texts)
        packs = packs_of(inputs)
        logits = np.zeros((len(inputs), 4), np.float32)
        tokens: list[tuple[tuple[int, int, float], ...]] = [()] * len(inputs)
        budget = BATCH_TOKENS["cuda" if self.device.startswith("cuda") else "cpu"]
        lengths = [self.length_of([inputs[i] for i in pack]) for pack in packs]
        for chosen, width in batches(lengths, budget, max(self.limit, PACK_TOKENS)):
            batch = self.batch([[inputs[i] for i in packs[k]] for k in chosen], width)
            with torch.inference_mode():
                label_N4, token_NT = self.network(**batch)
            numbers = [i for k in chosen for i in packs[k]]
            logits[numbers] = label_N4.cpu().numpy()
            scores, where = token_NT.sigmoid().cpu().numpy(), batch["sentence_NT"].cpu().numpy()
            for n, i in enumerate(numbers):
                places = inputs[i].offsets.tolist()
                tokens[i] = tuple((a, b, p) for (a, b), p in zip(places, scores[n, where[n]].tolist(), strict=True))
        return logits, tokens
