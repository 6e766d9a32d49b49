"""A table of the ANAH paper: the splits, figures as `mitigate evaluate` has them, the paper's beside them."""

import json

from mitigate.cli.main import main
from tests.helpers.anah_fixture import made_topics, write_topics
from tests.helpers.annotator_server import annotating, correct
from tests.helpers.jsonl import read_rows


def test_a_table_stands_beside_the_papers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write_topics(tmp_path / "anah.jsonl", made_topics(8))
    shared = ["data.sources=[anah.jsonl]", "data.test_share=0.2", "figures=[accuracy, fragment_precision_4]"]
    words = ["run", "anah/table6", *shared]
    with annotating(correct) as server:
        name = f"generative:openai:m@{server.url}"
        words += [f"rows.G-7B.annotator={name}", "--output", "out"]
        assert main(words) == 0
        told, asked = capsys.readouterr().out, len(server.requests)
        assert main(words) == 0  # it is done
        assert len(server.requests) == asked
        assert read_rows(tmp_path / "out" / "usage.jsonl")[0]["requests"] == asked
        (row,) = json.loads((tmp_path / "out" / "done.json").read_text())["table"]
        for part in ("unseen_topic", "unseen_question"):
            capsys.readouterr()
            data = ["--input", f"out/{part}.jsonl", "--texts", "--annotator", name, "--cache", "out/replies.sqlite"]
            assert main(["evaluate", *data, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)["overall"]
            assert row[part]["accuracy"] == 100 * found["accuracy"]
            assert row[part]["fragment_precision_4"] == 100 * found["texts"]["fragment_precision_4"]
    topic, question = (row[part]["accuracy"] for part in ("unseen_topic", "unseen_question"))
    assert 0 < topic <= 100
    assert f"\nG-7B | {topic:.2f} (77.89) | {question:.2f} (78.12) | " in told
    assert "\nD-20B | – (72.10) | – (75.95) | –" in told


def test_wrong_rows_are_told_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_topics(tmp_path / "anah.jsonl", made_topics(8))
    words = ["run", "anah/table8", "data.sources=[anah.jsonl]", "data.test_share=0.2"]
    wrong = "rows.G-7B={annotator: 'generative:openai:m@http://127.0.0.1:1/v1', options: {preset: anah-v2}}"
    assert main([*words, wrong, "--output", "out"]) == 2
    assert "rows.G-7B: preset anah-v2: its wording does not come with this package" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*words, "--output", "out"]) == 0  # the splits and the paper's figures
    assert "no row has an annotator" in capsys.readouterr().out
    assert {row["split"] for row in read_rows(tmp_path / "out" / "unseen_topic.jsonl")} == {"unseen_topic"}
