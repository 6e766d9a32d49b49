"""Training the generative annotator on a tiny decoder: samples are what it is asked, the loss falls, runs resume."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from annotators.evaluation.anah import flatten
from annotators.generative.prompts import names_of
from annotators.generative.protocols import Windows
from annotators.generative.samples import (
    annotation_samples,
    answer_samples,
    dialogue_samples,
    edits,
    mix,
    question_samples,
)
from annotators.generative.tagged import parse_tagged
from annotators.verifier.causal import tokenize
from mitigate.io import UsageError
from mitigate.recipes import generative_annotator as kind
from mitigate.recipes.config import load_recipe
from mitigate.recipes.folder import open_run
from tests.helpers.anah_fixture import TOPICS, made_topics, write_topics
from tests.helpers.killed_run import killed_and_resumed
from tests.helpers.tiny_models import decoder, tokenizer

ROWS, _ = flatten(TOPICS)


def no_embedder() -> Any:
    raise AssertionError("short references are shown whole, without an embedder")


WINDOWS = Windows("sentence", None, no_embedder)


def user(sample: dict[str, Any]) -> str:
    return sample["prompt"][-1]["content"]


def reply(sample: dict[str, Any]) -> str:
    return sample["completion"][0]["content"]


# --- samples ------------------------------------------------------------------------------------------


def test_annotation_samples_hold_the_inputs_and_read_back_as_gold() -> None:
    samples = annotation_samples(ROWS, ["plain"], WINDOWS)
    assert len(samples) == len(ROWS)
    for row, sample in zip(ROWS, samples, strict=True):
        assert row["sentence"] in user(sample)
        assert row["reference"] in user(sample)
        assert row["question"] in user(sample)
        found = parse_tagged(reply(sample))
        assert found.label == row["label"]
        assert [list(pair) for pair in found.corrections] == row["edits"]
        if row["label"] != "no_fact":
            assert list(found.fragments) == row["fragments"]
    zh = [s for row, s in zip(ROWS, samples, strict=True) if row["lang"] == "zh"]
    assert all("<幻觉>" in reply(s) or reply(s) == "<无事实>" for s in zh)


def test_one_wording_is_always_the_same_and_several_are_all_used() -> None:
    names = names_of("tagged", "en")[:4]
    rows = [row for row in flatten(made_topics(20))[0] if row["lang"] == "en"]
    first = {user(s)[:60] for s in annotation_samples(rows, [names[0]], WINDOWS)}
    several = [user(s) for s in annotation_samples(rows, names, WINDOWS, seed=1)]
    assert len(first) == 1
    assert len({text[:60] for text in several}) == 4
    orders = {
        text.index(row["reference"]) < text.index(row["question"]) for text, row in zip(several, rows, strict=True)
    }
    assert orders == {True, False}
    assert several == [user(s) for s in annotation_samples(rows, names, WINDOWS, seed=1)]
    assert several != [user(s) for s in annotation_samples(rows, names, WINDOWS, seed=2)]
    with pytest.raises(ValueError, match="no such wording: nonsense"):
        annotation_samples(rows, ["plain", "nonsense"], WINDOWS)


def test_a_gold_fragment_outside_the_window_is_shown_in_a_wider_one() -> None:
    class Counter:
        """Counts tokens; ranks nothing, so BM25 decides."""

        reads_chinese = True
        tokenize = staticmethod(partial(tokenize, tokenizer()))

        def encode(self, texts: Any) -> Any:
            return np.ones((len(texts), 1), np.float32)

    lines = [f"The {word} mill ground corn for the town in its day." for word in
             "red blue green old new big small grey tall wide low high dry wet far near".split()]  # fmt: skip
    gold = "Its keeper was Hanna Vale."
    row = {"sentence": "The red mill ground corn for the town.", "reference": "\n".join([*lines, gold, *lines]),
           "question": "", "label": "supported", "fragments": [gold], "lang": "en"}  # fmt: skip
    narrow = annotation_samples([{**row, "fragments": []}], ["plain"], Windows("sentence", 40, Counter))
    wide = annotation_samples([row], ["plain"], Windows("sentence", 40, Counter))
    assert gold not in user(narrow[0])
    assert len(user(wide[0])) > len(user(narrow[0]))


def test_edits_come_from_pairs_or_from_a_whole_corrected_sentence() -> None:
    row = {"sentence": "It has 30 locks.", "label": "contradictory", "correction": "It has 17 locks."}
    assert edits(row) == [("30", "17")]
    assert edits({**row, "edits": [["30 locks", "17 locks"]]}) == [("30 locks", "17 locks")]
    assert edits({**row, "label": "supported"}) == []
    assert edits({**row, "correction": None}) == []


def test_other_tasks() -> None:
    topics = [{"reference": "D1", "questions": ["A?", "B?"], "lang": "en"},
              {"reference": "D2", "questions": ["C?", "D?"], "lang": "en"},
              {"reference": "文", "questions": ["甲？"], "lang": "zh"}]  # fmt: skip
    found = question_samples(topics, several=False)
    assert [reply(s) for s in found["question_generation"]] == ["A?\nB?", "C?\nD?", "甲？"]
    assert "2 questions" in user(found["question_generation"][0])
    assert len(found["question_selection"]) == 2  # no other Chinese topic to draw distractors from
    chosen = found["question_selection"][0]
    assert all(f"- {q}" in user(chosen) for q in ("A?", "B?", "C?", "D?"))
    assert sorted(reply(chosen).split("\n")) == ["A?", "B?"]

    answers = answer_samples(ROWS, several=False)
    labels: dict[str, set[str]] = {}
    for row in ROWS:
        labels.setdefault(row["answer"], set()).add(row["label"])
    assert {reply(s) for s in answers} == {
        a for a, found_ in labels.items() if found_ <= {"supported", "no_fact"} and "supported" in found_
    }
    assert not any("John Hale" in reply(s) for s in answers)


def test_dialogues_in_three_forms(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"instruction": "Name a colour.", "context": "", "response": "Red."},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"},
                           {"from": "human", "value": "Bye"}, {"from": "gpt", "value": "So long"}]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                      {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "unanswered"}]},
        {"other": 1},
    ]  # fmt: skip
    found = list(dialogue_samples([write_topics(tmp_path / "d.jsonl", rows)]))
    assert [(len(s["prompt"]), reply(s)) for s in found] == [(1, "Red."), (3, "So long"), (2, "Hi.")]


def test_shares_hold() -> None:
    def many(task: str, n: int) -> list[dict[str, Any]]:
        return [{"task": task, "n": i} for i in range(n)]

    samples = {"annotation": many("annotation", 60), "dialogue": many("dialogue", 500),
               "answer_generation": many("answer_generation", 5)}  # fmt: skip
    shares = {"annotation": 0.6, "dialogue": 0.3, "answer_generation": 0.1}
    found = mix(samples, shares, seed=2)  # type: ignore[arg-type]
    count = {task: sum(s["task"] == task for s in found) for task in samples}
    assert count == {"annotation": 60, "dialogue": 30, "answer_generation": 5}  # 10 wanted, 5 there
    assert found == mix(samples, shares, seed=2)  # type: ignore[arg-type]
    assert [s["task"] for s in found] != sorted(s["task"] for s in found)


# --- training -----------------------------------------------------------------------------------------


def recipe(tmp_path: Path, *assignments: str) -> Any:
    base = tmp_path / "base"
    if not base.exists():
        decoder("llama", max_position_embeddings=2048).save_pretrained(base)
        plain = tokenizer()
        plain.chat_template = None
        plain.save_pretrained(base)
        write_topics(tmp_path / "topics.jsonl", made_topics(8))
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


def test_the_whole_path_learns_and_resuming_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    options = recipe(tmp_path)
    with open_run(tmp_path / "whole", options) as whole:
        kind.run(options, whole)
    done = whole.done
    assert done is not None
    assert done["samples_annotation"] > 20
    assert done["samples_dialogue"] == round(done["samples_annotation"] / 0.6 * 0.2)
    assert done["too_long"] == 0
    losses = [row["loss"] for row in whole.rows() if "loss" in row]
    assert losses[-1] < 0.85 * losses[0]
    moved = load_file(tmp_path / "whole" / "annotator" / "model.safetensors")
    base = load_file(tmp_path / "base" / "model.safetensors")
    assert max(float((moved[k] - v).abs().max()) for k, v in base.items()) > 1e-3
    settings = json.loads((tmp_path / "whole" / "annotator" / "annotator.json").read_text())
    assert settings == {"kind": "generative", "protocol": "tagged", "prompts": ["brief"]}

    from transformers import AutoTokenizer

    saved_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole" / "annotator")
    assert saved_tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x\n\n"

    killed_and_resumed(kind, options, tmp_path / "cut", 6)
    resumed = load_file(tmp_path / "cut" / "annotator" / "model.safetensors")
    for key, value in moved.items():
        torch.testing.assert_close(resumed[key], value, rtol=0, atol=1e-6)


def test_wrong_recipes_stop_before_anything_loads(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected shares that sum to 1, got 0"):
        recipe(tmp_path, "mix.annotation=0.5")
    with pytest.raises(UsageError, match="dialogue: no such file"):
        recipe(tmp_path, "dialogue=[nowhere.jsonl]")
    with pytest.raises(UsageError, match="expected files under `dialogue`"):
        recipe(tmp_path, "dialogue=[]")
    with pytest.raises(UsageError, match="prompts: expected some of plain"):
        recipe(tmp_path, "prompts=[nonsense]")
    names = ", ".join(names_of("tagged", "en"))
    with pytest.raises(UsageError, match="at least one wording to be held out"):
        recipe(tmp_path, f"prompts=[{names}]")
