"""Label-free SFT: split, rows, and the recipe on a tiny model: it learns what was picked."""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from mitigate.cli.main import main
from mitigate.recipes import sft
from mitigate.recipes.sft import as_row, is_test, prompt
from mitigate.recipes.trainer import scoring_replies_alone
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.tiny_models import decoder, save_decoder

# TRL sets the old name of a trainer option that transformers renames.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")


def test_the_split_depends_on_the_words_only():
    questions = [f"What is thing number {i}?" for i in range(2000)]
    held_out = [is_test(q, 0.2) for q in questions]
    assert 330 < sum(held_out) < 470  # 400 ± 4 standard deviations of 17.9
    assert held_out == [is_test(f"  {q.upper()} ", 0.2) for q in questions]
    assert held_out != [is_test(q, 0.2, seed=1) for q in questions]
    assert all(is_test(q, 0.5) for q, out in zip(questions, held_out, strict=True) if out)  # a larger share keeps them


def test_rows_hold_prompt_and_completion():
    plain = {"prompt": "Question: Q x?\nAnswer:", "completion": " A Question: y"}
    assert as_row("Q\nx?", "A\nQuestion: y", "plain") == plain
    row = as_row("Q?", "A", "chat")
    assert row == {"prompt": [{"role": "user", "content": "Q?"}], "completion": [{"role": "assistant", "content": "A"}]}
    assert prompt("Q?", "chat") == row["prompt"]


def records():
    references = {"one": "otto", "two": "anna", "three": "anna"}
    answers = [{"text": "otto", "label": False}, {"text": "anna", "label": True}]
    row = {"answers": answers, "reference_answers": references}
    return [{"id": str(i), "question": f"Who made number {i}?", **row} for i in range(30)]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_decoder(tmp_path_factory.mktemp("base"), "opt")


def recipe(folder, base, **more):
    data = write_rows(folder / "data.jsonl", records())
    training = {"epochs": 10, "batch_size": 8, "learning_rate": 0.01, "evaluate_every": 10, "max_tokens": 64}
    options = {
        "task": "sft", "about": "a", "hardware": "h", "model": str(base), "data": str(data), "baseline": "one",
        "form": "plain", "answer_tokens": 8,
        "scoring": {"similarity": "rouge-l", "penalty": False, "embedding": "tfidf"},
        "training": {**training, **more.pop("training", {})}, **more,
    }  # fmt: skip
    path = folder / "sft.yaml"
    path.write_text(yaml.safe_dump(options))
    return path


def test_the_model_learns_the_picked_answers(tmp_path, base):
    out, made = tmp_path / "run", recipe(tmp_path, base)
    asked = (f"Who made {'the very ' * 40}number {i}?" for i in range(99))
    long = next(question for question in asked if not is_test(question, 0.2))
    write_rows(tmp_path / "data.jsonl", [*records(), {**records()[0], "id": "long", "question": long}])
    assert main(["run", str(made), "--output", str(out)]) == 0
    train, test, answers, pairs = (read_rows(out / f"{name}.jsonl") for name in ("train", "test", "answers", "pairs"))
    assert {row["answer"] for row in train} == {"anna"}  # two of three references, not the baseline's
    assert len(train) + len(test) == 31
    assert not {row["question"] for row in train} & {row["question"] for row in test}
    done = json.loads((out / "done.json").read_text())
    assert done["train_questions"] == done["train_rows"] == len({row["question"] for row in train}) - 1
    assert done["too_long"] == 1
    assert done["last_loss"] < 0.2 * done["first_loss"]
    assert {row["tuned"] for row in answers} == {"anna"}
    assert all(row["untuned"] != "anna" for row in answers)
    said = [(row["id"], row["untuned"] or "", row["tuned"]) for row in answers]
    assert [(pair["id"], pair["baseline"], pair["method"]) for pair in pairs] == said
    before, after = load_file(base / "model.safetensors"), load_file(out / "model" / "model.safetensors")
    assert any(not before[name].equal(after[name]) for name in after if name in before)


def test_prompts_are_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of TRL reads the labelled places alone, and loss and gradients are what they are without that."""
    from trl.trainer import utils

    original, heads = utils._ChunkedLogProbFunction, []

    def counted(hidden: Any, *rest: Any) -> Any:
        heads.append(len(hidden))
        return original.apply(hidden, *rest)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=counted))
    ids = torch.arange(24).reshape(2, 12) + 5
    labels = ids.clone()
    labels[0, :9], labels[1, :10] = -100, -100  # replies of 3 and 2 tokens
    found = []
    for around in (scoring_replies_alone(), nullcontext()):
        torch.manual_seed(0)
        model = decoder("llama")
        utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        with around:
            out = model(input_ids=ids, labels=labels, fused_lm_head=True)
        out.loss.backward()
        found.append([out.loss, out.log_probs, out.entropy, *(p.grad for p in model.parameters())])
    assert heads == [5, 22]
    for own, plain in zip(*found, strict=True):
        torch.testing.assert_close(own, plain)
    monkeypatch.delattr(utils, "_use_triton")  # as in a TRL that decides elsewhere
    with scoring_replies_alone():
        assert not hasattr(utils, "_use_triton")


def test_resumed_equals_uninterrupted_and_lora_merges(tmp_path, base, monkeypatch):
    import transformers

    more = {"pick": "baseline", "lora": {"rank": 4, "dropout": 0.0}, "training": {"evaluate_every": 2, "max_steps": 5}}
    path = recipe(tmp_path, base, **more)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(["run", str(path), "--output", str(whole)]) == 0
    step = transformers.Trainer.training_step

    def killed(self, *args, **kwargs):
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(transformers.Trainer, "training_step", killed)
        patch.setattr(sft, "generate", lambda model, tokenizer, questions, *_, **__: ["" for _ in questions])
        assert main(["run", str(path), "--output", str(broken)]) == 130
    assert main(["run", str(path), "--output", str(broken)]) == 0
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (whole, broken))
    assert one.keys() == two.keys()
    assert not any("lora" in name for name in one)
    for name, tensor in one.items():
        assert tensor.allclose(two[name], atol=1e-6), name
    steps = [row["step"] for row in read_rows(broken / "metrics.jsonl")]
    assert steps == sorted(steps)
    assert {row["answer"] for row in read_rows(whole / "train.jsonl")} == {"otto"}
    said = [row["baseline"] for row in read_rows(broken / "pairs.jsonl")]
    assert said == [""] * len(read_rows(broken / "test.jsonl"))  # silence loses, it does not vanish; asked once


@pytest.mark.parametrize(("more", "message"), [
    ({"model": "./nowhere"}, "./nowhere: no such file"),
    ({"model": "PICKLED"}, "pytorch_model.bin only.*: expected safetensors"),
    ({"scoring": {"expertise": "similarity"}}, "scoring: expertise similarity: no record has iw and co"),
    ({"baseline": "four"}, "expected one of the reference LLMs one, three, two, got 'four'"),
    ({"test_share": 1e-9}, "leave 30 to train on and 0 held out"),
    ({"training": {"epochs": 0}}, "training.epochs: .*greater than 0"),
    ({"training": {"early_stop": 2}}, "training.early_stop: expected null"),
])  # fmt: skip
def test_wrong_recipes_are_refused_first(tmp_path, base, capsys, more, message):
    (pickled := tmp_path / "pickled").mkdir()
    (pickled / "pytorch_model.bin").write_bytes(b"")
    more = {name: str(pickled) if value == "PICKLED" else value for name, value in more.items()}
    path = recipe(tmp_path, base, **more)
    assert main(["run", str(path), "--output", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
