"""A language model of half a million parameters that learned the pocket world from flawed texts (simulated).

A small Llama with a byte-level BPE tokenizer and a chat template, trained from scratch with a plain loop in a
few minutes on one CPU thread. Saved as any Hugging Face model, so that every trainer takes it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

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


def build_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerBase:
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


def build_model(tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int, heads: int = 4) -> PreTrainedModel:
    """A Llama with random weights, each time the same.

    ``width`` is that of the residual stream, a multiple of ``heads``; the feed-forward layers are three times as wide.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
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


def steps_of(pairs: Sequence[tuple[str, str]]) -> int:
    return max(1, round(len(pairs) / BATCH))


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    *,
    learning_rate: float,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Teach a model, in place, to answer: one pass over (question, answer) ``pairs``, with the loss on answers only.

    ``learning_rate`` is the peak, after a warm-up of 5 % of the steps; it falls to zero as a cosine. ``on_step``
    is called with (step, loss). Returns the mean loss per answer token of each step, in nats.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    prompts = [tokenizer(f"<|user|>{question}<|assistant|>")["input_ids"] for question, _ in pairs]
    answers = [tokenizer(f"{answer}<|end|>")["input_ids"] for _, answer in pairs]
    rng = random.Random(0)
    n_steps = steps_of(pairs)
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
    order = sorted(range(len(pairs)), key=lambda i: (lengths[i] // 8, rng.random()))
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]  # of like length
    rng.shuffle(batches)
    for step, batch in enumerate(batches[:n_steps]):
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
