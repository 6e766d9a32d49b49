"""The data set pipeline with a person who corrects: what is written for them, and what is read back."""

import csv
from pathlib import Path
from typing import Any

from annotators.generative.tagged import parse_tagged
from mitigate.cli.main import main
from mitigate.dataset.review import SENTENCE_COLUMNS
from tests.helpers.dataset_build import TRUTH, good, recipe, replying, some_topics, stage_of
from tests.helpers.engines_server import serving
from tests.helpers.jsonl import read_rows as rows
from tests.helpers.jsonl import write_rows


def read_cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def write_cells(path: Path, cells: list[dict[str, str]], **dialect: Any) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(cells[0]), **dialect)
        writer.writeheader()
        writer.writerows(cells)


def test_review_at_matching_and_at_annotation(tmp_path, capsys):
    names = ("Harrow Bridge", "Nettle cloth", "竹纸")
    topics = some_topics(tmp_path, *names)
    with serving(replying(lambda p: "No" if "Topic: Nettle" in p else good(p))) as server:
        path, out = str(recipe(tmp_path, server.url, topics=topics)), tmp_path / "run"
        assert main(["build-dataset", path, "--review", "--output", str(out)]) == 0
        assert "save it as references.checked.csv" in capsys.readouterr().err
        assert not (out / "05_questions.jsonl").exists()
        cells = read_cells(out / "review/references.csv")
        assert [c["topic"] for c in cells] == ["Nettle cloth", "Harrow Bridge", "竹纸"]  # what is open comes first
        cells[0]["new_document"] = "nettle-cloth.md"
        cells[1]["new_document"] = "no-such-document"
        write_cells(out / "review/references.checked.csv", cells, delimiter=";")
        again = ["build-dataset", path, "--review", "--output", str(out)]
        assert main(again) == 0
        said = capsys.readouterr().err
        assert "1 corrections of" in said
        assert "expected the name of a document of this run, or 'none', got \"no-such-document\"" in said
        reviewed = {row["topic"]: row["document"] for row in rows(out / "04_references_reviewed.jsonl")}
        assert reviewed == {name: TRUTH[name] for name in names}
        cells = read_cells(out / "review/annotations.csv")
        labels = [c["label"] for c in cells]
        first = labels.count("unverifiable")
        assert labels[:first] == ["unverifiable"] * first != []
        target = next(c for c in cells if c["text"] == "It was made in 1702.")
        target |= {"new_label": "Contradictory", "new_fragments": "A school in Lowick still teaches the craft.",
                   "new_sentence": "It was made in 1870."}  # fmt: skip
        record = target["record"]
        if not record.startswith("Nettle"):
            target["new_fragments"] = "It was opened on 4 May 1931 after six years of work."
        next(c for c in cells if c is not target)["new_label"] = "true"
        write_cells(out / "review/annotations.checked.csv", cells)
        assert main(again) == 3
    said = capsys.readouterr().err
    assert "new_label: expected one of supported, contradictory" in said
    before = {row["id"]: row for row in rows(out / "11_annotated.jsonl")}
    after = {row["id"]: row for row in rows(out / "11_annotated_reviewed.jsonl")}
    changed = [name for name in before if before[name] != after[name]]
    assert changed == [record]
    number = int(target["sentence"])
    sentence = after[record]["sentences"][number]
    assert (sentence["label"], sentence["status"], sentence["scores"]) == ("contradictory", "checked", None)
    start = sentence["start"] + len("It was made in ")
    assert sentence["correction"] == [{"from": "1702", "to": "1870", "start": start, "end": start + 4}]
    (fragment,) = sentence["fragments"]
    assert after[record]["reference"][fragment["start"] : fragment["end"]] == target["new_fragments"]
    assert [s.get("annotated_by") for s in after[record]["sentences"]].count("reviewed") == 1
    assert sentence["annotated_by"] == "reviewed"
    written = [
        note for row in rows(out / "dataset/anah.jsonl") for column in ("GPT3.5_answers_D", "InternLM_answers")
        for notes in row[f"human_{column}_ann"] if notes for note in notes if note
    ]  # fmt: skip
    assert [parse_tagged(note).corrections for note in written] == [(("1702", "1870"),)]
    exported = {row["id"]: row for row in rows(out / "dataset/sentences.jsonl")}
    assert exported[f"{record}/s{number}"]["correction"] == "It was made in 1870."
    assert {row["annotated_by"] for name, row in exported.items() if name != f"{record}/s{number}"} == {"machine"}


def test_no_cell_is_a_formula(tmp_path):
    topic = {"topic": "=cmd|calc", "description": "@SUM(1)\nHarrow Bridge", "language": "en"}
    document = {"title": "+1", "text": '-2+3 is what it says here. "=1", it says.', "id": "=d"}
    topics, corpus = str(write_rows(tmp_path / "t.jsonl", [topic])), str(write_rows(tmp_path / "d.jsonl", [document]))

    def play(prompt: str) -> str:
        stage = stage_of(prompt)
        if stage == "write":
            return '1. =HYPERLINK("http://x";"What is this?")?\n2. -What is it called in the world?'
        return "=1+1 is an answer." if stage in ("with", "without") else "1. Yes" if stage == "objective" else "Yes"

    with serving(replying(play)) as server:
        path, out = str(recipe(tmp_path, server.url, topics=topics, corpus=[corpus], review=True)), tmp_path / "r"
        assert main(["run", path, "--output", str(out)]) == 0
        for what in ("references", "annotations"):
            cells = read_cells(out / f"review/{what}.csv")
            assert cells
            assert not [v for row in cells for v in row.values() if v.startswith(tuple("=+-@\t\r"))]
            assert any(v.startswith("'=") for row in cells for v in row.values())
            write_cells(out / f"review/{what}.checked.csv", cells)
            assert main(["run", path, "--output", str(out)]) == 0
    assert set(SENTENCE_COLUMNS) == set(cells[0])
    assert (out / "11_annotated_reviewed.jsonl").read_bytes() == (out / "11_annotated.jsonl").read_bytes()
