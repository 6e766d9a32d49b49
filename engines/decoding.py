"""Inside a decoding loop: draws that do not depend on the batch, choices, stop strings, log-probabilities.

``transformers`` draws a whole batch from one random stream, so a row's text changes with its neighbours.
Here every row has a stream of its own (seed, messages, sample number) and is drawn by inverting the
cumulative distribution, one number per token; ``generate`` then takes the arg max of what is left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, StoppingCriteria, TopPLogitsWarper

from engines.types import Chat, Sampling, chat_seed

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
            np.random.default_rng(None if seed is None else chat_seed(seed, chat, place))
            for chat, place in rows
        ]
        self._warper = TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1 else None
        self._before_BV: torch.Tensor | None = (
            None  # log-probabilities of the step whose token is not known yet
        )
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
                text = self.tokenizer.decode(
                    ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
                if any(string in text for string in self.strings):
                    self.ended[at] = new_BT.shape[1]
        return torch.tensor([end is not None for end in self.ended], device=input_ids.device)
