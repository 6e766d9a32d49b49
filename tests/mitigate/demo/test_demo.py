"""The demo without a browser: limits, judging in steps, files, FEWL, options."""

import json
from typing import Any

import pytest

from mitigate.cli.main import main
from mitigate.demo.limits import Limits, Refusal
from mitigate.demo.page import run_batch
from mitigate.demo.service import Service, Shelf, annotate_stepwise, fewl_record
from tests.helpers.demo_parts import ANSWER, REFERENCE
from tests.helpers.rule_annotator import RuleAnnotator


def test_long_and_broken_texts_are_refused_with_what_to_do():
    limits = Limits(characters=10)
    limits.check(answer="x" * 10, question=None)
    with pytest.raises(Refusal, match=r"The answer has 11 characters; this page takes 10\. Shorten it"):
        limits.check(answer="x" * 11)
    with pytest.raises(Refusal, match=r"reference answer holds half a character .* at place 3"):
        limits.check(reference_answer="ab\ud800")
    problems = limits.check_record({"reference": "x" * 11, "answer": "a"})
    assert [str(p) for p in problems] == ["reference: expected at most 10 characters, got 11 characters"]
    with pytest.raises(Refusal, match="The answer is empty"):
        Service(Shelf(), limits).annotate(None, "x", " \n", None)


def test_only_offered_annotators_are_loaded_unless_any_may_be():
    asked = []

    def load(name: str) -> Any:
        asked.append(name)
        if name == "broken":
            raise OSError("no such\n folder")
        return RuleAnnotator()

    shelf = Shelf(["one", "two", "three"], load=load)
    assert shelf.annotator(None) is shelf.annotator(" one ")
    with pytest.raises(Refusal, match="'openai:x@http://elsewhere' is not offered here, only one, two, three"):
        shelf.annotator("openai:x@http://elsewhere")
    assert asked == ["one"]
    shelf.annotator("two")
    shelf.annotator("three")  # the third pushes the first out
    shelf.annotator("one")
    assert asked == ["one", "two", "three", "one"]
    with pytest.raises(Refusal, match=r"'broken' can't be loaded: no such folder$"):
        Shelf(["one"], open_choice=True, load=load).annotator("broken")


def test_an_answer_is_judged_in_steps_that_add_up_to_the_whole():
    annotator = RuleAnnotator(scores=True)
    record = {"reference": REFERENCE, "answer": ANSWER}
    found = list(annotate_stepwise(Shelf(["rule"], load=lambda _: annotator), "rule", record))
    assert [len(part.waiting) for part in found] == [4, 3, 0]
    whole = RuleAnnotator(scores=True).annotate(**record).to_dict()
    assert found[-1].record["sentences"] == whole["sentences"]
    assert found[-1].record["hallucination_rate"] == whole["hallucination_rate"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "answer",
    [
        "The canal was opened in 1822. It is 14 km long. It closed in 1950. Boats use it. I hope this helps.",
        "Le canal a été ouvert en 1822. Il mesure 14 km. Bateaux. Merci beaucoup pour votre question.",
    ],
)
def test_steps_of_the_embedded_annotator_give_what_one_call_gives(answer, embedded):
    reference = "A canal was dug beside the mill. It was opened in 1822 and is 14 km long. It closed in 1911."
    *_, last = annotate_stepwise(Shelf(load=lambda _: embedded), None, {"reference": reference, "answer": answer})
    whole = embedded.annotate(reference=reference, answer=answer).to_dict()
    for ours, theirs in zip(last.record["sentences"], whole["sentences"], strict=True):
        scores, expected = ours.pop("scores"), theirs.pop("scores")
        assert ours == theirs
        assert scores == (pytest.approx(expected, abs=1e-3) if expected else None)


@pytest.fixture(scope="module")
def embedded() -> Any:
    from annotators import load_annotator

    return load_annotator()


def test_a_generative_annotator_streams_chinese_as_it_judges_it_whole():
    from annotators.generative.annotator import GenerativeAnnotator
    from engines.openai_engine import OpenAIEngine
    from tests.helpers.annotator_server import annotating, correct

    record = {"reference": "水坝建于1959年。它高120米。", "answer": "你好！水坝建于1969年。它高120米。它很有名。"}
    with annotating(correct) as server:
        engine = OpenAIEngine("m", server.url, max_retries=0, timeout=30.0)
        annotator = GenerativeAnnotator(engine)
        found = list(annotate_stepwise(Shelf(load=lambda _: annotator), None, record))
        whole = annotator.annotate(**record).to_dict()
        annotator.close()
    assert len(found) > 2
    assert found[-1].record == whole
    assert [s["label"] for s in whole["sentences"]] == ["no_fact", "contradictory", "supported", "unverifiable"]


def test_a_failing_annotator_is_a_refusal():
    class Failing(RuleAnnotator):
        def judge(self, sentences: Any) -> Any:
            raise RuntimeError("the server\nwent away")

    with pytest.raises(Refusal, match="'rule' failed: the server went away"):
        list(annotate_stepwise(Shelf(load=lambda _: Failing()), None, {"reference": "a", "answer": "b"}))


def test_a_file_is_annotated_into_files(tmp_path):
    source = tmp_path / "in.jsonl"
    rows = [{"id": i, "reference": REFERENCE, "answer": ANSWER, "sentences": "old"} for i in range(5)]
    lines = [json.dumps(row) for row in rows]
    lines[2:2] = ["{not json <b>", json.dumps({"reference": "x" * 2001, "answer": "a"})]
    source.write_text("\n".join(lines))
    shelf = Shelf(load=lambda _: RuleAnnotator())
    done = [batch.done for batch in run_batch(shelf, Limits(characters=2000), source, None)]
    *_, batch = run_batch(shelf, Limits(characters=2000), source, None)
    assert done[0] == 0
    assert done[-1] == 5
    written = [json.loads(line) for line in batch.output.read_text().splitlines()]
    assert [row["id"] for row in written] == [0, 1, 2, 3, 4]
    assert [s["label"] for s in written[0]["sentences"]] == ["supported", "contradictory", "unverifiable", "no_fact"]
    assert batch.rejected[0].startswith("line 3: expected one JSON object a line")
    assert batch.rejected[1] == "line 4: reference: expected at most 2,000 characters, got 2,001 characters"
    assert batch.rejected_file is not None
    assert [json.loads(line)["line"] for line in batch.rejected_file.read_text().splitlines()] == [3, 4]
    assert "2 of 3 factual sentences hallucinated" in batch.report().read_text()
    with pytest.raises(Refusal, match="more than 3 records"):
        list(run_batch(shelf, Limits(records=3), source, None))
    source.write_text("nothing\n")
    with pytest.raises(Refusal, match=r"The file has no good record\. The first bad line: line 1"):
        list(run_batch(shelf, Limits(), source, None))


def test_fewl_of_one_question_is_that_of_the_library():
    from fewl import FewlOptions, cosine, score_records

    record = {
        "question": "Do camels store water in their humps?",
        "answers": [{"text": "No, they store fat.", "model": "a"}, {"text": "Yes, water.", "model": "b"}, {"text": ""}],
        "reference_answers": {"one": "Their humps hold fat.", "two": ["No.", "Humps are fat."]},
        "iw": ["They hold water."],
        "co": ["They hold fat."],
    }
    other = {"question": "Are bats blind?", "answers": [], "reference_answers": {"one": "No.", "two": "They see."}}
    shelf = Shelf()
    found = fewl_record(shelf, Limits(), record, neighbours=[other])
    options = FewlOptions(aggregation="eq6", expertise="similarity")
    encode = shelf.embedder.encode
    scored, _ = score_records([record, other], similarity=cosine(encode), encode=encode, options=options)
    for ours, theirs in zip(found["answers"], scored[0]["answers"], strict=True):
        for name in ("score", "truthfulness", "laziness"):
            assert ours[name] == (None if theirs[name] is None else pytest.approx(theirs[name], abs=1e-4))
    a, b = encode([record["answers"][0]["text"], "Their humps hold fat."])
    assert found["answers"][0]["similarity"]["one"] == pytest.approx(float(a @ b), abs=1e-4)
    assert found["answers"][2]["similarity"] == {"one": None, "two": None}
    assert fewl_record(shelf, Limits(), record)["answers"][0]["laziness"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": " "}, "question: expected a string with text in it"),
        ({"answers": [{"text": ""}]}, "There is no answer to score"),
        ({"reference_answers": {}}, "There is no reference answer"),
        ({"answers": [{"text": "x" * 60_000}]}, "The answer has 60,000 characters"),
        ({"reference_answers": {"llm": ["x"] * 201}}, "201 reference, wrong and corrected answers"),
    ],
)
def test_fewl_refuses_with_the_reason(change, message):
    record = {"question": "q", "answers": [{"text": "a"}], "reference_answers": {"llm": "b"}, **change}
    with pytest.raises(Refusal, match=message):
        fewl_record(Shelf(), Limits(), record)
    with pytest.raises(Refusal, match="Expected an aggregation of eq6"):
        fewl_record(Shelf(), Limits(), record, aggregation="x")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--auth", "nobody"], "--auth: expected NAME:PASSWORD"),
        (["--port", "70000"], "--port: expected 1 to 65535, got 70000"),
        (["--max-characters", "0"], "--max-characters: expected 1 or more, got 0"),
    ],
)
def test_wrong_options_are_told_before_anything_loads(args, message, capsys):
    assert main(["demo", *args]) == 2
    assert message in capsys.readouterr().err
