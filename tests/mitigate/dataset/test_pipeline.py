"""The data set pipeline end to end, with a model that plays along and one that does not, and with bad inputs."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

import annotators
from annotators import load_annotator
from annotators.evaluation.anah import flatten
from annotators.generative.tagged import parse_tagged
from mitigate.cli.main import main
from tests.helpers.annotator_server import correct
from tests.helpers.dataset_build import TRUTH, bad, build, good, recipe, replying, some_topics, stage_of, texts
from tests.helpers.engines_server import Reply, completion, serving
from tests.helpers.jsonl import read_rows as rows
from tests.helpers.jsonl import write_rows
from tests.helpers.standin import ExactAnnotator
from tests.helpers.tiny_models import save_decoder


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(annotators, "load_annotator", lambda name: ExactAnnotator())
        code, out = build(tmp_path_factory.mktemp("good"), replying(good))
    assert code == 0
    return out


def test_every_topic_gets_its_own_document_among_namesakes(good_run):
    found = {row["topic"]: row["document"] for row in rows(good_run / "04_references.jsonl")}
    assert found == TRUTH
    namesakes: Counter[str] = Counter()
    for row in rows(good_run / "03_candidates.jsonl"):
        matches = [c["match"] for c in row["candidates"]]
        assert matches == sorted(matches, key=["title", "similar"].index)  # hard matches first
        namesakes[row["topic"]] = matches.count("title")
    assert namesakes.pop("Ada Kirwan") == 1  # her own document is called "Kirwan, Ada": found by the soft match
    assert min(namesakes.values()) >= 2


def test_data_set_holds_what_was_made(good_run):
    sentences, anah = rows(good_run / "dataset/sentences.jsonl"), rows(good_run / "dataset/anah.jsonl")
    annotated = rows(good_run / "11_annotated.jsonl")
    assert len(anah) == len(TRUTH) == 14
    assert len(annotated) == 14 * 3 * 2
    assert len(sentences) == sum(len(record["sentences"]) for record in annotated)
    for record in annotated:
        for s in record["sentences"]:
            assert record["answer"][s["start"] : s["end"]] == s["text"]
    by_source = Counter((s["source"], s["label"]) for s in sentences)
    # 3 questions per topic, 8 English topics and 6 Chinese ones. Answers with reference: two copied sentences; without:
    # two made up, and a remark in English.
    assert by_source["with reference", "supported"] == (8 + 6) * 3 * 2
    assert by_source["without reference", "no_fact"] == 8 * 3
    assert by_source["without reference", "unverifiable"] == (8 + 6) * 3 * 2
    assert by_source["with reference", "unverifiable"] == 0
    for row in anah:
        for column, source in (("GPT3.5_answers_D", "with reference"), ("InternLM_answers", "without reference")):
            notes = row[f"{column}_ann"]
            assert row[f"human_{column}_ann"] == [None] * 3  # no person has looked at anything
            assert {who for whose in row["annotated_by"][column] for who in whose} == {"machine"}
            assert len(row[column]) == len(notes) == len(row["selected_questions"]) == 3
            labels = [parse_tagged(note).label for notes_of in notes for note in notes_of]
            assert labels == [s["label"] for s in sentences if (s["topic"], s["source"]) == (row["name"], source)]


@pytest.mark.parametrize(("name", "long", "late"), [
    ("sentences", {"reference": "x" * 1_000_000}, {"category": "thing"}),
    ("anah", {"documents": ["x" * 1_000_000]}, {"human_InternLM_answers_ann": [["<No Fact>", None], None]}),
])  # fmt: skip
def test_datasets_reads_columns_that_begin_null(good_run, tmp_path, name, long, late):
    # Where README.md gave no types, they would be those of the first ten megabytes.
    folder = Path(shutil.copytree(good_run / "dataset", tmp_path / "dataset"))
    first = rows(folder / f"{name}.jsonl")[0]
    written = [{**first, **dict.fromkeys(late), **long}] * 11 + [{**first, **late}]
    write_rows(folder / f"{name}.jsonl", written)
    read = load_dataset(str(folder), name, split="train", cache_dir=str(tmp_path / "cache"))
    assert read.to_list() == written


def test_statistics_count(good_run):
    page = (good_run / "statistics.md").read_text("utf-8")
    # 8 topics × 3 questions × 2 answers; two sentences with the reference, three without
    assert f"| en | 8 | 24 | 48 | {48 + 24 * 3} |" in page
    with_references, without = re.search(r"\| zh \|.* ([\d,]+) \| ([\d,]+) \|\n", page).groups()
    assert int(with_references.replace(",", "")) > int(without.replace(",", "")) > 0
    assert "| en | with reference | 48 | 100.00 | 0.00 | 0.00 | 0.00 | 0 |" in page


def test_bad_replies_are_read_strictly_and_named(tmp_path, capsys):
    names = ("Harrow Bridge", "Nettle cloth", "青石桥", "竹纸")
    code, out = build(tmp_path, replying(bad), topics=some_topics(tmp_path, *names))
    assert code == 3
    by_topic = {row["topic"]: row for row in rows(out / "07_filtered.jsonl")}
    # "是的，没错。" and a verdict behind thinking are read
    assert {name: row["document"] for name, row in by_topic.items()} == {name: TRUTH[name] for name in names}
    harrow = by_topic["Harrow Bridge"]
    problems = "markup no_question several_questions too_short wrong_language".split()
    assert harrow["question_problems"] == {**dict.fromkeys(problems, 1), "repeated": 2}
    verdicts = {v["question"]: (v["objective"], v["answerable"]) for v in harrow["verdicts"]}
    assert verdicts["What do you think about the future of all this?"] == (False, None)
    assert len(harrow["kept"]) == 3
    assert by_topic["青石桥"]["kept"] == []  # "可以回答。" is neither yes nor no
    lost = rows(out / "08_selected.jsonl.rejected.jsonl")
    assert [json.loads(row["raw"])["topic"] for row in lost] == ["青石桥", "竹纸"]
    assert "a question that is objective" in capsys.readouterr().err
    answered = rows(out / "10_records.jsonl")
    assert {r["source"] for r in answered} == {"with reference"}  # the other thought till the limit
    assert all(r["topic"] != "Harrow Bridge" for r in answered)
    missing = rows(out / "10_records.jsonl.rejected.jsonl")
    assert len(missing) == 2 * 3 + 3
    assert "an empty reply" in missing[0]["problems"][0]["expected"]


def test_a_broken_or_stopping_server_loses_nothing(tmp_path, capsys):
    down = {"on": True}

    def script(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][-1]["content"]
        if stage_of(prompt) == "write" and "望海楼" in prompt:
            return Reply({"error": {"message": "too long", "code": None}}, 400)
        if stage_of(prompt) == "answerable" and down["on"]:
            return Reply({"error": {"message": "wrong key", "code": None}}, 401)
        return completion(good(prompt))

    topics = some_topics(tmp_path, "Harrow Bridge", "Nettle cloth", "望海楼")
    with serving(script) as server:
        path, out = recipe(tmp_path, server.url, topics=topics), tmp_path / "run"
        assert main(["run", str(path), "--output", str(out)]) == 1
        assert "go on with: mitigate run" in capsys.readouterr().err
        assert len(rows(out / "06_distinct.jsonl")) == 2
        corrected = rows(out / "02_documents.jsonl")
        corrected[0]["title"] += ", by hand"
        write_rows(out / "02_documents.jsonl", corrected)
        down["on"] = False
        assert main(["run", str(path), "--output", str(out)]) == 3
    assert "a question that could be read for the topic '望海楼'" in capsys.readouterr().err
    assert rows(out / "02_documents.jsonl") == corrected  # a complete file is never written again
    assert len(rows(out / "dataset/anah.jsonl")) == 2


def test_a_data_set_whose_judgements_failed_is_no_success(tmp_path, capsys, monkeypatch):
    class Failing(ExactAnnotator):
        def judge(self, sentences):
            return [sentence.judged("failed") for sentence in sentences]

    monkeypatch.setattr(annotators, "load_annotator", lambda name: Failing())
    topics = some_topics(tmp_path, "Harrow Bridge")
    code, out = build(tmp_path, replying(good), topics=topics)
    assert code == 1
    assert "the judgement of 100% of the sentences failed, more than max_failed 0.1; delete" in capsys.readouterr().err
    assert not (out / "done.json").exists()


def test_a_run_without_an_answer_fails(tmp_path, capsys):
    """A model so weak that it takes no document."""
    code, out = build(tmp_path, replying(lambda _: "No"), topics=some_topics(tmp_path, "Harrow Bridge"))
    assert code == 1
    assert f"answers: there is none to annotate; see the .rejected.jsonl files in {out}" in capsys.readouterr().err
    assert len(rows(out / "05_questions.jsonl.rejected.jsonl")) == 1


def test_bad_inputs_are_named_others_go_on(tmp_path, capsys):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "blue.md").write_text(f"# Blue Lantern\n\n{texts()['blue-lantern-lamp.md']}", encoding="utf-8")
    (corpus / "empty.md").write_text("# Harrow Bridge\n\n  \n")
    (corpus / "latin.txt").write_bytes("Caf\xe9".encode("latin-1"))
    (corpus / "gone.txt").symlink_to(tmp_path / "nowhere")
    (corpus / "picture.png").write_bytes(b"no document")
    topics = tmp_path / "topics.jsonl"
    topics.write_text(
        '{"topic": "Blue Lantern", "category": "thing"}\n{"topic": "blue  lantern", "category": "comet"}\n'
        '{"topic": "Harrow Bridge"}\n{"topic": ""}\nnot json\n{"topic": "Ada Kirwan", "aliases": "A. K."}'
    )
    script = replying(lambda p: "No" if "Harrow" in p.split("<title>")[0] and "<title>" in p else good(p))
    out = tmp_path / "run"
    with serving(script) as server:
        words = [
            "run",
            str(recipe(tmp_path, server.url, topics=str(topics), corpus=[str(corpus)])),
            "--output",
            str(out),
        ]
        assert main(words) == 3
    said = capsys.readouterr().err
    for part in (
        "topics.jsonl:2: topic: expected a name of its own (line 1 has the same)",
        "empty.md:1: text: expected a string with text in it", "latin.txt:1: expected UTF-8 text",
        "gone.txt:1: expected a file that can be read, got No such file",
        "a document for the topic 'Harrow Bridge' (candidates: Blue Lantern: no)",
    ):  # fmt: skip
        assert part in said
    assert [row["line"] for row in rows(out / "01_topics.jsonl.rejected.jsonl")] == [2, 4, 5, 6]
    kept = [json.loads(row["raw"])["topic"] for row in rows(out / "05_questions.jsonl.rejected.jsonl")]
    assert kept == ["Harrow Bridge"]
    assert len(rows(out / "02_documents.jsonl.rejected.jsonl")) == 3
    assert {row["topic"] for row in rows(out / "11_annotated.jsonl")} == {"Blue Lantern"}
    # While the documents are the same, what is there stays (the server is gone), what was deleted is made, what was
    # reviewed since is taken over; a new document is noticed.
    (corpus / "picture.png").write_bytes(b"another")
    sentences = out / "dataset" / "sentences.jsonl"
    made = sentences.read_bytes()
    sentences.unlink()
    assert main(words) == 3
    assert sentences.read_bytes() == made
    (corpus / "ada.md").write_text("# Ada Kirwan\n\nAda Kirwan draws maps.")
    assert main(words) == 2
    assert f"is complete, and {corpus} changed since then: begin anew with --overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "message"), [
    ({"topics": "nowhere.jsonl"}, "topics: no such file nowhere.jsonl"),
    ({"corpus": ["nowhere"]}, "corpus: no such file or folder nowhere"),
    ({"engine": None}, "matching, answers.0"),
    ({"answers": []}, "answers: "),
    ({"annotator_options": {"prompt": "plain"}}, "annotator_options: for generative"),
    ({"annotator": "generative:openai:m", "annotator_options": {"window": "wide"}}, "expected one of sentence"),
    ({"annotator": "generative:openai:m", "annotator_options": {"concurrency": 0}}, "concurrency: expected a whole"),
    ({"annotator": "generative:transformers:m", "annotator_options": {"schema": 4}}, "schema: the transformers engine"),
    ({"answers": [{"with_reference": False}] * 2}, "answers: two are equal, and would bring the same answers"),
    ({"annotator": "embeded"}, "annotator: no such folder 'embeded', and it is no hub id; expected embedded, "),
    ({"annotator": "ensemble:generative:openai:m+embedded"}, "error: annotator: annotator 'ensemble:"),
])  # fmt: skip
def test_wrong_recipe_is_refused_before_asking(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.setattr(annotators, "load_annotator", load_annotator)
    if options.get("engine", 0) is None:
        options = {**options, "questions": {"engine": "transformers:x"}, "filters": {"engine": "transformers:x"},
                   "selection": {"engine": "transformers:x"}}  # fmt: skip
    path = recipe(tmp_path, "http://127.0.0.1:9/v1", **options)
    assert main(["run", str(path), "--output", str(tmp_path / "o")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_generative_annotator_and_local_model_together(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(annotators, "load_annotator", load_annotator)
    tiny = save_decoder(tmp_path / "tiny", max_position_embeddings=2048)

    def script(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        return completion(correct(body) if "<sentence>" in prompt or "<句子>" in prompt else good(prompt))

    with serving(script) as server:
        path = recipe(
            tmp_path, server.url, topics=some_topics(tmp_path, "Blue Lantern", "竹纸"),
            annotator=f"generative:openai:judge@{server.url}", annotator_options={"logprobs": False},
            answers=[
                {"with_reference": True}, {"with_reference": False},
                {"with_reference": False, "engine": f"transformers:{tiny}", "max_tokens": 12},
            ],
        )  # fmt: skip
        out = tmp_path / "run"
        assert main(["run", str(path), "--output", str(out)]) in (0, 3)  # 3: the tiny model may say nothing
        asked = len(server.requests)
        for name in ("11_annotated.jsonl", "done.json"):
            (out / name).unlink()
        assert main(["run", str(path), "--output", str(out)]) in (0, 3)
        assert len(server.requests) == asked
    models = {row["model"] for row in rows(out / "10_records.jsonl")}
    assert f"transformers:{tiny}" in models
    annotated = rows(out / "11_annotated.jsonl")
    asked = [record for record in annotated if "openai" in record["model"]]
    labels = Counter((r["language"], r["source"], s["label"]) for r in asked for s in r["sentences"])
    assert labels["zh", "with reference", "supported"] == labels["en", "with reference", "supported"] == 3 * 2
    assert labels["zh", "without reference", "no_fact"] == labels["en", "without reference", "no_fact"] == 3
    # What the loader of the public data makes of the export is what was labelled; the tiny model's noise is left out.
    anah = [row for row in rows(out / "dataset/anah.jsonl") if f"transformers:{tiny}" not in row["models"].values()]
    flat, report = flatten(anah)
    here = [row for row in rows(out / "dataset/sentences.jsonl") if row["model"] != f"transformers:{tiny}"]
    keys = ("topic", "question", "answer", "sentence", "label", "fragments", "correction", "lang", "reference")
    assert not report.left_out
    found, labelled = (sorted(json.dumps([row[k] for k in keys]) for row in rows) for rows in (flat, here))
    assert found == labelled
