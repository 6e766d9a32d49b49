"""Tables of the FEWL paper: data sets as records, figures and controls by hand, the recipe end to end."""

import json

import numpy as np
import pytest

from engines.types import ChatResult, Sample
from fewl.expertise import TOKENS
from mitigate.cli.main import main
from mitigate.io import UsageError
from mitigate.recipes.config import load_recipe
from mitigate.recipes.fewl import add_truths, as_record, figures, neighbours_fit
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


def test_the_truer_of_two_answers_by_hand():
    """Truth: the cosine with the nearest true answer less that with the nearest false one; equally true: left out."""
    options = load_recipe("fewl/table5", [f"data={__file__}", "compared=[[a, b]]"])[0]
    plane = {"true": [1, 0], "also true": [0.8, 0.6], "false": [0, 1], "near": [0.6, 0.8], "far": [0, -1]}
    official = [{"text": t, "kind": "k", "label": t != "false"} for t in ("true", "also true", "false")]
    said = [{"text": "near", "model": "a", "label": True}, {"text": "far", "model": "b"}]
    records = [{"answers": [dict(a) for a in some]} for some in ([*official, *said], [official[0], *said])]
    add_truths(records, lambda texts: np.array([plane[t] for t in texts], dtype=float))
    assert [a.get("truth") for a in records[0]["answers"]] == [None] * 3 + [pytest.approx(0.96 - 0.8), 0.0 - -1.0]
    assert not any("truth" in a for a in records[1]["answers"])  # nothing false to compare with

    def scored(a, b):  # (truth, score) of each
        return {"answers": [{"model": m, "truth": t, "score": s} for m, (t, s) in (("a", a), ("b", b))]}

    rows = [scored((1, 5), (0, 4)), scored((0, 5), (1, 4)), scored((0, 3), (1, 3)), scored((1, 3), (1, 4)),
            scored((1, None), (0, 1)), *records]  # fmt: skip
    rows[5:] = [{"answers": [a | {"score": 1.0 - (a.get("model") == "b")} for a in r["answers"]]} for r in records]
    # right, wrong, tied; equally true, not scored; b is the truer and scores lower; no truth known
    assert figures(rows, options) == {"a or b, the truer above, %": 100 * 1.5 / 4}


def test_table_5_asks_the_llms_that_it_compares(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    rows = [{"question": f"{w}?", "best_answer": f"yes {w}", "correct_answers": [f"yes {w}"],
             "incorrect_answers": [f"never {w}"]} for w in ("aaa", "bbb", "ccc")]  # fmt: skip
    data = write_rows(tmp_path / "t.jsonl", rows)

    def script(body):  # the model's name is what it says
        return completion(f"{body['model']} {body['messages'][-1]['content'].split('?')[0].split()[-1]}")

    with serving(script) as server:
        llms = [f"answer_llms.{name}=openai:{says}@{server.url}"
                for name, says in (("small", "never"), ("large", "perhaps"), ("best", "yes"))]  # fmt: skip
        argv = ["run", "fewl/table5", f"data={data}", "embedding=tfidf", *llms, "seeds=1"]
        argv += [f"reference_llms.first=openai:yes@{server.url}", "--output"]
        assert main([*argv, str(tmp_path / "run")]) == 0
        assert len(server.requests) == 9  # three models, one of which is also the reference LLM
        assert main([*argv, str(tmp_path / "other"), "compared=[[small, nobody]]"]) == 2
        assert "'nobody'" in capsys.readouterr().err
    table = json.loads((tmp_path / "run" / "table.json").read_text())
    assert [row["paper"] for row in table] == [60.11, 60.65, 58.32, 64.6, 63.13, 59.39]
    assert [row["mean"] for row in table[:3]] == [100, 100, 100]  # the reference says what is true
    assert table[0]["longest answer"] == 0  # "never" is longer than "yes"


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
    judged = [body for body in server.requests if "correct answer" in body["messages"][0]["content"]]
    assert [body["max_tokens"] for body in judged] == [TOKENS] * 12  # room for thoughts
    assert "Figure 2" in capsys.readouterr().out


def test_no_question_is_its_own_neighbour():
    class Own:
        """Finds an answer right for the question that it belongs to."""

        def chat(self, chats, sampling):
            told = [chat[0]["content"].splitlines() for chat in chats]
            fits = [question.split()[1] == answer.split()[1] for question, answer, *_ in told]
            return [ChatResult((Sample("Yes" if fit else "No"),)) for fit in fits]

    records = [as_record(row) for row in [*CHALE, *CHALE]]  # each question twice
    vectors = dict(zip((row["question"] for row in CHALE), np.eye(4, dtype=np.float32), strict=True))
    found = neighbours_fit(Own(), records, lambda texts: np.stack([vectors[text] for text in texts]))
    assert found == [0.0] * 6 + [None] * 4


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
