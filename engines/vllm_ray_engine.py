"""A local checkpoint through vLLM on a Ray cluster, by Ray Data's own batch inference (``ray.data.llm``).

Each call of ``chat`` is a Ray Data pipeline of its own, which loads the checkpoint on every replica: made for the
thousands of chats of a shard, not for one at a time. Prompts are made here, by the checkpoint's template, so that
special tokens stand in them once. Connects to ``RAY_ADDRESS`` or starts a local Ray, unless this process has done so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from engines.checkpoint import checkpoint_state, locate, prompt_ids
from engines.types import (
    Chat,
    ChatResult,
    EngineError,
    OnResult,
    Sample,
    Sampling,
    Token,
    chat_seed,
    check_chats,
)


class VllmRayEngine:
    """Chat generation with vLLM on the nodes of a Ray cluster.

    Args:
        model: Folder (at the same place on every node) or hub id of the checkpoint.
        replicas: Copies of the model at work; None takes as many as the cluster's GPUs can hold.
        batch_size: Chats handed to a replica at once.
        placement: What a replica takes of a node, as Ray's ``placement_group_config``; None is a GPU for each
            of its tensor-parallel parts. ``{"bundle_per_worker": {"CPU": 1}}`` for vLLM's CPU build.
        dtype: "auto", "bfloat16", "float32" or "float16", as vLLM takes it.
        **options: Further options of vLLM's engine: ``tensor_parallel_size``, ``max_model_len``, …

    Raises:
        ImportError: Ray or vLLM is not installed.
        OSError: There is no such checkpoint.
    """

    def __init__(
        self,
        model: str,
        *,
        replicas: int | None = None,
        batch_size: int = 64,
        placement: Mapping[str, Any] | None = None,
        dtype: str = "auto",
        **options: Any,
    ) -> None:
        for library in ("ray", "vllm"):
            if find_spec(library) is None:
                raise ImportError(
                    f"the vllm-ray engine needs {library} here and on every node (Linux, GPUs): pip install "
                    f"'hallucination-toolkit[ray,vllm]'; vllm:{model} and transformers:{model} need no cluster"
                )
        self.name = f"vllm-ray:{model}"
        self._where = locate(model)
        self._replicas, self._batch_size, self._placement = replicas, batch_size, placement
        self._options = {"dtype": dtype, "trust_remote_code": False, **options}
        self._identity = {
            "engine": "vllm-ray",
            "model": self._where,
            "state": checkpoint_state(self._where),
            "dtype": dtype,
            "quantization": options.get("quantization"),
        }

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._where, trust_remote_code=False)

    def config(self, replicas: int) -> Any:
        """Ray's configuration: of its stages only the engine's, since prompts are made here and vLLM decodes."""
        from ray.data.llm import vLLMEngineProcessorConfig

        return vLLMEngineProcessorConfig(
            model_source=self._where,
            engine_kwargs=dict(self._options),
            batch_size=self._batch_size,
            concurrency=replicas,
            placement_group_config=None if self._placement is None else dict(self._placement),
            should_continue_on_error=True,
            log_engine_metrics=False,
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
        )

    def rows(self, chats: Sequence[Chat], sampling: Sampling) -> Iterator[dict[str, Any]]:
        """What Ray is given: a row for each sample of each chat, none for one that the template does not take."""
        from jinja2 import TemplateError

        for place, chat in enumerate(chats):
            try:
                ids = prompt_ids(self._tokenizer, chat)
            except TemplateError:
                continue
            for sample in range(sampling.n):
                yield {
                    "place": place,
                    "sample": sample,
                    "tokenized_prompt": ids,
                    "sampling": json.dumps(params(sampling, chat, sample)),
                }

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        """See :meth:`engines.types.Engine.chat`."""
        check_chats(chats)
        sampling = sampling or Sampling()
        asked = list(self.rows(chats, sampling))
        refused = ChatResult(error="the checkpoint's chat template does not take this chat")
        lost = ChatResult(error="Ray gave back no reply to this chat")
        taken = {row["place"] for row in asked}
        results = [lost if place in taken else refused for place in range(len(chats))]
        found: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for row in self._told(asked) if asked else ():
            place = int(row["place"])
            found.setdefault(place, []).append((int(row["sample"]), row))
            if len(found[place]) == sampling.n:
                ordered = [one for _, one in sorted(found.pop(place), key=lambda pair: pair[0])]
                results[place] = result(ordered, sampling)
                if on_result is not None:
                    on_result(place, results[place])
        for place, one in enumerate(results):
            if (one is refused or one is lost) and on_result is not None:
                on_result(place, one)
        return results

    def _told(self, asked: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """What :meth:`_answered` gives; what goes wrong in Ray or vLLM is an EngineError."""
        try:
            yield from self._answered(asked)
        except EngineError:
            raise
        except Exception as error:  # Ray's own, vLLM's inside them
            raise EngineError(f"{self.name}: {type(error).__name__}: {error}") from error

    def _answered(self, asked: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The rows with what vLLM made of them, as they come."""
        import ray
        from ray.data.llm import build_processor

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not ray.is_initialized():
            ray.init(include_dashboard=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
        each = int(self._options.get("tensor_parallel_size", 1))
        held = int(ray.cluster_resources().get("GPU", 0)) // each
        if held < 1 and self._placement is None:
            raise EngineError(
                f"{self.name}: needs {each} GPUs, the Ray cluster has fewer; name one that has them"
            )
        processor = build_processor(
            self.config(self._replicas or max(1, held)), preprocess=to_vllm, postprocess=from_vllm
        )
        blocks = max(1, len(asked) // self._batch_size)
        yield from processor(ray.data.from_items(asked, override_num_blocks=blocks)).iter_rows()

    def close(self) -> None:
        """Nothing is held between calls; Ray stays up for others."""


def params(sampling: Sampling, chat: Chat, sample: int) -> dict[str, Any]:
    """vLLM's ``SamplingParams`` of one sample, as JSON values; the same draws as one request for n of them."""
    seed = None if sampling.seed is None else chat_seed(sampling.seed, chat, sample)
    given: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
        "stop": list(sampling.stop) or None,
        "logprobs": sampling.top_logprobs if sampling.logprobs else None,
    }
    if sampling.json_schema is not None:
        given["structured_outputs"] = {"json": dict(sampling.json_schema)}
    elif sampling.choices:
        given["structured_outputs"] = {"choice": list(sampling.choices)}
    return {name: value for name, value in given.items() if value is not None}


def to_vllm(row: dict[str, Any]) -> dict[str, Any]:
    """Before Ray's engine stage: the options as vLLM takes them."""
    return {**row, "sampling_params": json.loads(row["sampling"])}


def from_vllm(row: dict[str, Any]) -> dict[str, Any]:
    """Behind it: what is wanted of its output (rows that failed come without passing here)."""
    tokens = [int(token) for token in row["generated_tokens"]]
    steps = (
        None
        if row.get("logprobs") is None
        else [_step(s, t) for s, t in zip(row["logprobs"], tokens, strict=True)]
    )
    return {
        "place": row["place"],
        "sample": row["sample"],
        "text": row["generated_text"],
        "prompt_tokens": int(row["num_input_tokens"]),
        "tokens": int(row["num_generated_tokens"]),
        "steps": json.dumps(steps),
    }


def _step(step: Mapping[Any, Any], token: int) -> list[Any]:
    """[drawn token's text, its log-probability, [[text, log-probability] of the likeliest ones]]."""
    entries = {int(name): entry for name, entry in step.items() if entry is not None}
    pairs = {name: [entry["decoded_token"] or "", float(entry["logprob"])] for name, entry in entries.items()}
    return [*pairs[token], list(pairs.values())]


def result(rows: Sequence[Mapping[str, Any]], sampling: Sampling) -> ChatResult:
    """The result of one chat from the rows of its samples."""
    failed = [row["__inference_error__"] for row in rows if row.get("__inference_error__")]
    if failed:
        return ChatResult(error=f"vLLM refused the chat: {failed[0]}")
    samples = []
    for row in rows:
        steps = json.loads(row["steps"]) if sampling.logprobs else None
        tokens = None
        if steps is not None:
            tokens = tuple(
                Token(text, logprob, tuple((t, v) for t, v in top) if sampling.top_logprobs else ())
                for text, logprob, top in steps
            )
        # Ray does not hand on why vLLM stopped
        cut = int(row["tokens"]) >= sampling.max_tokens
        samples.append(Sample(row["text"], "length" if cut else "stop", tokens))
    return ChatResult(
        tuple(samples),
        prompt_tokens=int(rows[0]["prompt_tokens"]),
        completion_tokens=sum(int(row["tokens"]) for row in rows),
    )
