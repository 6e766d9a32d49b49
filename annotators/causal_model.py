"""The network of the causal-LM annotator: any decoder with a linear head of four classes instead of its last layer.

A checkpoint is a language model (the head is new and must be trained), a token classifier, a sequence classifier
whose ``score`` layer is read at every token, or LoRA adapters over one of these, which are merged. Class names are
mapped to the labels and checked; a checkpoint without a trained head is refused where it is to judge.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annotators.records import LABELS, Label

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

NAMES: dict[str, Label] = {
    **{label: label for label in LABELS},
    **dict.fromkeys(("none", "no hallucination", "无", "无幻觉"), LABELS[0]),
    **dict.fromkeys(("contradiction", "矛盾"), LABELS[1]),
    "无法验证": LABELS[2],
    **dict.fromkeys(("no fact", "no facts", "nofact", "无事实"), LABELS[3]),
}
"""What a checkpoint may call its classes: our labels and the tags of ANAH, in any case."""


def label_order(id2label: Mapping[Any, str], where: str) -> list[int]:
    """For each of LABELS the number of its class.

    Args:
        id2label: Class number → name, of the checkpoint's config.json.
        where: The checkpoint, for the message.

    Raises:
        ValueError: The names are not one for each label.
    """
    names = {int(number): str(name) for number, name in id2label.items()}
    found = {
        NAMES.get(name.strip().lower().replace("_", " "), NAMES.get(name)): n for n, name in names.items()
    }
    if set(found) != set(LABELS) or len(names) != len(LABELS):
        raise ValueError(
            f"{where}: expected four classes named {', '.join(LABELS)} (or by ANAH's tags), got "
            f"{', '.join(names[n] for n in sorted(names))[:200]}; name them in id2label of its config.json, or train a "
            "head with `mitigate train annotator`"
        )
    return [found[label] for label in LABELS]


def token_classifier(config: PreTrainedConfig) -> Any:
    """The token classifier of an architecture; made from its decoder where transformers has none.

    Raises:
        ValueError: It is neither a token classifier nor a language model that transformers knows.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
        PreTrainedModel,
    )
    from transformers.modeling_layers import GenericForTokenClassification

    if type(config) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        return MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[type(config)]
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"expected a decoder or a token classifier, got a model of type {config.model_type!r}"
        )
    decoder: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    base = next(c for c in decoder.__mro__ if PreTrainedModel in c.__bases__)
    name = decoder.__name__.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "ForTokenClassification"
    return type(name, (GenericForTokenClassification, base), {"__module__": __name__})


def new_head(checkpoint: str, *, dtype: Any = None, seed: int = 0) -> PreTrainedModel:
    """A checkpoint with a head of four classes to be trained; a head that it has is kept if its labels fit.

    Args:
        checkpoint: Folder or hub id of a language model or of a token classifier.
        dtype: torch dtype of the weights; None takes float32.
        seed: Of a new head's weights.

    Raises:
        OSError: There is no such checkpoint.
        ValueError: Its architecture can't carry the head.
    """
    import torch
    from transformers import AutoConfig, set_seed

    config = AutoConfig.from_pretrained(checkpoint)
    config.num_labels = len(LABELS)
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {label: n for n, label in enumerate(LABELS)}
    set_seed(seed)
    model: PreTrainedModel = token_classifier(config).from_pretrained(
        checkpoint, config=config, dtype=dtype or torch.float32, ignore_mismatched_sizes=True
    )
    return model


def load_classifier(folder: str, *, dtype: Any) -> PreTrainedModel:
    """A trained token or sequence classifier with four classes, in evaluation mode.

    Raises:
        OSError: There is no such checkpoint.
        ValueError: It has no trained head, or no head that can be read at every token.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig

    if (Path(folder) / "adapter_config.json").is_file():
        return _with_adapters(folder, dtype)
    config = AutoConfig.from_pretrained(folder)
    sequence = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    kind: Any = (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)] if sequence else token_classifier(config)
    )
    model, loading = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    if sequence and not hasattr(model, "score"):
        raise ValueError(
            f"{folder}: {kind.__name__} reads a text at one place; expected a decoder or a token classifier"
        )
    if loading["missing_keys"] or loading["mismatched_keys"]:
        missing = ", ".join(sorted(map(str, loading["missing_keys"] or loading["mismatched_keys"]))[:3])
        raise ValueError(
            f"{folder}: expected a trained head of {len(LABELS)} classes, but these weights are missing: {missing}; "
            "train one with `mitigate train annotator`"
        )
    classifier: PreTrainedModel = model.eval()
    return classifier


def _with_adapters(folder: str, dtype: Any) -> PreTrainedModel:
    from peft import PeftConfig, PeftModel

    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    if not base:
        raise ValueError(
            f"{folder}: expected base_model_name_or_path in adapter_config.json, got none; add it"
        )
    adapters = PeftModel.from_pretrained(new_head(base, dtype=dtype), folder)
    merged: PreTrainedModel = adapters.merge_and_unload()
    return merged.eval()


def token_logits(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """(B, T, 4) logits at every token, also of a sequence classifier, whose own forward reads one."""
    if type(model).__name__.endswith("ForSequenceClassification"):
        hidden_BTD = model.base_model(**batch, use_cache=False).last_hidden_state
        head: Any = model.score
        logits_BTC: Tensor = head(hidden_BTD)
        return logits_BTC
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    found: Tensor = model(**batch, **options).logits
    return found


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer, which must be a fast one.

    Raises:
        ValueError: It gives no character offsets.
    """
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.is_fast:
        raise ValueError(
            f"{folder}: expected a fast tokenizer (tokenizer.json), which gives character offsets, got "
            f"{type(tokenizer).__name__}"
        )
    return tokenizer


def longest(model: PreTrainedModel, wanted: int) -> int:
    """Tokens of a row: what is wanted, at most what the model has positions for."""
    limit = getattr(model.config, "max_position_embeddings", None) or getattr(
        model.config, "n_positions", None
    )
    return min(wanted, limit) if isinstance(limit, int) and limit > 0 else wanted


def is_classifier(folder: Path) -> bool:
    """Whether a folder holds a token or sequence classifier, or what ``CausalAnnotator.save_pretrained`` wrote."""
    for name, key, fits in (
        ("annotator.json", "kind", lambda value: value == "causal"),
        ("config.json", "architectures", _classifies),
        ("adapter_config.json", "task_type", lambda value: value == "TOKEN_CLS"),
    ):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and fits(found.get(key)):
            return True
        if name == "annotator.json":
            return False
    return False


def _classifies(architectures: object) -> bool:
    names: Sequence[object] = architectures if isinstance(architectures, list) else ()
    return any(str(n).endswith(("ForTokenClassification", "ForSequenceClassification")) for n in names)
