"""The data set pipeline with a person who corrects annotations: what is taken over, and what is refused."""

import json

import pytest

from annotators.generative.tagged import parse_tagged
from mitigate.cli.main import main
from mitigate.dataset.pipeline import put_in
from tests.helpers.dataset_build import good, recipe, replying, some_topics
from tests.helpers.engines_server import serving
from tests.helpers.jsonl import read_rows as rows
from tests.helpers.jsonl import write_rows

REFERENCE = "The bridge opened in 1931. It is long. It opened again."


def test_run_waits_for_review(tmp_path, capsys):
    topics = some_topics(tmp_path, "Harrow Bridge", "竹纸")
    with serving(replying(good)) as server:
        out = tmp_path / "run"
        again = ["build-dataset", str(recipe(tmp_path, server.url, topics=topics)), "--review", "--output", str(out)]
        assert main(again) == 0
        assert "as 11_annotated_reviewed.jsonl, and give this command again" in capsys.readouterr().err
        assert not (out / "dataset").exists()
        wrong, *others = rows(out / "11_annotated.jsonl")
        record = next(row for row in others if row["answer"].startswith("It was made in 1702."))
        sentence = record["sentences"][0]
        assert (record["topic"], sentence["label"]) == ("Harrow Bridge", "unverifiable")
        evidence = "It was opened on 4 May 1931 after six years of work."
        sentence |= {"label": "contradictory", "fragments": [{"text": evidence}]}
        sentence["correction"] = [{"from": "1702", "to": "1931"}]
        wrong["sentences"][0]["label"] = "true"
        review = write_rows(out / "11_annotated_reviewed.jsonl", [wrong, record])  # of the others nothing is said
        written = review.read_bytes() + b'{"id": "typo",}'
        review.write_bytes(written)
        assert main(again) == 3
        assert review.read_bytes() == written  # a person's file stays as it is
    assert "sentences[0]: expected one of the labels supported, contradictory" in capsys.readouterr().err
    assert len(rows(out / "11_annotated_reviewed.jsonl.rejected.jsonl")) == 2
    written = [
        note for row in rows(out / "dataset/anah.jsonl") for column in ("GPT3.5_answers_D", "InternLM_answers")
        for notes in row[f"human_{column}_ann"] if notes for note in notes if note
    ]  # fmt: skip
    (note,) = map(parse_tagged, written)
    assert (note.label, note.corrections) == ("contradictory", (("1702", "1931"),))
    exported = {row["id"]: row for row in rows(out / "dataset/sentences.jsonl")}
    assert len(exported) == sum(len(row["sentences"]) for row in rows(out / "11_annotated.jsonl"))
    changed = exported.pop(f"{record['id']}/s0")
    assert (changed["annotated_by"], changed["correction"], changed["fragments"]) == (
        "reviewed", "It was made in 1931.", [evidence],
    )  # fmt: skip
    assert {row["annotated_by"] for row in exported.values()} == {"machine"}


def judged(tmp_path, **said):
    """The second sentence of a record as a person judged it, and the problem with that, if there is one."""
    first, second = "It opened in 1900. ", "It has 2 arches and 2 lanes."
    bare = {"fragments": [], "correction": []}
    sentences = [
        {"text": first.strip(), "start": 0, "end": 18, "status": "checked", "label": "supported", **bare},
        {"text": second, "start": 19, "end": 47, "status": "failed", "label": None, **bare},
    ]
    record = {"id": "a/1/1", "reference": REFERENCE, "answer": first + second, "sentences": sentences}
    row = json.loads(json.dumps(record))
    row["sentences"][1] |= said
    bad = put_in([record], write_rows(tmp_path / "checked.jsonl", [row]))
    assert record["sentences"][0] is sentences[0]
    rejected = rows(tmp_path / "checked.jsonl.rejected.jsonl") if bad else []
    return record["sentences"][1], [row["problems"][0]["expected"] for row in rejected]


def test_person_judges_what_no_machine_could(tmp_path):
    edits = [{"from": "2", "to": "two", "start": 39}, {"from": "2", "to": "3"}]
    sentence, problems = judged(tmp_path, label="contradictory", fragments=[{"text": "It is long."}], correction=edits)
    assert problems == []
    assert (sentence["status"], sentence["annotated_by"]) == ("checked", "human")
    # "It has 2 arches and 2 lanes." begins at 19: the first 2 stands at 26, the second, which `start` means, at 39
    assert sentence["correction"] == [
        {"from": "2", "to": "3", "start": 26, "end": 27}, {"from": "2", "to": "two", "start": 39, "end": 40},
    ]  # fmt: skip
    assert sentence["fragments"] == [{"text": "It is long.", "start": 27, "end": 38}]
    sentence, _ = judged(tmp_path, label="no_fact", fragments=[{"text": "It is long."}], correction=edits)
    assert (sentence["fragments"], sentence["correction"]) == ([], [])


@pytest.mark.parametrize(("said", "expected"), [
    ({"label": "true"}, "one of the labels supported"),
    ({"fragments": [{"text": "It is long."}]}, "one of the labels supported"),
    ({"label": "supported", "fragments": [{"text": "It is wide."}]}, 'the reference, copied, not "It is wide."'),
    ({"label": "supported", "fragments": [{"text": " ", "start": 3}]}, "words of the reference"),
    ({"label": "contradictory", "correction": [{"from": "1900", "to": "1931"}]}, "words of the sentence"),
    ({"label": "contradictory", "correction": [{"from": "2", "to": "3"}] * 2}, "do not overlap"),
    ({"label": "contradictory", "correction": [{"from": "2", "to": 3}]}, "corrections to a text"),
    ({"label": "supported", "fragments": ["It is long."]}, "fragments [{text}]"),
    ({"label": "contradictory", "correction": [{"old": "2", "to": "3"}]}, "correction [{from, to}]"),
])  # fmt: skip
def test_unusable_judgement_leaves_the_machines(tmp_path, said, expected):
    sentence, (problem,) = judged(tmp_path, **said)
    assert expected in problem
    assert (sentence["label"], sentence["status"]) == (None, "failed")
    assert "annotated_by" not in sentence


def test_unknown_or_incomplete_record_is_refused(tmp_path):
    record = {"id": "a", "reference": REFERENCE, "answer": "x", "sentences": [{"text": "x"}]}
    lines = [{"id": "b", "sentences": record["sentences"]}, {"id": "a", "sentences": []}, {"id": "a"}, {"sentences": 1}]
    assert put_in([record], write_rows(tmp_path / "checked.jsonl", lines)) == 4
    assert record["sentences"] == [{"text": "x"}]
