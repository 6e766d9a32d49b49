"""A tiny chat checkpoint with random weights, for tests of the engines and trainers.

Llama-like, about 110,000 parameters, head_dim 32 (what vLLM on a CPU takes), a byte-level BPE tokenizer
whose tokens are all ASCII text, and a chat template. It talks nonsense; the engines' plumbing does not care.
"""

from pathlib import Path

from tests.helpers.tiny_models import decoder

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEXT = """The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs.
0123456789 !"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ABCDEFGHIJKLMNOPQRSTUVWXYZ
Is the river longer than the road? No, the road is longer. Which one is older, yes or no, red or blue?
"""


def build_tiny_chat(folder: Path, *, seed: int = 0) -> Path:
    """Write the checkpoint into a folder and return it; 256 tokens hold prompt and answer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    raw.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    names = {"pad_token": "<|pad|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **names)
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
    more = {"num_attention_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False}
    # The initial weights are wide, so that the next-token distributions are far from uniform.
    model = decoder("llama", seed=seed, initializer_range=0.3, **sizes, **more, **ends)
    # Defaults as published checkpoints have them: the engines must not take them over.
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.7, top_k=20, repetition_penalty=1.3, **ends
    )  # fmt: skip
    model.save_pretrained(folder)
    return folder
