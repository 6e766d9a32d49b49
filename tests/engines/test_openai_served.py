"""The openai engine against a real server: ``transformers serve`` on a tiny checkpoint built here."""

import pytest
import torch

from engines import Sampling, load_engine
from tests.helpers.engines_server import user
from tests.helpers.tiny_chat import build_tiny_chat
from tests.helpers.transformers_server import served

pytestmark = pytest.mark.slow  # the server needs half a minute to come up
CHATS = [
    user("Is the river longer than the road?"),
    [{"role": "system", "content": "Pack my box."}, *user("red or blue?")],
    user("no"),
]


def load(server, **options):
    return load_engine(server.name, max_retries=0, timeout=60, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from transformers import GenerationConfig

    folder = build_tiny_chat(tmp_path_factory.mktemp("served"))
    GenerationConfig(do_sample=True, top_k=0, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    with served(folder) as running:
        yield running


def test_greedy_text_equals_the_local_engine(server):
    torch.set_num_threads(1)
    local = load_engine(f"transformers:{server.folder}", device="cpu", dtype="float32")
    sampling = Sampling(max_tokens=20)
    remote = load(server).chat(CHATS, sampling)
    for here, there in zip(local.chat(CHATS, sampling), remote, strict=True):
        assert (there.text, there.samples[0].finish_reason) == (here.text, here.samples[0].finish_reason)
        assert (there.prompt_tokens, there.completion_tokens) == (here.prompt_tokens, here.completion_tokens)
