"""The examples are what their README says: gold labels that fit the sentences, questions that a real model answers."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from annotators import LABELS
from annotators.text.sentences import split_sentences
from engines.packaged import on_disk
from mitigate.cli.main import main
from mitigate.io import check_annotation_input, read_lines
from mitigate.recipes.data import check_question
from tests.helpers.engines_server import told_url, transformers_serve
from tests.helpers.jsonl import read_rows, write_rows

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = list(read_lines(EXAMPLES / "records.jsonl", check_annotation_input))
RECORDS: list[dict[str, Any]] = [line.record for line in LINES if line.record is not None]


def test_every_sentence_has_a_gold_label():
    assert len(RECORDS) == len(LINES)
    for record in RECORDS:
        assert len(split_sentences(record["answer"])) == len(record["expected"]), record["id"]
        if record["reference"]:
            assert set(record["expected"]) <= set(LABELS)
        else:
            assert set(record["expected"]) == {None}


def test_readme_lists_every_unsupported_sentence():
    """By number in the answer and first letter of the label, as in "- `reef` 4 c (numbers exchanged), 6 u"."""
    lines = (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()
    items = [match for line in lines if (match := re.match(r"- `(\w+)` (.+)", line))]
    listed = {(m[1], int(number), label) for m in items for number, label in re.findall(r"(\d+) ([cu])\b", m[2])}
    gold = {(r["id"], number, str(label)[0]) for r in RECORDS for number, label in enumerate(r["expected"], 1)}
    assert listed == {(name, number, letter) for name, number, letter in gold if letter in "cu"}


def test_questions_are_complete():
    lines = list(read_lines(EXAMPLES / "questions.jsonl", lambda row: check_question(row, needed=True)))
    rows = [line.record for line in lines if line.record is not None]
    assert len(rows) == len(lines) == len({row["id"] for row in rows}) == 12
    assert [row["id"] for row in rows if not row["answerable"]] == ["halley", "railway", "kilimanjaro"]


real = pytest.mark.skipif(on_disk("smollm2") is None, reason="skipped: run `mitigate models get smollm2` once")


@pytest.mark.slow
@real
def test_smollm2_answers_and_is_mended(tmp_path, capsys):
    """The recipe of `make run` on two questions with short answers, real weights throughout."""
    lines = (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    data, out = tmp_path / "questions.jsonl", tmp_path / "run"
    data.write_text("".join(lines[4:6]), encoding="utf-8")
    command = ["run", "inference/example", f"data={data}", "answers=3", "answer_tokens=48", "--output", str(out)]
    assert main(command) == 0
    rows, done = read_rows(out / "results.jsonl"), json.loads((out / "done.json").read_text())
    assert [row["id"] for row in rows] == ["lovelace", "halley"]
    for row in rows:
        assert len(set(row["candidates"])) == 3
        assert sum(len(text.split()) for text in row["candidates"]) > 20  # it does say something
        assert row["stages"]["first"]["answer"] == row["candidates"][0]
    assert done["given"]["hallucinated"] <= done["chosen"]["hallucinated"]
    assert 0 < done["first"]["copied"] <= 1
    assert (out / "report.html").read_text().count("<article") == 2
    assert "copied" in capsys.readouterr().out


@pytest.mark.slow
@real
def test_smollm2_behind_a_server_judges_and_is_judged(tmp_path):
    """It is too weak to be a good judge: what it says must be read, or counted as unread, and nothing may be lost."""
    model, record = on_disk("smollm2"), RECORDS[0]
    wrong, right = "A spider has six legs.", "A spider has eight legs."
    pair = {"question": "How many legs has a spider?", "baseline": wrong, "method": right, "reference": right}
    asked = {"question": pair["question"], "answers": [{"text": right}, {"text": wrong}], "iw": [wrong], "co": [right]}
    judged, scored = tmp_path / "judged.jsonl", tmp_path / "scored.jsonl"
    with transformers_serve(Path(str(model)), tmp_path / "serve.log") as url:
        engine = f"openai:{model}@{url}"
        pairs = write_rows(tmp_path / "pairs.jsonl", [pair])
        assert main(["judge", "--input", str(pairs), "--output", str(judged), "--engine", engine]) == 0
        source = write_rows(tmp_path / "q.jsonl", [asked])
        command = ["fewl", "score", "--input", str(source), "--output", str(scored), "--expertise", "prompted"]
        assert main([*command, "--reference-llm", f"smol={engine}", "--max-tokens", "40"]) == 0
        command = [sys.executable, "-m", "mitigate.cli", "serve", "--upstream", url, "--port", "0"]
        with told_url([*command, "--annotator", "embedded-fast"], tmp_path / "proxy.log") as proxy, OpenAI(
            base_url=proxy, api_key="none", max_retries=0, timeout=120
        ) as client:  # fmt: skip
            more = {"hallucination": {"reference": record["reference"]}}
            messages: Any = [{"role": "user", "content": record["question"]}]
            chunks = list(client.chat.completions.create(
                model=str(model), messages=messages, max_tokens=40, stream=True, extra_body=more,
            ))  # fmt: skip
    (verdict,), (row,) = read_rows(judged), read_rows(scored)
    assert verdict["outcome"] in ("win", "loss", "tie", "unsure")
    assert all(len(reply) > 0 for reply in verdict["replies"])
    assert row["lambda"] == {"smol": 1.0}
    assert "eight" in row["reference_answers"]["smol"][0].replace("8", "eight")
    assert row["answers"][0]["score"] > row["answers"][1]["score"]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    (found,) = [extra for chunk in chunks if chunk.choices and (extra := chunk.choices[0].model_extra or {})]
    sentences = found["hallucination"]["sentences"]
    assert len(text.split()) > 10
    assert [text[one["start"] : one["end"]] for one in sentences] == [one["text"] for one in sentences]
