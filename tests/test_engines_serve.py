"""The openai engine against a real server: ``transformers serve`` on a tiny checkpoint built here."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tiny_chat import build_tiny_chat
from engines import EngineError, Sampling, load_engine


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


CHATS = [
    user("Is the river longer than the road?"),
    [{"role": "system", "content": "Pack my box."}, *user("red or blue?")],
    user("no"),
]


@dataclass
class Running:
    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def load(self, **options: Any) -> Any:
        return load_engine(
            f"openai:{self.folder}@http://127.0.0.1:{self.port}/v1", max_retries=0, timeout=60, **options
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from transformers import GenerationConfig

    folder = build_tiny_chat(tmp_path_factory.mktemp("served"))
    # This server draws only where the checkpoint's own defaults draw, and takes over the rest of them.
    GenerationConfig(do_sample=True, top_k=0, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder.parent / "serve.log"
    command = f"serve {folder} --device cpu --dtype float32 --host 127.0.0.1 --port {port}".split()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "transformers"), *command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    try:
        for _ in range(240):
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()
        else:
            pytest.fail(f"the server did not come up:\n{log.read_text()}")
        yield Running(folder, port, process)
    finally:
        process.terminate()
        process.wait()


def test_greedy_equals_the_local_engine(server: Running) -> None:
    torch.set_num_threads(1)
    local = load_engine(f"transformers:{server.folder}", device="cpu")
    sampling = Sampling(max_tokens=20)
    served = server.load().chat(CHATS, sampling)
    for here, there in zip(local.chat(CHATS, sampling), served, strict=True):
        assert there.text == here.text
        assert there.samples[0].finish_reason == here.samples[0].finish_reason
        assert (there.prompt_tokens, there.completion_tokens) == (here.prompt_tokens, here.completion_tokens)


def test_what_it_ignores_is_named_and_made_up_for(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    # One at a time: this server sets one seed for the whole process.
    engine = server.load(concurrency=1)
    sampling = Sampling(max_tokens=12, temperature=1.0, n=3, seed=4, logprobs=True)
    results = engine.chat(CHATS, sampling)
    for result in results:
        assert result.error is None
        assert len(set(result.texts)) == 3
        assert result.ignored == ("logprobs", "n")
        assert all(sample.logprobs is None for sample in result.samples)
    assert [result.texts for result in engine.chat(CHATS, sampling)] == [result.texts for result in results]
    assert engine.chat(CHATS[:1], Sampling(max_tokens=5, json_schema={"type": "object"}))[0].error is None
    for name in ("n", "logprobs"):
        assert caplog.text.count(f"ignores '{name}'") == 1


def test_stop_strings(server: Running) -> None:
    engine = server.load()
    text = engine.chat(CHATS[:1], Sampling(max_tokens=20))[0].text
    stop = text[7:10]
    result = engine.chat(CHATS[:1], Sampling(max_tokens=20, stop=(stop,)))[0]
    assert result.text == text[: text.index(stop)]


def test_a_wrong_model_is_explained(server: Running) -> None:
    engine = load_engine(f"openai:other@http://127.0.0.1:{server.port}/v1", max_retries=0)
    result = engine.chat(CHATS[:1])[0]
    assert result.text is None
    assert "answered 400 (Server is pinned to" in result.error


def test_a_wrong_path_is_explained(server: Running) -> None:
    engine = load_engine(f"openai:{server.folder}@http://127.0.0.1:{server.port}", max_retries=0)
    with pytest.raises(EngineError, match="does the base URL have its path, usually /v1"):
        engine.chat(CHATS[:1])


def test_a_rerun_needs_no_server(server: Running, tmp_path: Path) -> None:
    """Last in this file: it stops the server."""
    engine = server.load(cache=tmp_path / "cache.sqlite")
    results = engine.chat(CHATS, Sampling(max_tokens=8))
    server.process.terminate()
    server.process.wait()
    assert engine.chat(CHATS, Sampling(max_tokens=8)) == results
    assert (engine.hits, engine.misses) == (3, 3)
    with pytest.raises(EngineError, match="is the server running"):
        engine.chat([user("something new")])
    engine.close()
