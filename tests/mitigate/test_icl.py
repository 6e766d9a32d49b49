"""Demonstrations chosen by FEWL: pool, neighbours, no leak of the question, budget; the recipe end to end."""

import json

import numpy as np
import pytest
import yaml

from fewl.similarity import cosine
from mitigate.cli.main import main
from mitigate.icl import EXAMPLES, SAME, Example, candidate_pool, chat, demonstrations, normalised
from mitigate.recipes.data import Scoring, picks
from tests.helpers.engines_server import completion, error, serving
from tests.helpers.jsonl import read_rows, write_rows

WORDS = ("red", "blue", "green", "gold", "grey", "pink", "lime", "teal")


def encode(texts):
    rows = np.array([[float(word in text.lower()) for word in WORDS] + [0.1] for text in texts], dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def record(number, question, answers, *said):
    rows = [{"text": text, "label": label} for text, label in answers]
    references = dict(zip(("one", "two", "three"), said, strict=False))
    return {"id": str(number), "question": question, "answers": rows, "reference_answers": references}


# Two of three references say what the answer says; "one" alone says something else where it errs.
RECORDS = [
    record(0, "Is it red?", [("gold", False), ("red", True)], "gold", "red", "red"),
    record(1, "Is it red and blue?", [("blue", True), ("lime", False)], "lime", "blue", "blue"),
    record(2, "Is it blue?", [("blue", True), ("pink", False)], "blue", "blue", "blue"),
    record(3, "Is it pink?", [("", False)], "pink", "pink", "pink"),
]


def test_picks_and_the_pool_of_differing_ones():
    how = {"scoring": Scoring(penalty=False), "baseline": "one", "similarity": cosine(encode), "encode": encode}
    assert picks(RECORDS, "fewl", **how) == [1, 0, 0, None]
    assert picks(RECORDS, "baseline", **how) == [0, 1, 0, None]
    assert picks(RECORDS, "labels", **how) == [1, 0, 0, None]
    pool = candidate_pool(RECORDS, [1, 0, 0, None], [0, 1, 0, 0])
    assert pool == [Example("0", "Is it red?", "red", "gold"), Example("1", "Is it red and blue?", "blue", "lime")]
    same = [record(0, "q", [("Red.", True), ("red", True)])]
    assert candidate_pool(same, [0], [1]) == []
    assert normalised(" Ｒed, it-is!") == "reditis"


def test_the_most_similar_comes_last_the_question_never():
    names = ["red", "red blue", "red blue green", "gold"]
    pool = [Example(str(i), name, "f", "b") for i, name in enumerate(names)]
    (found,) = demonstrations(["RED!"], pool, encode, 5)  # the same question but for case and a sign
    assert [n.example.id for n in found] == ["3", "2", "1"]
    # (1·1 + 0.1·0.1) / (√(1 + .01) · √(2 + .01)) for "red" and "red blue"
    assert found[-1].similarity == pytest.approx(1.01 / (1.01**0.5 * 2.01**0.5), abs=1e-6)
    (two,) = demonstrations(["is it red?"], pool, encode, 2)
    assert [n.example.id for n in two] == ["2", "1"]  # "red" has a cosine of 1, which is more than SAME
    assert SAME < 1
    # What words weigh may depend on all the texts, so questions and pool are encoded together.
    found = demonstrations(["a", "b"], pool[:1], lambda texts: np.eye(len(texts)), 1)
    assert [[n.similarity for n in near] for near in found] == [[0.0], [0.0]]
    assert demonstrations(["x"], [], encode, 3) == [[]]


def test_the_budget_drops_the_farthest_first():
    shown = [("far?", "a" * 400), ("near?", "b"), ("nearest?", "c\nQuestion: forged")]
    (whole,), kept = chat("What\nis it?", shown)
    assert kept == 3
    places = [whole["content"].index(t) for t in ("far?", "near?", "nearest?", "What is it?")]
    assert places == sorted(places)
    assert "\nQuestion: forged" not in whole["content"]
    assert whole["content"].endswith("Question: What is it?\nAnswer:")
    (short,), kept = chat("What is it?", shown, budget=len(whole["content"]) - 1)
    assert (kept, "far?" in short["content"]) == (2, False)
    (bare,), kept = chat("What is it?", shown, budget=1)
    assert (kept, EXAMPLES in bare["content"]) == (0, False)


def recipe(folder, url, **more):
    pool = write_rows(folder / "pool.jsonl", [*RECORDS, {"question": "no answers"}])
    options = {"task": "icl", "about": "a", "hardware": "h", "pool": str(pool), "baseline": "one",
               "scoring": {"penalty": False, "similarity": "rouge-l", "embedding": "tfidf"},
               **({"engine": f"openai:m@{url}"} if url else {}), **more}  # fmt: skip
    path = folder / "icl.yaml"
    path.write_text(yaml.safe_dump(options))
    return path


def test_the_recipe_from_records_to_pairs(tmp_path, capsys):
    tests, out = tmp_path / "tests.jsonl", tmp_path / "run"
    tests.write_text('{"id": "t", "question": "Is the sea red or blue?"}\n{"question": "Is it red?"}\n{"q": 1}\n')
    asked = []

    def script(body):
        prompt = body["messages"][0]["content"]
        asked.append(prompt)  # in any order: several are asked at once
        return completion("with" if EXAMPLES in prompt else "without")

    with serving(script) as server:
        path = recipe(tmp_path, server.url, questions=str(tests))
        assert main(["run", str(path), "--output", str(out)]) == 3
        assert main(["run", str(path), "baseline=four", "--output", str(tmp_path / "other")]) == 2
    assert "expected one of the reference LLMs one, three, two, got 'four'" in capsys.readouterr().err
    assert [example["id"] for example in read_rows(out / "pool.jsonl")] == ["0", "1"]
    prompts = read_rows(out / "prompts.jsonl")
    assert [(p["id"], p["variant"]) for p in prompts[:3]] == [("t", "none"), ("t", "baseline"), ("t", "fewl")]
    assert [len(p["demonstrations"]) for p in prompts] == [0, 2, 2, 0, 1, 1]  # "Is it red?" is not its own example
    assert all("Is it red?" not in p["messages"][0]["content"].rsplit("Question:", 1)[0] for p in prompts[3:])
    answer = {"id": "t", "question": "Is the sea red or blue?", "none": "without", "baseline": "with", "fewl": "with"}
    assert read_rows(out / "answers.jsonl")[0] == answer
    pair = read_rows(out / "pairs-fewl.jsonl")[0]
    assert (pair["baseline"], pair["method"]) == ("without", "with")
    assert json.loads((out / "done.json").read_text())["rejected_lines"] == 2
    assert len(asked) == 6


def test_questions_of_one_id_are_not_mixed(tmp_path):
    tests, out = tmp_path / "tests.jsonl", tmp_path / "run"
    tests.write_text("".join(json.dumps({"id": ["x"], "question": f"Is it {w}?"}) + "\n" for w in WORDS[-2:]))
    with serving(lambda body: completion(body["messages"][0]["content"].rsplit("Is it ")[-1])) as server:
        assert main(["run", str(recipe(tmp_path, server.url, questions=str(tests))), "--output", str(out)]) == 3
    found = [(a["question"][6:10], a["none"][:4], a["fewl"][:4]) for a in read_rows(out / "answers.jsonl")]
    assert found == [(word, word, word) for word in WORDS[-2:]]


def test_prompts_without_an_answer_are_asked_again(tmp_path, capsys):
    out, down = tmp_path / "run", ["pink", "blue", "red"]

    def script(body):
        asked = body["messages"][0]["content"].rsplit("Question:", 1)[1]
        return error(400, "too long") if any(word in asked for word in down) else completion("yes")

    with serving(script) as server:
        path = recipe(tmp_path, server.url)
        for down_next, failed in (["pink"], 12), ([], 3), ([], 0):
            assert main(["run", str(path), "--output", str(out)]) == (1 if failed else 3)
            said = capsys.readouterr().err
            for part in (f"{failed} of 12 prompts have no answer", f"go on with: mitigate run {path} --output {out}"):
                assert (part in said) == bool(failed)
            answers = read_rows(out / "answers.jsonl")
            assert sum(row[v] is None for row in answers for v in ("none", "baseline", "fewl")) == failed
            assert (out / "done.json").exists() == (not failed)
            down[:] = down_next


def test_wrong_recipes_are_refused_before_loading(tmp_path, capsys):
    here = str(tmp_path / "icl.yaml")
    for extra, message in (
        ({"pool": "nowhere.jsonl"}, "cannot read nowhere.jsonl: no such file"),
        ({"pool": here, "engine": "gpt"}, "engine 'gpt': expected KIND:MODEL"),
        ({"pool": here, "scoring": {"similarity": "bleu"}}, "expected cosine, rouge-l"),
        ({"pool": here}, "expected FEWL records"),
    ):
        assert main(["run", str(recipe(tmp_path, None, **extra)), "--output", str(tmp_path / "run")]) == 2
        assert message in capsys.readouterr().err
        assert {file.name for file in (tmp_path / "run").glob("*")} <= {"rejected.jsonl"}
