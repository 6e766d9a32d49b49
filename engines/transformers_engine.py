"""A local checkpoint through ``transformers``: length-sorted batches, left padding, the chat template.

The samples of a prompt share its forward pass: each distinct prompt of a batch is read once, and its keys and values
are copied for its rows. ``generate`` runs in strides, after which the rows that have ended leave the batch.

Only what :class:`~engines.types.Sampling` says shapes the draw: sampling defaults in the checkpoint's
generation_config.json are left out (its end-of-text tokens are kept). ``transformers`` draws a whole batch from
one random stream, so that a row's text changes with its neighbours; here every row has a stream of its own (seed,
messages, sample number), and in float32 neither the drawn nor the greedy text depends on the batch. In bfloat16
the last bits of the logits change with the batch, so near-ties may fall the other way.

Left out: rows that join a running batch, several devices for one model and quantisation (use ``vllm`` or a server),
JSON schemas.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from engines.checkpoint import checkpoint_identity, locate, not_partitioned, opened, own_code, prompt_ids
from engines.embedding import Dtype, batches, placed
from engines.types import Chat, ChatResult, EngineError, OnResult, Sample, Sampling, Token, chat_seed, check_chats
from engines.usage import METER

log = logging.getLogger(__name__)
Paths = dict[tuple[int, ...], list[int]]
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What transformers calls keys and values that are kept; since 5.24 it warns of the older name."""
STRIDE = 16
"""New tokens between two looks at which rows have ended: taking rows out of a batch costs about as much as a token."""
PIECE = 4  # new tokens between two pieces of a streamed answer


class _Row(NamedTuple):
    """One sequence to generate: sample ``place`` of chat ``number``, at most ``room`` new tokens after ``ids``."""

    number: int
    chat: Chat
    place: int
    ids: list[int]
    room: int


@dataclass
class _Text:
    """What one row has said so far."""

    stream: np.random.Generator
    opened: str  # the tag of thoughts that its prompt ends with, which belongs to what it says
    ids: list[int] = field(default_factory=list)  # the new tokens
    ended: bool = False  # by an end token
    chosen: list[float] = field(default_factory=list)  # log-probability of each new token
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)  # at each place: (id, log-probability)


class _Decoding(LogitsProcessor):
    """Chooses each row's next token and keeps its log-probability: logits (B, V) to scores whose arg max it is."""

    def __init__(self, sampling: Sampling, texts: Sequence[_Text], width: int, paths: Paths) -> None:
        # ``width``: tokens of the padded prompts. ``paths``: beginning of an allowed text → the ids that may follow.
        self.sampling, self.texts, self.width, self.paths = sampling, texts, width, paths

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """One step: ``input_ids`` (B, T) so far, ``scores`` (B, V) raw logits of the next token."""
        allowed_BV = scores
        if self.paths:
            closed_BV = torch.ones_like(scores, dtype=torch.bool)
            for at, ids in enumerate(input_ids[:, self.width :].tolist()):
                follow = self.paths.get(tuple(ids))
                closed_BV[at, slice(None) if follow is None else follow] = False  # None: this row has ended
            allowed_BV = scores.masked_fill(closed_BV, -torch.inf)
        chosen_B1 = self._chosen(allowed_BV)
        if self.sampling.logprobs:
            logprobs_BV = torch.log_softmax(scores.float(), dim=-1)
            values_BK, ids_BK = logprobs_BV.topk(min(self.sampling.top_logprobs, scores.shape[-1]), dim=-1)
            own_B = logprobs_BV.gather(1, chosen_B1)[:, 0]
            for text, own, *top in zip(self.texts, own_B.tolist(), ids_BK.tolist(), values_BK.tolist(), strict=True):
                text.chosen.append(own)
                text.likeliest.append(list(zip(*top, strict=True)))
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen_B1, 0.0)

    def _chosen(self, scores: torch.Tensor) -> torch.Tensor:
        """The ids (B, 1): the likeliest, or the first at which the distribution's sum exceeds the row's number."""
        if self.sampling.temperature == 0:
            return scores.argmax(dim=-1, keepdim=True)
        cumulative_BV = torch.softmax(scores.float() / self.sampling.temperature, dim=-1).double().cumsum(dim=-1)
        numbers = [text.stream.random(dtype=np.float32) for text in self.texts]
        uniform_B1 = torch.tensor(numbers, dtype=torch.float64, device=scores.device)[:, None]
        drawn_B1 = torch.searchsorted(cumulative_BV, uniform_B1 * cumulative_BV[:, -1:], right=True)
        return drawn_B1.clamp_(max=scores.shape[-1] - 1)


class _Ends(StoppingCriteria):
    """Notes what each row has said, and ends it at an end token."""

    def __init__(self, ends: Sequence[int], texts: Sequence[_Text]) -> None:
        self.ends, self.texts = ends, texts

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        for text, token in zip(self.texts, input_ids[:, -1].tolist(), strict=True):
            if not text.ended:
                text.ids.append(token)
                text.ended = token in self.ends
        return torch.tensor([text.ended for text in self.texts], device=input_ids.device)


def one_query_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, **how: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """transformers' sdpa, a single query by two products: query (B, H, 1, D), key (B, G, T, D) → (B, 1, H, E).
    torch's own kernel is slow for single queries in bfloat16 on a CPU. Masks that add, as of biases, are left to it.
    """
    plain = attention_mask is None or attention_mask.dtype == torch.bool
    if query.shape[2] > 1 or how.get("position_bias") is not None or not plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **how)
    (rows, heads, _, size), groups = query.shape, key.shape[1]
    scores_BGHT = query.reshape(rows, groups, heads // groups, size) @ key.transpose(-1, -2)
    scores_BGHT = scores_BGHT.float() * (size**-0.5 if scaling is None else scaling)
    if attention_mask is not None:  # (B, 1, 1, T): True where a key may be read
        scores_BGHT = scores_BGHT.masked_fill(~attention_mask, torch.finfo(torch.float32).min)
    return (scores_BGHT.softmax(-1).to(value.dtype) @ value).reshape(rows, 1, heads, -1), None


def _selected(rows: list[int], ids_BT: torch.Tensor, mask_BT: torch.Tensor, cache: Any) -> list[torch.Tensor]:
    """These rows of a batch, in this order; a row may be taken several times. The cache is changed in place."""
    index = torch.tensor(rows, device=ids_BT.device)
    if cache is not None:
        cache.batch_select_indices(index)
    return [ids_BT[index], mask_BT[index]]


def decode_quickly(model: Any) -> None:
    """Let a bfloat16 model on a CPU read single tokens by ``one_query_attention``; others stay as they are."""
    if (model.device.type, model.dtype, model.config._attn_implementation) == ("cpu", torch.bfloat16, "sdpa"):
        AttentionInterface.register("one_query", one_query_attention)
        AttentionMaskInterface.register("one_query", sdpa_mask)
        model.set_attn_implementation("one_query")


class TransformersEngine:
    """Chat generation with a causal language model in this process.

    ``model`` is a folder or hub id of a safetensors checkpoint with a chat template; for ``device`` and ``dtype`` see
    :func:`engines.embedding.placed`. A batch has at most ``batch_tokens`` (rows × (longest prompt + new tokens)), None
    is 32,768 on cuda and 16,384 elsewhere; one too large for the GPU's memory is halved. ``trust_remote_code`` runs the
    Python files that come with the checkpoint. The chat template gets ``chat_template_kwargs``
    ({"enable_thinking": False}). Raises OSError: there is no such checkpoint; ValueError: the tokenizer has no chat
    template, an option is not known, or the checkpoint brings code; ImportError: that code, or the tokenizer, needs a
    package that is not installed.
    """

    def __init__(
        self, model: str, *, device: str | None = None, dtype: Dtype = "auto", batch_tokens: int | None = None,
        trust_remote_code: bool = False, chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"transformers engine: batch_tokens must be at least 1, got {batch_tokens}")
        self.name = f"transformers:{model}"
        place, numbers = placed(device, dtype)
        where = locate(model)
        self.device, self.dtype = torch.device(place), getattr(torch, numbers)
        cuda = self.device.type == "cuda"
        self.batch_tokens = batch_tokens or (32_768 if cuda else 16_384)
        with own_code(model):
            self.tokenizer: Any = AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code)
        if not self.tokenizer.chat_template:
            raise ValueError(
                f"checkpoint {model} has no chat template: use an instruction-tuned checkpoint, or save a "
                "template with its tokenizer (chat_template.jinja)"
            )
        with not_partitioned(), own_code(model):
            loaded = AutoModelForCausalLM.from_pretrained(
                where, dtype=self.dtype, trust_remote_code=trust_remote_code, use_safetensors=True
            )
        self.model: Any = loaded.to(self.device).eval()  # type: ignore[arg-type]
        decode_quickly(self.model)
        self.identity = {
            "engine": "transformers", **checkpoint_identity(model, where),
            "dtype": str(self.dtype).removeprefix("torch."),
            **({"chat_template_kwargs": dict(chat_template_kwargs)} if chat_template_kwargs else {}),
        }  # fmt: skip
        self._template = chat_template_kwargs
        ends = self.model.generation_config.eos_token_id
        ends = self.tokenizer.eos_token_id if ends is None else ends
        self._ends: list[int] = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        pad = self.tokenizer.pad_token_id
        self._pad: int = pad if pad is not None else next(iter(self._ends), 0)
        self.model.generation_config = GenerationConfig()  # generate() would fill in the checkpoint's own
        # Linear-attention layers keep a state that rows can't be taken out of: those models run whole batches.
        layers = DynamicCache(config=self.model.config).layers
        self._selects = all(hasattr(layer, "batch_select_indices") for layer in layers)
        self._context: int | None = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        """See :meth:`engines.types.Engine.chat`."""
        check_chats(chats)
        sampling = sampling or Sampling()
        results: dict[int, ChatResult] = {}
        began = time.monotonic()

        def finish(index: int, result: ChatResult) -> None:
            results[index] = result
            if result.error is None:
                METER.count(result.prompt_tokens, result.completion_tokens, time.monotonic() - began)
            if on_result is not None:
                on_result(index, result)

        rows: list[_Row] = []
        for index, chat in enumerate(chats):
            found = self._row(index, chat, sampling)
            if isinstance(found, ChatResult):
                finish(index, found)
            else:
                rows += [found._replace(place=place) for place in range(sampling.n)]
        samples: dict[int, dict[int, tuple[Sample, int]]] = {}
        for batch, width in self._batches(rows):
            for row, made in zip(batch, self._generate(batch, width, sampling), strict=True):
                done = samples.setdefault(row.number, {})
                done[row.place] = made
                if len(done) == sampling.n:
                    in_order, counts = zip(*(done[place] for place in range(sampling.n)), strict=True)
                    finish(row.number, ChatResult(in_order, len(row.ids), sum(counts)))
        return [results[index] for index in range(len(chats))]

    def stream(self, chat: Chat, sampling: Sampling | None = None) -> Iterator[str]:
        """The first sample of ``chat`` in pieces, as it is written; closing the iterator ends the work. A model whose
        state rows can't be taken out of gives it whole. Raises EngineError where it can't be asked.
        """
        check_chats([chat])
        sampling, given, tokens, began = sampling or Sampling(), "", 0, time.monotonic()
        row = self._row(0, chat, sampling)
        if isinstance(row, ChatResult):
            raise EngineError(str(row.error))
        try:
            for (said,) in self._strides([row], len(row.ids), sampling, PIECE):
                tokens = len(said.ids)
                text = self._sample(said, sampling)[0].text
                if not text.endswith("\ufffd") or said.ended or tokens == row.room:  # else half a character
                    yield text[len(given) :]
                    given = text
        finally:
            if tokens:  # also where the reader stopped it
                METER.count(len(row.ids), tokens, time.monotonic() - began)

    def _row(self, index: int, chat: Chat, sampling: Sampling) -> _Row | ChatResult:
        """The first row of a chat, or the result that says why there is none."""
        if sampling.json_schema is not None:
            raise ValueError("the transformers engine has no JSON schemas: use choices, or a vllm/openai engine")
        try:
            ids = prompt_ids(self.tokenizer, chat, self._template)
        except TemplateError as error:
            return ChatResult(error=f"the checkpoint's chat template does not take this chat: {error}", refused=True)
        room = min(sampling.max_tokens, (self._context or len(ids) + sampling.max_tokens) - len(ids))
        if room < 1:
            text = f"the prompt has {len(ids)} tokens, the model holds {self._context}: shorten the chat"
            return ChatResult(prompt_tokens=len(ids), error=text, refused=True)
        return _Row(index, chat, 0, ids, room)

    def close(self) -> None:
        """Free the weights; the engine cannot be used after that."""
        self.model = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _batches(self, rows: list[_Row]) -> Iterator[tuple[list[_Row], int]]:
        """Rows of like length and equal room, with the width of their prompts; the longest first in each room."""
        for room in sorted({row.room for row in rows}, reverse=True):
            group = [row for row in rows if row.room == room]
            lengths = [len(row.ids) + room for row in group]
            for places, width in batches(lengths, self.batch_tokens, self._context or 2 * max(lengths)):
                yield [group[place] for place in places], width - room

    def _generate(self, rows: list[_Row], width: int, sampling: Sampling) -> list[tuple[Sample, int]]:
        """Each row's sample and number of tokens; a batch too large for the GPU's memory is halved."""
        try:
            *_, texts = self._strides(rows, width, sampling, STRIDE)
            return [self._sample(text, sampling) for text in texts]
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        torch.cuda.empty_cache()
        log.info("%s: %d rows are too many for the memory, halving", self.name, len(rows))
        half = len(rows) // 2
        return self._generate(rows[:half], width, sampling) + self._generate(rows[half:], width, sampling)

    @torch.inference_mode()
    def _strides(self, rows: list[_Row], width: int, sampling: Sampling, stride: int) -> Iterator[list[_Text]]:
        """What each row has said, after every so many new tokens; the last is all of it."""
        prompts = {tuple(row.ids): None for row in rows}
        number = {prompt: at for at, prompt in enumerate(prompts)}
        room = rows[0].room
        pads = [width - len(prompt) for prompt in prompts]
        ids_BT = torch.tensor([[self._pad] * pad + list(p) for p, pad in zip(prompts, pads, strict=True)])
        mask_BT = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
        ids_BT, mask_BT, cache = ids_BT.to(self.device), mask_BT.to(self.device), None
        if len(prompts) < len(rows):
            if self._selects and width > 1:  # all but the last token of each prompt; the token said here is not used
                cache = getattr(self._stride(ids_BT[:, :-1], mask_BT[:, :-1], None, 1), CACHE)
            ids_BT, mask_BT = _selected([number[tuple(row.ids)] for row in rows], ids_BT, mask_BT, cache)
        seed, paths = sampling.seed, self._choice_paths(sampling.choices)
        seeds = [None if seed is None else chat_seed(seed, row.chat, row.place) for row in rows]
        openings = [opened(self.tokenizer, row.ids) for row in rows]
        live = texts = [_Text(np.random.default_rng(s), tag) for s, tag in zip(seeds, openings, strict=True)]
        while unfinished := sum(not text.ended and len(text.ids) < room for text in live):
            size = 1 << (unfinished - 1).bit_length()  # a power of two, as in `batches`
            if self._selects and size < len(live):
                stay = sorted(range(len(live)), key=lambda at: live[at].ended)[:size]
                ids_BT, mask_BT = _selected(stay, ids_BT, mask_BT, cache)
                live = [live[at] for at in stay]
            out = self._stride(
                ids_BT, mask_BT, cache, min(stride, width + room - ids_BT.shape[1]) if self._selects else room,
                logits_processor=[_Decoding(sampling, live, width, paths)],
                stopping_criteria=[_Ends(self._ends, live)],
            )  # fmt: skip
            ids_BT, cache = out.sequences, getattr(out, CACHE)
            mask_BT = torch.nn.functional.pad(mask_BT, (0, ids_BT.shape[1] - mask_BT.shape[1]), value=1)
            yield texts

    def _stride(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor, cache: Any, tokens: int, **how: Any) -> Any:
        """At most so many further tokens of each row: ``sequences`` and what CACHE names."""
        how["generation_config"] = GenerationConfig(  # where there is a draw, _Decoding has made it
            max_new_tokens=tokens, do_sample=False, pad_token_id=self._pad, return_dict_in_generate=True
        )
        how |= {} if cache is None else {CACHE: cache}
        return self.model.generate(input_ids=ids_BT, attention_mask=mask_BT, **how)

    def _sample(self, said: _Text, sampling: Sampling) -> tuple[Sample, int]:
        """A row's sample and number of tokens."""
        text = self.tokenizer.decode(said.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if sampling.choices:
            chosen = text.strip()  # some tokenizers begin every text with a blank
            text = chosen if chosen in sampling.choices else text
        else:
            text = said.opened + text
        tokens = None
        if sampling.logprobs:
            tokens = tuple(
                Token(self.tokenizer.decode([token]), value, tuple((self.tokenizer.decode([i]), p) for i, p in top))
                for token, value, top in zip(said.ids, said.chosen, said.likeliest, strict=False)
            )
        return Sample(text, "stop" if said.ended else "length", tokens), len(said.ids)

    def _choice_paths(self, choices: tuple[str, ...]) -> Paths:
        """For each beginning of a choice's token ids the ids that may follow; the end of text follows a whole one."""
        if choices and not self._ends:
            raise ValueError("choices need a checkpoint with an end-of-text token, this one has none")
        paths: Paths = {}
        for choice in choices:
            ids = [*self.tokenizer.encode(choice, add_special_tokens=False), self._ends[0]]
            for place, token in enumerate(ids):
                allowed = paths.setdefault(tuple(ids[:place]), [])
                if token not in allowed:
                    allowed.append(token)
        return paths
