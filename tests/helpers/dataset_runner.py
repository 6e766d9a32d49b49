"""Runs `mitigate` in children of a fork server that has all libraries loaded, so that many short runs cost little.

Annotator and embedding model are small stand-ins, so that no torch is loaded.
"""

import importlib
import os
import signal
import sys
from typing import Any

import matplotlib.figure  # noqa: F401
import openai
import py3langid

import annotators
from annotators.text.words import chinese_words
from fewl.similarity import char_tfidf
from mitigate.cli.main import main
from mitigate.dataset import pipeline, stage
from tests.helpers.standin import ExactAnnotator


class Grams:
    def encode(self, texts: list[str]) -> Any:
        return char_tfidf()(texts)

    def count_tokens(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]


def child(argv: list[str], log: str, die: str, call: int) -> None:
    """Run `mitigate`; with ``die`` ("module:function") SIGKILL ends the process at the n-th call of that function."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    annotators.load_annotator = lambda name: ExactAnnotator()  # type: ignore[assignment,misc]
    pipeline.embedder = stage.embedder = lambda model: Grams()  # type: ignore[assignment,misc]
    if die:
        arm(die, call)
    sys.exit(main(argv))


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


# What loads at its first use is loaded before the first fork.
assert openai.AsyncOpenAI(api_key="none").chat.completions
chinese_words("热身")
py3langid.rank("warm up")
