"""Tiny decoders with a byte-level tokenizer, and a tiny BERT, built in the test: nothing is downloaded."""

import json
import shutil
from pathlib import Path
from typing import Any

from engines.packaged import folder_of
from examples.pocket.lm import build_tokenizer

TEXTS = [
    "Question: Who designed the bridge? Reference: The Alder Bridge was opened in May 1902. Answer: It was. " * 3,
    "问题：谁设计了这座桥？参考：桥于一九零二年开放。答案：安娜设计了它。" * 3,
]


def tokenizer(padding_side: str = "right", vocabulary: int = 400) -> Any:
    made = build_tokenizer(TEXTS, vocabulary)
    made.padding_side = padding_side
    return made


def decoder(kind: str = "llama", *, seed: int = 0, head: str = "CausalLM", **more: Any) -> Any:
    """A model of two layers: "llama", "gpt2" (learned positions), "opt" (positions by mask) or "olmo2"."""
    import torch
    import transformers as tf

    torch.manual_seed(seed)
    n = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "vocab_size": 400}
    common = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=512)
    sizes = {
        "llama": {**common, "intermediate_size": 48, "num_key_value_heads": 2},
        "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=512),
        "opt": {**common, "ffn_dim": 48, "word_embed_proj_dim": 32},
        "olmo2": {**common, "intermediate_size": 48},
    }[kind]
    name = {"llama": "Llama", "gpt2": "GPT2", "opt": "OPT", "olmo2": "Olmo2"}[kind]
    config = getattr(tf, f"{name}Config")(**{**sizes, **n, **more})
    return getattr(tf, "GPT2LMHeadModel" if (kind, head) == ("gpt2", "CausalLM") else f"{name}For{head}")(config)


def save_decoder(folder: Path, kind: str = "llama", **more: Any) -> Path:
    decoder(kind, **more).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def own_code(folder: Path) -> None:
    """Turn a saved Llama into one like InternLM2, whose model and configuration are Python files in its folder."""
    config = json.loads((folder / "config.json").read_text())
    auto = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": auto}))
    code = "from transformers import LlamaConfig, LlamaForCausalLM\n"
    code += "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    (folder / "own.py").write_text(f"{code}\nclass OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n")


def save_tiny_bert(folder: Path, width: int) -> str:
    """A BERT of one layer with MiniLM's tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 2 * width}
    BertModel(BertConfig(vocab_size=30522, **sizes), add_pooling_layer=False).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(folder_of("minilm") / name, folder)
    return str(folder)
