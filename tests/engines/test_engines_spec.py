"""Engine strings, sampling options, the shape of chats, seeds; what loading says of missing things."""

import hashlib
import subprocess
import sys

import pytest

from engines import EngineSpec, Sampling, load_engine, parse_engine
from engines.types import ChatResult, Sample, Token, canonical, chat_seed, check_chats

GOOD = [
    ("transformers:./ckpt", EngineSpec("transformers", "./ckpt")),
    ("transformers:org/model", EngineSpec("transformers", "org/model")),
    ("transformers:/runs/lr=1e-5:step@200", EngineSpec("transformers", "/runs/lr=1e-5:step@200")),
    (r"transformers:C:\models\a", EngineSpec("transformers", r"C:\models\a")),
    ("vllm:org/model@main", EngineSpec("vllm", "org/model@main")),
    ("vllm:me@127.0.0.1:8000", EngineSpec("vllm", "me@127.0.0.1:8000")),  # an odd folder name, but a name
    ("openai:gpt-x", EngineSpec("openai", "gpt-x")),
    ("openai:claude@20250101", EngineSpec("openai", "claude@20250101")),
    ("openai:qwen:7b@http://127.0.0.1:11434/v1", EngineSpec("openai", "qwen:7b", "http://127.0.0.1:11434/v1")),
    ("openai:/models/a@b@https://host/v1/", EngineSpec("openai", "/models/a@b", "https://host/v1")),
    ("openai:@cf/m@http://[::1]:80/v1", EngineSpec("openai", "@cf/m", "http://[::1]:80/v1")),
]

BAD = [
    ("", "expected KIND:MODEL"),
    ("gpt-x", "expected KIND:MODEL"),
    ("./ckpt", "expected KIND:MODEL"),
    ("Transformers:x", "expected KIND:MODEL"),
    ("ollama:x", "KIND one of transformers, vllm, openai"),
    ("transformers:", "is empty"),
    ("transformers: x", "blanks"),
    ("openai:@http://127.0.0.1:8000/v1", "is empty"),
    ("transformers:x@http://127.0.0.1:8000/v1", "takes no base URL"),
    ("openai:x@127.0.0.1:8000/v1", "must begin with http"),
    ("openai:x@localhost/v1", "must begin with http"),
    ("openai:x@gpu-node:8000", "must begin with http"),
    ("openai:x@http://", "expected a base URL like"),
    ("openai:x@http://:8000", "expected a base URL like"),
    ("openai:x@http://host:port/v1", "is not a URL"),
    ("openai:x@http://host:99999/v1", "is not a URL"),
    ("openai:x@http://host/v1?key=1", "expected a base URL like"),
    ("openai:x@http://host/v 1", "expected a base URL like"),
]


@pytest.mark.parametrize(("text", "spec"), GOOD)
def test_engine_string(text: str, spec: EngineSpec) -> None:
    assert parse_engine(text) == spec
    assert str(spec) == text.rstrip("/") or text.endswith("/")


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_engine_string(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_engine(text)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="OPENAI_API_KEY") as caught:
        parse_engine("openai:x@http://me:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature must be a number from 0 to 2, got -0.1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "0"}, "temperature"),
        ({"top_p": 0}, "top_p must be a number above 0"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 2}, "greedy answers would be equal"),
        ({"n": 0, "temperature": 1}, "n must be"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**31}, "seed"),
        ({"stop": "end"}, "stop must be a list"),
        ({"stop": [""]}, "stop"),
        ({"choices": [1]}, "choices"),
        ({"choices": ["a"], "json_schema": {}}, "not both"),
    ],
)
def test_sampling_is_checked(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_sampling_takes_lists_and_is_hashable() -> None:
    assert Sampling(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert hash(Sampling(json_schema={"type": "object"})) is not None


@pytest.mark.parametrize(
    ("chats", "message"),
    [
        ("hello", "expected a list of chats, got str"),
        ([{"role": "user", "content": "x"}], "chat 0: expected a non-empty list of messages"),
        ([[]], "chat 0: expected a non-empty"),
        (["hello"], "chat 0: expected a non-empty"),
        ([[{"role": "user", "content": "x"}], [{"role": "user"}]], "chat 1, message 0: expected"),
        ([[{"role": "human", "content": "x"}]], "role must be one of"),
        ([[{"role": "user", "content": None}]], "content must be a string, got None"),
    ],
)
def test_chats_are_checked(chats: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_chats(chats)  # type: ignore[arg-type]


def test_chat_seed() -> None:
    chat = [{"role": "user", "content": "é"}]
    text = '[7,[{"content":"\\u00e9","role":"user"}]]'  # sorted keys, no blanks, ASCII
    digest = hashlib.sha256(text.encode()).digest()
    assert chat_seed(7, chat) == int.from_bytes(digest[:8], "big") % 2**31
    assert chat_seed(7, chat, 3) == (chat_seed(7, chat) + 3) % 2**31
    assert chat_seed(7, [dict(reversed(chat[0].items()))]) == chat_seed(7, chat)
    assert len({chat_seed(seed, [{"role": "user", "content": c}]) for seed in (0, 1) for c in "ab"}) == 4


def test_canonical_refuses_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": float("nan")})


def test_result_round_trip() -> None:
    result = ChatResult((Sample("a", "stop", (Token("a", -0.5),)), Sample("b")), 3, 2, error="late", ignored=("n",))
    assert ChatResult.from_dict(result.to_dict()) == result
    assert (result.text, result.texts) == ("a", ("a", "b"))
    assert ChatResult(error="x").text is None


def test_vllm_says_which_extra() -> None:
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"hallucination-toolkit\[vllm\]"):
            load_engine("vllm:org/model")
    else:
        pytest.skip("skipped: vLLM is installed here")


def test_openai_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)  # what "not installed" looks like to import
    with pytest.raises(ImportError, match=r"hallucination-toolkit\[openai\]"):
        load_engine("openai:x@http://127.0.0.1:1/v1")


def test_openai_itself_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="set OPENAI_API_KEY"):
        load_engine("openai:gpt-x")


@pytest.mark.parametrize("path", ["./nowhere", "/no/where", "~/no-such-checkpoint", "a/b/c"])
def test_a_missing_folder_is_named(path: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"no checkpoint folder at {path}"):
        load_engine(f"transformers:{path}")


def test_import_is_light() -> None:
    code = "import sys, engines; print({'torch', 'transformers', 'openai', 'vllm', 'numpy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
