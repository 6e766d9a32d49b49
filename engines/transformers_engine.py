"""A local checkpoint through ``transformers``: length-bucketed batches, left padding, the chat template.

Only what :class:`~engines.types.Sampling` says shapes the draw: sampling defaults in the checkpoint's
generation_config.json are left out (its end-of-text tokens are kept). ``transformers`` draws a whole batch from
one random stream, so that a row's text changes with its neighbours; here every row has a stream of its own (seed,
messages, sample number), and in float32 neither the drawn nor the greedy text depends on the batch. In bfloat16
the last bits of the logits change with the padding, so near-ties may fall the other way.

Left out: several devices for one model and quantisation (use ``vllm`` or a server), JSON schemas.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

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

from engines.checkpoint import checkpoint_identity, locate, not_partitioned, own_code, prompt_ids
from engines.types import Chat, ChatResult, OnResult, Sample, Sampling, Token, chat_seed, check_chats

log = logging.getLogger(__name__)
Dtype = Literal["auto", "float32", "bfloat16"]
Paths = dict[tuple[int, ...], list[int]]


class _Row(NamedTuple):
    """One sequence to generate: sample ``place`` of chat ``number``, at most ``room`` new tokens after ``ids``."""

    number: int
    chat: Chat
    place: int
    ids: list[int]
    room: int


class _Decoding(LogitsProcessor):
    """Turns logits (B, V) into scores whose arg max is the drawn token, and keeps log-probabilities."""

    def __init__(self, sampling: Sampling, width: int, rows: Sequence[_Row], paths: Paths) -> None:
        # ``width``: tokens of the padded prompts. ``paths``: beginning of an allowed text → the ids that may follow.
        self.sampling, self.width, self.paths = sampling, width, paths
        seed = sampling.seed
        self._streams = [
            np.random.default_rng(None if seed is None else chat_seed(seed, row.chat, row.place)) for row in rows
        ]
        self._warper = TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1 else None
        self._before_BV: torch.Tensor | None = None  # log-probabilities of the step whose token is not known yet
        self._known: list[torch.Tensor] = []
        self.top: list[list[list[tuple[int, float]]]] = []  # step, row: the likeliest tokens (id, log-probability)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """One step: ``input_ids`` (B, T) so far, ``scores`` (B, V) raw logits of the next token."""
        if self.sampling.logprobs:
            self._settle(input_ids)
            self._before_BV = torch.log_softmax(scores.float(), dim=-1)
            values_BK, ids_BK = self._before_BV.topk(min(self.sampling.top_logprobs, scores.shape[-1]), dim=-1)
            pairs = zip(ids_BK.tolist(), values_BK.tolist(), strict=True)
            self.top.append([list(zip(ids, values, strict=True)) for ids, values in pairs])
        if self.paths:
            allowed_BV = torch.zeros_like(scores, dtype=torch.bool)
            for at, ids in enumerate(input_ids[:, self.width :].tolist()):
                follow = self.paths.get(tuple(ids))
                allowed_BV[at, slice(None) if follow is None else follow] = True  # None: this row has ended
            scores = scores.masked_fill(~allowed_BV, -torch.inf)
        if self.sampling.temperature == 0:
            return scores
        scaled_BV = scores.float() / self.sampling.temperature
        if self._warper is not None:
            scaled_BV = self._warper(input_ids, scaled_BV)
        # The drawn token is the first at which the cumulative distribution exceeds the row's number in [0, 1).
        cumulative_BV = torch.softmax(scaled_BV, dim=-1).double().cumsum(dim=-1)
        numbers = [stream.random(dtype=np.float32) for stream in self._streams]
        uniform_B1 = torch.tensor(numbers, dtype=torch.float64, device=scores.device)[:, None]
        drawn_B1 = torch.searchsorted(cumulative_BV, uniform_B1 * cumulative_BV[:, -1:], right=True)
        drawn_B1 = drawn_B1.clamp_(max=scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn_B1, 0.0)

    def _settle(self, input_ids: torch.Tensor) -> None:
        if self._before_BV is not None:
            self._known.append(self._before_BV.gather(1, input_ids[:, -1:]))
            self._before_BV = None

    def logprobs(self, output_ids: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, new tokens) under the model itself; beyond a row's end they mean nothing."""
        self._settle(output_ids)
        return torch.cat(self._known, dim=1)


class _Stops(StoppingCriteria):
    """Ends a row when one of the strings is generated; ``ended`` holds the new tokens of each row then, or None."""

    def __init__(self, tokenizer: Any, strings: tuple[str, ...], width: int, rows: int) -> None:
        self.tokenizer, self.strings, self.width = tokenizer, strings, width
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


class TransformersEngine:
    """Chat generation with a causal language model in this process.

    ``model`` is a folder or hub id of a safetensors checkpoint with a chat template; ``device`` None takes cuda where
    there is one; ``dtype`` "auto" is bfloat16 on cuda and float32 elsewhere. A batch has at most ``batch_tokens`` (rows
    × (longest prompt + new tokens)), None is 32,768 on cuda and 8,192 elsewhere; one too large for the GPU's memory is
    halved. ``trust_remote_code`` runs the Python files that come with the checkpoint.

    Raises:
        OSError: There is no such checkpoint.
        ValueError: The tokenizer has no chat template, an option is not known, or the checkpoint brings code.
        ImportError: The code of the checkpoint, or its tokenizer, needs a package that is not installed.
    """

    def __init__(
        self, model: str, *, device: str | None = None, dtype: Dtype = "auto", batch_tokens: int | None = None,
        trust_remote_code: bool = False,
    ) -> None:  # fmt: skip
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
        self.identity = {
            "engine": "transformers", **checkpoint_identity(model, where),
            "dtype": str(self.dtype).removeprefix("torch."),
        }  # fmt: skip
        ends = self.model.generation_config.eos_token_id
        ends = self.tokenizer.eos_token_id if ends is None else ends
        self._ends: list[int] = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        pad = self.tokenizer.pad_token_id
        self._pad: int = pad if pad is not None else next(iter(self._ends), 0)
        self.model.generation_config = GenerationConfig()  # generate() would fill in the checkpoint's own
        self._context: int | None = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

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
            try:
                ids = prompt_ids(self.tokenizer, chat)
            except TemplateError as error:
                finish(index, ChatResult(error=f"the checkpoint's chat template does not take this chat: {error}"))
                continue
            room = min(sampling.max_tokens, (self._context or len(ids) + sampling.max_tokens) - len(ids))
            if room < 1:
                text = f"the prompt has {len(ids)} tokens, the model holds {self._context}: shorten the chat"
                finish(index, ChatResult(prompt_tokens=len(ids), error=text))
                continue
            rows += [_Row(index, chat, place, ids, room) for place in range(sampling.n)]
        samples: dict[int, dict[int, tuple[Sample, int]]] = {}
        for batch in self._batches(rows):
            for row, made in zip(batch, self._generate(batch, sampling), strict=True):
                done = samples.setdefault(row.number, {})
                done[row.place] = made
                if len(done) == sampling.n:
                    in_order, counts = zip(*(done[place] for place in range(sampling.n)), strict=True)
                    finish(row.number, ChatResult(in_order, len(row.ids), sum(counts)))
        return [results[index] for index in range(len(chats))]

    def close(self) -> None:
        """Free the weights; the engine cannot be used after that."""
        self.model = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

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

    def _generate(self, rows: list[_Row], sampling: Sampling) -> list[tuple[Sample, int]]:
        """Each row's sample and number of tokens; a batch too large for the GPU's memory is halved."""
        try:
            return self._generate_fitting(rows, sampling)
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        torch.cuda.empty_cache()
        log.info("%s: %d rows are too many for the memory, halving", self.name, len(rows))
        half = len(rows) // 2
        return self._generate(rows[:half], sampling) + self._generate(rows[half:], sampling)

    @torch.inference_mode()
    def _generate_fitting(self, rows: list[_Row], sampling: Sampling) -> list[tuple[Sample, int]]:
        width = max(len(row.ids) for row in rows)
        ids_BT = torch.tensor([[self._pad] * (width - len(row.ids)) + row.ids for row in rows])
        mask_BT = torch.tensor([[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows])
        decoding = _Decoding(sampling, width, rows, self._choice_paths(sampling.choices))
        stops = _Stops(self.tokenizer, sampling.stop, width, len(rows))
        out_BT = self.model.generate(
            input_ids=ids_BT.to(self.device),
            attention_mask=mask_BT.to(self.device),
            generation_config=GenerationConfig(
                max_new_tokens=rows[0].room,
                do_sample=False,  # where there is a draw, _Decoding has made it
                eos_token_id=self._ends or None,
                pad_token_id=self._pad,
            ),
            logits_processor=[decoding],
            stopping_criteria=[stops] if sampling.stop else [],
        )
        logprobs = decoding.logprobs(out_BT).tolist() if sampling.logprobs else None
        made = []
        for at, (new, stopped) in enumerate(zip(out_BT[:, width:].tolist(), stops.ended, strict=True)):
            ends = [place + 1 for place, token in enumerate(new) if token in self._ends]
            ids = new[: min([len(new), *ends[:1], *([stopped] if stopped is not None else [])])]
            text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            cuts = [found for stop in sampling.stop if (found := text.find(stop)) >= 0]
            text = text[: min(cuts)] if cuts else text
            if sampling.choices and text.strip() in sampling.choices:
                text = text.strip()  # some tokenizers begin every text with a blank
            tokens = None
            if logprobs is not None:
                tokens = tuple(
                    Token(
                        self.tokenizer.decode([token]),
                        value,
                        tuple((self.tokenizer.decode([other]), p) for other, p in step[at]),
                    )
                    for token, value, step in zip(ids, logprobs[at], decoding.top, strict=False)
                )
            ended = stopped is not None or (ids and ids[-1] in self._ends)
            made.append((Sample(text, "stop" if ended else "length", tokens), len(ids)))
        return made

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
