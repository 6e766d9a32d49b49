"""Tables of the ANAH papers: figures by hand or as `mitigate evaluate` has them, the paper's beside them."""

import json
import math
import re
from pathlib import Path

import pytest

from engines.embedding import Embedder
from mitigate.cli.main import main
from mitigate.recipes import anah
from tests.helpers.anah_fixture import TOPICS, made_topics, write_topics
from tests.helpers.annotator_server import annotating, correct, input_of
from tests.helpers.engines_server import completion, error
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.standin import ExactAnnotator


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """The working folder, with the made-up topics of eight towers."""
    monkeypatch.chdir(tmp_path)
    write_topics(tmp_path / "anah.jsonl", made_topics(8))


SHARED = ["data.sources=[anah.jsonl]", "data.test_share=0.2"]


def run(recipe, *words, output="out"):
    return main(["run", f"anah/{recipe}", *words, "--output", output])


def table_of(folder="out"):
    """The table's rows by name."""
    return {row["row"]: row for row in json.loads(Path(folder, "done.json").read_text())["table"]}


def gold(folder):
    """The labels of all unseen sentences."""
    return [row["label"] for part in ("topic", "question") for row in read_rows(Path(folder, f"unseen_{part}.jsonl"))]


@pytest.fixture
def judged(monkeypatch):
    """What an annotator was asked that is killed in its second batch; one answer is a batch."""
    asked = []

    class Killed(ExactAnnotator):
        def annotate_batch(self, records):
            asked.append([one["answer"] for one in records])
            if len(asked) == 2:
                raise KeyboardInterrupt
            return super().annotate_batch(records)

    monkeypatch.setattr(anah, "CHUNK", 1)
    monkeypatch.setattr(anah, "open_annotator", lambda *_: Killed())
    return asked


def test_a_table_stands_beside_the_papers(tmp_path, capsys):
    with annotating(correct) as server:
        name = f"generative:openai:m@{server.url}"
        words = [*SHARED, "figures=[accuracy, fragment_precision_4]", f"rows.G-7B.annotator={name}"]
        assert run("table6", *words) == 0
        told, asked = capsys.readouterr().out, len(server.requests)
        assert run("table6", *words) == 0  # it is done
        assert len(server.requests) == asked
        assert read_rows(tmp_path / "out" / "usage.jsonl")[0]["requests"] == asked
        (row,) = table_of().values()
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
    assert re.search(r"\nG-7B .* \(95.62\) \| .* \(95.17\)\n", told)
    assert "\nD-20B | – (72.10) | – (75.95) | – | –\n" in told


def test_the_other_tables_run_to_the_end(tmp_path, capsys):
    """Table 5 over all rows, Table 7 in a wording of its own, Table 8 without the reference and by an encoder."""

    def table(name, *words):
        assert run(name, *words, *SHARED, output=name) == 0
        return table_of(name), capsys.readouterr().out

    figures = "figures=[accuracy, rouge_l, fragment_precision_4]"
    with annotating(correct) as server:
        name = f"annotator=generative:openai:m@{server.url}"
        found, told = table("table5", f"rows.GPT-4.{name}", figures)
        right = 100 * sum(label != "contradictory" for label in gold("table5")) / len(gold("table5"))  # see below
        assert found["GPT-4"]["overall"]["accuracy"] == pytest.approx(right)
        assert re.search(rf"\nGPT-4 \| {right:.2f} \(86.97\) \| .* \(86.32\) \| .* \(86.44\)\n", told)
        assert "\nANAH-20B | – (81.01) | – (58.82) | – (94.86)\n" in told
        table("table7", f"rows.augmented-disturbed.{name}", figures)
        asked = server.requests[-1]["messages"][0]["content"]
        assert asked.index("<question>") < asked.index("<document>")
        server.requests.clear()
        rows = [f"rows.G-7B-without.{name}", "rows.D-7B-without.annotator=embedded-fast"]
        found, _ = table("table8", *rows, "rows.D-7B.annotator=embedded-fast")
    assert server.requests
    assert not [body for body in server.requests if "is made of stone" in body["messages"][0]["content"]]
    for part in ("unseen_topic", "unseen_question"):  # without a document nothing is supported or contradicted
        rows = read_rows(tmp_path / "table8" / f"{part}.jsonl")
        known = 100 * sum(row["label"] in ("unverifiable", "no_fact") for row in rows) / len(rows)
        assert found["G-7B-without"][part]["accuracy"] == pytest.approx(known)
        assert found["D-7B"][part]["accuracy"] > found["D-7B-without"][part]["accuracy"] == 0  # it can't judge


def test_a_table_without_annotators_has_the_papers_figures(tmp_path, capsys):
    assert run("table8", *SHARED) == 0
    assert "no row has an annotator" in capsys.readouterr().out
    assert {row["split"] for row in read_rows(tmp_path / "out" / "unseen_topic.jsonl")} == {"unseen_topic"}
    assert run("table8", *SHARED, "by_split=false", output="all") == 0  # of which the paper has no figures
    assert "row | ACC overall | (the paper's figures in brackets)\nG-7B | –\n" in capsys.readouterr().out


def test_a_killed_row_goes_on(tmp_path, monkeypatch):
    """The second chunk of five sentences is killed: the second run judges all but the first chunk."""
    asked, whole = [], []

    class Counted(ExactAnnotator):
        def predict(self, rows):
            asked.append([one["sentence"] for one in rows])
            if whole == [] and len(asked) == 2:
                raise KeyboardInterrupt
            return super().predict(rows)

    monkeypatch.setattr("annotators.evaluation.evaluate.CHUNK", 5)
    monkeypatch.setattr(anah, "open_annotator", lambda *_: Counted())
    words = [*SHARED, "figures=[accuracy]", "rows.D-7B.annotator=embedded-fast"]
    assert run("table6", *words) == 130
    kept = tmp_path / "out" / "judged.D-7B.jsonl.part"
    assert len(read_rows(kept)) == 1
    first, _ = asked
    whole.append(True)
    asked.clear()
    assert run("table6", *words) == 0
    judged = [one["sentence"] for one in read_rows(tmp_path / "out" / "judged.D-7B.jsonl")]
    assert [*first, *(one for chunk in asked for one in chunk)] == judged
    assert not kept.exists()


def test_what_the_data_hold_by_hand(tmp_path, capsys):
    """A made topic's answers are, with the reference, SN and SU, without it CN and CUN; and one Chinese topic."""
    write_topics(tmp_path / "anah.jsonl", [*made_topics(3), TOPICS[2]])

    def table(name, *words):
        assert run(name, "data.sources=[anah.jsonl]", *words, output=name) == 0
        return {row: list(done["overall"].values()) for row, done in table_of(name).items()}

    sizes = table("table2")
    assert sizes["English"][:3] == [3, 12, 27]  # 2 + 2 + 2 + 3 sentences a topic
    assert sizes["Chinese"][:3] == [1, 4, 8]
    assert "English | 3 (476) | 12 (2,626) | 27 (6,606) | " in capsys.readouterr().out
    texts = [topic["documents"][0] for topic in made_topics(3)]
    assert sizes["English"][3] - sizes["English"][4] == 4 * sum(Embedder().count_tokens(texts))  # four answers each
    labels = table("table4")
    assert labels["English-with"] == [50, 0, 25, 25]
    assert labels["English-without"] == [0, 40, 20, 40]
    assert labels["Chinese-with"] == [100, 0, 0, 0]
    # Later sentences: N after S, U after S; N after C; U after C, N after CU.
    assert table("accumulation")["English"] == [pytest.approx(100 / 3), 50]
    capsys.readouterr()
    assert table("accumulation", "figures=[after_none]", "--overwrite")["English"] == [50]
    assert "\nEnglish | 50.00 (14.61)\n" in capsys.readouterr().out
    chinese = table("table4", "data.languages=[zh]", "--overwrite")
    assert (chinese["English-with"], chinese["Chinese-with"]) == ([None] * 4, [100, 0, 0, 0])
    with (tmp_path / "anah.jsonl").open("a") as file:
        file.write("{broken\n")
    assert run("table4", "data.sources=[anah.jsonl]", output="broken") == 2
    assert "data.sources: cannot load anah.jsonl: JSON parse error" in capsys.readouterr().err


def test_agreement_with_people_by_hand(tmp_path, capsys):
    """The server calls "never built in" unverifiable, without evidence and to be deleted; all else as people do."""
    with annotating(correct) as server:
        assert run("table3", *SHARED, f"rows.GPT-4.annotator=generative:openai:m@{server.url}") == 0
    (row,), n = table_of().values(), len(gold("out"))
    s, c, u = (gold("out").count(label) for label in ("supported", "contradictory", "unverifiable"))
    assert min(s, c, u) > 0
    assert row["overall"] == {
        "type:supported": 100, "type:contradictory": 0, "type:unverifiable": 100, "type:no_fact": 100,
        "reference": pytest.approx(100 * (s + u) / (s + c + u)), "correction": pytest.approx(100 * u / (c + u)),
    }  # fmt: skip
    assert f" | {n} of {n}\n" in capsys.readouterr().out
    with annotating(lambda body: "Hm." if "ghost" in input_of(body, "sentence") else correct(body)) as server:
        words = [f"rows.GPT-4.annotator=generative:openai:m@{server.url}", "max_failed=1"]
        assert run("table3", *SHARED, *words, output="failed") == 0
    (row,) = table_of("failed").values()
    assert (row["n"], row["checked"], row["overall"]["type:unverifiable"]) == (n, n - u, None)
    assert f" | {n - u} of {n}\n" in capsys.readouterr().out  # beside the figures of the others


def test_models_are_scored_by_their_responses(tmp_path, capsys):
    documents = [{"question": "How long?", "document": "It opened in 1931. It is 503 metres long.", "language": "en"},
                 {"question": "多高？", "document": "水坝高120米。", "language": "zh"}]  # fmt: skip
    lines = [{**documents[0], "document": "It opened in 1900."}, {**documents[1], "document": None}]
    write_rows(tmp_path / "documents.jsonl", [*lines, *documents])
    responses = [
        {"question": "How long?", "response": "It opened in 1931. It is 530 metres long. Thanks!"},
        {"question": "多高？", "response": "水坝高120米。它很有名。"},
        {"question": "Why?", "response": "So."},
    ]
    write_rows(tmp_path / "model.jsonl", responses)
    documents_given = "documents=documents.jsonl"
    row = "rows.my-model={responses: %s, annotator: 'generative:openai:m@%s', options: {protocol: three-turn}}"
    with annotating(correct) as server:
        mine = row % ("model.jsonl", server.url)
        assert run("responses", documents_given, row % ("none.jsonl", server.url)) == 2
        assert run("responses", mine) == 2
        told = capsys.readouterr().err
        assert "rows.my-model.responses: no such file none.jsonl" in told
        assert "documents: expected the file of questions and documents, got question_document.jsonl" in told
        assert run("responses", documents_given, mine) == 3
        captured, asked = capsys.readouterr(), len(server.requests)
        assert run("responses", documents_given, mine) == 3  # it is done
        assert len(server.requests) == asked
    assert "model.jsonl:3: question: expected a question of documents.jsonl" in captured.err
    assert "documents.jsonl:2: document: expected a string" in captured.err
    assert len(read_rows(tmp_path / "out" / "rejected.documents.jsonl")) == 1
    assert "# documents: 1 line replaced by a later one of the same question" in captured.out
    # ok, contradictory, nofact; ok, unverifiable: 2 of 5 are made up
    assert "\nmy-model | 40.00 | 20.00 | 20.00 | 20.00 | 60.00 | 5 of 5\n" in captured.out
    write_rows(tmp_path / "model.jsonl", responses[:2])
    assert run("responses", documents_given, "rows={a: {}}", output="none") == 3  # for the documents alone
    judged = read_rows(tmp_path / "out" / "judged.my-model.jsonl")
    assert [one["annotation"] for one in judged] == ["ok", "contradictory", "nofact", "ok", "unverifiable"]
    assert judged[3] == {**responses[1], "sentence": "水坝高120米。", "annotation": "ok", "language": "zh"}


def test_facts_of_responses_are_scored_by_hand(tmp_path, capsys):
    """Two facts, one of them true, one true fact, and three without a fact: (½ e⁻⁴ + e⁻⁹) / 2."""
    write_rows(
        tmp_path / "question_document.jsonl",
        [{"question": "How long?", "document": "It opened in 1931. It is 503 metres long.", "language": "en"}],
    )
    facts = {
        "Opened in 1931, 530 metres long.": "Facts:\n- It opened in 1931.\n2. It is 530 metres long.\n",
        "It is 503 <b>metres long.": "It is 503 metres long.\n\nThanks!",  # no fact, and none counts it
        "I can't say.": "NONE.",
        "Who knows.": "- None",
        "Good question.": "Thanks!",
    }
    write_rows(tmp_path / "model.jsonl", [{"question": "How long?", "response": text} for text in facts])

    def play(body):
        found = re.search(r"<text>\n(.*)\n</text>", body["messages"][0]["content"])
        return facts[found[1].replace("‹b›", "<b>")] if found else correct(body)

    row = "rows.me={responses: model.jsonl, annotator: '%s'}"
    with annotating(play) as server:
        mine, splitter = row % f"generative:openai:m@{server.url}", f"splitter=openai:s@{server.url}"
        assert run("factscore", mine) == 2
        assert "splitter: expected a language model for factscore" in capsys.readouterr().err
        assert run("factscore", mine, splitter) == 0
        (done,) = table_of().values()
        assert done["overall"] == {
            "factscore": pytest.approx(50 * (math.exp(-4) / 2 + math.exp(-9))),
            "fact_precision": pytest.approx(75), "answered": pytest.approx(40),
        }  # fmt: skip
        assert "\nMask-DPO | – (39.39) | – | – | –\n" in capsys.readouterr().out
        facts["Who knows."] = completion("It is", finish="length")
        assert run("factscore", mine, splitter, output="cut") == 1
        assert run("factscore", mine, splitter, "max_failed=0.2", output="some") == 0
        asked = len(server.requests)
        for wrong in ("no-such-folder", "cascade:embedded"):
            assert run("factscore", row % wrong, splitter, output="none") == 2
        assert len(server.requests) == asked
    told = capsys.readouterr()
    assert "rows.me: the splitter: 20% of the sentences failed" in told.err
    assert "rows.me: annotator 'cascade:embedded': expected cascade:FIRST+SECOND" in told.err
    assert " | 75.00 | 50.00 | 5 of 6\n" in told.out  # three facts, two thanks, and the response that was not split


def test_made_up_answers_are_told_apart(tmp_path, capsys):
    """HaluEval's three tasks: an answer is made up where a sentence is. The server sees three of four, and one more."""
    bridge = "It opened in 1931. It is 503 metres long."
    lines = [
        {"knowledge": bridge, "question": "How long?", "right_answer": "It is 503 metres long.",
         "hallucinated_answer": "It is 530 metres long."},
        {"knowledge": bridge, "question": "When?", "right_answer": "It opened in 1931.", "hallucinated_answer": bridge},
        {"knowledge": bridge, "dialogue_history": "[Human]: When?", "right_response": "It opened in 1931.",
         "hallucinated_response": "It opened in 1931. It opened in May."},
        {"document": bridge, "right_summary": "It is long.", "hallucinated_summary": "It is 9 metres long."},
        {"user_query": "When?", "chatgpt_response": "Then.", "hallucination": "no"},
    ]  # fmt: skip
    write_rows(tmp_path / "qa_data.json", lines)
    row = "rows.%s={responses: %s, annotator: 'generative:openai:m@%s'}"
    with annotating(correct) as server:
        assert run("detection", row % ("HaluEval", "qa_data.json", server.url)) == 3
        asked = [input_of(body, "question") for body in server.requests]
        assert {"How long?", "When?", "[Human]: When?", ""} == {text or "" for text in asked}
    (done,) = table_of().values()
    # Lengths: true 22, 18, 18, 11; made up 22, 41, 36, 20: from 20 on made up is right but once.
    assert done["overall"] == {
        "answer_accuracy": 75, "answer_f1": 75, "answer_auc": None, "length_accuracy": 87.5, "length_auc": 90.625,
    }  # fmt: skip
    told = capsys.readouterr().out
    assert "# HaluEval: 1 line without answers of HaluEval or HalluQA" in told
    assert "\nHaluEval | 75.00 | 75.00 | – | 87.50 | 90.62 | 8 of 8\n" in told
    line = {**lines[1], "right_answer": "Thanks for asking!", "hallucinated_answer": "It opened in 1931."}
    write_rows(tmp_path / "qa_data.json", [line])
    row = "rows.HaluEval={responses: qa_data.json, annotator: embedded-fast}"
    assert run("detection", row, output="greeting") == 0
    assert table_of("greeting")["HaluEval"]["overall"]["answer_auc"] == 100  # what states nothing is not made up


def test_what_a_trained_annotator_judged_is_kept(tmp_path, judged, capsys):
    line = {"knowledge": "It is old.", "question": "?", "right_answer": "It is old."}
    line["hallucinated_answer"] = "It is red."
    row = "rows.a={responses: qa_data.json, annotator: stand-in/exact}"
    for right, code in (("It is old.", 130), ("It was old.", 2), ("It is old.", 0)):
        write_rows(tmp_path / "qa_data.json", [{**line, "right_answer": right}])
        assert run("detection", row) == code
    assert "qa_data.json changed since then" in capsys.readouterr().err
    assert judged == [["It is old."], ["It is red."], ["It is red."]]  # one is not judged twice
    assert table_of()["a"]["overall"]["answer_accuracy"] == 100


def test_a_response_is_split_once(tmp_path, judged):
    """The first try to split "It is old." fails; the run is killed, and goes on with the facts that it has."""
    broken = [True]

    def split(body):
        text = re.search(r"<text>\n(.*)\n</text>", body["messages"][0]["content"])[1]
        return error(400) if broken[0] and text == "It is old." else text

    write_rows(tmp_path / "question_document.jsonl", [{"question": "?", "document": "It is old.", "language": "en"}])
    texts = ("It is old.", "It is red.", "It is big.")
    write_rows(tmp_path / "model.jsonl", [{"question": "?", "response": text} for text in texts])
    with annotating(split) as server:
        words = ["rows.me={responses: model.jsonl, annotator: stand-in/exact}", f"splitter=openai:s@{server.url}"]
        assert run("factscore", *words, "max_failed=0.4") == 130
        broken[0] = False
        assert run("factscore", *words, "max_failed=0.4") == 0
    assert judged == [["It is red."], ["It is big."], ["It is big."]]


def test_halluqa_is_judged_by_its_other_answers(tmp_path, capsys):
    """And by the text of its source; a question with neither is left out, unless a document is given."""
    lines = [
        {"Question": "多高？", "Best Answer1": "水坝高120米。", "Best Answer2": "高120米。",
         "Source": "https://x.cn 建于1950年。",
         "Wrong_Answer1": "高210米。", "Wrong_Answer2": "水坝很有名。", "Wrong_Answer3": "不高。"},
        {"Question": "谁？", "Best Answer1": "李冰。", "Source": "https://x.cn/b", "Wrong_Answer1": "张三。"},
    ]  # fmt: skip
    (tmp_path / "HalluQA.json").write_text(json.dumps(lines, ensure_ascii=False, indent=1), encoding="utf-8")
    with annotating(correct) as server:
        row = f"rows.HalluQA={{responses: HalluQA.json, annotator: 'generative:openai:m@{server.url}'}}"
        assert run("detection", row, output="zh") == 3
        shown = {input_of(body, "sentence"): input_of(body, "document") for body in server.requests}
        assert shown == {
            "水坝高120米。": "建于1950年。\n高120米。", "高210米。": "建于1950年。\n高120米。",
            "高120米。": "建于1950年。\n水坝高120米。", "水坝很有名。": "建于1950年。\n水坝高120米。",
        }  # fmt: skip
        # The first true answer says more than the other: called made up.
        assert table_of("zh")["HalluQA"]["overall"]["answer_accuracy"] == 75
        write_rows(tmp_path / "documents.jsonl", [{"question": "谁？", "document": "修建者是李冰。"}])
        assert run("detection", row, "documents=documents.jsonl", output="more") == 0
        assert table_of("more")["HalluQA"]["overall"]["answer_accuracy"] == pytest.approx(500 / 6)
        write_rows(tmp_path / "HalluQA.json", [{"question": "?"}])
        assert run("detection", row, output="none") == 2
    assert "HalluQA.json: expected answers of HaluEval or HalluQA, and a text" in capsys.readouterr().err


def test_wrong_rows_are_told_before_any_work(tmp_path, capsys):
    preset = "{annotator: 'generative:openai:m@http://127.0.0.1:1/v1', options: {preset: anah-v2}}"
    for words, message in (
        (
            ["table8", *SHARED, f"rows.G-7B={preset}"],
            "rows.G-7B: preset anah-v2: its wording does not come with this package",
        ),
        (
            ["table8", *SHARED, "rows.D-7B.annotator=embedded-fast", "rows.G-7B.annotator=no-such-folder"],
            "rows.G-7B: no such folder 'no-such-folder', and it is no hub id",
        ),
        (
            ["table8", *SHARED, "rows.D-7B={annotator: embedded-fast, options: {prompt: brief}}"],
            "rows.D-7B.options: for generative:KIND:MODEL[@BASE_URL] only, not embedded-fast",
        ),
        (["table5", "figures=[accuracy, topics]"], "figures: expected some of one of accuracy, rouge_l"),
        (["table4", "rows.English-with.annotator=embedded"], "expected language, source for figures such as share"),
        (["table4", "limit=3"], "limit: expected null, since all is counted for share:supported"),
        (["table4", "data.limit=3"], "data.limit: expected null, since all is counted for share:supported"),
        (
            ["table5", "figures=[accuracy]", "rows={a: {paper: {topics: 1}}}"],
            "rows.a.paper: expected accuracy, rouge_l, bert_score, fragment_precision_4, got topics",
        ),
        (["table5", "rows={a: {paper: {accuracy: [1]}}}"], "rows.a.paper"),
        (["table5", "figures=[accuracy]", "rows={a: {source: anah-gpt3.5}}"], "rows.a: expected annotator, opt"),
        (["table5", "data=null", "figures=[accuracy]"], "data: expected `sources: [opencompass/anah]`"),
        (["table5", "rows={a/b: {}}"], "string should match pattern"),
    ):
        assert run(*words) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
