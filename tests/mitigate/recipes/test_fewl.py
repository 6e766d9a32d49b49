"""Tables of the FEWL paper: data sets as records, figures and controls by hand, the recipe end to end."""

import json

import pytest

from mitigate.cli.main import main
from mitigate.io import UsageError
from mitigate.recipes.config import load_recipe
from mitigate.recipes.fewl import as_record, figures
from tests.helpers.engines_server import completion, serving
from tests.helpers.jsonl import write_rows

CHALE = [{"question": f"{word} or not?", "non_hallu": word, "half_hallu": f"{word} no", "hallu": "no"}
         for word in ("aaa", "bbb", "ccc", "ddd")]  # fmt: skip
SHARED = ["run", "fewl/paper", "embedding=tfidf", "questions=null", "seeds=2"]


def test_data_sets_become_records():
    row = {"question": "q", "best_answer": "a", "correct_answers": ["a", "b"], "incorrect_answers": ["c"]}
    made = as_record(row)
    assert [(a["text"], a["kind"], a["label"]) for a in made["answers"]] == [
        ("a", "best_answer", True), ("a", "correct_answers", True), ("b", "correct_answers", True),
        ("c", "incorrect_answers", False),
    ]  # fmt: skip
    assert as_record(CHALE[0])["answers"][1] == {"text": "aaa no", "kind": "half_hallu", "label": None}
    assert as_record(made) == made


def test_figures_by_hand():
    options = load_recipe("fewl/paper", [f"data={__file__}", "above=[[a, b]]", "highest=a"])[0]

    def scored(**kinds):
        return {"answers": [{"text": k, "kind": k[0], "score": v} for k, v in kinds.items()]}

    # won, tied, lost by the first b (the second does not count), not scored; highest: where a ties or wins against all
    rows = [scored(a=2, b=1), scored(a=1, b=1), scored(a=1, b=2, b2=0), scored(a=None, b=1)]
    assert figures(rows, options) == {"a above b, %": 50.0, "a highest, number": 2.0}


def test_paper_recipe_asks_scores_and_judges(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def script(body):
        text = body["messages"][0]["content"]
        if "Invent" in text:
            return completion("1. Wrong Answer: no\n1. Non-Wrong Answer: yes")
        if "correct answer" in text:
            return completion("No")
        return completion(text.split("\n\n")[1].split()[0])  # the reference LLM says what is right

    with serving(script) as server:
        engine = f"openai:m@{server.url}"
        argv = [*SHARED, f"data={write_rows(tmp_path / 'c.jsonl', CHALE)}", f"reference_llms.first={engine}"]
        assert main([*argv, "pairs=1", f"judge={engine}", "--output", str(tmp_path / "run")]) == 0
    rows = json.loads((tmp_path / "run" / "table.json").read_text())
    assert [row["paper"] for row in rows[:3]] == [66.56, 65.88, 68.39]
    assert {row["method"] for row in rows} >= {"single, no penalty", "FEWL, ideal"}
    assert [row["mean"] for row in rows[:2]] == [100, 100]  # the reference is the right answer
    assert rows[0]["longest answer"] == 0  # "aaa no" is longer than "aaa"
    assert rows[1]["longest answer"] == 100
    assert rows[0]["other question's references"] < 100
    assert json.loads((tmp_path / "run" / "figure2.json").read_text()) == [0, 0, 0] + [None] * 7  # 3 neighbours
    assert "Figure 2" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "message"), [
    (["above=[[non_hallu, other]]"], "no answer has the kind 'other'"),
    (["reference_llms={}"], "methods.FEWL: expertise similarity: no record has iw and co"),
])  # fmt: skip
def test_wrong_options_come_before_asking(tmp_path, capsys, options, message):
    data = write_rows(tmp_path / "c.jsonl", CHALE)
    assert main([*SHARED, f"data={data}", *options, "--output", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match="at least one of them"):
        load_recipe("fewl/paper", [f"data={data}", "above=[]"])
