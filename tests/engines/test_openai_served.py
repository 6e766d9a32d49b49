"""The openai engine against a real server: ``transformers serve`` on a tiny checkpoint built here."""

import pytest
import torch

from engines import Sampling, load_engine
from tests.helpers.engines_server import transformers_serve, user
from tests.helpers.tiny_chat import build_tiny_chat

CHATS = [
    user("Is the river longer than the road?"),
    [{"role": "system", "content": "Pack my box."}, *user("red or blue?")],
    user("no"),
]


@pytest.fixture
def served(tmp_path):
    """A checkpoint's folder and the base URL of its server.

    This server draws only where the checkpoint's own defaults draw, and takes over the rest of them.
    """
    from transformers import GenerationConfig

    folder = build_tiny_chat(tmp_path)
    GenerationConfig(do_sample=True, top_k=0, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    with transformers_serve(folder, tmp_path / "serve.log") as url:
        yield folder, url


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
