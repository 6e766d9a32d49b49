"""The self-training loop on a tiny decoder: to the end, stopped and gone on with, what is kept and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from annotators.evaluation.anah import flatten
from mitigate.cli.main import main
from mitigate.recipes.annotator_training import watched
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.self_training import _kept, _unlabelled
from tests.helpers.anah_fixture import made_topics, write_topics
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.tiny_models import decoder, tokenizer

RECIPE = """task: self-training
about: a test
hardware: any
base: base
data: {sources: [topics.jsonl], test_share: 0.2}
unlabelled: [answers.jsonl]
rounds: 1
samples: 3
agreement: 0.6
reply_tokens: 16
mix: {annotation: 0.95, dialogue: 0.05}
dialogue: [talk.jsonl]
training: {max_steps: 40, epochs: 1, learning_rate: 1e-2, batch_size: 2, max_tokens: 2048, evaluate_every: 20}
prompts: [brief]
"""


def topic(n: int) -> dict[str, Any]:
    """A topic whose answers state nothing, which a tiny decoder learns to say."""
    made: dict[str, Any] = {"name": f"Tower {n}", "documents": [f"Tower {n} is made of stone."], "language": "en"}
    made["selected_questions"] = [f"Where is Tower {n}?", f"Who lives in Tower {n}?"]
    for column in ("GPT3.5_answers_D", "InternLM_answers"):
        made[column] = [f"Hello from {column} and {question} Good luck!" for question in made["selected_questions"]]
        made[f"human_{column}_ann"] = [["<No Fact>", "<No Fact>"]] * 2
    return made


def answer(n: int) -> dict[str, Any]:
    return {"question": f"Where is Tower {n}?", "reference": topic(n)["documents"][0], "answer": "Hello! Good luck!"}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    decoder("llama", max_position_embeddings=2048).save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    write_topics(tmp_path / "topics.jsonl", [topic(n) for n in range(6)])
    others = [{**answer(n), "question": "Why?"} for n in range(6)]  # about the documents of topics
    write_rows(tmp_path / "answers.jsonl", [*(answer(n) for n in range(14)), *others])
    talk = '{"messages": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello!"}]}'
    (tmp_path / "talk.jsonl").write_text(talk + "\n{bad\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stopped_loop_ends_like_a_whole_one(work, monkeypatch, capsys):
    """Stopped in the midst of annotating; the file that it was writing has a line that is cut off."""
    assert main(["run", "recipe.yaml", "--output", "whole"]) == 3  # for a line of dialogues
    told = capsys.readouterr().out
    append = RunFolder.append

    def stopped(folder, name, rows):
        append(folder, name, rows)
        if name.startswith("labelled"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", stopped)
        assert main(["run", "recipe.yaml", "--output", "cut"]) == 130
    labelled = work / "cut" / "labelled.1.jsonl"
    assert len(read_rows(labelled)) == 8
    with labelled.open("a") as file:
        file.write('{"question": "Wh')
    assert main(["run", "recipe.yaml", "--output", "cut"]) == 3
    for name in ("labelled.1.jsonl", "train.jsonl"):
        assert read_rows(work / "cut" / name) == read_rows(work / "whole" / name)
    base, *trained = (
        load_file(work / place / "model.safetensors")
        for place in ("base", "whole/round-0/annotator", "whole/round-1/annotator", "cut/round-1/annotator")
    )
    assert any(not trained[0][key].equal(base[key]) for key in base)
    assert any(not trained[0][key].equal(trained[1][key]) for key in base)
    assert all(trained[1][key].equal(trained[2][key]) for key in base)

    first, last = json.loads((work / "whole" / "done.json").read_text())["rounds"]
    answers = read_rows(work / "whole" / "labelled.1.jsonl")
    held = {row["question"] for part in ("topic", "question") for row in read_rows(work / f"whole/unseen_{part}.jsonl")}
    assert held
    assert not held & {one["question"] for one in answers}
    splits = {name: read_rows(work / f"whole/{name}.jsonl") for name in ("train", "unseen_topic", "unseen_question")}
    parts = (splits["unseen_topic"], watched(splits)[1])
    assert all(parts)
    about = {row["reference"] for part in parts for row in part}
    assert not about & {one["reference"] for one in answers}
    assert sum(one["question"] == "Why?" for one in answers) == 6 - len(about)
    assert f"# unlabelled: {len(answers)} answers; {20 - len(answers)} left out" in told
    sentences = [sentence for one in answers for sentence in one["sentences"]]
    assert [one.get("label") == "no_fact" for one in sentences] == [
        one["votes"].get("no_fact", 0) >= 2 for one in sentences
    ]
    kept = sum("label" in one for one in sentences)
    assert kept > 10
    assert (last["of"], last["kept"], last["labels"]) == (len(sentences), kept, {"no_fact": kept})
    assert last["unread"] == sum(one["votes"].get("failed", 0) for one in sentences) / (3 * len(sentences))
    assert last["samples_annotation"] == first["samples_annotation"] + last["kept"]
    assert "# what it gained: mitigate evaluate --compare generative:transformers:whole/round-0/annotator" in told


def test_what_is_kept_trains_like_gold():
    """The row of a sentence that samples agree on is that which a person's annotation would be."""
    (gold,) = (
        row
        for row in flatten(made_topics(1))[0]
        if row["label"] == "contradictory" and row["id"] == "anah-0-internlm-0-0"
    )
    sentences = [
        {"text": gold["sentence"], "start": 0, "votes": {"contradictory": 3}, "label": "contradictory",
         "fragments": gold["fragments"], "edits": gold["edits"]},
        {"text": "You are welcome!", "start": 33, "votes": {"no_fact": 2, "failed": 1}},
    ]  # fmt: skip
    answer = {key: gold[key] for key in ("question", "reference", "answer")} | {"language": None}
    (row,) = _kept([{**answer, "sentences": sentences}], 2)
    assert row["annotated_by"] == "machine"
    same = ("lang", "question", "reference", "answer", "sentence", "start", "label", "fragments", "edits", "correction")
    assert {key: row[key] for key in same} == {key: gold[key] for key in same}


def test_wrong_recipes_and_rounds_without_agreement(work, monkeypatch, capsys):
    assert main(["run", "recipe.yaml", "unlabelled=[none.jsonl]"]) == 2
    assert "unlabelled: cannot read none.jsonl: no such file" in capsys.readouterr().err
    monkeypatch.setattr("mitigate.recipes.self_training.find_spec", lambda _: None)
    assert main(["run", "recipe.yaml", "engine=vllm"]) == 2
    assert "engine: vllm is not installed: pip install 'hallucination-toolkit[vllm]'" in capsys.readouterr().err
    write_rows(work / "answers.jsonl", [{"reference": "no answer"}, answer(20)])
    assert main(["run", "recipe.yaml", "training.max_steps=1", "--output", "out"]) == 1  # a reply that nobody can read
    told = capsys.readouterr().err
    assert "answers.jsonl:1: answer: expected a string with text in it" in told
    assert "round 1: none of 2 sentences got one label in 60% of 3 samples" in told
    write_rows(work / "answers.jsonl", [answer(20), answer(21)])  # one more
    assert main(["run", "recipe.yaml", "training.max_steps=1", "--output", "out"]) == 2
    assert "out is begun, and answers.jsonl changed since then: begin anew with --overwrite" in capsys.readouterr().err
    assert len(read_rows(work / "out" / "labelled.1.jsonl")) == 1


def test_nothing_of_the_evaluating_parts_is_annotated(tmp_path, capsys):
    def row(name: str) -> dict[str, Any]:
        return {"question": f"Who built {name}?", "reference": f"{name} is old.", "answer": f"{name} was built."}

    parts = ("train", "unseen_topic", "unseen_question", "watched")
    splits = {part: [row(part)] for part in parts}
    train, topic, question, seen = (row(part) for part in parts)
    bare = {"reference": question["reference"], "answer": "Long ago."}
    left_out = [
        {**train, "answer": "Watched  was built"}, {**train, "question": "Who built unseen_question ?"}, bare,
        {**bare, "reference": seen["reference"], "question": "Why?"},
        {**train, "reference": topic["reference"].upper()},
        {"reference": question["reference"] + " Very.", "answer": question["answer"]},
    ]  # fmt: skip
    good = [train, {**bare, "question": "When?"}, {**bare, "reference": train["reference"]}]
    write_rows(tmp_path / "answers.jsonl", [*left_out, *good])
    options: Any = SimpleNamespace(unlabelled=[tmp_path / "answers.jsonl"])
    found, bad = _unlabelled(options, RunFolder(tmp_path), splits)
    assert ([{key: one[key] for key in one if key != "id"} for one in found], bad) == (good, 0)
    assert "# unlabelled: 3 answers; 6 left out" in capsys.readouterr().out
