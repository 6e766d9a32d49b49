"""The vllm-ray engine as far as it goes without vLLM: options, rows to Ray's engine stage and back, its configuration.

`benchmarks/vllm_ray.py` runs it with vLLM's CPU build.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiny_chat import build_tiny_chat
from engines import load_engine
from engines.checkpoint import prompt_ids
from engines.types import ChatResult, EngineError, Sample, Sampling, Token, chat_seed
from engines.vllm_ray_engine import VllmRayEngine, from_vllm, params, result, to_vllm

CHAT = [{"role": "user", "content": "Is the river longer?"}]
no_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_chat(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> VllmRayEngine:
    monkeypatch.setattr("engines.vllm_ray_engine.find_spec", lambda name: name)  # as if both were installed
    return VllmRayEngine(str(tiny), dtype="float32", tensor_parallel_size=2, batch_size=8)


@no_vllm
def test_it_says_what_is_missing() -> None:
    with pytest.raises(ImportError, match=r"hallucination-toolkit\[ray,vllm\].*vllm:org/model"):
        load_engine("vllm-ray:org/model")


def test_rows_hold_whole_prompts_and_each_sample_its_seed(engine: VllmRayEngine, tiny: Path) -> None:
    from transformers import AutoTokenizer

    sampling = Sampling(max_tokens=5, temperature=0.5, n=3, seed=7, stop=("x",))
    rows = list(engine.rows([CHAT, [{"role": "user", "content": "No <|end|> here"}]], sampling))
    assert [(row["place"], row["sample"]) for row in rows] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert rows[0]["tokenized_prompt"] == prompt_ids(tokenizer, CHAT)
    assert rows[4]["tokenized_prompt"].count(tokenizer.eos_token_id) == 1  # the template's, not the text's
    options = [to_vllm(row)["sampling_params"] for row in rows]
    assert options[1] == {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": chat_seed(7, CHAT) + 1,
        "stop": ["x"],
    }
    assert len({one["seed"] for one in options}) == 6


def test_options_that_vllm_takes() -> None:
    assert params(Sampling(logprobs=True, top_logprobs=3), CHAT, 0)["logprobs"] == 3
    assert params(Sampling(logprobs=True), CHAT, 0)["logprobs"] == 0
    assert params(Sampling(choices=("a", "b")), CHAT, 0)["structured_outputs"] == {"choice": ["a", "b"]}
    assert params(Sampling(json_schema={"type": "object"}), CHAT, 0)["structured_outputs"] == {
        "json": {"type": "object"}
    }
    assert "structured_outputs" not in params(Sampling(), CHAT, 0)


def stage_row(text: str, tokens: list[int], **more: Any) -> dict[str, Any]:
    """A row as Ray's vLLM stage gives it (fields of its ``vLLMOutputData``)."""
    return {
        "place": 4, "sample": 0, "generated_text": text, "generated_tokens": tokens, "num_input_tokens": 9,
        "num_generated_tokens": len(tokens), "logprobs": None, "__inference_error__": "", **more,
    }  # fmt: skip


def test_results_of_rows() -> None:
    steps = [
        {"11": {"logprob": -0.5, "decoded_token": "a"}, "12": {"logprob": -1.5, "decoded_token": "b"}},
        {"13": {"logprob": -0.1, "rank": 1, "decoded_token": None}, "11": None},
    ]  # fmt: skip
    row = from_vllm(stage_row("ab", [12, 13], logprobs=steps))
    found = result([row], Sampling(max_tokens=2, logprobs=True, top_logprobs=1))
    top = (("a", -0.5), ("b", -1.5))
    tokens = (Token("b", -1.5, top), Token("", -0.1, (("", -0.1),)))
    assert found == ChatResult((Sample("ab", "length", tokens),), prompt_tokens=9, completion_tokens=2)
    plain = [from_vllm(stage_row(text, [1] * n)) for text, n in (("x", 3), ("y", 4))]
    two = result(plain, Sampling(max_tokens=4, temperature=1, n=2))
    assert [(s.text, s.finish_reason, s.logprobs) for s in two.samples] == [
        ("x", "stop", None),
        ("y", "length", None),
    ]
    assert two.completion_tokens == 7
    refused = result([plain[0], {"__inference_error__": "ValueError: too long"}], Sampling())
    assert refused.error == "vLLM refused the chat: ValueError: too long"
    assert not refused.samples


def test_replies_come_in_any_order_and_a_lost_one_is_an_error(
    engine: VllmRayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
        said = [
            from_vllm(stage_row(f"{r['place']}{r['sample']}", [1], place=r["place"], sample=r["sample"]))
            for r in reversed(asked)
        ]
        return [row for row in said if (row["place"], row["sample"]) != (1, 0)]

    monkeypatch.setattr(engine, "_answered", answered)
    told: list[int] = []
    found = engine.chat(
        [CHAT, CHAT, CHAT], Sampling(n=2, temperature=1), on_result=lambda i, _: told.append(i)
    )
    assert [[s.text for s in one.samples] for one in found] == [["00", "01"], [], ["20", "21"]]
    assert found[1].error == "Ray gave back no reply to this chat"
    assert sorted(told) == [0, 1, 2]

    def gone(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
        raise ConnectionError("no cluster")

    monkeypatch.setattr(engine, "_answered", gone)
    with pytest.raises(EngineError, match="ConnectionError: no cluster"):
        engine.chat([CHAT])


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ray", "aiohttp"))),
    reason="needs the extra ray and aiohttp, which ray.data.llm imports",
)
@pytest.mark.filterwarnings("ignore")  # of Ray's own code
def test_the_configuration_is_one_that_ray_takes(engine: VllmRayEngine, tiny: Path) -> None:
    config = engine.config(3)
    assert (config.model_source, config.concurrency, config.batch_size) == (str(tiny), 3, 8)
    assert config.engine_kwargs["tensor_parallel_size"] == 2
    assert config.engine_kwargs["trust_remote_code"] is False
    assert not any((config.chat_template_stage, config.tokenize_stage, config.detokenize_stage))
    assert json.loads(config.model_dump_json())["should_continue_on_error"] is True
