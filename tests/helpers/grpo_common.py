"""A tiny causal LM with a byte-level BPE made here, prompts, and a rule-based sentence reward."""

import re
from pathlib import Path
from typing import Any

from examples.pocket.lm import build_tokenizer
from mitigate.rewards.segments import Segment, SentenceScore
from mitigate.rl.credit import Credit
from tests.helpers.tiny_models import decoder

WORDS = "the a river hill town is was old new red tall in of built near stone bridge north".split()
OWN = Credit(0.0, 0.0, eos="none", thinking="none", baseline="group", clip=None)
"""A token has the credit of its own sentence, and nothing else."""
PROMPTS = ["Tell of the river.", "Tell of the hill.", "Tell of the town.", "Tell of the bridge."]


def tiny_tokenizer() -> Any:
    """Byte-level BPE of about 300 tokens, without a chat template."""
    made = build_tokenizer([" ".join(WORDS) + ". " + " ".join(reversed(WORDS)) + "."] * 4, 300)
    made.chat_template = None
    return made


def tiny_model(vocabulary: int) -> Any:
    sizes = {"intermediate_size": 64, "num_attention_heads": 2, "max_position_embeddings": 128}
    return decoder(vocab_size=vocabulary, **sizes)


def pieces(text: str) -> list[tuple[int, int]]:
    """Runs of up to eight characters stand for sentences: random text has no full stops to speak of."""
    return [(m.start(), m.end()) for m in re.finditer(r"\S(?:.{0,6}\S)?", text, re.DOTALL)]


def rule(text: str) -> float | None:
    """+1 with a vowel, −1 without; None where there is no ASCII letter."""
    if not re.search("[A-Za-z]", text):
        return None
    return 1.0 if re.search("[aeiouAEIOU]", text) else -1.0


def score(text: str) -> SentenceScore | None:
    segments = [Segment(s, e, None, rule(text[s:e])) for s, e in pieces(text)]
    judged = [s.reward for s in segments if s.reward is not None]
    return SentenceScore(sum(judged) / len(judged), {"vowels": segments}) if judged else None


def vowel_reward(completions: list[Any], **kwargs: Any) -> list[SentenceScore | None]:
    return [score(c if isinstance(c, str) else c[-1]["content"]) for c in completions]


def config(directory: Path, **options: Any) -> Any:
    from trl import GRPOConfig

    settings: dict[str, Any] = dict(
        output_dir=str(directory), use_cpu=True, bf16=False, gradient_checkpointing=False, seed=0,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=16, max_steps=2, learning_rate=1e-2,
        beta=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    return GRPOConfig(**{**settings, **options})


def dataset(prompts: list[Any] | None = None) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"prompt": (prompts or PROMPTS) * 4})
