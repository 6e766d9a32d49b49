"""The YAML of a reward: which keys there are, what they take, and the reward that they describe.

    annotator: embedded            # or a folder, or a hub id
    label_rewards: {unverifiable: -0.5}
    aspects: {factuality: 1.0, relevance: 0.3}
    columns: {reference: document}

Checked as a whole before any model is loaded. Every key is an argument of ``SentenceReward``; what only Python can
build (``embedder``) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annotators.records import LABELS
from mitigate.aspects import ASPECTS, check_aspects, check_label_rewards
from mitigate.config import nearest
from mitigate.errors import UsageError
from mitigate.reward_inputs import Columns

if TYPE_CHECKING:
    from mitigate.rewards import SentenceReward

DTYPES = ("auto", "float32", "bfloat16")
DEFAULTS: dict[str, Any] = {
    "annotator": "embedded",
    "calibration": None,
    "device": None,
    "dtype": "auto",
    "label_rewards": {},
    "aspects": None,
    "columns": asdict(Columns()),
    "thinking": ["<think>", "</think>"],
    "response": None,
    "eos_token_ids": None,
    "target_sentences": 4,
    "max_words": 150,
    "cache_size": 100_000,
}
"""Every key with its default; ``aspects: null`` stands for the default weights."""


def read_config(path: str | Path) -> dict[str, Any]:
    """Read and check a reward's YAML file.

    Returns:
        All keys of DEFAULTS with their values.

    Raises:
        UsageError: The file can't be read, is not YAML, or a key or value is wrong; the message names file and key.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the reward configuration {path}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: expected YAML: {' '.join(str(error).split())}") from error
    try:
        return check_config({} if found is None else found)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def check_config(config: object) -> dict[str, Any]:
    """Check the keys and values of a configuration and fill in the defaults.

    Raises:
        ValueError: A key is unknown (the nearest known one is named) or a value is not what its key takes.
    """
    config = _mapping("the configuration", config, DEFAULTS)
    full = {**DEFAULTS, **config}
    rewards = _mapping("label_rewards", full["label_rewards"] or {}, LABELS)
    check_label_rewards(rewards)
    if full["aspects"] is not None:
        check_aspects(_mapping("aspects", full["aspects"], ASPECTS))
    columns = _mapping("columns", full["columns"] or {}, [field.name for field in fields(Columns)])
    for name, value in columns.items():
        _expect(isinstance(value, str) and value != "", f"columns.{name}", "the name of a column", value)
    for name in ("thinking", "response"):
        value = full[name]
        tags = isinstance(value, list) and len(value) == 2 and all(isinstance(t, str) and t for t in value)
        _expect(value is None or tags, name, "a list of an opening and a closing tag, or null", value)
    for name, least in (("target_sentences", 1), ("max_words", 1), ("cache_size", 0)):
        value = full[name]
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        _expect(whole, name, f"a whole number of at least {least}", value)
    ids = full["eos_token_ids"]
    many = ids if isinstance(ids, list) else [ids]
    numbers = bool(many) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in many)
    _expect(ids is None or numbers, "eos_token_ids", "a token id, a list of them, or null", ids)
    named = isinstance(full["annotator"], str) and full["annotator"].strip() != ""
    _expect(named, "annotator", "'embedded', a folder or a hub id", full["annotator"])
    if full["calibration"] is not None:
        _expect(isinstance(full["calibration"], str), "calibration", "a file or null", full["calibration"])
        check_calibration("calibration", full["calibration"], full["annotator"])
    _expect(
        full["device"] is None or isinstance(full["device"], str),
        "device",
        "a device or null",
        full["device"],
    )
    _expect(full["dtype"] in DTYPES, "dtype", f"one of {', '.join(DTYPES)}", full["dtype"])
    return {**full, "label_rewards": rewards, "columns": {**asdict(Columns()), **columns}}


def check_calibration(key: str, path: str, annotator: str) -> None:
    """Read a calibration, so that a wrong file is known before anything is loaded.

    Raises:
        ValueError: The annotator has no scores to calibrate, there is no such file, or it is no calibration.
    """
    from annotators.calibration import Calibration

    if annotator.startswith("generative:"):
        raise ValueError(f"{key}: {annotator!r} has no scores to calibrate; expected null")
    try:
        Calibration.load(path)
    except OSError as error:
        raise ValueError(
            f"{key}: expected a file of `mitigate calibrate`; {path}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def build_reward(config: Mapping[str, Any], name: str = "factuality") -> SentenceReward:
    """The reward of a checked configuration; loads its annotator."""
    from mitigate.rewards import SentenceReward

    options = {key: value for key, value in config.items() if key not in {"aspects", "columns"}}
    for tags in ("thinking", "response"):
        options[tags] = tuple(options[tags]) if options[tags] else None
    if config["aspects"] is not None:
        options["aspects"] = config["aspects"]
    return SentenceReward(columns=Columns(**config["columns"]), name=name, **options)


def _mapping(what: str, value: object, known: Iterable[str]) -> dict[str, Any]:
    names = list(known)
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}: expected keys and values, got {type(value).__name__} {value!r}")
    for key in value:
        if key not in names:
            raise ValueError(f"{what}: unknown key {key!r}{nearest(key, names)}")
    return dict(value)


def _expect(right: bool, key: str, what: str, value: object) -> None:
    if not right:
        raise ValueError(f"{key}: expected {what}, got {value!r}")
