"""A language model of a million parameters that learned the pocket world from flawed texts (simulated).

A small Llama with a byte-level BPE tokenizer and a chat template, trained from scratch with a plain loop in a
few minutes on one CPU thread. Saved and loaded as any Hugging Face model, so that every trainer takes it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
BATCH = 32  # pairs a training step


def build_tokenizer(texts: Sequence[str], vocabulary: int = 2048) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer on texts; at most ``vocabulary`` tokens, above 260."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def build_model(
    tokenizer: PreTrainedTokenizerBase, *, width: int = 128, layers: int = 4, heads: int = 4, seed: int = 0
) -> PreTrainedModel:
    """A Llama with random weights: 1.1 million parameters as set here.

    ``width`` is that of the residual stream, a multiple of ``heads``; the feed-forward layers are three times as wide.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=width**-0.5 / 2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    *,
    epochs: float = 1,
    batch_size: int = BATCH,
    learning_rate: float = 3e-3,
    seed: int = 0,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Teach a model to answer, with the loss on answers only.

    Args:
        model: Changed in place.
        tokenizer: Its tokenizer.
        pairs: (question, answer).
        epochs: Passes over the pairs.
        batch_size: Pairs per step.
        learning_rate: Peak, after a warm-up of 5 % of the steps; falls to zero as a cosine.
        seed: Draws the order of the rows.
        on_step: Called with (step, loss).

    Returns:
        The mean loss per answer token of each step, in nats.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    prompts = [tokenizer(f"<|user|>{question}<|assistant|>")["input_ids"] for question, _ in pairs]
    answers = [tokenizer(f"{answer}<|end|>")["input_ids"] for _, answer in pairs]
    rng = random.Random(seed)
    n_steps = max(1, round(epochs * len(pairs) / batch_size))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    warm = max(1, n_steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * min(1, s / n_steps)))
    )
    model.train()
    losses = []
    lengths = [len(a) + len(b) for a, b in zip(prompts, answers, strict=True)]
    for step, batch in enumerate(_batches(rng, lengths, n_steps, batch_size)):
        both = [torch.tensor(prompts[i] + answers[i]) for i in batch]
        wanted = [torch.tensor([-100] * len(prompts[i]) + answers[i]) for i in batch]
        ids = pad_sequence(both, batch_first=True, padding_value=tokenizer.pad_token_id)
        labels = pad_sequence(wanted, batch_first=True, padding_value=-100)
        loss = model(input_ids=ids, labels=labels).loss  # padding is on the right: no mask is needed
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        if on_step is not None:
            on_step(step + 1, losses[-1])
    model.eval()
    return losses


def _batches(rng: random.Random, lengths: Sequence[int], n_steps: int, size: int) -> list[list[int]]:
    """Batches of pairs of like length, in random order, for so many steps."""
    out: list[list[int]] = []
    while len(out) < n_steps:
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i] // 8, rng.random()))
        epoch = [order[i : i + size] for i in range(0, len(order), size)]
        rng.shuffle(epoch)
        out += epoch
    return out[:n_steps]


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    *,
    n: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int = 128,
    batch_size: int = 128,
    seed: int = 0,
) -> list[list[str]]:
    """Sample ``n`` answers to each plain question, without special tokens; temperature 0 takes the likeliest token.

    ``batch_size`` prompts are answered at once by a tokenizer that pads on the left.
    """
    import torch

    torch.manual_seed(seed)
    prompts = [f"<|user|>{question}<|assistant|>" for question in questions for _ in range(n)]
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    how: dict[str, Any] = {"max_new_tokens": max_new_tokens, **(drawn if temperature > 0 else {"do_sample": False})}
    texts: list[str] = []
    generate: Any = model.eval().generate
    for start in range(0, len(prompts), batch_size):
        inputs = tokenizer(prompts[start : start + batch_size], return_tensors="pt", padding=True)
        ids = inputs["input_ids"]
        out = generate(input_ids=ids, attention_mask=inputs["attention_mask"], **how)
        texts += tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
    return [texts[i : i + n] for i in range(0, len(texts), n)]


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face folder (safetensors)."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Read what ``save`` wrote; OSError where there is no model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", use_safetensors=True)
    return model, AutoTokenizer.from_pretrained(folder, padding_side="left")
