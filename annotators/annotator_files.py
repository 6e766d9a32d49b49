"""The files of a trained annotator: written, read back and checked.

annotator.json (what it was made for), combiner.safetensors, idf.safetensors and, with a pair encoder,
encoder.safetensors (what training changed in its base).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from annotators.combiner import Combiner
from annotators.features import FEATURES, VERSION, Idf
from annotators.records import LABELS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Parts:
    """What an annotator is put together from; ids are hub ids or folders, None for the packaged MiniLM."""

    combiner: Combiner
    idf: Idf
    embedder: str | None
    base: str | None = None
    encoder: dict[str, torch.Tensor] | None = None


def write_parts(parts: Parts, folder: Path) -> None:
    """Write the files into a folder, which is made."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "kind": "discriminative",
        "version": VERSION,
        "embedder": parts.embedder,
        "encoder": None if parts.encoder is None else {"base": parts.base},
        "labels": list(LABELS),
        "features": list(FEATURES),
    }
    (folder / "annotator.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    parts.combiner.save(folder / "combiner.safetensors")
    save_file({"idf": parts.idf.table.astype(np.float16)}, folder / "idf.safetensors")
    if parts.encoder is not None:
        from safetensors.torch import save_file as save_tensors

        save_tensors(parts.encoder, folder / "encoder.safetensors")


def read_parts(folder: Path) -> Parts:
    """The parts of a folder written by ``write_parts``, all checked."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        config = json.loads((folder / "annotator.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / 'annotator.json'}: expected JSON: {error}") from error
    expected = {
        "kind": "discriminative",
        "version": VERSION,
        "labels": list(LABELS),
        "features": list(FEATURES),
    }
    for key, value in expected.items():
        found = config.get(key) if isinstance(config, dict) else None
        if found != value:
            shown = f"{len(value)} names" if isinstance(value, list) else repr(value)
            raise ValueError(
                f"{folder / 'annotator.json'}: expected {key} to be {shown} of this version, got "
                f"{str(found)[:60]!r}; train it again with `mitigate train annotator`"
            )
    try:
        combiner = Combiner.load(folder / "combiner.safetensors")
        idf = Idf(load_file(folder / "idf.safetensors")["idf"])
        combiner.predict_proba(np.zeros((1, len(FEATURES))))
        encoder = None
        if config.get("encoder") is not None:
            from safetensors.torch import load_file as load_tensors

            encoder = load_tensors(folder / "encoder.safetensors")
    except (SafetensorError, KeyError, ValueError, FileNotFoundError) as error:
        raise ValueError(
            f"{folder}: expected whole combiner.safetensors, idf.safetensors and encoder.safetensors: {error}; "
            "copy or train it again"
        ) from error
    base = (config.get("encoder") or {}).get("base")
    return Parts(combiner, idf, config.get("embedder"), base, encoder)


def folder_of(name: str) -> Path:
    """The local folder of an annotator: a path, or a snapshot of a hub id."""
    if (Path(name) / "annotator.json").is_file():
        return Path(name)
    if Path(name).exists():
        raise OSError(f"annotator {name!r}: expected a folder with annotator.json, found none there")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise OSError(
            f"annotator {name!r}: expected 'embedded', a folder or a hub id (OWNER/NAME); there is no such folder"
        )
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(
            f"annotator {name!r}: expected 'embedded', a folder or a hub id; no such folder, and the hub says: {reason}"
        ) from error
    if not (folder / "annotator.json").is_file():
        raise OSError(f"annotator {name!r}: the repository on the hub holds no annotator.json")
    return folder
