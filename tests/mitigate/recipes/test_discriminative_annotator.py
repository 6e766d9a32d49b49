"""Training the causal-LM annotator on a tiny decoder: the loss falls, weights move, resuming changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from annotators import LABELS, load_annotator
from annotators.evaluation.anah import flatten
from annotators.verifier.causal import IGNORED
from annotators.verifier.causal_training import UNSUPPORTED, class_weights, collator, figures, head_loss, training_rows
from mitigate.io import UsageError
from mitigate.recipes import discriminative_annotator as kind
from mitigate.recipes.config import load_recipe
from mitigate.recipes.folder import RunFolder, open_run
from tests.helpers.anah_fixture import TOPICS, made_topics, write_topics
from tests.helpers.killed_run import killed_and_resumed
from tests.helpers.tiny_models import save_decoder, tokenizer


def recipe(tmp_path: Path, *assignments: str) -> Any:
    data = (
        write_topics(tmp_path / "topics.jsonl", made_topics(24))
        if not (tmp_path / "topics.jsonl").exists()
        else (tmp_path / "topics.jsonl")
    )
    base = tmp_path / "base" if (tmp_path / "base").exists() else save_decoder(tmp_path / "base")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "task: discriminative-annotator\nabout: a test\nhardware: any\n"
        f"base: {base}\ndata: {{sources: [{data}], test_share: 0.2}}\n"
        "training: {epochs: 6, learning_rate: 3e-3, batch_size: 4, max_tokens: 256, evaluate_every: 20}\n"
    )
    return load_recipe(path, assignments)[0]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))


# --- the maths ----------------------------------------------------------------------------------------


def test_loss_by_hand() -> None:
    # Softmax of log 1, 2, 3, 4 is 0.1, 0.2, 0.3, 0.4; "unsupported" has 0.2 + 0.3.
    logits = torch.log(torch.tensor([1.0, 2.0, 3.0, 4.0])).repeat(1, 4, 1)
    labels = torch.tensor([[0, IGNORED, 3, UNSUPPORTED]])
    ones = torch.ones(5)
    terms = [-np.log(0.1), -np.log(0.4), -np.log(0.5)]
    assert float(head_loss(logits, labels, ones)) == pytest.approx(np.mean(terms))
    assert float(head_loss(logits, labels, ones, n_items=6)) == pytest.approx(sum(terms) / 6)
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5, 3.0])
    weighted = 2 * terms[0] + 0.5 * terms[1] + 3 * terms[2]
    assert float(head_loss(logits, labels, weights)) == pytest.approx(weighted / 3)
    focal = 0.9**2 * terms[0] + 0.6**2 * terms[1] + 0.5**2 * terms[2]
    assert float(head_loss(logits, labels, ones, focal=2.0)) == pytest.approx(focal / 3)
    plain = torch.nn.functional.cross_entropy(logits[0, [0, 2]], torch.tensor([0, 3]))
    assert float(head_loss(logits[:, :3], labels[:, :3], ones)) == pytest.approx(float(plain))


def test_class_weights_by_hand() -> None:
    targets = [0] * 8 + [1] * 2
    np.testing.assert_allclose(class_weights(targets, "none"), [1, 1, 0, 0, 0])
    full = class_weights(targets, "full")  # 1/8 and 1/2, times 5: both classes weigh 5 in total
    np.testing.assert_allclose(full, [0.625, 2.5, 0, 0, 0])
    root = class_weights(targets, "sqrt")
    assert root[1] / root[0] == pytest.approx(2)
    assert root[0] * 8 + root[1] * 2 == pytest.approx(10)
    np.testing.assert_array_equal(class_weights([], "full"), np.zeros(5))


def test_figures_by_hand() -> None:
    labels = np.array([[0, IGNORED, 1, 3], [0, UNSUPPORTED, 0, IGNORED]])
    predicted = np.array([[0, 3, 0, 3], [1, 0, 0, 0]])
    # Right: 0, 3 and one more 0 of five; recalls 2/3, 0, 1.
    found = figures(predicted, labels)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["balanced_accuracy_4way"] == pytest.approx((2 / 3 + 0 + 1) / 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_stand_at_sentence_ends_only(side: str) -> None:
    made = tokenizer(side)
    rows, report = flatten(TOPICS)
    encoded, lost = training_rows(made, rows, 512)
    assert (len(encoded), lost) == (report.answers - 1, 0)  # two models gave one answer: read once
    batch = collator(made)(encoded)
    assert int((batch["labels"] != IGNORED).sum()) == report.sentences - 1
    ends = {row["sentence"][-1] for row in rows}
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        for place in (labels != IGNORED).nonzero()[:, 0].tolist():
            assert made.decode(ids[: place + 1])[-1] in ends
    by_answer = {
        row["answer"]: [r["label"] for r in {r["start"]: r for r in rows if r["answer"] == row["answer"]}.values()]
        for row in rows
    }
    found = [[LABELS[t] for t in row["targets"].values()] for row in encoded]
    assert sorted(found) == sorted(by_answer.values())


# --- training -----------------------------------------------------------------------------------------


def weights_of(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder / "annotator" / "model.safetensors")


def test_the_whole_path_learns_and_resuming_changes_nothing(tmp_path: Path) -> None:
    options = recipe(tmp_path)
    with open_run(tmp_path / "whole", options) as whole:
        kind.run(options, whole)
    rows = whole.rows()
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.3 * losses[0]
    watched = [row["eval_loss"] for row in rows if "eval_loss" in row]
    assert len(watched) >= 2
    assert watched[-1] < watched[0]
    base = load_file(tmp_path / "base" / "model.safetensors")
    moved = weights_of(whole)
    assert max(float((moved[k] - v).abs().max()) for k, v in base.items() if k in moved) > 1e-3
    figures_ = json.loads((tmp_path / "whole" / "done.json").read_text())
    assert set(figures_) == {"unseen_topic", "unseen_question"}
    # Labels follow the sentence's form: a model that reads sentence ends knows them, a constant one has 0.4 at most.
    assert figures_["unseen_topic"]["accuracy"] > 0.7
    assert figures_["unseen_topic"]["n"] > 10
    annotator = load_annotator(str(whole / "annotator"))
    assert (
        annotator.annotate(reference="Tower 3 was built in 1521.", answer="You are welcome!").sentences[0].status
        == "checked"
    )
    assert getattr(annotator, "languages", None) == ("en",)

    # The same run, killed after its second checkpoint, then resumed.
    cut = killed_and_resumed(kind, options, tmp_path / "cut", 40)
    resumed = weights_of(cut)
    assert resumed.keys() == moved.keys()
    for key, value in moved.items():
        torch.testing.assert_close(resumed[key], value, rtol=0, atol=1e-6)
    assert [(r["step"], r["loss"]) for r in cut.rows() if "loss" in r] == [
        (r["step"], r["loss"]) for r in rows if "loss" in r
    ]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_lora_trains_adapters_and_head_only_and_is_merged(tmp_path: Path) -> None:
    options = recipe(
        tmp_path, "lora={rank: 4, dropout: 0}", "training.epochs=2", "training.gradient_checkpointing=true",
        "training.learning_rate=1e-2", "balance=full", "focal=1.0",
    )  # fmt: skip
    with open_run(tmp_path / "run", options) as folder:
        kind.run(options, folder)
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


def test_early_stop(tmp_path: Path) -> None:
    options = recipe(tmp_path, "training.learning_rate=0.5", "training.evaluate_every=4", "training.early_stop=1")
    with open_run(tmp_path / "run", options) as folder:
        kind.run(options, folder)
    evaluated = [row for row in folder.rows() if "eval_loss" in row and "loss" not in row]
    assert max(row["step"] for row in folder.rows()) < 60
    assert len(evaluated) >= 2


def test_wrong_recipes_stop_before_anything_loads(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        recipe(tmp_path, "base=./nowhere")
    with pytest.raises(UsageError, match="expected a JSON file, there is none"):
        recipe(tmp_path, "training.deepspeed=zero.json")
    with pytest.raises(UsageError, match=r"expected training\.fsdp beside it"):
        recipe(tmp_path, f"training.fsdp_config={tmp_path / 'recipe.yaml'}")
    with pytest.raises(UsageError, match=r"unknown key 'training\.epoch'; did you mean 'epochs'"):
        recipe(tmp_path, "training.epoch=3")
    options = recipe(tmp_path, "data.languages=[zh]")
    with open_run(tmp_path / "run", options) as folder, pytest.raises(UsageError, match="nothing to train on"):
        kind.run(options, folder)


def test_labelled_sentences_are_trained_on_by_their_folds(tmp_path: Path) -> None:
    rows, _ = flatten(made_topics(20))
    for row in rows:
        row["sentence"] += f" ({row['id']})"
        row["answer"] = row["sentence"]
        if row["label"] == "contradictory":
            row["label"] = "unsupported"
    path = write_topics(tmp_path / "sentences.jsonl", [*rows, {"sentence": "no label"}])
    options = recipe(tmp_path, f"data.sources=[{path}]", "training.max_steps=3", "training.evaluate_every=2")
    with open_run(tmp_path / "run", options) as folder:
        kind.run(options, folder)
    done = folder.done
    assert done is not None
    assert set(done) == {"dev"}
    assert sum(len(folder.rows(f"{name}.jsonl")) for name in ("train", "dev", "test")) == len(rows)
