"""The recipe `inference`: ask several times, choose, correct or withhold; figures of each stage; resume."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines import ResponseCache
from mitigate.cli.main import main
from tests.helpers.engines_server import Reply, completion, error, serving
from tests.helpers.jsonl import read_rows as read
from tests.helpers.jsonl import write_rows
from tests.helpers.rule_annotator import LOST, REFERENCE, RIGHT, WRONG, RuleAnnotator

OTHER = "Anna drew it in 1899."
LLM = {"llm": "openai:llm@http://127.0.0.1:9/v1"}
FEWL: dict[str, Any] = {"select": "fewl", "scoring": {"similarity": "rouge-l", "penalty": False, "embedding": "tfidf"}}


@pytest.fixture(autouse=True)
def annotator(monkeypatch: pytest.MonkeyPatch) -> RuleAnnotator:
    """In place of a trained one, so that verdicts are known."""
    rule = RuleAnnotator()
    monkeypatch.setattr("mitigate.recipes.inference.open_annotator", lambda name, options: rule)
    return rule


def recipe(folder: Path, url: str, **more: Any) -> Path:
    rows = [{"question": f"q{i}?", "reference": REFERENCE, "note": i} for i in range(4)]
    data = write_rows(folder / "data.jsonl", [*rows, {"question": "no reference"}])
    path = folder / "inference.yaml"
    options = {"task": "inference", "about": "a", "hardware": "h", "data": str(data), "answers": 2, "chunk": 2}
    options |= {"annotator": f"generative:openai:m@{url}"}  # one that gives corrections, as the rule annotator does
    path.write_text(yaml.safe_dump({**options, "engine": f"openai:m@{url}", **more}))
    return path


def script(body: dict[str, Any]) -> Reply:
    """q0: a right second answer; q1: one that its correction mends; q2: hopeless; q3: nothing at all."""
    text = body["messages"][0]["content"]
    replies = {"q0": (LOST, RIGHT), "q1": (f"{WRONG} {LOST}", f"{LOST} {LOST}"), "q2": (LOST, OTHER), "q3": ("", "")}
    likeliest, drawn = next(texts for name, texts in replies.items() if name in text)
    return completion(drawn if body.get("temperature") else likeliest)


def test_choose_correct_and_withhold(tmp_path, capsys):
    out = tmp_path / "run"
    with serving(script) as server:
        command = ["run", str(recipe(tmp_path, server.url, abstain_above=0.6)), "--output", str(out)]
        assert main(command) == 3
        asked, printed = server.requests[:], capsys.readouterr()
        assert main(command) == 3  # complete: it is only shown again
        assert server.requests == asked
    assert all(REFERENCE.strip() in body["messages"][0]["content"] for body in asked)
    rows = read(out / "results.jsonl")
    assert [row["note"] for row in rows] == [0, 1, 2, 3]
    assert (rows[0]["answer"], rows[0]["index"], rows[0]["candidates"]) == (RIGHT, 1, [LOST, RIGHT])
    assert rows[1]["answer"] == f"{RIGHT} {LOST}"
    assert rows[2]["action"] == "abstained"
    assert (rows[3]["answer"], rows[3]["index"]) == (None, None)
    assert [row["stages"]["first"]["answer"] for row in rows] == [LOST, f"{WRONG} {LOST}", LOST, ""]
    done = json.loads((out / "done.json").read_text())
    # first: LOST | WRONG LOST | LOST: 4 of 4; chosen: RIGHT | WRONG LOST | LOST: 3 of 4; given: RIGHT | RIGHT LOST | –
    assert [done[stage]["hallucinated"] for stage in ("first", "chosen", "given")] == [4, 3, 1]
    assert [done[stage]["factual"] for stage in ("first", "chosen", "given")] == [4, 4, 3]
    assert done["unanswered"] == 1
    # Of LOST's four words "It" alone is in the reference; all five of RIGHT and WRONG stand there in this order.
    # first: 1/4 | (1 + 1/4) / 2 | 1/4; given: 1 | (1 + 1/4) / 2 | –
    for name, first, given in (("copied", 3 / 8, 13 / 16), ("answers", 3, 2), ("sentences", 4 / 3, 3 / 2)):
        assert (done["first"][name], done["given"][name]) == (first, given)
    assert done["difference"]["rate"]["difference"] == 1 / 3 - 4 / 4
    assert done["difference"]["copied"]["difference"] == 13 / 16 - 3 / 8
    assert -1 <= done["difference"]["rate"]["low"] < 1 / 3 - 4 / 4 < done["difference"]["rate"]["high"] <= 0
    for out_text in (printed.out, capsys.readouterr().out):
        assert re.search(r"first +│ +3 │ +100 % of 4 │.* 0.00 │ +1.33 │ +0 % │ +38 % │", out_text)
        assert re.search(r"given +│ +2 │ +33 % of 3 │.* 1.00 │ +1.50 │ +0 % │ +81 % │", out_text)
    assert "data.jsonl:5: reference: expected" in printed.err
    assert RIGHT in (out / "answers.html").read_text()
    page = (out / "report.html").read_text()
    assert re.search(rf"answer 2 of 2<.*Before.*{LOST}.*After.*{RIGHT}.*{REFERENCE.splitlines()[0]}", page, re.DOTALL)
    assert page.count("<article") == 3  # one has no answer
    assert "answer 1 of 2, withheld" in page
    assert len(read(out / "rejected.jsonl")) == 1


@pytest.mark.parametrize(("who", "failed"), [("m", [1]), ("w", [0, 1]), ("llm", [0, 1])])
def test_failed_requests_are_kept_and_asked_again(tmp_path, capsys, who, failed):
    """The engine that answers fails for one question; a writer and a reference LLM concern the chunk of it."""
    out, path = tmp_path / "run", Path()

    def fails(body: dict[str, Any]) -> Reply:
        text = body["messages"][0]["content"]
        if body["model"] == who and "q1?" in text and not mended:
            return error(500, "out of memory")
        return script(body) if body["model"] == "m" else completion(RIGHT)

    mended: list[bool] = []
    with serving(fails) as server:
        more: dict[str, Any] = {"regenerate": f"openai:w@{server.url}"}
        if who == "llm":
            more |= FEWL | {"reference_llms": {"llm": f"openai:llm@{server.url}"}}
        path = recipe(tmp_path, server.url, **more)
        assert main(["run", str(path), "--output", str(out)]) == 1
        shown = capsys.readouterr()
        assert f"failed: {len(failed)}" in shown.out
        line, cost = shown.err.splitlines()[-2:]
        assert "asked language models: " in cost
        assert f"{len(failed)} of 4 questions have a request without a reply (" in line
        assert f"go on with: mitigate run {path} --output {out}" in line
        rows = read(out / "results.jsonl")
        assert [row["note"] for row in rows if row["error"]] == failed
        assert not (out / "done.json").exists()
        mended.append(True)
        del server.requests[:]
        assert main(["run", str(path), "--output", str(out)]) == 3
        again = server.requests[:]
        assert main(["run", str(path), "--output", str(tmp_path / "whole")]) == 3
    assert {body["model"] for body in again[:1]} == {who}
    assert all("q1?" in body["messages"][0]["content"] for body in again)
    assert (out / "results.jsonl").read_bytes() == (tmp_path / "whole/results.jsonl").read_bytes()
    done = json.loads((out / "done.json").read_text())
    assert (done["failed"], done) == (0, json.loads((tmp_path / "whole/done.json").read_text()))


def test_refused_rewriting_is_told_and_ends(tmp_path, capsys):
    with serving(lambda body: error(400, "filtered") if body["model"] == "w" else script(body)) as server:
        path = recipe(tmp_path, server.url, regenerate=f"openai:w@{server.url}")
        assert main(["run", str(path), "--output", str(tmp_path / "run")]) == 3  # of the bad line
    assert re.search("refused, and not asked again: openai:w@.*filtered", capsys.readouterr().err)


@pytest.mark.parametrize("never", ["q1", "q"])
def test_refused_questions_are_not_asked_again(tmp_path, capsys, never):
    """One is left without an answer, as one that the engine says nothing to; where all are, nothing was done."""
    out = tmp_path / "run"
    refuse = error(400, "filtered")
    with serving(lambda body: refuse if never in body["messages"][0]["content"] else script(body)) as server:
        argv = ["run", str(recipe(tmp_path, server.url)), "--output", str(out)]
        assert main(argv) == (3 if never == "q1" else 1)
        asked, said = len(server.requests), capsys.readouterr()
        assert main(argv) == (3 if never == "q1" else 1)
        assert len(server.requests) == (asked if never == "q1" else 2 * asked)
    if never == "q1":
        rows = read(out / "results.jsonl")
        assert [bool(row["refused"]) for row in rows] == [False, True, False, False]
        assert [row["error"] for row in rows] == [None] * 4
        assert json.loads((out / "done.json").read_text())["unanswered"] == 2  # and q3, to which nothing is said
    else:
        assert re.search("none of 4 questions has an answer, the first: refused: .*filtered", said.err)


def test_questions_alone_are_enough_for_fewl(tmp_path):
    """No reference, and the engine that answers is a reference LLM too: its own answers are not compared with it."""
    out, data = tmp_path / "run", write_rows(tmp_path / "q.jsonl", [{"question": "q0?"}, {"question": "q1?"}])

    def reply(body: dict[str, Any]) -> Reply:
        return completion("red" if body["model"] == "m" and not body.get("temperature") else "blue")

    with serving(reply) as server:
        llms = {name: f"openai:{name}@{server.url}" for name in ("m", "other")}
        more = {**FEWL, "reference_llms": llms, "reference_in_prompt": False, "correct": False}
        for asked in (8, 8):  # the second time it goes on
            assert main(["run", str(recipe(tmp_path, server.url, **more, data=str(data))), "--output", str(out)]) == 0
            (out / "done.json").unlink()
            assert len(server.requests) == asked
    assert [row["answer"] for row in read(out / "results.jsonl")] == ["blue", "blue"]


def test_dying_engine_loses_no_reply(tmp_path, capsys):
    """The key expires within the first chunk: that is done again, and what was said is not asked again."""
    out, path = tmp_path / "run", Path()

    def dies(body: dict[str, Any]) -> Reply:
        if mended or "q0?" in body["messages"][0]["content"]:
            return script(body)
        kept, deadline = ResponseCache(out / "replies.sqlite"), time.monotonic() + 60
        wanted = 2 if body.get("temperature") else 1  # until the reply to q0 has come: the likeliest, then a drawn one
        while len(kept) < wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        kept.close()
        return error(401, "key expired")

    mended: list[bool] = []
    with serving(dies) as server:
        path = recipe(tmp_path, server.url)
        assert main(["run", str(path), "--output", str(out)]) == 1
        assert [bool(row["error"]) for row in read(out / "results.jsonl")] == [False, True]
        assert "key expired" in capsys.readouterr().err
        mended.append(True)
        del server.requests[:]
        assert main(["run", str(path), "--output", str(out)]) == 3
    assert not any("q0?" in body["messages"][0]["content"] for body in server.requests)
    assert len(read(out / "results.jsonl")) == 4


def test_cut_chunk_begins_again_other_questions_refused(tmp_path, capsys):
    out = tmp_path / "run"
    with serving(script) as server:
        path = recipe(tmp_path, server.url)
        assert main(["run", str(path), "--output", str(out)]) == 3
        whole, asked = (out / "results.jsonl").read_text(), len(server.requests)
        lines = whole.splitlines(keepends=True)
        (out / "done.json").unlink()
        (out / "results.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
        assert main(["run", str(path), "--output", str(out)]) == 3
        assert (out / "results.jsonl").read_text() == whole
        assert len(server.requests) == asked  # replies are kept
        (out / "done.json").unlink()
        data = tmp_path / "data.jsonl"
        given = data.read_text()
        for old, new in (("q1?", "another?"), ('"note": 1', '"prompt": [{"role": "user", "content": "q1?"}]')):
            data.write_text(given.replace(old, new))
            capsys.readouterr()
            assert main(["run", str(path), "--output", str(out)]) == 2
            assert "row 2 of results.jsonl is not of question 2" in capsys.readouterr().err
    assert (out / "results.jsonl").read_text() == whole


def test_bad_lines_stop_no_other(tmp_path, capsys):
    with serving(script) as server:
        path, out = recipe(tmp_path, server.url), tmp_path / "run"
        bad = [{"prompt": "q0?"}, {"prompt": 7}, {"prompt": [{"role": "user"}]}, {"language": 1}]
        with (tmp_path / "data.jsonl").open("a") as file:
            file.writelines(json.dumps({"question": "q0?", "reference": REFERENCE, **b}) + "\n" for b in bad)
            file.write(json.dumps({"question": "q0? \ud800", "reference": REFERENCE}) + "\n")
        assert main(["run", str(path), "--output", str(out)]) == 3
        assert main(["run", str(path), "--output", str(out)]) == 3  # complete, and as before
        with (tmp_path / "data.jsonl").open("a") as file:
            file.write("\n")
        assert main(["run", str(path), "--output", str(out)]) == 2
    assert "data.jsonl changed since then: begin anew with --overwrite" in capsys.readouterr().err
    assert len(read(out / "rejected.jsonl")) == 5
    assert [row["answer"] for row in read(out / "results.jsonl")][-1] == RIGHT


@pytest.mark.parametrize(("more", "message"), [
    ({"select": "fewl"}, "reference_llms: expected the engines"),
    ({"reference_llms": LLM}, "reference_llms: expected the engines"),
    (
        {"select": "fewl", "reference_llms": LLM, "scoring": {"expertise": "similarity"}},
        "scoring.expertise: nothing makes IW/CO pairs here",
    ),
    ({"engine": LLM["llm"], "select": "fewl", "reference_llms": LLM}, "reference_llms: expected another engine than "),
    ({"correct": False, "delete": True}, "for correct: true only"),
    ({"annotator": "embedded"}, "correct: embedded gives no corrections, so nothing would change; expected "),
    ({"annotator": "embeded"}, "annotator: no such folder 'embeded'"),
    ({"seed": 3_000_000_000}, "seed: .*less than 2147483648"),
    (
        {"select": "fewl", "reference_llms": LLM, "scoring": {"similarity": "annotator:embeded"}},
        "similarity annotator: no such folder 'embeded'",
    ),
    ({"temperature": 0}, "temperature: .*greater than 0"),
    ({"regenerate": "gpt"}, "expected KIND:MODEL"),
    ({"abstain_above": 1}, "abstain_above: .*less than 1"),
    ({"data": "nowhere"}, "cannot read nowhere"),
])  # fmt: skip
def test_wrong_recipes_are_refused_first(tmp_path, capsys, more, message):
    path = recipe(tmp_path, "http://127.0.0.1:9/v1", **more)
    assert main(["run", str(path), "--output", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_silent_likeliest_answer_stays_first(tmp_path):
    out = tmp_path / "run"
    with serving(lambda body: completion(RIGHT if body.get("temperature") else "")) as server:
        assert main(["run", str(recipe(tmp_path, server.url)), "--output", str(out)]) == 3
    assert {(row["stages"]["first"]["answer"], row["answer"]) for row in read(out / "results.jsonl")} == {("", RIGHT)}
    assert json.loads((out / "done.json").read_text())["first"]["answers"] == 0
