"""Runs `mitigate` in forked children of a process that has all libraries loaded, so that many short runs cost little.

Reads one JSON object a line, {"argv": […], "log": path, "die": "module:function" or null, "call": n}, prints the
child's process id, and after it ended its exit code (negative: the signal). ``die`` makes the child kill itself with
SIGKILL when that function is called for the n-th time. Annotator and embedding model are small stand-ins, so that no
torch is loaded.
"""

import importlib
import json
import os
import signal
import sys
from typing import Any


def preload() -> None:
    import datasets  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import openai
    import py3langid

    import mitigate.cli.main
    import mitigate.dataset.pipeline
    import mitigate.recipes.build_dataset  # noqa: F401
    from annotators.text.words import chinese_words
    from mitigate.dataset.stage import embedder

    assert openai.AsyncOpenAI(api_key="none").chat.completions
    embedder(None).encode(["warm"])
    chinese_words("热身")
    py3langid.rank("warm up")


class Grams:
    def encode(self, texts: list[str]) -> Any:
        from fewl.similarity import char_tfidf

        return char_tfidf()(texts)

    def count_tokens(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]


def child(command: dict[str, Any]) -> int:
    import annotators
    from mitigate.cli.main import main
    from mitigate.dataset import pipeline
    from mitigate.dataset import stage as similarity
    from tests.helpers.standin import ExactAnnotator

    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    annotators.load_annotator = lambda name: ExactAnnotator()  # type: ignore[assignment,misc]
    pipeline.embedder = similarity.embedder = lambda model: Grams()  # type: ignore[assignment,misc]
    if command.get("die"):
        arm(command["die"], command["call"])
    return main(command["argv"])


def arm(target: str, call: int) -> None:
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    real, calls = getattr(owner, name), 0

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(owner, name, counting)


def loop() -> None:
    preload()
    print("ready", flush=True)
    for line in sys.stdin:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(json.loads(line))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    loop()
