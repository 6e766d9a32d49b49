"""A tiny BERT with MiniLM's tokenizer, as a base of the pair encoder."""

import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

from engines.packaged import folder_of


def save_tiny_bert(folder: Path, width: int) -> str:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=1, num_attention_heads=2, intermediate_size=2 * width, vocab_size=30522
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(folder_of("minilm") / name, folder)
    return str(folder)
