"""The training run as a whole, on made-up rows and a tiny base: what it writes, resuming, the recipe's settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from annotators import load_annotator
from annotators.verifier.training import SOURCES, Settings, train_annotator
from mitigate.io import UsageError
from mitigate.recipes.config import load_recipe, read_yaml, recipes_folder
from mitigate.recipes.embedded_annotator import Options, check
from tests.helpers.tiny_bert import save_tiny_bert


def write_data(folder: Path, n: int = 36) -> None:
    """Rows of distinct documents, so that all folds occur."""
    (folder / "sentences").mkdir(parents=True)
    (folder / "binary").mkdir()
    rows = []
    for i in range(n):
        reference = f"The mill of Ostby number {i} was built in {1800 + i} by Jon Berg. It has {i + 3} old wheels."
        for label, sentence in (
            ("supported", f"Mill number {i} was built in {1800 + i}."),
            ("contradictory", f"Mill number {i} was built in {1900 + i}."),
            ("unverifiable", f"The owner of mill {i} kept bees in Spain."),
            ("no_fact", f"What do you think of mill {i}, my friend?"),
        ):
            rows.append(
                {"id": f"{label}{i}", "source": "made", "lang": "en", "question": None, "reference": reference,
                 "answer": None, "sentence": sentence, "label": label, "fragments": None, "correction": None}
            )  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "sentences" / "made.dev.jsonl").write_text(text, encoding="utf-8")


def test_a_run_writes_an_annotator_and_goes_on(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base", 16)
    write_data(tmp_path / "data")
    settings = Settings(tmp_path / "data", ("made",), base=base, edit_epochs=0.5, label_epochs=0.2)
    work = tmp_path / "work"
    annotator = train_annotator(settings, work)
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    assert {path.name for path in files} == {
        "edited.jsonl", "windows.npz", "windows.jsonl", "edits.npz", "state.safetensors",
    }  # fmt: skip
    again = train_annotator(settings, work)  # everything is there already
    assert again.fingerprint == annotator.fingerprint
    assert {path: path.stat().st_mtime_ns for path in files} == files

    labels, edits = work / "labels" / "state.safetensors", work / "edits.npz"
    learned = labels.read_bytes()
    labels.unlink()  # as killed before the labels' first checkpoint: the encoder has learned from edits alone
    edits.unlink()
    again = train_annotator(settings, work)
    assert again.fingerprint == annotator.fingerprint
    assert labels.read_bytes() == learned
    assert {path: path.stat().st_mtime_ns for path in files if path not in (labels, edits)} == {
        path: stamp for path, stamp in files.items() if path not in (labels, edits)
    }
    annotator.save_pretrained(tmp_path / "mine")
    loaded = load_annotator(str(tmp_path / "mine"))
    assert loaded.fingerprint == annotator.fingerprint
    (judged,) = loaded.predict([{"reference": "The mill has 3 wheels.", "sentence": "The mill has 3 wheels."}])
    assert judged.status == "checked"


def test_the_recipe_states_the_defaults() -> None:
    """The recipe's values are the defaults of the run and of the kind."""
    data = read_yaml(recipes_folder() / "annotators" / "embedded.yaml")
    options = Options.model_validate(data)
    defaults = Settings(options.data, SOURCES)
    assert tuple(options.sources) == SOURCES
    assert (options.base, options.embedder, options.seed, options.batch) == (None, None, 0, defaults.batch)
    assert (options.edits.rate, options.edits.epochs) == (defaults.edit_rate, defaults.edit_epochs)
    assert (options.labels.rate, options.labels.epochs) == (defaults.label_rate, defaults.label_epochs)
    bare = {k: data[k] for k in ("kind", "about", "hardware", "data", "sources")}
    assert Options.model_validate(bare).model_dump() == {**options.model_dump(), "minutes": None}


def test_missing_data_is_named(tmp_path: Path) -> None:
    data = {**read_yaml(recipes_folder() / "annotators" / "embedded.yaml"), "data": str(tmp_path)}
    with pytest.raises(UsageError, match=r"expected a folder with sentences/ and binary/.*has no sentences/"):
        check(Options.model_validate(data))
    with pytest.raises(UsageError, match="unknown key 'sead'; did you mean 'seed'"):
        load_recipe("annotators/embedded", ["sead=1"])
