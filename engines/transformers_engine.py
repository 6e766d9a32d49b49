"""A local checkpoint through ``transformers``: length-bucketed batches, left padding, the chat template.

Only what :class:`~engines.types.Sampling` says shapes the draw: sampling defaults in the checkpoint's
generation_config.json are left out (its end-of-text tokens are kept). A draw depends on seed, messages and
sample number, not on the batch (see ``engines/transformers_engine.py``); in float32 nor does the greedy text. In
bfloat16 the last bits of the logits change with the padding, so near-ties may fall the other way.

Left out: several devices for one model and quantisation (use ``vllm`` or a server), JSON schemas.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    TopPLogitsWarper,
)

from engines.checkpoint import checkpoint_state, locate, prompt_ids, undivided
from engines.types import Chat, ChatResult, OnResult, Sample, Sampling, Token, chat_seed, check_chats

# ----------------------------------------------------------------------------------------------------
# Inside a decoding loop: draws that do not depend on the batch, choices, stop strings, log-probabilities.
#
# ``transformers`` draws a whole batch from one random stream, so a row's text changes with its neighbours.
# Here every row has a stream of its own (seed, messages, sample number) and is drawn by inverting the
# cumulative distribution, one number per token; ``generate`` then takes the arg max of what is left.

Paths = dict[tuple[int, ...], list[int]]


def choice_paths(tokenizer: Any, choices: tuple[str, ...], ends: list[int]) -> Paths:
    """For each beginning of a choice's token ids the ids that may follow; after the whole the first end.

    Raises:
        ValueError: The checkpoint has no end-of-text token, so a choice could not end.
    """
    if choices and not ends:
        raise ValueError("choices need a checkpoint with an end-of-text token, this one has none")
    paths: Paths = {}
    for choice in choices:
        ids = [*tokenizer.encode(choice, add_special_tokens=False), ends[0]]
        for place, token in enumerate(ids):
            allowed = paths.setdefault(tuple(ids[:place]), [])
            if token not in allowed:
                allowed.append(token)
    return paths


class Decoding(LogitsProcessor):
    """Turns logits (B, V) into scores whose arg max is the drawn token, and keeps log-probabilities.

    Args:
        sampling: Temperature, nucleus, seed, whether log-probabilities are wanted.
        width: Tokens of the padded prompts.
        rows: Chat and sample number of every row of the batch.
        paths: What :func:`choice_paths` gave; empty for free text.
    """

    def __init__(
        self, sampling: Sampling, width: int, rows: list[tuple[Chat, int]], paths: Paths | None = None
    ) -> None:
        self.sampling = sampling
        self.width = width
        self.paths = paths or {}
        self.needed = bool(sampling.temperature > 0 or sampling.logprobs or self.paths)
        seed = sampling.seed
        self._streams = [
            np.random.default_rng(None if seed is None else chat_seed(seed, chat, place)) for chat, place in rows
        ]
        self._warper = TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1 else None
        self._before_BV: torch.Tensor | None = None  # log-probabilities of the step whose token is not known yet
        self._known: list[torch.Tensor] = []
        self._top: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """One step: ``input_ids`` (B, T) so far, ``scores`` (B, V) raw logits of the next token."""
        if self.sampling.logprobs:
            self._settle(input_ids)
            self._before_BV = torch.log_softmax(scores.float(), dim=-1)
            if k := min(self.sampling.top_logprobs, scores.shape[-1]):
                values_BK, ids_BK = self._before_BV.topk(k, dim=-1)
                self._top.append((values_BK.cpu(), ids_BK.cpu()))
        if self.paths:
            scores = self._only_choices(input_ids, scores)
        if self.sampling.temperature == 0:
            return scores
        scaled_BV = scores.float() / self.sampling.temperature
        if self._warper is not None:
            scaled_BV = self._warper(input_ids, scaled_BV)
        drawn_B1 = self._draw(torch.softmax(scaled_BV, dim=-1))
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn_B1, 0.0)

    def _draw(self, probs_BV: torch.Tensor) -> torch.Tensor:
        """The first token at which the cumulative distribution exceeds the row's number in [0, 1)."""
        cumulative_BV = probs_BV.double().cumsum(dim=-1)
        numbers = [stream.random(dtype=np.float32) for stream in self._streams]
        uniform_B1 = torch.tensor(numbers, dtype=torch.float64, device=probs_BV.device)[:, None]
        drawn_B1 = torch.searchsorted(cumulative_BV, uniform_B1 * cumulative_BV[:, -1:], right=True)
        return drawn_B1.clamp_(max=probs_BV.shape[-1] - 1)

    def _only_choices(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed_BV = torch.zeros_like(scores, dtype=torch.bool)
        for at, ids in enumerate(input_ids[:, self.width :].tolist()):
            follow = self.paths.get(tuple(ids))
            allowed_BV[at, slice(None) if follow is None else follow] = True  # None: this row has ended
        return scores.masked_fill(~allowed_BV, -torch.inf)

    def _settle(self, input_ids: torch.Tensor) -> None:
        if self._before_BV is not None:
            self._known.append(self._before_BV.gather(1, input_ids[:, -1:]))
            self._before_BV = None

    def top(self, row: int, place: int) -> list[tuple[int, float]]:
        """The likeliest tokens (id, log-probability) of a row at a new token's place; none where not wanted."""
        if not self._top:
            return []
        values_BK, ids_BK = self._top[place]
        return list(zip(ids_BK[row].tolist(), values_BK[row].tolist(), strict=True))

    def logprobs(self, output_ids: torch.Tensor) -> torch.Tensor | None:
        """Log-probabilities (B, new tokens) of the finished ``output_ids``, None where not wanted.

        They are of the model's own distribution: before temperature, nucleus and choices. What stands behind
        a row's end means nothing.
        """
        if not self.sampling.logprobs:
            return None
        self._settle(output_ids)
        return torch.cat(self._known, dim=1)


class Stops(StoppingCriteria):
    """Ends a row when one of the strings is in what was generated (never in the prompt).

    Attributes:
        ended: For each row the number of new tokens at which it stopped, or None.
    """

    def __init__(self, tokenizer: Any, strings: tuple[str, ...], width: int, rows: int) -> None:
        self.tokenizer = tokenizer
        self.strings = strings
        self.width = width
        # A character may take four tokens (its UTF-8 bytes); a few more so that the tail begins before it.
        self.tail = 4 * max(map(len, strings), default=0) + 4
        self.ended: list[int | None] = [None] * rows

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        new_BT = input_ids[:, self.width :]
        for at, ids in enumerate(new_BT[:, -self.tail :].tolist()):
            if self.ended[at] is None:
                text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
                if any(string in text for string in self.strings):
                    self.ended[at] = new_BT.shape[1]
        return torch.tensor([end is not None for end in self.ended], device=input_ids.device)


log = logging.getLogger(__name__)
Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class _Row:
    """One sequence to generate: sample ``place`` of chat ``chat``, at most ``room`` new tokens."""

    chat: int
    place: int
    ids: list[int]
    room: int


class TransformersEngine:
    """Chat generation with a causal language model in this process.

    Args:
        model: Folder or hub id of a safetensors checkpoint with a tokenizer and a chat template.
        device: "cuda", "cuda:1", "cpu", …; None takes cuda where there is one, else the cpu.
        dtype: "auto" is bfloat16 on cuda and float32 elsewhere.
        batch_tokens: Most tokens (rows × (longest prompt + new tokens)) in one batch; None is 32,768 on cuda
            and 8,192 elsewhere. A batch too large for the GPU's memory is halved.

    Raises:
        OSError: There is no such checkpoint.
        ValueError: The tokenizer has no chat template, or an option is not known.
    """

    def __init__(
        self, model: str, *, device: str | None = None, dtype: Dtype = "auto", batch_tokens: int | None = None
    ) -> None:
        if dtype not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"transformers engine: dtype must be auto, float32 or bfloat16, got {dtype!r}")
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"transformers engine: batch_tokens must be at least 1, got {batch_tokens}")
        self.name = f"transformers:{model}"
        where = locate(model)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        cuda = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if dtype == "bfloat16" or (dtype == "auto" and cuda) else torch.float32
        self.batch_tokens = batch_tokens or (32_768 if cuda else 8_192)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
        if not self.tokenizer.chat_template:
            raise ValueError(
                f"checkpoint {model} has no chat template: use an instruction-tuned checkpoint, or save a "
                "template with its tokenizer (chat_template.jinja)"
            )
        with undivided():
            loaded = AutoModelForCausalLM.from_pretrained(
                where, dtype=self.dtype, trust_remote_code=False, use_safetensors=True
            )
        self.model: Any = loaded.to(self.device).eval()  # type: ignore[arg-type]
        self._identity = {
            "engine": "transformers",
            "model": where,
            "state": checkpoint_state(where),
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        ends = self.model.generation_config.eos_token_id
        ends = self.tokenizer.eos_token_id if ends is None else ends
        self._ends: list[int] = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        pad = self.tokenizer.pad_token_id
        self._pad: int = pad if pad is not None else next(iter(self._ends), 0)
        self.model.generation_config = GenerationConfig()  # generate() would fill in the checkpoint's own
        self._context: int | None = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        """See :meth:`engines.types.Engine.chat`."""
        check_chats(chats)
        sampling = sampling or Sampling()
        if sampling.json_schema is not None:
            raise ValueError("the transformers engine has no JSON schemas: use choices, or a vllm/openai engine")
        results: dict[int, ChatResult] = {}

        def finish(index: int, result: ChatResult) -> None:
            results[index] = result
            if on_result is not None:
                on_result(index, result)

        rows: list[_Row] = []
        for index, chat in enumerate(chats):
            row = self._prepare(index, chat, sampling)
            if isinstance(row, ChatResult):
                finish(index, row)
            else:
                rows += [_Row(index, place, row.ids, row.room) for place in range(sampling.n)]
        samples: dict[int, dict[int, tuple[Sample, int]]] = {}
        for batch in self._batches(rows):
            for row, sample, count in self._generate(batch, chats, sampling):
                done = samples.setdefault(row.chat, {})
                done[row.place] = (sample, count)
                if len(done) == sampling.n:
                    ordered = [done[place] for place in range(sampling.n)]
                    finish(
                        row.chat,
                        ChatResult(
                            tuple(sample for sample, _ in ordered),
                            prompt_tokens=len(row.ids),
                            completion_tokens=sum(count for _, count in ordered),
                        ),
                    )
        return [results[index] for index in range(len(chats))]

    def close(self) -> None:
        """Free the weights; the engine cannot be used after that."""
        self.model = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _prepare(self, index: int, chat: Chat, sampling: Sampling) -> _Row | ChatResult:
        try:
            ids = prompt_ids(self.tokenizer, chat)
        except TemplateError as error:
            return ChatResult(error=f"the checkpoint's chat template does not take this chat: {error}")
        room = sampling.max_tokens if self._context is None else self._context - len(ids)
        if room < 1:
            return ChatResult(
                prompt_tokens=len(ids),
                error=f"the prompt has {len(ids)} tokens, the model holds {self._context}: shorten the chat",
            )
        return _Row(index, 0, ids, min(room, sampling.max_tokens))

    def _batches(self, rows: list[_Row]) -> Iterator[list[_Row]]:
        """Rows of like length and equal room together, the longest first, so that memory runs out early."""
        batch: list[_Row] = []
        for row in sorted(rows, key=lambda row: (-row.room, -len(row.ids))):
            full = batch and (len(batch) + 1) * (len(batch[0].ids) + row.room) > self.batch_tokens
            if batch and (full or batch[0].room != row.room):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _generate(self, rows: list[_Row], chats: Sequence[Chat], sampling: Sampling) -> list[tuple[_Row, Sample, int]]:
        """Generate one batch; halve it where the GPU's memory is too small for it."""
        try:
            return self._generate_fitting(rows, chats, sampling)
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        torch.cuda.empty_cache()
        log.info("%s: %d rows are too many for the memory, halving", self.name, len(rows))
        half = len(rows) // 2
        return self._generate(rows[:half], chats, sampling) + self._generate(rows[half:], chats, sampling)

    @torch.inference_mode()
    def _generate_fitting(
        self, rows: list[_Row], chats: Sequence[Chat], sampling: Sampling
    ) -> list[tuple[_Row, Sample, int]]:
        width = max(len(row.ids) for row in rows)
        ids_BT = torch.tensor([[self._pad] * (width - len(row.ids)) + row.ids for row in rows])
        mask_BT = torch.tensor([[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows])
        decoding = Decoding(
            sampling,
            width,
            [(chats[row.chat], row.place) for row in rows],
            choice_paths(self.tokenizer, sampling.choices, self._ends),
        )
        stops = Stops(self.tokenizer, sampling.stop, width, len(rows))
        out_BT = self.model.generate(
            input_ids=ids_BT.to(self.device),
            attention_mask=mask_BT.to(self.device),
            generation_config=GenerationConfig(
                max_new_tokens=rows[0].room,
                do_sample=False,  # where there is a draw, Decoding has made it
                eos_token_id=self._ends or None,
                pad_token_id=self._pad,
            ),
            logits_processor=[decoding] if decoding.needed else [],
            stopping_criteria=[stops] if sampling.stop else [],
        )
        logprobs = decoding.logprobs(out_BT)
        return [
            (row, *self._read(out_BT[at, width:].tolist(), stops.ended[at], sampling, logprobs, at, decoding))
            for at, row in enumerate(rows)
        ]

    def _read(
        self,
        ids: list[int],
        stopped: int | None,
        sampling: Sampling,
        logprobs: torch.Tensor | None,
        at: int,
        decoding: Decoding,
    ) -> tuple[Sample, int]:
        """Cut one row's new ids where its answer ended; returns the sample and its number of tokens."""
        ends = [place + 1 for place, token in enumerate(ids) if token in self._ends]
        count = min([len(ids), *ends[:1], *([stopped] if stopped is not None else [])])
        ids = ids[:count]
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        cuts = [found for stop in sampling.stop if (found := text.find(stop)) >= 0]
        text = text[: min(cuts)] if cuts else text
        ended = stopped is not None or (ids and ids[-1] in self._ends)
        if sampling.choices and text.strip() in sampling.choices:
            text = text.strip()  # some tokenizers begin every text with a blank
        tokens = None
        if logprobs is not None:
            tokens = tuple(
                Token(
                    self.tokenizer.decode([token]),
                    float(value),
                    tuple((self.tokenizer.decode([other]), p) for other, p in decoding.top(at, place)),
                )
                for place, (token, value) in enumerate(zip(ids, logprobs[at, :count].tolist(), strict=True))
            )
        return Sample(text, "stop" if ended else "length", tokens), count
