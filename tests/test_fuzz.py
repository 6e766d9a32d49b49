"""The fuzzing targets on their corpus; the fuzzing itself is `python -m tests.fuzz.run`."""

import time
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
INPUTS = sorted(p for name in TARGETS for p in (CORPUS / name).iterdir())


@pytest.mark.parametrize("path", INPUTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_corpus(path):
    start = time.process_time()
    TARGETS[path.parent.name](path.read_bytes())
    assert time.process_time() - start < 2  # tagged/blanks took minutes once
