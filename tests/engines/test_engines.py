"""Engine strings, and what loading an engine says about missing things."""

import sys
import types
from typing import Any

import pytest

from engines import EngineSpec, Sampling, load_engine, parse_engine
from engines.vllm_engine import _read

GOOD = [
    ("transformers:./ckpt", EngineSpec("transformers", "./ckpt")),
    ("transformers:/runs/lr=1e-5:step@200", EngineSpec("transformers", "/runs/lr=1e-5:step@200")),
    (r"transformers:C:\models\a", EngineSpec("transformers", r"C:\models\a")),
    ("vllm:org/model@main", EngineSpec("vllm", "org/model@main")),
    ("vllm:me@127.0.0.1:8000", EngineSpec("vllm", "me@127.0.0.1:8000")),  # an odd folder name, but a name
    (
        "vllm:org/model?tensor_parallel_size=2&gpu_memory_utilization=0.8",
        EngineSpec("vllm", "org/model", None, {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.8}),
    ),
    ("vllm:packaged:smollm2?max_model_len=100", EngineSpec("vllm", "packaged:smollm2", None, {"max_model_len": 100})),
    ("openai:gpt-x", EngineSpec("openai", "gpt-x")),
    ("openai:claude@20250101", EngineSpec("openai", "claude@20250101")),
    ("openai:@cf/meta/llama", EngineSpec("openai", "@cf/meta/llama")),
    ("openai:qwen:7b@http://127.0.0.1:11434/v1", EngineSpec("openai", "qwen:7b", "http://127.0.0.1:11434/v1")),
    ("openai:/models/a@b@https://host/v1/", EngineSpec("openai", "/models/a@b", "https://host/v1")),
    ("openai:@cf/m@http://[::1]:80/v1", EngineSpec("openai", "@cf/m", "http://[::1]:80/v1")),
]

BAD = [
    ("", "expected KIND:MODEL"),
    ("./ckpt", "expected KIND:MODEL"),
    ("ollama:x", "KIND one of transformers, vllm, openai"),
    ("transformers: x", "blanks"),
    ("vllm:org/model?tensor_parallel_size=two", r"expected some of tensor_parallel_size=int, .*; got .*=two"),
    ("vllm:org/model?tp=2", "got 'tp=2'"),
    ("vllm:org/model?", "got ''"),
    ("vllm:org/model?tensor_parallel_size=0", "gpu_memory_utilization at most 1; got 'tensor_parallel_size=0'"),
    ("vllm:org/model?gpu_memory_utilization=nan", "gpu_memory_utilization at most 1; got 'gpu_memory_utilization=nan'"),
    ("vllm:org/model?gpu_memory_utilization=inf", "gpu_memory_utilization at most 1; got 'gpu_memory_utilization=inf'"),
    ("vllm:org/model?gpu_memory_utilization=90", "at most 1; got 'gpu_memory_utilization=90'"),
    ("transformers:org/model?max_model_len=5", r"no '\?': .*max_model_len.* options of vllm"),
    ("vllm:org/model?max_model_len=5&max_model_len=6", "each once.*; got 'max_model_len=6'"),
    ("vllm:?max_model_len=5", "is empty or has blanks"),
    ("vllm:org/model ?max_model_len=5", "is empty or has blanks"),
    ("vllm:packaged:nope?max_model_len=5", "packaged:nope: expected one of"),
    ("openai:@http://127.0.0.1:8000/v1", "is empty"),
    ("transformers:x@http://127.0.0.1:8000/v1", "takes no base URL"),
    *(
        (f"openai:x{rest}", "must begin with http")
        for rest in ("@127.0.0.1:8000/v1", "@htp://host/v1", "http://host/v1")
    ),
    *((f"openai:x{rest}", "must begin with http") for rest in ("@https:/host/v1", "@ http://host/v1", "@host/v1")),
    *((f"openai:x{rest}", "must begin with http") for rest in ("@//host/v1", "@[::1]:8000/v1")),
    ("openai:x@http://", "expected a base URL like"),
    ("openai:x@http://host:port/v1", "is not a URL"),
    ("openai:x@http://host:99999/v1", "is not a URL"),
    ("openai:x@http://host/v1?key=1", "expected a base URL like"),
]


@pytest.mark.parametrize(("text", "spec"), GOOD)
def test_engine_string_is_split(text, spec):
    assert parse_engine(text) == spec
    assert str(spec) == text.rstrip("/")
    assert hash(spec) == hash(parse_engine(text))


def test_bad_engine_strings_are_explained():
    for text, message in BAD:
        with pytest.raises(ValueError, match=message):
            parse_engine(text)
    # A password is not repeated.
    with pytest.raises(ValueError, match="OPENAI_API_KEY") as caught:
        parse_engine("openai:x@http://me:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["vllm:org/model", "openai:x@http://127.0.0.1:1/v1"])
def test_missing_library_names_its_extra(monkeypatch, name):
    kind = name.split(":")[0]
    monkeypatch.setitem(sys.modules, kind, None)  # what "not installed" looks like to import
    with pytest.raises(ImportError, match=rf"hallucination-toolkit\[{kind}\]"):
        load_engine(name)


def test_missing_key_and_folder_are_named(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="set OPENAI_API_KEY"):
        load_engine("openai:gpt-x")
    for path in ("./nowhere", "/no/where", "~/no-such-checkpoint", "a/b/c"):
        with pytest.raises(FileNotFoundError, match=f"no checkpoint folder at {path}"):
            load_engine(f"transformers:{path}")


def test_vllm_gets_its_options_from_the_string(monkeypatch, tmp_path):
    asked = {}
    library = types.ModuleType("vllm")
    library.exceptions = types.ModuleType("vllm.exceptions")
    library.LLM = lambda **options: asked.update(options)
    for name, module in (("vllm", library), ("vllm.exceptions", library.exceptions)):
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "config.json").write_text("{}")
    engine = load_engine(f"vllm:{tmp_path}?tensor_parallel_size=2&max_model_len=4096")
    assert (asked["tensor_parallel_size"], asked["max_model_len"], asked["model"]) == (2, 4096, str(tmp_path))
    assert engine.name == f"vllm:{tmp_path}"  # which keys the cache: how it runs does not change what it says


def test_vllm_replies_carry_the_tag_that_their_prompt_opened() -> None:
    """vLLM itself is not asked: what it returns is read alike where it is not installed."""

    def said(text: str, **how: Any) -> str | None:
        one = types.SimpleNamespace(index=0, text=text, finish_reason="stop", logprobs=None, token_ids=[5, 6])
        output = types.SimpleNamespace(outputs=[one], prompt_token_ids=[1, 2, 3])
        return _read(output, Sampling(**how), "<think>").text

    assert said("Hm.</think> Yes.") == "Yes."
    assert said("Hm. Is it") == ""
    assert said("yes", choices=("yes", "no")) == "yes"
    assert said('{"a": 1}', json_schema={"type": "object"}) == '{"a": 1}'
