"""CPU-seconds of annotation and generation, beside other ways to do the same in the same run.

    OMP_NUM_THREADS=1 python -m benchmarks.speed --data ../shared/data
    OMP_NUM_THREADS=1 python -m benchmarks.speed --generation          # SmolLM2 only

Annotation: whole answers of lfqa_verification, cliff and qags with their documents; beside it one sentence at a time,
and the small annotator. Generation: four samples of prompts of examples/questions.jsonl, at temperature 1, by the
engine in one call and by transformers' own ``generate``, one by one. The ways take turns; only ratios count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from annotators import load_annotator
from benchmarks.common import ROOT, Row, in_turns, parser, row, save, sentences_of, whole_answers
from engines import Sampling, load_engine
from engines.checkpoint import locate, prompt_ids
from mitigate.io import read_rows


def ratio_rows(what: str, n: object, seconds: Mapping[str, list[float]]) -> list[Row]:
    """How many times as long each way takes as the first: median round, with the lowest and the highest."""
    first, *others = seconds
    rows = []
    for name in others:
        ratios = sorted(b / a for a, b in zip(seconds[first], seconds[name], strict=True))
        rows.append(row(f"{what}: {name}, times as long", n, median(ratios), (ratios[0], ratios[-1])))
    return rows


def annotation(data: Any, n: int, rounds: int) -> list[Row]:
    """Ways to annotate every answer of some documents."""
    annotator, fast = load_annotator("embedded"), load_annotator("embedded-fast")
    records = whole_answers(data, n)
    cut = [{**r, "answer": text} for r in records for text in sentences_of(r["answer"])]
    for one in (annotator, fast):
        one.annotate_batch(records[:2])  # warm
    ways: dict[str, Callable[[], object]] = {
        "in one call": lambda: annotator.annotate_batch(records),
        "one sentence at a time": lambda: [annotator.annotate_batch([r]) for r in cut],
        "by embedded-fast": lambda: fast.annotate_batch(records),
    }
    seconds = in_turns(ways, rounds)
    what, own = "every answer of a document", 1000 * sum(seconds["in one call"]) / rounds / len(cut)
    print(seconds, flush=True)
    first = row(f"{what}, in one call: CPU-milliseconds a sentence", len(cut), own)
    return [first, *ratio_rows(what, len(cut), seconds)]


def generation(questions: int, samples: int, tokens: int, rounds: int) -> list[Row]:
    """SmolLM2 by the engine and by plain ``generate`` in the same precision: the same prompts."""
    engine: Any = load_engine("transformers:packaged:smollm2", device="cpu")
    model: Any = AutoModelForCausalLM.from_pretrained(locate("packaged:smollm2"), dtype=engine.model.dtype).eval()
    rows = islice(read_rows(ROOT / "examples" / "questions.jsonl"), questions)
    chats = [[{"role": "user", "content": f"{r['reference']}\n\n{r['question']}"}] for r in rows]
    ends = {f"{name}_token_id": getattr(engine.tokenizer, f"{name}_token_id") for name in ("eos", "pad")}
    config = GenerationConfig(max_new_tokens=tokens, do_sample=True, top_k=0, **ends)
    other = "plain generate, one by one"
    said = dict.fromkeys(("engine", other), 0)  # tokens, of all rounds

    def by_engine() -> None:
        results = engine.chat(chats, Sampling(max_tokens=tokens, temperature=1.0, n=samples, seed=0))
        texts = [r.texts[i] for r in results for i in range(samples)]
        said["engine"] += sum(map(len, engine.tokenizer(texts)["input_ids"]))

    @torch.inference_mode()
    def plain() -> None:
        for chat in chats * samples:
            ids = torch.tensor([prompt_ids(engine.tokenizer, chat)])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
            said[other] += out.shape[1] - ids.shape[1]

    seconds = in_turns({"engine": by_engine, other: plain}, rounds)
    first, second = (said[name] / sum(seconds[name]) for name in said)
    what = f"SmolLM2, {samples} samples of each of {questions} prompts ({engine.identity['dtype']})"
    return [
        row(f"{what}: tokens a CPU-second", said["engine"], first),
        row(f"the same by {other}", said[other], second),
        row(f"times as fast as {other}", sum(said.values()), first / second),
    ]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--generation", action="store_true", help="measure generation, and nothing else")
    made.add_argument("--documents", type=int, default=30)
    made.add_argument("--rounds", type=int, default=3)
    args = made.parse_args()
    torch.set_num_threads(1)
    if args.generation:
        save("speed", "speed", generation(questions=4, samples=4, tokens=48, rounds=2), part="generation")
        return
    rows = annotation(args.data, args.documents, args.rounds)
    save("speed", "speed", rows, packages=["sentence-transformers"])


if __name__ == "__main__":
    main()
