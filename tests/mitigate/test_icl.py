"""Demonstrations chosen by FEWL: pool, neighbours, no leak of the question, budget; the recipe end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fewl.similarity import cosine
from mitigate.cli.main import main
from mitigate.icl import EXAMPLES, SAME, Example, candidate_pool, chat, demonstrations, normalised
from mitigate.recipes.data import Scoring, best_scored, picks
from tests.helpers.engines_server import Reply, completion, error, serving

WORDS = ("red", "blue", "green", "gold", "grey", "pink", "lime", "teal")


def encode(texts: Any) -> Any:
    """Which of the colours a text names, as a vector of length 1; the last axis stands for none."""
    rows = np.array([[float(word in text.lower()) for word in WORDS] + [0.1] for text in texts], dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def record(number: int, question: str, answers: list[tuple[str, bool]], references: dict[str, str]) -> dict[str, Any]:
    rows = [{"text": text, "label": label} for text, label in answers]
    return {"id": str(number), "question": question, "answers": rows, "reference_answers": references}


# Two of three references say what the answer says; "one" alone says something else where it errs.
RECORDS = [
    record(0, "Is it red?", [("gold", False), ("red", True)], {"one": "gold", "two": "red", "three": "red"}),
    record(
        1, "Is it red and blue?", [("blue", True), ("lime", False)], {"one": "lime", "two": "blue", "three": "blue"}
    ),
    record(2, "Is it blue?", [("blue", True), ("pink", False)], {"one": "blue", "two": "blue", "three": "blue"}),
    record(3, "Is it pink?", [("", False)], {"one": "pink", "two": "pink", "three": "pink"}),
]


def test_picks_by_fewl_the_baseline_and_labels() -> None:
    how: Any = {"scoring": Scoring(penalty=False), "baseline": "one", "similarity": cosine(encode), "encode": encode}
    assert picks(RECORDS, "fewl", **how) == [1, 0, 0, None]
    assert picks(RECORDS, "baseline", **how) == [0, 1, 0, None]
    assert picks(RECORDS, "labels", **how) == [1, 0, 0, None]
    assert best_scored([{"score": None}, {"score": 1.0}, {"score": 1.0}]) == 1


def test_the_pool_holds_what_the_picks_differ_in() -> None:
    pool = candidate_pool(RECORDS, [1, 0, 0, None], [0, 1, 0, 0])
    assert pool == [Example("0", "Is it red?", "red", "gold"), Example("1", "Is it red and blue?", "blue", "lime")]
    same = [record(0, "q", [("Red.", True), ("red", True)], {})]
    assert candidate_pool(same, [0], [1]) == []
    assert normalised(" Ｒed, it-is!") == "reditis"


def test_the_most_similar_demonstration_comes_last_and_the_question_never() -> None:
    names = ["red", "red blue", "red blue green", "gold"]
    pool = [Example(str(i), name, "f", "b") for i, name in enumerate(names)]
    (found,) = demonstrations(["RED!"], pool, encode, 5)  # the same question but for case and a sign
    assert [n.example.id for n in found] == ["3", "2", "1"]
    # (1·1 + 0.1·0.1) / (√(1 + .01) · √(2 + .01)) for "red" and "red blue"
    assert found[-1].similarity == pytest.approx(1.01 / (1.01**0.5 * 2.01**0.5), abs=1e-6)
    (two,) = demonstrations(["is it red?"], pool, encode, 2)
    assert [n.example.id for n in two] == ["2", "1"]  # "red" has a cosine of 1, which is more than SAME
    assert SAME < 1
    assert demonstrations(["x"], [], encode, 3) == [[]]


def test_the_budget_drops_the_farthest_first() -> None:
    shown = [("far?", "a" * 400), ("near?", "b"), ("nearest?", "c\nQuestion: forged")]
    (whole,), kept = chat("What\nis it?", shown)
    assert kept == 3
    assert [whole["content"].index(t) for t in ("far?", "near?", "nearest?", "What is it?")] == sorted(
        whole["content"].index(t) for t in ("far?", "near?", "nearest?", "What is it?")
    )
    assert "\nQuestion: forged" not in whole["content"]
    assert whole["content"].endswith("Question: What is it?\nAnswer:")
    (short,), kept = chat("What is it?", shown, budget=len(whole["content"]) - 1)
    assert (kept, "far?" in short["content"]) == (2, False)
    (bare,), kept = chat("What is it?", shown, budget=1)
    assert (kept, EXAMPLES in bare["content"]) == (0, False)


def test_the_recipe_from_records_to_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool, tests = tmp_path / "pool.jsonl", tmp_path / "tests.jsonl"
    pool.write_text("".join(json.dumps(r) + "\n" for r in RECORDS) + '{"question": "no answers"}\n')
    tests.write_text('{"id": "t", "question": "Is the sea red or blue?"}\n{"question": "Is it red?"}\n{"q": 1}\n')
    asked: list[str] = []

    def script(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        asked.append(prompt)  # in any order: several are asked at once
        return completion("with" if EXAMPLES in prompt else "without")

    recipe, out = tmp_path / "icl.yaml", tmp_path / "run"
    with serving(script) as server:
        options = {
            "task": "icl", "about": "a", "hardware": "h", "pool": str(pool), "questions": str(tests), "baseline": "one",
            "scoring": {"penalty": False, "similarity": "rouge-l"}, "engine": f"openai:m@{server.url}",
        }  # fmt: skip
        recipe.write_text(yaml.safe_dump(options))
        assert main(["run", str(recipe), "--output", str(out)]) == 3
        assert main(["run", str(recipe), "baseline=four", "--output", str(tmp_path / "other")]) == 2
    assert "expected one of the reference LLMs one, three, two, got 'four'" in capsys.readouterr().err
    found = [json.loads(line) for line in (out / "pool.jsonl").read_text().splitlines()]
    assert [example["id"] for example in found] == ["0", "1"]
    prompts = [json.loads(line) for line in (out / "prompts.jsonl").read_text().splitlines()]
    assert [(p["id"], p["variant"]) for p in prompts[:3]] == [("t", "none"), ("t", "baseline"), ("t", "fewl")]
    assert [len(p["demonstrations"]) for p in prompts] == [0, 2, 2, 0, 1, 1]  # "Is it red?" is not its own example
    assert all("Is it red?" not in p["messages"][0]["content"].rsplit("Question:", 1)[0] for p in prompts[3:])
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert answers[0] == {
        "id": "t",
        "question": "Is the sea red or blue?",
        "none": "without",
        "baseline": "with",
        "fewl": "with",
    }
    pairs = [json.loads(line) for line in (out / "pairs-fewl.jsonl").read_text().splitlines()]
    assert pairs[0]["baseline"] == "without"
    assert pairs[0]["method"] == "with"
    assert json.loads((out / "done.json").read_text())["rejected_lines"] == 2
    assert len(asked) == 6


def test_questions_with_one_id_each_get_their_answers(tmp_path: Path) -> None:
    pool, tests = tmp_path / "pool.jsonl", tmp_path / "tests.jsonl"
    pool.write_text("".join(json.dumps(r) + "\n" for r in RECORDS))
    tests.write_text("".join(json.dumps({"id": ["x"], "question": f"Is it {w}?"}) + "\n" for w in WORDS[-2:]))
    recipe, out = tmp_path / "icl.yaml", tmp_path / "run"
    with serving(lambda body: completion(body["messages"][0]["content"].rsplit("Is it ")[-1])) as server:
        options = {
            "task": "icl", "about": "a", "hardware": "h", "pool": str(pool), "questions": str(tests), "baseline": "one",
            "scoring": {"penalty": False, "similarity": "rouge-l"}, "engine": f"openai:m@{server.url}",
        }  # fmt: skip
        recipe.write_text(yaml.safe_dump(options))
        assert main(["run", str(recipe), "--output", str(out)]) == 0
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [(a["question"][6:10], a["none"][:4], a["fewl"][:4]) for a in answers] == [
        (word, word, word) for word in WORDS[-2:]
    ]


def test_prompts_without_an_answer_are_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool, recipe, out = tmp_path / "pool.jsonl", tmp_path / "icl.yaml", tmp_path / "run"
    pool.write_text("".join(json.dumps(r) + "\n" for r in RECORDS))
    down: list[str] = ["pink", "blue", "red"]

    def script(body: dict[str, Any]) -> Reply:
        asked = body["messages"][0]["content"].rsplit("Question:", 1)[1]
        return error(400, "too long") if any(word in asked for word in down) else completion("yes")

    with serving(script) as server:
        options = {
            "task": "icl", "about": "a", "hardware": "h", "pool": str(pool), "baseline": "one",
            "scoring": {"penalty": False, "similarity": "rouge-l"}, "engine": f"openai:m@{server.url}",
        }  # fmt: skip
        recipe.write_text(yaml.safe_dump(options))
        for number, failed in ((1, 12), (2, 3), (3, 0)):
            code = main(["run", str(recipe), "--output", str(out)])
            said = capsys.readouterr().err
            assert code == (1 if failed else 0)
            assert not failed or f"{failed} of 12 prompts have no answer" in said
            assert not failed or f"go on with: mitigate run {recipe} --output {out}" in said
            answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
            assert sum(row[v] is None for row in answers for v in ("none", "baseline", "fewl")) == failed
            assert (out / "done.json").exists() == (not failed)
            down[:] = ["pink"] if number == 1 else []
    with_server_gone = main(["run", str(recipe), "answer_tokens=9", "--output", str(tmp_path / "other")])
    assert with_server_gone == 1
    assert "is the server running" in capsys.readouterr().err


def test_what_is_missing_is_told_before_anything_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "icl.yaml"
    options = {"task": "icl", "about": "a", "hardware": "h", "pool": "nowhere.jsonl", "baseline": "one"}
    for extra, message in (
        ({}, "cannot read nowhere.jsonl: no such file"),
        ({"pool": str(recipe), "engine": "gpt"}, "engine 'gpt': expected KIND:MODEL"),
        ({"pool": str(recipe), "scoring": {"similarity": "bleu"}}, "expected cosine, rouge-l"),
        ({"pool": str(recipe)}, "expected FEWL records"),
    ):
        recipe.write_text(yaml.safe_dump({**options, **extra}))
        assert main(["run", str(recipe), "--output", str(tmp_path / "run")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
