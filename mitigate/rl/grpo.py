"""GRPO with advantages per token, from the sentences that a reward function judged.

    SentenceGRPOTrainer(model, reward_funcs=SentenceReward(...), args=GRPOConfig(...), train_dataset=...)

Everything else is TRL's: generation (vLLM modes included), loss types, LoRA, DeepSpeed, evaluation, logging. The
one thing changed is `advantages` in what `_generate_and_score_completions` returns, from (B,) to (B, T). Reward
functions that return plain numbers work beside it and act on every token, as in TRL's own trainer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from transformers import GenerationConfig

from engines.transformers_engine import CACHE
from mitigate.rewards.inputs import completion_text
from mitigate.rewards.segments import SentenceScore
from mitigate.rl.credit import (
    ZERO_STD,
    Credit,
    anchors,
    cuts_of,
    locate,
    owners,
    row_advantages,
    sequence_advantages,
    special_ids,
    standardised,
    step_advantages,
    token_spans,
)

try:
    import trl
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise ImportError("mitigate.rl.grpo needs TRL: pip install 'hallucination-toolkit[trl]'") from error

Aspect = tuple[int, str]  # index of the reward function, name of the aspect


class SharedPromptTrainer(GRPOTrainer):
    """TRL's trainer; where ``share_prompts`` is set, a prompt is read once for all its answers, sampled and trained on.

    The log-probabilities are the same but for rounding. It pays where prompts are longer than answers; groups stay
    together where a device takes all answers of a step at once. For text and models with attention in every layer,
    without gradient checkpointing or a cache of another kind; the rest is read as TRL reads it.
    """

    share_prompts = False

    def __init__(self, model: Any, reward_funcs: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, reward_funcs, *args, **kwargs)
        for func in self.reward_funcs:
            if tell := getattr(func, "ended_by", None):  # which tells what was cut off
                tell(self.eos_token_ids)

    def _shares(self, model: Any, before: int) -> bool:
        """Whether the first ``before`` tokens of all rows can be read apart."""
        module = self.accelerator.unwrap_model(model)
        kinds = set(getattr(module.config.get_text_config(), "layer_types", None) or ())
        whole = kinds <= {"full_attention", "sliding_attention"} and not getattr(module, "_is_stateful", False)
        return self.share_prompts and before > 0 and whole and not self.args.gradient_checkpointing

    def _generate_single_turn(self, *args: Any, **more: Any) -> Any:
        """TRL's, with the keys and values of all but the last token of each prompt given to ``generate``."""
        if not self.share_prompts:
            return super()._generate_single_turn(*args, **more)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        own, instance = model.generate, vars(model).get("generate")

        def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor, **how: Any) -> Any:
            before, settings = input_ids.shape[1] - 1, (how.get("generation_config"), model.generation_config)
            cached = all(c and c.cache_implementation is None and c.use_cache is not False for c in settings)
            if how.keys() == {"generation_config"} and cached and self._shares(model, before):
                # By `generate` itself, which counts positions from the first token that is no padding.
                one = GenerationConfig(
                    max_new_tokens=1, pad_token_id=self._tokenizer.pad_token_id, return_dict_in_generate=True
                )
                how[CACHE] = _read_once(
                    functools.partial(own, generation_config=one), input_ids[:, :before], attention_mask[:, :before]
                )
            return own(input_ids=input_ids, attention_mask=attention_mask, **how)

        model.generate = generate
        try:
            return super()._generate_single_turn(*args, **more)
        finally:
            del model.generate
            if instance is not None:  # somebody's own
                model.generate = instance

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int,
        batch_size: int | None = None, **more: Any,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """TRL's: log-probabilities of the last ``logits_to_keep`` tokens, (B, logits_to_keep); entropies; MoE loss."""
        before = input_ids.shape[1] - logits_to_keep - 1  # the last token of a prompt is read with the answer
        other = any(x is not None and x is not False for name, x in more.items() if name != "compute_entropy")
        if other or not self._shares(model, before):  # images, or the loss of experts
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **more
            )
        rows = [x.split(batch_size or len(input_ids)) for x in (input_ids, attention_mask)]
        read = [self._sharing(model, ids_BT, mask_BT, before) for ids_BT, mask_BT in zip(*rows, strict=True)]
        logps, entropies = (torch.cat(parts) for parts in zip(*read, strict=True))
        return logps, entropies if more.get("compute_entropy") else None, None

    def _sharing(
        self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, before: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of what follows ``before`` + 1 tokens; distinct ones are read once."""
        with self.accelerator.autocast():
            asked = functools.partial(model, use_cache=True, logits_to_keep=1)
            cache = _read_once(asked, ids_BT[:, :before], mask_BT[:, :before])
            labels = ids_BT[:, before:].masked_fill(mask_BT[:, before:] == 0, -100)
            given = {"input_ids": ids_BT[:, before:], "attention_mask": mask_BT, CACHE: cache}
            out = model(**given, labels=labels, fused_lm_head=True)
        return out.log_probs, out.entropy


def _read_once(read: Callable[..., Any], ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> Any:
    """Keys and values that ``read`` finds for rows of which several are equal; each is read once."""
    distinct, index_B = torch.stack([ids_BT, mask_BT], dim=1).unique(dim=0, return_inverse=True)
    cache = read(input_ids=distinct[:, 0], attention_mask=distinct[:, 1])[CACHE]
    cache.batch_select_indices(index_B)
    return cache


class SentenceGRPOTrainer(SharedPromptTrainer):
    """GRPOTrainer that credits every token with the reward of its own sentence.

    Args (the others are GRPOTrainer's):
        reward_funcs: At least one returns `list[SentenceScore | None]`.
        args: `importance_sampling_level` must be "token". `scale_rewards` and `reward_weights` hold for segments too.
        credit: How rewards of sentences become advantages of tokens.

    Raises:
        ValueError: A setting under which token-level advantages would be wrong, or a slow tokenizer.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *,
        credit: Credit | None = None,
        **kwargs: Any,
    ) -> None:
        if args is not None and args.importance_sampling_level != "token":
            raise ValueError(
                f"importance_sampling_level={args.importance_sampling_level!r} multiplies one ratio of the whole "
                'sequence with advantages of tokens, which shrinks a token\'s gradient to 1/T of it: set it to "token"'
            )
        self.credit = credit or Credit()
        # Of this batch: what the reward functions returned, by their index; completions and ids that they were asked
        # about; (B of all ranks, functions) their rewards, NaN for None.
        self._scored: dict[int, list[Any]] = {}
        self._asked: tuple[Sequence[Any], Sequence[Sequence[int]]] = ((), ())
        self._rewards: Any = None
        self._placed: list[tuple[np.ndarray, list[str]]] = []  # of each completion whose its tokens are, and sentences
        if reward_funcs is not None:
            funcs = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
            reward_funcs = [self._recorded(i, func) for i, func in enumerate(funcs)]
        super().__init__(model, reward_funcs, args, **kwargs)
        tokenizer: Any = self._tokenizer
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise ValueError(
                f"token credit needs a fast tokenizer, got {type(tokenizer).__name__}: load it with AutoTokenizer, or "
                "convert it to a tokenizer.json"
            )
        self._fast = tokenizer.backend_tokenizer
        self._special = special_ids(self._fast)
        self._eos = set(self.eos_token_ids)
        others = self.tools or self.environment_factories or self.rollout_func or parses(tokenizer)
        if self.credit.rollouts and others:
            raise ValueError(
                "rollouts continue an answer that is one text: they need no tools, environment or rollout_func, and a "
                "tokenizer without response_template and response_schema; leave them out, or set rollouts to 0"
            )

    def _recorded(self, index: int, func: Any) -> Any:
        """The reward function, whose last return value is kept."""
        if not callable(func) or isinstance(func, torch.nn.Module):  # a model, or its name, gives plain numbers
            return func

        def keep(scores: Any) -> list[Any]:
            self._scored[index] = list(scores)
            return self._scored[index]

        called = func.func if isinstance(func, functools.partial) else func
        wrapper: Callable[..., Any]
        if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__):

            async def wrapper(**kwargs: Any) -> list[Any]:
                return keep(await func(**kwargs))
        else:

            def wrapper(**kwargs: Any) -> list[Any]:
                return keep(func(**kwargs))

        wrapper.__name__ = getattr(called, "__name__", type(called).__name__)
        vars(wrapper)["ended_by"] = getattr(func, "ended_by", None)
        return wrapper

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's, with `advantages` (B,) replaced by token-level ones (B, T)."""
        self._scored, self._rewards = {}, None
        if self.credit.rollouts and {"image", "images"} & inputs[0].keys():
            raise ValueError("rollouts continue text only: leave the images out, or set rollouts to 0")
        out = super()._generate_and_score_completions(inputs)
        shared_B: Any = out.get("advantages")
        ids_BT: Any = out.get("completion_ids")
        there = shared_B is not None and ids_BT is not None and shared_B.shape == ids_BT.shape[:1]
        _expect(there, "its output holds no `advantages` (B,) beside `completion_ids` (B, T)")
        once = self._rewards is not None and len(self._asked[0]) == len(ids_BT)
        _expect(once, "`_calculate_rewards` is not called once for each generation batch")
        tokens_BT = self._token_advantages(shared_B, ids_BT)
        if self.credit.rollouts and self._mode() == "train":
            tokens_BT = self._rolled(inputs, out, tokens_BT)
        if self.log_completions and self._scored:
            logs: Any = self._logs
            rows = zip(tokens_BT.cpu().numpy(), self._placed, strict=True)
            logs["extra"]["sentences"].extend(gather_object([_sentences(row_T, *placed) for row_T, placed in rows]))
        self._scored = {}
        return {**out, "advantages": tokens_BT}

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        """TRL's: (B of all ranks, functions), NaN for None; it is kept, with what was asked.

        Raises ValueError: plain numbers of a function that also returns segments would be lost.
        """
        self._asked = completions, completion_ids_list
        self._rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        for i, scores in self._scored.items():
            kinds = {isinstance(score, SentenceScore) for score in scores if score is not None}
            if len(kinds) == 2:
                raise ValueError(
                    f"reward function {self.reward_func_names[i]!r} returns plain numbers beside SentenceScore: return "
                    "one kind, or None where there is no score; plain numbers belong into a function of their own"
                )
        return self._rewards

    def _shared(self, segmented: set[int], rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Advantages of this rank's whole completions by functions without segments, by those with, by all, (B,) each.

        TRL takes a score that is missing beside others for 0, more than a bad answer gets: a completion that no
        function with segments scored is left out of the third, and has the first there.
        """
        every_BF, weights_F = _numbers(self._rewards), _numbers(self.reward_weights)
        each = self.multi_objective_aggregation == "normalize_then_sum"
        mine = slice(first := self.accelerator.process_index * rows, first + rows)

        def by(kept: list[int], rewards_BF: np.ndarray = every_BF) -> np.ndarray:
            return sequence_advantages(rewards_BF[:, kept], weights_F[kept], *self._groups(), each=each)[mine]

        every = [i for i, weight in enumerate(weights_F) if weight]  # what only logs has no opinion
        own = [i for i in every if i in segmented]
        plain_B = by([i for i in every if i not in segmented])
        none_B = np.isnan(every_BF[:, own]).all(axis=1)
        all_B = by(every, np.where(none_B[:, None], np.nan, every_BF))
        return plain_B, by(own), np.where(none_B[mine], plain_B, all_B)

    def _token_advantages(self, shared_B: torch.Tensor, ids_BT: torch.Tensor) -> torch.Tensor:
        """`row_advantages` of every completion, with the statistics of its group; shape (B, T)."""
        aspects, rewards_ABS = self._standardised(len(shared_B))
        plain_B, whole_B, every_B = self._shared({i for i, _ in aspects}, len(shared_B))
        out_BT = np.zeros(ids_BT.shape)
        self._placed, (completions, all_ids) = [], self._asked
        credited = torch.zeros(4, device=shared_B.device)  # tokens in segments, tokens, not located, completions
        for b, shared in enumerate(every_B.tolist()):
            parts = []
            for a, (i, name) in enumerate(aspects):
                score = self._scored[i][b]
                if isinstance(score, SentenceScore) and name in score.segments and self.reward_weights[i]:
                    weight = score.weights.get(name, 1.0) * float(self.reward_weights[i])
                    parts.append((score.segments[name], weight, rewards_ABS[a][b]))
            ids = [int(i) for i in all_ids[b]]
            same = ids_BT[b, : len(ids)].tolist() == ids
            _expect(same, "the `completion_ids` of reward functions are not the rows of its output")
            decoded, spans_T2 = token_spans(self._fast, ids, self._special)
            ends = bool(ids) and ids[-1] in self._eos
            text, anchors_T = completion_text(completions[b]), anchors(decoded, spans_T2)
            by_kind = float(plain_B[b]), float(whole_B[b]), shared
            found = row_advantages(decoded, anchors_T, text, parts, by_kind, ends, self.credit)
            # A parser edited the text: its sentences have no tokens, so the completion is credited as a whole.
            row_T, inside_T = found or (np.full(len(ids), shared), np.zeros(len(ids), dtype=bool))
            out_BT[b, : len(ids)] = row_T
            segments = max((part[0] for part in parts), key=len, default=()) if found else ()
            owners_T = owners(anchors_T, locate(text, decoded, segments) or [])
            self._placed.append((owners_T, [" ".join(text[s.start : s.end].split()) for s in segments]))
            credited += torch.tensor([inside_T.sum(), len(ids), found is None, 1], device=credited.device)
        credited = self.accelerator.gather(credited).view(-1, 4).sum(0)
        shares = (credited[0::2] / credited[1::2].clamp(min=1)).tolist()
        for name, share in zip(("credited_tokens", "not_located"), shares, strict=True):
            self._metrics[self._mode()][f"sentences/{name}"].append(share)
        bound = self.credit.clip or np.inf
        return torch.as_tensor(out_BT.clip(-bound, bound), dtype=shared_B.dtype, device=shared_B.device)

    def _rolled(self, inputs: list[dict[str, Any]], out: dict[str, Any], tokens_BT: torch.Tensor) -> torch.Tensor:
        """Advantages (B, T) of steps by continuations; of completions without tokens of segments, as they are."""
        rows, (size, scale) = len(inputs), self._groups()
        cuts = [cuts_of(owners_T) for owners_T, _ in self._placed]
        values = self._values(inputs, out, cuts)
        totals_B = self._totals(self._rewards)
        everyone = [one for of_rank in gather_object([values]) for one in of_rank]
        steps = step_advantages(totals_B, everyone, size, scale)[self.accelerator.process_index * rows :]
        (_, ids), bound = self._asked, self.credit.clip or np.inf
        for b, own in enumerate(cuts):
            if own:
                row_T = np.repeat(steps[b], np.diff([0, *own, len(ids[b])])).clip(-bound, bound)
                tokens_BT[b, : len(ids[b])] = torch.as_tensor(row_T, dtype=tokens_BT.dtype)
        self._metrics["train"]["sentences/rollouts"].append(self.credit.rollouts * sum(map(len, cuts)) / rows)
        return tokens_BT

    def _values(
        self, inputs: list[dict[str, Any]], out: dict[str, Any], cuts: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Mean rewards of continuations of each completion of this rank from each of its cuts; NaN for none."""
        (said, said_ids), n = self._asked, self.credit.rollouts
        read = [ids[mask.bool()].tolist() for ids, mask in zip(out["prompt_ids"], out["prompt_mask"], strict=True)]
        jobs = [(b, cut) for b, own in enumerate(cuts) for cut in own for _ in range(n)]
        # All ranks generate and score together, as often as the one with the most to do.
        most, chunk = max(gather_object([len(jobs)])), max(1, len(inputs) // n) * n
        padded, found = jobs + [(0, 0)] * (-(-most // chunk) * chunk - len(jobs)), []
        kept, self._scored = self._scored, {}
        logs = {"_log_completion_extra": lambda *_: None, "_log_metric": lambda *_: None}
        vars(self).update(logs)  # what reward functions log is about the answers that are learned
        try:
            for first in range(0, len(padded), chunk):
                part = padded[first : first + chunk]
                starts = [[int(i) for i in said_ids[b][:cut]] for b, cut in part]
                prompts = [read[b] + start for (b, _), start in zip(part, starts, strict=True)]
                ends, _ = self._generate_single_turn(prompts, None, {}, n)
                ids = [[*start, *end][: self.max_completion_length] for start, end in zip(starts, ends, strict=True)]
                texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
                plain = isinstance(said[0], str)
                answers = texts if plain else [[{"role": "assistant", "content": text}] for text in texts]
                rows = [inputs[b] for b, _ in part]
                scored = super()._calculate_rewards(rows, [row["prompt"] for row in rows], answers, ids)
                at = self.accelerator.process_index * chunk
                found += self._totals(scored)[at : at + chunk].tolist()
        finally:
            for name in logs:
                vars(self).pop(name)
            self._scored = kept
        totals = iter(np.ma.masked_invalid(found[: len(jobs)]).reshape(-1, n).mean(axis=1).filled(np.nan))
        return [[float(next(totals)) for _ in own] for own in cuts]

    def _totals(self, rewards_BF: torch.Tensor) -> np.ndarray:
        """Weighted sums of the rewards of all functions, (B,); NaN where none had an opinion."""
        weights_F = _numbers(self.reward_weights)
        rewards = np.ma.masked_invalid(np.where(weights_F == 0, np.nan, _numbers(rewards_BF)))
        return np.ma.filled((rewards * weights_F).sum(axis=1), np.nan)

    def _standardised(self, rows: int) -> tuple[list[Aspect], list[np.ndarray]]:
        """Aspects of all ranks, and for each the standardised rewards of this rank's rows; groups span ranks."""
        mine: list[dict[Aspect, list[float | None]]] = [{} for _ in range(rows)]
        for i, scores in self._scored.items():
            for row, score in zip(mine, scores, strict=True):
                if isinstance(score, SentenceScore):
                    row |= {(i, name): [s.reward for s in parts] for name, parts in score.segments.items()}
        every = gather_object(mine)  # of all ranks, in their order
        aspects = sorted({aspect for row in every for aspect in row})
        first, found = self.accelerator.process_index * rows, []
        for i, name in aspects:
            rewards = [row.get((i, name), []) for row in every]
            table_BS, std_B = standardised(rewards, *self._groups(), self.credit.baseline)
            found.append(table_BS[first : first + rows])
            judged, key = [r for row in rewards for r in row if r is not None], f"sentences/{self.reward_func_names[i]}"
            log = self._metrics[self._mode()]
            if judged:
                log[f"{key}/{name}/reward"].append(float(np.mean(judged)))
            log[f"{key}/{name}/judged"].append(len(judged) / len(every))
            log[f"{key}/{name}/frac_zero_std"].append(float((std_B < ZERO_STD).mean()))
        return aspects, found

    def _groups(self) -> tuple[Any, Any]:
        """Completions of one prompt, and how advantages are scaled."""
        return self.num_generations if self._mode() == "train" else self.num_generations_eval, self.scale_rewards

    def _mode(self) -> str:
        model: Any = self.model
        return "train" if model.training else "eval"


def parses(tokenizer: Any) -> bool:
    """Whether TRL parses what is written, so that thinking and calls of tools do not stand in an answer's text."""
    return any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))


def _numbers(values: torch.Tensor) -> np.ndarray:
    """As float64, which not every device has."""
    return values.cpu().double().numpy()


def _sentences(row_T: np.ndarray, owners_T: np.ndarray, sentences: Sequence[str]) -> str:
    """Each sentence with the mean advantage of its tokens, a line each."""
    lines = [(row_T[: len(owners_T)][owners_T == j], sentence) for j, sentence in enumerate(sentences)]
    return "\n".join(f"{own.mean():+.2f} {sentence}" for own, sentence in lines if len(own))


def _expect(there: bool, what: str) -> None:
    if there:
        return
    raise RuntimeError(
        f"trl {trl.__version__} moved the hook that token-level advantages use "
        f"(GRPOTrainer._generate_and_score_completions): {what}. Install a TRL that "
        "tests/mitigate/rl/test_grpo_contract.py passes with, such as trl==1.16.0, and report it."
    )
