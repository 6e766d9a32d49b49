"""Which token is paid for which sentence: exact offsets from completion ids, group statistics, advantages.

Pure functions. Nothing is ever re-encoded: the ids that were sampled are decoded in order, and each piece of text is
counted towards the ids that made it. Leaves out where the sentences and their rewards come from
(`mitigate/rewards/reward.py`) and the trainers (`grpo.py`, `dpo.py`).

Dimension suffixes: _B completions, _A aspects, _S segments of one completion, _T tokens of one completion.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from mitigate.rewards.segments import Segment

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EosCredit = Literal["none", "last", "sequence"]
Baseline = Literal["group", "position"]
Scale = Literal["group", "batch", "none"]
_IS_SPACE = np.array([chr(i).isspace() for i in range(0x3002)])  # the last white space is U+3000
ZERO_STD = 1e-6  # rewards that differ by rounding only are equal


@dataclass(frozen=True)
class Credit:
    """How segment rewards become advantages of tokens; the defaults were chosen on toys (`benchmarks/token_credit.py`).

    ``rollouts``, where above 0, takes the place of all others but ``clip`` in training: so many continuations from the
    end of each segment say what the answer is worth there (`step_advantages`).
    """

    gamma: float = 0.0  # γ in [0, 1]: 0 pays a token for its own segment only, 1 for its own and all later ones
    sequence_share: float = 0.2  # w_seq in [0, 1], of the segments' credit, goes to the whole sequence instead
    # The end token gets "none": what tokens outside segments get; "last": the last segment's credit too; "sequence":
    # the sequence's advantage by all functions, and nothing else.
    eos: EosCredit = "sequence"
    thinking: Literal["none", "sequence"] = "sequence"  # likewise, of the tokens before the first segment
    baseline: Baseline = "position"  # a segment is compared with all of its group, or those in its place
    clip: float | None = 5.0  # bound of every advantage: one false sentence among 128 has −11 otherwise; None: no bound
    rollouts: int = 0

    def __post_init__(self) -> None:
        for name in ("gamma", "sequence_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: expected a number in [0, 1], got {getattr(self, name)}")
        for name, known in (
            ("eos", get_args(EosCredit)), ("thinking", ("none", "sequence")), ("baseline", get_args(Baseline)),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {known}, got {getattr(self, name)!r}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip: expected a number above 0, or None, got {self.clip}")
        if self.rollouts < 0:
            raise ValueError(f"rollouts: expected a number from 0 on, got {self.rollouts}")


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that `decode(..., skip_special_tokens=True)` leaves out."""
    return frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def token_spans(
    tokenizer: Tokenizer, ids: Sequence[int], special: frozenset[int] | None = None
) -> tuple[str, np.ndarray]:
    """Decode `ids`, which have no padding, in order and find which characters each token touches.

    `tokenizer` is the Rust one (`PreTrainedTokenizerFast.backend_tokenizer`), `special` its `special_ids`, if known.

    Returns:
        The text without special tokens, and spans_T2: code-point offsets [start, end) of the characters that the
        token holds or holds a part of. Tokens that share a character overlap there. A token that decodes to
        nothing has the span of the next token with text; special tokens have an empty one.
    """
    special = special_ids(tokenizer) if special is None else special
    places = None if special.isdisjoint(ids) else [t for t, token in enumerate(ids) if token not in special]
    kept = list(ids) if places is None else [ids[t] for t in places]
    text = tokenizer.decode(kept)
    found = _stream(tokenizer, kept)
    if found is None or found[0] != text:
        found = _byte_runs(tokenizer, kept)
    if found[0] != text:  # the decoder strips more than the stream knows of: every prefix is decoded, slow and exact
        found = text, _spans_inside(tokenizer, [], kept, text)
    kept_spans_T2 = found[1]
    for t in np.flatnonzero(kept_spans_T2[:-1, 0] == kept_spans_T2[:-1, 1])[::-1]:  # no text: goes with the next token
        kept_spans_T2[t] = kept_spans_T2[t + 1]
    if places is None:
        return text, kept_spans_T2
    ends_T = np.zeros(len(ids) + 1, dtype=np.int64)  # a special token sits where the text before it ends
    ends_T[[t + 1 for t in places]] = kept_spans_T2[:, 1]
    spans_T2 = np.repeat(np.maximum.accumulate(ends_T)[:-1, None], 2, axis=1)
    spans_T2[places] = kept_spans_T2
    return text, spans_T2


def _stream(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, np.ndarray] | None:
    """Text and spans of ids without special tokens, in one pass; None where the decoder takes back what it gave."""
    from tokenizers.decoders import DecodeStream

    step = DecodeStream().step
    try:
        pieces = [step(tokenizer, token) for token in ids]  # None: no whole character yet
    except Exception:  # tokenizers raises nothing more precise ("Invalid prefix encountered")
        return None
    ends_T = np.cumsum([len(piece or "") for piece in pieces], dtype=np.int64)
    spans_T2 = np.stack([np.append(0, ends_T)[:-1], ends_T], axis=1)
    text = "".join(filter(None, pieces))
    first = before = 0  # where the piece at hand and the piece before it begin
    for t in [k for k, piece in enumerate(pieces) if piece is None]:
        if t < first:
            continue
        before = before if t == first else t - 1  # t == first: a piece of several tokens comes just before
        last = next((k for k in range(t, len(ids)) if pieces[k] is not None), None)
        if last is None:  # the completion was cut inside a character
            piece, start = tokenizer.decode(ids[before:])[len(tokenizer.decode(ids[before:t])) :], len(text)
            text += piece
        else:
            piece, start = pieces[last] or "", spans_T2[last, 0]
        end = len(ids) if last is None else last + 1
        spans_T2[t:end] = _spans_inside(tokenizer, ids[before:t], ids[t:end], piece) + start
        first, before = end, t
    return text, spans_T2


def _byte_runs(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, np.ndarray]:
    """As `_stream`, for SentencePiece's byte fallback: one bad byte turns its whole run of byte tokens into "�"."""
    is_byte = [bool(re.fullmatch(r"<0x[0-9A-F]{2}>", tokenizer.id_to_token(i) or "")) for i in ids]
    cuts = [t for t in range(len(ids)) if not (t and is_byte[t] and is_byte[t - 1])] + [len(ids)]
    spans_T2, text, before = np.zeros((len(ids), 2), dtype=np.int64), "", 0
    for start, end in itertools.pairwise(cuts):
        piece = tokenizer.decode(ids[before:end])[len(tokenizer.decode(ids[before:start])) :]
        if end - start > 1 and piece == "�" * (end - start):
            inside = np.arange(end - start)[:, None] + [0, 1]
        else:
            inside = _spans_inside(tokenizer, ids[before:start], ids[start:end], piece)
        spans_T2[start:end] = inside + len(text)
        text, before = text + piece, start
    return text, spans_T2


def _spans_inside(tokenizer: Tokenizer, context: list[int], chunk: list[int], piece: str) -> np.ndarray:
    """Spans (len(chunk), 2) inside `piece`, the text that several tokens made together."""
    if len(piece) <= 1:
        return np.array([[0, len(piece)]] * len(chunk), dtype=np.int64)
    before = len(tokenizer.decode(context))
    spans, done = [], 0  # done: whole characters so far
    for k in range(1, len(chunk) + 1):
        prefix = tokenizer.decode(context + chunk[:k])[before:]
        start = done
        while done < min(len(prefix), len(piece)) and prefix[done] == piece[done]:
            done += 1
        unfinished = len(prefix) > done  # what follows is no character of the piece yet
        end = min(done + unfinished, len(piece))
        if start == end and piece[:done].endswith("�"):  # one more byte of a character that never got whole
            start -= 1
        spans.append((start, end))
    return np.array(spans, dtype=np.int64)


def anchors(text: str, spans_T2: np.ndarray) -> np.ndarray:
    """The character that decides whose a token is: its last one that is no white space, else its last one.

    Returns anchors_T, offsets into `text`; -1 for tokens without text.
    """
    if not text:
        return np.full(len(spans_T2), -1)
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    place = np.arange(len(codes))
    solid = np.maximum.accumulate(np.where(_IS_SPACE[np.minimum(codes, 0x3001)], -1, place))
    starts_T, ends_T = spans_T2.T
    anchors_T = solid[np.maximum(ends_T - 1, 0)]
    return np.where(ends_T == starts_T, -1, np.where(anchors_T >= starts_T, anchors_T, ends_T - 1))


def owners(anchors_T: np.ndarray, offsets_S2: Sequence[tuple[int, int]]) -> np.ndarray:
    """Index in [0, S) of the segment that holds each token's anchor, (T,); -1 for tokens outside all segments.

    ``offsets_S2`` are [start, end) of each segment, in order, not overlapping.
    """
    if not offsets_S2:
        return np.full(len(anchors_T), -1)
    starts_S, ends_S = np.array(offsets_S2).T
    owners_T = np.searchsorted(starts_S, anchors_T, side="right") - 1
    return np.where((owners_T >= 0) & (anchors_T < ends_S[owners_T]), owners_T, -1)


def locate(text: str, decoded: str, segments: Sequence[Segment]) -> list[tuple[int, int]] | None:
    """Offsets of the segments of `text` inside the decoded completion; None where it does not contain the text.

    The two differ where a response template takes thinking or markers away, strips, or cleans up spaces. They are
    matched on their characters other than white space; where `text` occurs twice, at its last place (the answer
    comes after the thinking). Raises ValueError where a segment ends after `text`.
    """
    if segments and segments[-1].end > len(text):
        raise ValueError(
            f"a segment ends at character {segments[-1].end} of a completion of {len(text)} characters; segments are "
            f"code-point offsets into the completion's text: {text[:80]!r}"
        )
    if (at := decoded.rfind(text)) >= 0:
        return [(s.start + at, s.end + at) for s in segments]
    place = [i for i, c in enumerate(decoded) if not c.isspace()]
    first = "".join(decoded.split()).rfind("".join(text.split()))
    if first < 0:
        return None
    solid = np.cumsum([0] + [not c.isspace() for c in text])  # characters before each place
    ends = [(first + solid[s.start], first + solid[s.end]) for s in segments]
    return [(place[a], place[b - 1] + 1) if a < b else (0, 0) for a, b in ends]


def standardised(
    rewards: Sequence[Sequence[float | None]], group_size: int, scale: Scale = "group", baseline: Baseline = "group"
) -> tuple[np.ndarray, np.ndarray]:
    """Segment rewards of one aspect, standardised over all judged segments of their prompt's group.

        r̃_j = (r_j − b_j) / std,  b_j = mean ("group") or (Σ r_j + mean) / (n_j + 1) ("position")

    where Σ r_j runs over the n_j judged j-th segments of the group. Later sentences are harder: measured against the
    mean of all, they look bad however good they are for their place, and answers shrink. The mean counts as one reward
    of each place, so that a segment that only one answer has is not its own baseline.

    Args:
        rewards: Rewards of each completion's segments, in order; all ranks, rows of one prompt next to each other.
        group_size: Completions of one prompt; divides their number.
        scale: Standard deviation of the "group", of all segments of the "batch", or "none" = 1 (as `scale_rewards`).
        baseline: Which b_j is subtracted.

    Returns:
        r̃_BS, 0 for what was not judged and where std is 0 (below ZERO_STD), and std_B, the sample deviation (n − 1, as
        TRL's), 0 where fewer than two were judged.

    Source: Shao et al. 2024 §4.1.3 (mean and std over all step rewards of the group); the baseline by place is ours.
    """
    width = max([1, *map(len, rewards)])
    table_BS = np.full((len(rewards), width), np.nan)
    for row, own in zip(table_BS, rewards, strict=True):
        row[: len(own)] = [np.nan if r is None else r for r in own]
    groups_GNS = np.ma.masked_invalid(table_BS).reshape(-1, group_size, width)
    flat = groups_GNS.reshape(len(groups_GNS), -1)
    base = mean_G11 = flat.mean(axis=1).reshape(-1, 1, 1)
    if baseline == "position":
        sums_G1S, counts_G1S = groups_GNS.sum(axis=1, keepdims=True), groups_GNS.count(axis=1, keepdims=True)
        base = (sums_G1S.filled(0.0) + mean_G11) / (counts_G1S + 1)
    std_G = np.ma.filled(flat.std(axis=1, ddof=1), 0.0)
    if scale == "batch":
        std_G = np.full_like(std_G, np.ma.filled(flat.std(ddof=1), 0.0))
    elif scale == "none":
        std_G = np.ones_like(std_G)
    std_B = np.repeat(std_G, group_size)
    out = np.ma.filled(groups_GNS - base, 0.0).reshape(table_BS.shape) / np.maximum(std_B, ZERO_STD)[:, None]
    return np.where(std_B[:, None] < ZERO_STD, 0.0, out), std_B


def sequence_advantages(
    rewards_BF: np.ndarray, weights_F: np.ndarray, group_size: int, scale: Scale = "group", *, each: bool = False
) -> np.ndarray:
    """Advantages (B,) of whole completions by some reward functions alone, as TRL computes them for all.

        A_b = (R_b − mean of its group) / (std + 1e-4),  R_b = Σ_f w_f r_bf

    It is 0 where no function had an opinion.

    Args:
        rewards_BF: Rewards of all ranks, NaN for None; rows of one prompt next to each other.
        weights_F: `reward_weights` of these functions.
        group_size: Completions of one prompt; divides B.
        scale: As in `standardised`.
        each: Every function is normalised by its group first, the sum by the batch (GDPO, `normalize_then_sum`).
    """

    def standard(values: np.ma.MaskedArray, axis: int, over: int | None) -> np.ma.MaskedArray:
        if scale == "none" and not each:
            return values - values.mean(axis, keepdims=True)
        std = np.ma.filled(values.std(over, ddof=1, keepdims=True), 1.0)  # of one value: it is its own mean
        return (values - values.mean(axis, keepdims=True)) / (std + 1e-4)

    rewards = np.ma.masked_invalid(np.asarray(rewards_BF, dtype=np.float64))
    if each:
        rewards = standard(rewards.reshape(-1, group_size, len(weights_F)), 1, 1).reshape(rewards.shape)
    totals = (rewards * weights_F).sum(axis=1)
    totals = totals[None] if each else totals.reshape(-1, group_size)
    return np.asarray(standard(totals, 1, None if scale == "batch" else 1).filled(0.0)).reshape(-1)


def cuts_of(owners_T: np.ndarray) -> list[int]:
    """Tokens before the end of each segment that owns one, in order, without the end of the completion."""
    ends = {owner: t for t, owner in enumerate(owners_T.tolist(), start=1) if owner >= 0}
    return sorted(end for end in ends.values() if end < len(owners_T))


def step_advantages(
    totals_B: np.ndarray, values: Sequence[Sequence[float]], group_size: int, scale: Scale = "group"
) -> list[np.ndarray]:
    """Advantages of the steps that each completion is cut into: what the step changed in the expected reward.

        A_k = (V_k − V_{k−1}) / (std + 1e-4),  V_0 = mean reward of the group,  V_n = own reward

    They are 0 where a completion has no reward, and where std is 0 (below ZERO_STD).

    Args:
        totals_B: Rewards of whole completions of all ranks, NaN for none; rows of one prompt next to each other.
        values: V_1 … V_{n−1} of each completion, the mean rewards of continuations; NaN where none was scored: what
            happened there counts for the next step.
        group_size: Completions of one prompt; divides B.
        scale: As in `standardised`, of V_1 … V_n of all completions: whole answers of equal reward may differ on the
            way, which a deviation of theirs alone would blow up.

    Source: Kazemnejad et al. 2025 (VinePPO), Guo et al. 2025 (SPO); the group's mean as V_0 as in GRPO.
    """
    groups_GN = np.ma.masked_invalid(np.asarray(totals_B, dtype=np.float64)).reshape(-1, group_size)
    mean_B = np.repeat(groups_GN.mean(axis=1).filled(0.0), group_size)
    known = [np.array([*inner, total_b]) for inner, total_b in zip(values, totals_B, strict=True)]
    size = len(known) if scale == "batch" else group_size
    pools = [np.concatenate(known[first : first + size]) for first in range(0, len(known), size)]
    pools = [pool[~np.isnan(pool)] for pool in pools]
    std_B = np.repeat([pool.std(ddof=1) if len(pool) > 1 else 0.0 for pool in pools], size)
    over_B = np.ones(len(known)) if scale == "none" else np.where(std_B < ZERO_STD, np.inf, std_B + 1e-4)
    out = []
    for total_b, mean, over, inner in zip(totals_B, mean_B, over_B, values, strict=True):
        line = [mean]
        for value in (*inner, total_b):
            line.append(line[-1] if np.isnan(value) else value)
        out.append(np.zeros(len(line) - 1) if np.isnan(total_b) else np.diff(line) / over)
    return out


def returns(rewards_S: np.ndarray, gamma: float) -> np.ndarray:
    """G_j = Σ_{k ≥ j} γ^(k−j) r̃_k, shape (S,)."""
    out, later = np.zeros(len(rewards_S)), 0.0
    for j in reversed(range(len(rewards_S))):
        out[j] = later = rewards_S[j] + gamma * later
    return out


def row_advantages(
    decoded: str,
    anchors_T: np.ndarray,
    text: str,
    parts: Sequence[tuple[Sequence[Segment], float, np.ndarray]],
    shared: tuple[float, float, float],
    ends: bool,
    credit: Credit,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Advantages of one completion's tokens, and which of them a segment owns; None where `text` is not in `decoded`.

        A_t = A_plain + w_seq A_seg + (1 − w_seq) Σ_a w_a Σ_{k ≥ j(t)} γ^(k−j(t)) r̃_k

    So a function without segments acts on every token, and one with segments counts once.

    Args:
        decoded: What the ids decode to.
        anchors_T: Offsets into it, as `anchors` returns them.
        text: The completion's text, into which segments are offsets.
        parts: For each aspect its segments, its weight and their standardised rewards r̃.
        shared: The sequence's advantage by the functions without segments (A_plain), by those with (A_seg), by all.
        ends: Whether the last token ends the sequence.
        credit: γ, w_seq, the credit of the end-of-sequence token and of the tokens before the first segment, the bound.
    """
    plain, whole, every = shared
    out_T = np.full(len(anchors_T), plain + credit.sequence_share * whole)
    inside_T = np.zeros(len(anchors_T), dtype=bool)
    for segments, weight, rewards_S in parts:
        if (places := locate(text, decoded, segments)) is None:
            return None
        owners_T = owners(anchors_T, places)
        if ends and credit.eos == "last":
            owners_T[-1] = len(segments) - 1
        returns_S = returns(rewards_S[: len(segments)], credit.gamma)
        own_T = np.append(returns_S, 0.0)[owners_T]  # 0 outside segments: owner -1 takes the last
        out_T += (1 - credit.sequence_share) * weight * own_T
        inside_T |= owners_T >= 0
    if parts and credit.thinking == "sequence":
        out_T[: inside_T.argmax() if inside_T.any() else len(out_T) - ends] = every
    if ends and credit.eos == "sequence":
        out_T[-1] = every
    return np.clip(out_T, -(credit.clip or np.inf), credit.clip), inside_T
