"""The openai engine against a real server: ``transformers serve`` on a tiny checkpoint built here."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from engines import Sampling, load_engine
from tests.helpers.engines_server import user
from tests.helpers.tiny_chat import build_tiny_chat

CHATS = [
    user("Is the river longer than the road?"),
    [{"role": "system", "content": "Pack my box."}, *user("red or blue?")],
    user("no"),
]


@pytest.fixture
def served(tmp_path):
    """A checkpoint's folder and the base URL of its server, on a free port that the server takes itself and tells.

    This server draws only where the checkpoint's own defaults draw, and takes over the rest of them.
    """
    from transformers import GenerationConfig

    folder, log = build_tiny_chat(tmp_path), tmp_path / "serve.log"
    GenerationConfig(do_sample=True, top_k=0, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    command = f"serve {folder} --device cpu --dtype float32 --host 127.0.0.1 --port 0".split()
    program, env = Path(sys.executable).parent / "transformers", {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen([str(program), *command], stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        for _ in range(2400):
            time.sleep(0.1)
            assert process.poll() is None, log.read_text()
            if told := re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text()):
                break
        else:
            pytest.fail(f"the server did not come up:\n{log.read_text()}")
        urllib.request.urlopen(f"{told[1]}/health", timeout=60).close()
        yield folder, f"{told[1]}/v1"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow  # the server needs half a minute to come up
def test_greedy_text_equals_the_local_engine(served):
    torch.set_num_threads(1)
    folder, url = served
    local = load_engine(f"transformers:{folder}", device="cpu", dtype="float32")
    remote = load_engine(f"openai:{folder}@{url}", max_retries=0, timeout=60)
    sampling = Sampling(max_tokens=20)
    for here, there in zip(local.chat(CHATS, sampling), remote.chat(CHATS, sampling), strict=True):
        assert (there.text, there.samples[0].finish_reason) == (here.text, here.samples[0].finish_reason)
        assert (there.prompt_tokens, there.completion_tokens) == (here.prompt_tokens, here.completion_tokens)
