"""Training the generative annotator on a tiny decoder: the loss falls, weights move."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from annotators.evaluation.anah import flatten
from annotators.generative.protocols import Windows
from annotators.generative.samples import annotation_samples
from mitigate.io import UsageError
from mitigate.recipes import generative_annotator as task
from mitigate.recipes.config import load_recipe
from mitigate.recipes.folder import open_run
from tests.helpers.anah_fixture import made_topics, write_topics
from tests.helpers.tiny_models import decoder, own_code, tokenizer


def recipe(tmp_path: Path, *assignments: str) -> Any:
    base = tmp_path / "base"
    if not base.exists():
        decoder("llama", max_position_embeddings=2048).save_pretrained(base)
        plain = tokenizer()
        plain.chat_template = None
        plain.save_pretrained(base)
        write_topics(tmp_path / "topics.jsonl", made_topics(5))
        write_topics(tmp_path / "talk.jsonl", [{"instruction": "Hi", "response": "Hello."}] * 30)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"task: generative-annotator\nabout: a test\nhardware: any\nbase: {base}\n"
        f"data: {{sources: [{tmp_path / 'topics.jsonl'}], test_share: 0.2}}\n"
        "training: {epochs: 2, learning_rate: 5e-3, batch_size: 4, max_tokens: 2048, evaluate_every: 3}\n"
        f"dialogue: [{tmp_path / 'talk.jsonl'}]\nprompts: [brief]\n"
        "mix: {annotation: 0.6, question_generation: 0.1, answer_generation: 0.1, dialogue: 0.2}\n"
    )
    return load_recipe(path, assignments)[0]


def test_training_learns_and_saves_the_annotator(tmp_path):
    options = recipe(tmp_path)
    with open_run(tmp_path / "whole", options) as whole:
        task.run(options, whole)
    done = whole.done
    assert done is not None
    assert done["samples_annotation"] > 10
    assert done["samples_dialogue"] == round(done["samples_annotation"] / 0.6 * 0.2)
    assert done["too_long"] == 0
    losses = [row["loss"] for row in whole.rows() if "loss" in row]
    assert losses[-1] < 0.85 * losses[0]
    moved = load_file(tmp_path / "whole" / "annotator" / "model.safetensors")
    base = load_file(tmp_path / "base" / "model.safetensors")
    assert max(float((moved[k] - v).abs().max()) for k, v in base.items()) > 1e-3
    settings = json.loads((tmp_path / "whole" / "annotator" / "annotator.json").read_text())
    asked = {"protocol": "tagged", "prompts": ["brief"], "window": "sentence", "window_tokens": None}
    assert settings == {"kind": "generative", **asked}

    from transformers import AutoTokenizer

    saved_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole" / "annotator")
    assert saved_tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x\n\n"


def test_training_options_reach_trainer(tmp_path, monkeypatch):
    """A base that brings code of its own, as InternLM2 does, in bfloat16 and with Adafactor."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    more = ("training.max_steps=1", "training.evaluate_every=1", "training.optim=adafactor", "training.dtype=bfloat16")
    options = recipe(tmp_path, *more, "training.trust_remote_code=true")
    own_code(tmp_path / "base")
    with open_run(tmp_path / "run", options) as run:
        task.run(options, run)
    saved = load_file(tmp_path / "run" / "annotator" / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.bfloat16}
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("checkpoint-*")
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    assert any("exp_avg_sq_row" in of_weight for of_weight in state.values())  # Adafactor's factors
    refused = recipe(tmp_path, *more)
    with open_run(tmp_path / "refused", refused) as run, pytest.raises(UsageError, match=r"brings code of its own"):
        task.run(refused, run)


def test_three_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = "mix={annotation: 0.8, dialogue: 0.2}"
    options = recipe(tmp_path, "protocol=three-turn", "training.max_steps=1", mix)
    with (tmp_path / "talk.jsonl").open("a") as talk:
        talk.write('{bad\n[1]\n{"messages": [{"content": "no role"}]}\n')
    with open_run(tmp_path / "run", options) as run:
        assert task.run(options, run) == 3
    assert [row["line"] for row in run.rows("dialogue.0.rejected.jsonl")] == [31, 32, 33]
    settings = json.loads((tmp_path / "run" / "annotator" / "annotator.json").read_text())
    assert settings["protocol"] == "three-turn"
    samples = [row for row in run.rows("samples.jsonl") if row["task"] == "annotation"]
    assert {len(row["prompt"]) for row in samples} == {1, 3, 5}
    told = capsys.readouterr().out
    assert "# left out: 0 sentences labelled in two ways only, or supported or contradictory without" in told
    assert "give --protocol three-turn --prompt brief --window sentence\n" in told
    shown = recipe(tmp_path, "window=whole", "window_tokens=9")
    assert task.as_served(shown) == "--protocol tagged --prompt brief --window whole --window-tokens 9"


def test_turns_of_a_sentence_stay_or_go_together() -> None:
    """Else what is long in its last turn would teach only its first ones, up to "there is no evidence"."""
    long = tokenizer()
    long.chat_template = task.TEMPLATE
    rows = flatten(made_topics(2))[0]
    windows = Windows("whole", None, lambda: pytest.fail("a whole reference needs no embedder"))
    samples = annotation_samples(rows, ["brief"], windows, protocol="three-turn")
    other = {"task": "dialogue", "prompt": [{"role": "user", "content": "Hi " * 400}], "completion": []}
    of_last = [len(long(text)["input_ids"]) for s in samples if len(s["prompt"]) == 5
               for text in [long.apply_chat_template([*s["prompt"], *s["completion"]], tokenize=False)]]  # fmt: skip
    limit = sorted(of_last)[len(of_last) // 2]
    short = {**other, "prompt": [{"role": "user", "content": "Hi"}]}
    kept, too_long = task.in_form([*samples, other, short], long, limit)
    assert kept.pop()["prompt"] == short["prompt"]  # each dialogue is its own
    assert kept[0].keys() == {"prompt", "completion"}
    turns = Counter(sample["prompt"][0]["content"] for sample in kept)
    want = Counter(sample["prompt"][0]["content"] for sample in samples)
    assert 0 < len(turns) < len(want)
    assert all(turns[first] == want[first] for first in turns)
    gone = Counter(s["label"] for s in samples if len(s["prompt"]) == 1 and s["prompt"][0]["content"] not in turns)
    assert too_long == gone | Counter(dialogue=1)
    assert {"supported", "contradictory"} & gone.keys()
