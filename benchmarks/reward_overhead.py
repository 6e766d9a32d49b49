"""What SentenceReward costs: sentences per second with and without cache and batching, and its share of a GRPO step.

    OMP_NUM_THREADS=1 python -m benchmarks.reward_overhead

1. Sentences per second: real answers with their documents, scored in one call, completion by completion and sentence
   by sentence, without a cache (``cache_size=0``, new embeddings), and again with everything cached. CPU-seconds, two
   alternating rounds, sums.
2. Share of the step: stock ``GRPOTrainer`` on a randomly initialised Llama. Its completions are gibberish, so the
   reward is given real answers in their place, as many and about as long, each seen for the first time, the eight of
   a prompt with one document; the trainer generates, computes log-probabilities and steps as always. Wall seconds
   from the trainer's own log.

Not measured: a GPU, where policy and annotator would both be many times faster.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from annotators import load_annotator
from annotators.text.sentences import split_sentences
from benchmarks.annotate_speed import _processor, documents
from benchmarks.splits import DATA, require_data
from benchmarks.tiny_chat import build_tiny_chat
from mitigate.rewards.reward import SentenceReward

PAGE = Path(__file__).parent.parent / "docs" / "results" / "reward-overhead.md"
GENERATIONS = 8
LABELS_ONLY = {"factuality": 1.0}
Records = list[dict[str, Any]]


def call(reward: SentenceReward, records: Records) -> None:
    """Score the answers of records."""
    reward(
        completions=[r["answer"] for r in records],
        reference=[r["reference"] for r in records],
        question=[r["question"] or "What does the document say?" for r in records],
    )


def speeds(annotator: Any, records: Records, rounds: int) -> list[str]:
    """Table of CPU-seconds and sentences per second by way of calling."""
    cuts = [{**r, "answer": r["answer"][a:b]} for r in records for a, b in split_sentences(r["answer"])]

    def fresh(**options: Any) -> SentenceReward:
        return SentenceReward(annotator, cache_size=0, **options)

    def one_by_one(rows: Records) -> Callable[[], None]:
        def run() -> None:
            for row in rows:
                call(fresh(), [row])

        return run

    warm, warm_labels = SentenceReward(annotator), SentenceReward(annotator, aspects=LABELS_ONLY)
    call(warm, records)
    call(warm_labels, records)
    ways: dict[str, Callable[[], None]] = {
        "one call, all aspects": lambda: call(fresh(), records),
        "one call, factuality alone": lambda: call(fresh(aspects=LABELS_ONLY), records),
        "completion by completion, all aspects": one_by_one(records),
        "sentence by sentence, all aspects": one_by_one(cuts),
        "again, all in the cache, all aspects": lambda: call(warm, records),
        "again, all in the cache, factuality alone": lambda: call(warm_labels, records),
    }
    seconds = dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            seconds[name] += time.process_time() - start
    first = seconds["one call, all aspects"]
    return ["| way | CPU-seconds a round | sentences/s | times \"one call, all aspects\" |", "|---|---|---|---|"] + [
        f"| {name} | {s / rounds:.2f} | {len(cuts) * rounds / s:.0f} | {s / first:.3f} |" for name, s in seconds.items()
    ]  # fmt: skip


def build_policy(folder: Path, hidden: int, layers: int) -> int:
    """A Llama with random weights and the tiny chat tokenizer; returns its parameters."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    build_tiny_chat(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            max_position_embeddings=2048,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def step_shares(
    annotator: Any, records: Records, policy: Path, tokens: int, steps: int, options: dict[str, Any]
) -> tuple[float, float, float]:
    """Reward seconds and step seconds, means over the steps after the first, and sentences a step."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    reward = SentenceReward(annotator, **options)
    fresh = iter(records)
    counted: list[int] = []

    def factuality(completions: list[Any], **arguments: Any) -> list[Any]:
        rows = [next(fresh) for _ in completions]
        for i, row in enumerate(rows):  # the completions of a prompt share its document
            first = rows[i - i % GENERATIONS]
            rows[i] = {**row, "reference": first["reference"], "question": first["question"]}
        counted.append(sum(len(split_sentences(r["answer"])) for r in rows))
        return reward(
            completions=[r["answer"] for r in rows],
            reference=[r["reference"] for r in rows],
            question=[r["question"] or "What does the document say?" for r in rows],
            log_metric=arguments["log_metric"],
        )

    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output, use_cpu=True, bf16=False, per_device_train_batch_size=16, num_generations=GENERATIONS,
            max_completion_length=tokens, max_steps=steps, logging_steps=1, report_to=[], save_strategy="no",
            beta=0.0, disable_tqdm=True, gradient_checkpointing=False,
            generation_kwargs={"min_new_tokens": tokens},
        )  # fmt: skip
        prompts = [{"prompt": "What does the document say? " * 4} for _ in range(8)]
        trainer = GRPOTrainer(
            model=str(policy), reward_funcs=factuality, args=config, train_dataset=Dataset.from_list(prompts)
        )
        trainer.train()
    logs = [log for log in trainer.state.log_history if "step_time" in log][1:]
    mean = [sum(log[key] for log in logs) / len(logs) for key in ("factuality/seconds", "step_time")]
    return mean[0], mean[1], sum(counted[1:]) / len(counted[1:])


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Cost of SentenceReward.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--documents", type=int, default=20, help="for sentences per second")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="GRPO steps; the first is left out")
    parser.add_argument("--policies", type=int, default=2, help="1 for the smaller one alone")
    parser.add_argument("--tokens", type=int, default=128, help="of a completion")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    require_data(args.data)
    import torch

    torch.set_num_threads(1)
    annotator: Any = load_annotator("embedded")
    groups = documents(args.data, args.documents + 200, 0)
    records = [record for group in groups[: args.documents] for record in group]
    call(SentenceReward(annotator), records[:2])
    sentences = sum(len(split_sentences(r["answer"])) for r in records)
    words = sum(len(r["reference"].split()) for r in records) / len(records)
    table = speeds(annotator, records, args.rounds)
    print("\n".join(table), flush=True)
    rest = [record for group in groups[args.documents :] for record in group if len(record["answer"]) < 6 * args.tokens]
    rows = []
    for hidden, layers in ((256, 4), (512, 8))[: args.policies]:
        with tempfile.TemporaryDirectory() as folder:
            parameters = build_policy(Path(folder), hidden, layers)
            for name, options in (
                ("all aspects", {}),
                ("all aspects, no cache", {"cache_size": 0}),
                ("factuality alone", {"aspects": LABELS_ONLY}),
            ):
                used, step, n = step_shares(annotator, rest, Path(folder), args.tokens, args.steps, options)
                share = f"{100 * used / step:.0f} %"
                rows.append(f"| {parameters / 1e6:.1f}M | {name} | {n:.0f} | {used:.2f} | {step:.2f} | {share} |")
                print(rows[-1], flush=True)
    versions = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "trl"))
    page = [
        "# What SentenceReward costs\n",
        "Written by `benchmarks/reward_overhead.py` (what is measured, and how: see its head).\n",
        "```\nOMP_NUM_THREADS=1 python -m benchmarks.reward_overhead " + " ".join(sys.argv[1:]) + "\n```\n",
        f"One thread of {_processor()}; Python {platform.python_version()}, {versions}; encoder in "
        f"{annotator.embedder.dtype}. Single runs on a shared machine: read ratios, not seconds. No GPU was at hand.\n",
        "## Sentences per second\n",
        f"{len(records)} answers to {args.documents} documents of {words:.0f} words on average, {sentences} sentences; "
        f"{args.rounds} rounds.\n",
        *table,
        "\n## Share of a GRPO step\n",
        f"16 completions of {args.tokens} tokens a step (two prompts, eight each), means over {args.steps - 1} steps "
        "after the first; float32 on the same thread. Every answer is new, so the cache only helps where answers share "
        "a sentence and with the embeddings of references.\n",
        "| policy | reward | sentences a step | reward seconds | step seconds | share |", "|---|---|---|---|---|---|",
        *rows,
        "\nThe share falls as the policy grows: the reward's work depends on the sentences only. Shares on a CPU say "
        "little about a GPU; the goal of 5 % there is not tested.",
    ]  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
