"""An answer judged in one forward pass against a pass for each of its sentences.

    python -m benchmarks.causal_one_pass

A decoder of four layers and width 128 with random weights judges answers of n sentences against a reference of about
14 sentences: all sentences of an answer in one row, or a row for each sentence with the answer up to its end. The
verdicts are equal (checked here as well); CPU time is compared. Writes docs/results/causal-one-pass.md.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from annotators.records import LABELS, Annotation
from annotators.text.sentences import split_sentences
from annotators.verifier.causal import CausalAnnotator

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "causal-one-pass.md"
SENTENCES = (1, 2, 4, 8, 16)
ANSWERS, REPEATS = 4, 5
NAMES = "Alder Beck Cole Dunmore Ebbing Farrow Gresham Hale Iverley Jarrow".split()
PLACES = "bridge mill tower canal church school market harbour library station".split()


def sentence(draw: random.Random) -> str:
    """A made-up statement."""
    name, place, year = draw.choice(NAMES), draw.choice(PLACES), draw.randrange(1700, 1990)
    return f"The {place} of {name} was finished in {year} and is {draw.randrange(9, 99)} metres long."


def build(draw: random.Random) -> CausalAnnotator:
    """A random decoder with a head; what it says does not matter here."""
    import torch
    from transformers import LlamaConfig, LlamaForTokenClassification

    from examples.pocket.lm import build_tokenizer

    tokenizer = build_tokenizer([sentence(draw) for _ in range(500)], 1024)
    tokenizer.padding_side = "right"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=4096,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        id2label={n: str(label) for n, label in enumerate(LABELS)},
        num_labels=len(LABELS),
    )
    return CausalAnnotator(LlamaForTokenClassification(config), tokenizer, max_tokens=4096)


def last_scores(found: list[Annotation]) -> np.ndarray:
    """(n, 4) probabilities of each annotation's last sentence."""
    return np.array([[a.sentences[-1].scores[label] for label in LABELS] for a in found if a.sentences[-1].scores])


def measure(annotator: CausalAnnotator, n: int) -> dict[str, Any]:
    """CPU seconds of both ways on the same answers, interleaved, so that a busy machine slows both."""
    draw = random.Random(n)
    records = [
        {
            "reference": " ".join(sentence(draw) for _ in range(14)),
            "question": "What was finished when?",
            "answer": " ".join(sentence(draw) for _ in range(n)),
        }
        for _ in range(ANSWERS)
    ]
    single = [
        {**record, "answer": record["answer"][:end]}
        for record in records
        for _, end in split_sentences(record["answer"])
    ]
    times: dict[str, list[float]] = {"one": [], "each": []}
    found: dict[str, list[Annotation]] = {}
    for _ in range(REPEATS):
        for name, batch in (("one", records), ("each", single)):
            start = time.process_time()
            found[name] = annotator.annotate_batch(batch)
            times[name].append(time.process_time() - start)
    ends = np.concatenate(
        [[[s.scores[label] for label in LABELS] for s in a.sentences if s.scores] for a in found["one"]]
    )
    ratios = sorted(b / a for a, b in zip(times["one"], times["each"], strict=True))
    return {
        "n": n,
        "ratio": ratios[REPEATS // 2],
        "low": ratios[0],
        "high": ratios[-1],
        "apart": float(np.abs(ends - last_scores(found["each"])).max()),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """The results page."""
    return "\n".join(
        [
            "# One pass for an answer against one for each sentence",
            "",
            "    python -m benchmarks.causal_one_pass",
            "",
            f"Python {platform.python_version()}, torch {version('torch')}, transformers {version('transformers')}; a "
            "2-core CPU machine, float32, one thread. Not run on a GPU.",
            "",
            f"{ANSWERS} answers of n sentences with a reference of 14 sentences, a random decoder of four layers and "
            "width 128. CPU time of a row for each sentence (with the answer up to its end) divided by that of one row "
            f"for the whole answer: median of {REPEATS} interleaved runs, lowest and highest in brackets. Both include "
            "splitting and tokenising. The last column is the largest difference of a probability between the two.",
            "",
            "| sentences | times as long | largest difference |",
            "|---|---|---|",
            *(f"| {r['n']} | {r['ratio']:.1f} [{r['low']:.1f}, {r['high']:.1f}] | {r['apart']:.0e} |" for r in rows),
            "",
            "Owed on a GPU: the same with 0.1 to 0.6 B parameters on 1,000 answers.",
            "",
        ]
    )


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    annotator = build(random.Random(0))
    text = page([measure(annotator, n) for n in SENTENCES])
    args.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
