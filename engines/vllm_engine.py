"""A local checkpoint through vLLM's offline ``LLM.chat``.

A program that uses it needs an ``if __name__ == "__main__":`` guard: vLLM may start further processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engines.checkpoint import checkpoint_identity, encodable, locate, opened
from engines.types import Chat, ChatResult, OnResult, Sample, Sampling, Token, chat_seed, check_chats
from engines.usage import METER

CHUNK = 1024  # chats handed over at once: what was answered is passed on after each chunk


class VllmEngine:
    """Chat generation with vLLM in this process.

    ``model`` is the folder or hub id of the checkpoint; further ``options`` are those of ``vllm.LLM``. The Python files
    that come with the checkpoint run with ``trust_remote_code``. Raises ImportError: vLLM is not installed; OSError:
    there is no such checkpoint.
    """

    def __init__(
        self, model: str, *, dtype: str = "auto", trust_remote_code: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        try:
            import vllm
            import vllm.exceptions
        except ImportError as error:
            raise ImportError(
                "the vllm engine needs vLLM (Linux, a GPU): pip install 'hallucination-toolkit[vllm]'; "
                f"transformers:{model} runs the same checkpoint without it"
            ) from error
        # Bad requests are ValueErrors in older versions, and of a class of their own in newer ones.
        self._refused = (ValueError, getattr(vllm.exceptions, "VLLMClientError", ValueError))
        self.name = f"vllm:{model}"
        where = locate(model)
        self._llm: Any = vllm.LLM(model=where, dtype=dtype, trust_remote_code=trust_remote_code, **options)
        self._template = {"chat_template_kwargs": dict(chat_template_kwargs)} if chat_template_kwargs else {}
        self.identity = {
            "engine": "vllm", **checkpoint_identity(model, where), "dtype": dtype,
            "quantization": options.get("quantization"), **self._template,
        }  # fmt: skip

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        """See :meth:`engines.types.Engine.chat`."""
        check_chats(chats)
        sampling = sampling or Sampling()
        results: list[ChatResult] = []
        began = time.monotonic()
        for start in range(0, len(chats), CHUNK):
            for result in self._chat(chats[start : start + CHUNK], sampling):
                results.append(result)
                if result.error is None:
                    METER.count(result.prompt_tokens, result.completion_tokens, time.monotonic() - began)
                if on_result is not None:
                    on_result(len(results) - 1, result)
        return results

    def _chat(self, chats: Sequence[Chat], sampling: Sampling) -> list[ChatResult]:
        """vLLM refuses a whole batch for one chat that is too long: halve it until that chat stands alone."""
        try:
            messages = [list(map(encodable, chat)) for chat in chats]
            params = [_params(sampling, chat) for chat in chats]
            outputs = self._llm.chat(messages, params, use_tqdm=False, **self._template)
        except self._refused as error:
            if len(chats) == 1:
                return [ChatResult(error=f"vLLM refused the chat: {error}", refused=True)]
            half = len(chats) // 2
            return self._chat(chats[:half], sampling) + self._chat(chats[half:], sampling)
        tokenizer = self._llm.get_tokenizer()
        return [_read(output, sampling, opened(tokenizer, output.prompt_token_ids)) for output in outputs]

    def close(self) -> None:
        """Stop vLLM; the engine cannot be used after that."""
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None


def _params(sampling: Sampling, chat: Chat) -> Any:
    """vLLM's sampling options for one chat; sample ``i`` of n gets ``seed + i`` from vLLM itself."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    structured = None
    if sampling.json_schema is not None:
        structured = StructuredOutputsParams(json=dict(sampling.json_schema))
    elif sampling.choices:
        structured = StructuredOutputsParams(choice=list(sampling.choices))
    seed = None if sampling.seed is None else chat_seed(sampling.seed, chat)
    logprobs = sampling.top_logprobs if sampling.logprobs else None  # 0: the drawn token alone
    return SamplingParams(
        n=sampling.n, temperature=sampling.temperature, max_tokens=sampling.max_tokens, seed=seed, logprobs=logprobs,
        structured_outputs=structured,
    )  # fmt: skip


def _read(output: Any, sampling: Sampling, before: str) -> ChatResult:
    """The result of a chat; ``before`` is the tag of thoughts that its prompt opened, which belongs to what is said."""
    samples = []
    for one in sorted(output.outputs, key=lambda one: one.index):
        tokens = None
        if sampling.logprobs and one.logprobs is not None:
            tokens = tuple(
                _token(step[token], step.values() if sampling.top_logprobs else ())
                for step, token in zip(one.logprobs, one.token_ids, strict=True)
            )
        text = one.text if sampling.choices or sampling.json_schema is not None else before + one.text
        samples.append(Sample(text, one.finish_reason, tokens))
    return ChatResult(tuple(samples), len(output.prompt_token_ids), sum(len(one.token_ids) for one in output.outputs))


def _token(drawn: Any, others: Iterable[Any]) -> Token:
    top = tuple((other.decoded_token or "", other.logprob) for other in others)
    return Token(drawn.decoded_token or "", drawn.logprob, top)
