"""A rule-based annotator for the tests of everything around annotators: jobs, reports, the command line.

A sentence is supported when the reference holds it word for word, contradictory when the reference holds it but
for its numbers, else unverifiable; one ending in "!" states no fact. Run as a program it is `mitigate` with this
annotator in place of a real one, as `start` and `mitigate` start it.
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from annotators.base import Annotator, Sentence
from annotators.records import LABELS, Annotation, Edit, Fragment, Label, SentenceAnnotation
from tests.helpers.jsonl import write_rows

NUMBER = re.compile(r"\d+")
ROOT = Path(__file__).parents[2]
ANSWERS = ["The sky is blue.", "It has 3 moons. Thanks!", "Nobody knows. The sky is blue."]
REFERENCE = "The sky is blue. It has 2 moons."


class ExactAnnotator(Annotator):
    """Judges by exact words and counts what it is asked; ``delay`` seconds pass for every batch, as with a model.

    A batch with a record whose id is ``hold`` or more never ends: whoever stops the program comes in time.
    """

    name, fingerprint = "exact", "exact-1"
    sure: float | None = 1.0
    """Probability of the label; the rest is shared by the others. None gives no scores."""

    def __init__(self, delay: float = 0.0, hold: float = math.inf) -> None:
        self.delay, self.hold = delay, hold
        self.calls = self.sentences = 0

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        records = list(records)
        time.sleep(self.delay)
        if self.hold < math.inf and any(record["id"] >= self.hold for record in records):
            time.sleep(600)
        return super().annotate_batch(records)

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        self.calls += 1
        self.sentences += len(sentences)
        return [self._judge(sentence) for sentence in sentences]

    def _judge(self, sentence: Sentence) -> SentenceAnnotation:
        text, reference = sentence.text, sentence.reference
        if not reference.strip():
            return sentence.judged("no_reference")
        label, at, edits = self.label(text, sentence.start, reference)
        scores = {name: self.sure if name == label else (1 - self.sure) / 3 for name in LABELS} if self.sure else None
        fragments = () if at < 0 else (Fragment(reference[at : at + len(text)], at, at + len(text)),)
        return sentence.judged("checked", label, scores, fragments=fragments, correction=edits)

    def label(self, text: str, start: int, reference: str) -> tuple[Label, int, tuple[Edit, ...]]:
        if text.endswith("!"):
            return "no_fact", -1, ()
        if (at := reference.find(text)) >= 0:
            return "supported", at, ()
        if found := re.search(NUMBER.sub(r"\\d+", re.escape(text)), reference):
            pairs = zip(NUMBER.finditer(text), NUMBER.findall(found.group()), strict=True)
            edits = tuple(
                Edit(m.group(), right, start + m.start(), start + m.end()) for m, right in pairs if m.group() != right
            )
            return "contradictory", found.start(), edits
        return "unverifiable", -1, ()


def start(*args: str | Path, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.standin", "annotate", *map(str, args)], cwd=ROOT, text=True,
        env={**environment, "COLUMNS": "200", **(env or {})}, encoding="utf-8",
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )  # fmt: skip


def mitigate(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    process = start(*args, env=env)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[Any], seconds: float = 120) -> None:
    """Wait for what a process does; it must not end before."""
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write_records(path: Path, n: int) -> Path:
    rows = ({"id": i, "reference": REFERENCE, "answer": ANSWERS[i % 3], "note": [i]} for i in range(n))
    return write_rows(path, rows)


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    import annotators
    from mitigate.cli.main import main as mitigate

    delay, hold = float(os.environ.get("STANDIN_DELAY", "0")), float(os.environ.get("STANDIN_HOLD", "inf"))
    annotators.load_annotator = lambda name: ExactAnnotator(delay=delay, hold=hold)  # type: ignore[assignment]
    return mitigate()


if __name__ == "__main__":
    sys.exit(main())
