"""Local checkpoints: where they are, what state they are in, what the prompt of a chat is."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engines import packaged
from engines.types import TAGS, Chat, canonical

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5"})
SETTINGS = ("modules.json", "config.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json")
VOCABULARY = (
    "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "added_tokens.json",
)  # fmt: skip
"""What a tokenizer is read from where there is no tokenizer.json."""


@contextmanager
def not_partitioned() -> Iterator[None]:
    """Load models whole inside this block, also where DeepSpeed ZeRO-3 partitions the model in training.

    transformers partitions every model that is loaded while a ZeRO-3 configuration is alive, and a partitioned
    model cannot run outside DeepSpeed ("'weight' must be 2-D"). Imports neither of the two.
    """
    module = sys.modules.get("transformers.integrations.deepspeed")
    if module is None or not module.is_deepspeed_zero3_enabled():
        yield
        return
    config = module._hf_deepspeed_config_weak_ref()  # there is a way to set and to unset it, none to read it
    module.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        module.set_hf_deepspeed_config(config)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Load a model inside this block without transformers' progress bars and its report of weights left out."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


@contextmanager
def own_code(model: str) -> Iterator[None]:
    """Explain why ``model``, loaded inside this block, could not be loaded where it brings code of its own. Raises
    ValueError: the code may not be run; ImportError: it needs a package, which the message names.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"checkpoint {model}: {' '.join(str(error).split())[:300]} (InternLM2 needs sentencepiece and einops: "
            "pip install 'hallucination-toolkit[internlm]')"
        ) from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"checkpoint {model} brings code of its own, which runs only where you ask for it: read its .py files, "
            "then give --trust-remote-code (recipes: training.trust_remote_code=true; Python: trust_remote_code=True)"
        ) from error


def locate(model: str) -> str:
    """The folder of a model named by its path or as ``packaged:NAME`` (fetched on its first use), else ``model``
    unchanged (a hub id). Raises OSError: ``model`` is written like a path and there is no such folder, the folder has
    no safetensors, or the model can't be fetched; ValueError: there is no such packaged model.
    """
    if model.startswith(packaged.PREFIX):
        return str(packaged.folder_of(model))
    folder = Path(model).expanduser()
    if folder.is_dir():
        if [*folder.glob("pytorch_model*.bin")] and not [*folder.glob("*.safetensors")]:
            raise OSError(
                f"{model} has its weights in pytorch_model.bin only, a format that can run code when it is read: "
                "expected safetensors. If you trust the file, load it once with transformers' from_pretrained, and "
                "write it with save_pretrained"
            )
        return str(folder.resolve())
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or folder.exists():
        raise FileNotFoundError(f"no checkpoint folder at {model}: expected a folder with a config.json")
    return model


def checkpoint_identity(model: str, located: str) -> dict[str, str]:
    """What tells a model and its state from others, for the cache's key; ``located`` is where :func:`locate` found it.

    A packaged model has the same on every machine. For a folder, the state is a sha256 over the size and time of change
    of each weight file and the content of every other file, so that retrained weights give another state without
    gigabytes being read. For a hub id, it is the commit that is in the local hub cache.
    """
    if model.startswith(packaged.PREFIX):
        return {"model": model, "state": packaged.known(model)[1].state}
    folder = Path(located)
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(located, "config.json")
        return {"model": model, "state": Path(found).parent.name if isinstance(found, str) else "unknown"}
    state: list[list[Any]] = []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.suffix in WEIGHTS:
            stat = path.stat()
            state.append([path.name, stat.st_size, stat.st_mtime_ns])
        else:
            state.append([path.name, hashlib.sha256(path.read_bytes()).hexdigest()])
    return {"model": located, "state": hashlib.sha256(canonical(state).encode()).hexdigest()[:16]}


def content_digest(folder: Path, parts: Iterable[Path] = ()) -> str:
    """sha256 (64 hex digits) over the content of safetensors, tokenizer and settings of a model's folder and of
    ``parts`` of it: a copy has the same, and what else lies in the folder does not count.
    """
    folders = {folder, *parts}
    found = {path for place in folders for path in place.glob("*.safetensors")}
    for place in folders:
        names = SETTINGS if (place / "tokenizer.json").is_file() else (*SETTINGS, *VOCABULARY)
        found |= {path for name in names if (path := place / name).is_file()}
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in found):
        digest.update(f"{name} {packaged.sha256(path)}\n".encode())
    return digest.hexdigest()


def content_identity(model: str, located: str) -> str:
    """What tells the content of a model from others for good, where :func:`checkpoint_identity` is quick.

    A packaged model has its name, since its weights are pinned here; a folder its :func:`content_digest`, wherever it
    lies, and a hub id that of the snapshot that was loaded, whose commit may have changed a README only.
    """
    if model.startswith(packaged.PREFIX):
        return model
    return content_digest(Path(located) if Path(located).is_dir() else snapshot_of(located))


def snapshot_of(hub_id: str) -> Path:
    """The folder of the local hub cache that holds a model which was loaded."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(hub_id, local_files_only=True))


def encodable(message: Mapping[str, str]) -> dict[str, str]:
    """A message as tokenizers take it: half a character is a question mark."""
    return {name: text.encode("utf-8", "replace").decode() for name, text in message.items()}


def prompt_ids(tokenizer: Any, chat: Chat, more: Mapping[str, Any] | None = None) -> list[int]:
    """The token ids of a chat and the opening of the assistant's turn, by the chat template, which also gets ``more``.

    Control tokens written inside a message are encoded as ordinary text where transformers can do that (5.23; older
    versions hand the option to the template, which does not read it). Raises jinja2.TemplateError: the template does
    not take this chat (a system message, two user turns, …).
    """
    encoded = tokenizer.apply_chat_template(
        list(map(encodable, chat)), add_generation_prompt=True, return_dict=True,
        sanitize_control_tokens=True, **more or {},
    )  # fmt: skip
    return list(encoded["input_ids"])


def opened(tokenizer: Any, ids: Sequence[int]) -> str:
    """The tag of a block of thoughts that a prompt of these token ids ends with (some templates open one), else ""."""
    end = tokenizer.decode(list(ids[-16:])).rstrip()
    return next((tag for tag, _ in TAGS[:2] if end.endswith(tag)), "")
