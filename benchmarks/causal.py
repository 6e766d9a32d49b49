"""One forward pass for an answer against one for each of its sentences.

    OMP_NUM_THREADS=1 python -m benchmarks.causal

A random causal-LM annotator of four layers and width 128 judges answers of n sentences against a reference of 14: all
sentences of an answer in one row, or a row for each sentence with the answer up to its end. CPU time is compared; that
both judge alike is checked.
"""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForTokenClassification, PreTrainedTokenizerFast

from annotators.records import LABELS, Annotation
from annotators.text.sentences import split_sentences
from annotators.verifier.causal import CausalAnnotator
from benchmarks.common import Row, parser, row, save

SENTENCES = (1, 2, 4, 8, 16)
N_ANSWERS, TURNS = 4, 5
NAMES = "Alder Beck Cole Dunmore Ebbing Farrow Gresham Hale Iverley Jarrow".split()
PLACES = "bridge mill tower canal church school market harbour library station".split()


def statement(draw: random.Random) -> str:
    """A made-up statement."""
    name, place, year = draw.choice(NAMES), draw.choice(PLACES), draw.randrange(1700, 1990)
    return f"The {place} of {name} was finished in {year} and is {draw.randrange(9, 99)} metres long."


def tokenizer_of(texts: list[str]) -> Any:
    """A byte-level tokenizer trained on texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>"]
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, special_tokens=special)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="right")


def random_annotator(draw: random.Random) -> CausalAnnotator:
    """A random decoder with a head; what it says does not matter here."""
    tokenizer = tokenizer_of([statement(draw) for _ in range(500)])
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


def one_pass_row(annotator: CausalAnnotator, n: int) -> Row:
    """How many times as long a pass for each sentence takes; both take turns, so that a busy machine slows both."""
    draw = random.Random(n)
    records = [
        {
            "reference": " ".join(statement(draw) for _ in range(14)),
            "question": "What was finished when?",
            "answer": " ".join(statement(draw) for _ in range(n)),
        }
        for _ in range(N_ANSWERS)
    ]
    single = [{**r, "answer": r["answer"][:end]} for r in records for _, end in split_sentences(r["answer"])]
    times: dict[str, list[float]] = {"one": [], "each": []}
    found: dict[str, list[Annotation]] = {}
    for _ in range(TURNS):
        for name, batch in (("one", records), ("each", single)):
            start = time.process_time()
            found[name] = annotator.annotate_batch(batch)
            times[name].append(time.process_time() - start)
    ends = np.concatenate(
        [[[s.scores[label] for label in LABELS] for s in a.sentences if s.scores] for a in found["one"]]
    )
    if np.abs(ends - last_scores(found["each"])).max() > 1e-5:
        raise RuntimeError("one pass and a pass for each sentence judge differently")
    ratios = sorted(b / a for a, b in zip(times["one"], times["each"], strict=True))
    what = f"a pass for each of {n} sentences: times as long as one pass"
    return row(what, N_ANSWERS, ratios[TURNS // 2], (ratios[0], ratios[-1]))


def main() -> None:
    """Measure and write the page."""
    parser(__doc__, data=False).parse_args()
    torch.set_num_threads(1)
    annotator = random_annotator(random.Random(0))
    save("llm-annotators", "causal", [one_pass_row(annotator, n) for n in SENTENCES])


if __name__ == "__main__":
    main()
