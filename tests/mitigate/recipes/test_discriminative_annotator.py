"""Training the causal-LM annotator on a tiny decoder: the loss falls and weights move."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from annotators import load_annotator
from annotators.evaluation.anah import flatten
from mitigate.io import UsageError
from mitigate.recipes import discriminative_annotator as task
from mitigate.recipes.config import load_recipe
from mitigate.recipes.folder import RunFolder, open_run
from tests.helpers.anah_fixture import made_topics, write_topics
from tests.helpers.tiny_models import save_decoder


def recipe(tmp_path: Path, *assignments: str) -> Any:
    data, base, path = tmp_path / "topics.jsonl", tmp_path / "base", tmp_path / "recipe.yaml"
    if not data.exists():
        write_topics(data, made_topics(24))
        save_decoder(base)
    path.write_text(
        "task: discriminative-annotator\nabout: a test\nhardware: any\n"
        f"base: {base}\ndata: {{sources: [{data}], test_share: 0.2}}\n"
        "training: {epochs: 6, learning_rate: 3e-3, batch_size: 4, max_tokens: 256, evaluate_every: 20}\n"
    )
    return load_recipe(path, assignments)[0]


def run(tmp_path: Path, *assignments: str) -> RunFolder:
    options = recipe(tmp_path, *assignments)
    with open_run(tmp_path / "run", options) as folder:
        task.run(options, folder)
    return folder


def weights_of(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder / "annotator" / "model.safetensors")


def test_training_learns(tmp_path):
    whole = run(tmp_path)
    rows = whole.rows()
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.3 * losses[0]
    watched = [row["eval_loss"] for row in rows if "eval_loss" in row]
    assert len(watched) >= 2
    assert watched[-1] < watched[0]
    base = load_file(tmp_path / "base" / "model.safetensors")
    moved = weights_of(whole)
    assert max(float((moved[k] - v).abs().max()) for k, v in base.items() if k in moved) > 1e-3
    figures = json.loads((whole / "done.json").read_text())
    assert set(figures) == {"unseen_topic", "unseen_question"}
    # Labels follow the sentence's form: a model that reads sentence ends knows them, a constant one has 0.4 at most.
    assert figures["unseen_topic"]["accuracy"] > 0.7
    assert figures["unseen_topic"]["n"] > 10
    annotator = load_annotator(str(whole / "annotator"))
    (judged,) = annotator.annotate(reference="Tower 3 was built in 1521.", answer="You are welcome!").sentences
    assert judged.status == "checked"
    assert getattr(annotator, "languages", None) == ("en",)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_lora_trains_adapters_and_head_and_merges(tmp_path):
    folder = run(
        tmp_path, "lora={rank: 4, dropout: 0}", "training.epochs=2", "training.gradient_checkpointing=true",
        "training.learning_rate=1e-2", "balance=full", "focal=1.0",
    )  # fmt: skip
    losses = [row["loss"] for row in folder.rows() if "loss" in row]
    assert losses[-1] < losses[0]
    base, merged = load_file(tmp_path / "base" / "model.safetensors"), weights_of(folder)
    moved = {key for key, value in base.items() if key in merged and not torch.equal(merged[key], value)}
    assert any(key.endswith("q_proj.weight") for key in moved)
    assert not any("embed" in key or "norm" in key for key in moved)
    checkpoint = sorted((folder / "checkpoints").iterdir())[-1]
    assert (checkpoint / "adapter_model.safetensors").is_file()
    adapters = load_annotator(str(checkpoint))  # adapters over their base judge like the merged model of that step
    assert adapters.name == str(checkpoint)


def test_early_stop(tmp_path):
    folder = run(tmp_path, "training.learning_rate=0.5", "training.evaluate_every=4", "training.early_stop=1")
    evaluated = [row for row in folder.rows() if "eval_loss" in row and "loss" not in row]
    assert max(row["step"] for row in folder.rows()) < 60
    assert len(evaluated) >= 2


def test_early_stop_needs_something_to_watch(monkeypatch):
    from mitigate.recipes import trainer

    added: list[Any] = []
    watching = SimpleNamespace(
        args=SimpleNamespace(eval_strategy="no"), add_callback=added.append, remove_callback=lambda _: None,
        train=lambda **_: None,
    )  # fmt: skip
    monkeypatch.setattr(trainer, "_watch", lambda *_: "watch")
    trainer.fit(watching, Path("nowhere"), early_stop=3)  # type: ignore[arg-type]
    assert added == ["watch"]


def test_nothing_to_train_on_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing to train on"):
        run(tmp_path, "data.languages=[zh]")


def test_labelled_sentences_are_trained_on_by_their_folds(tmp_path):
    rows, _ = flatten(made_topics(20))
    for row in rows:
        row["sentence"] += f" ({row['id']})"
        row["answer"] = row["sentence"]
        if row["label"] == "contradictory":
            row["label"] = "unsupported"
    path = write_topics(tmp_path / "sentences.jsonl", [*rows, {"sentence": "no label"}])
    folder = run(tmp_path, f"data.sources=[{path}]", "training.max_steps=3", "training.evaluate_every=2")
    done = folder.done
    assert done is not None
    assert set(done) == {"dev"}
    assert sum(len(folder.rows(f"{name}.jsonl")) for name in ("train", "dev", "test")) == len(rows)
