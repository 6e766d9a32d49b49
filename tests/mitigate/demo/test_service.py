"""The demo without a browser: limits, judging in steps, files, FEWL."""

import json
from pathlib import Path
from typing import Any

import pytest

from mitigate.demo.limits import Limits, Refusal
from mitigate.demo.page import run_batch
from mitigate.demo.service import Service, Shelf, Step
from tests.helpers.demo_parts import ANSWER, REFERENCE
from tests.helpers.jsonl import read_rows
from tests.helpers.rule_annotator import RuleAnnotator


def serving(annotator: Any, limits: Limits = Limits()) -> Service:  # noqa: B008
    return Service(Shelf(load=lambda _: annotator), limits)


def steps(annotator: Any, reference: str, answer: str) -> list[Step]:
    return list(serving(annotator).annotate_stepwise(None, reference, answer, None))


def test_long_and_broken_texts_are_refused() -> None:
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


def test_only_offered_annotators_are_loaded() -> None:
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


def test_steps_add_up_to_the_whole_answer() -> None:
    record = {"reference": REFERENCE, "answer": ANSWER}
    found = steps(RuleAnnotator(scores=True), **record)
    assert [len(waiting) for _, waiting in found] == [4, 3, 0]
    whole = RuleAnnotator(scores=True).annotate(**record).to_dict()
    assert found[-1][0]["sentences"] == whole["sentences"]
    assert found[-1][0]["hallucination_rate"] == whole["hallucination_rate"] == pytest.approx(2 / 3)

    class Failing(RuleAnnotator):
        def judge(self, sentences: Any) -> Any:
            raise RuntimeError("the server\nwent away")

    with pytest.raises(Refusal, match="'rule' failed: the server went away"):
        steps(Failing(), "a", "b")


def test_file_is_annotated_into_files(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"id": i, "reference": REFERENCE, "answer": ANSWER, "sentences": "old"} for i in range(5)]
    lines = [json.dumps(row) for row in rows]
    lines[2:2] = ["{not json <b>", json.dumps({"reference": "x" * 2001, "answer": "a"})]
    source.write_text("\n".join(lines))
    service = serving(RuleAnnotator(), Limits(characters=2000))
    done = [batch.done for batch in run_batch(service, source, None)]
    *_, batch = run_batch(service, source, None)
    assert done[0] == 0
    assert done[-1] == 5
    written = read_rows(batch.output)
    assert [row["id"] for row in written] == [0, 1, 2, 3, 4]
    assert [s["label"] for s in written[0]["sentences"]] == ["supported", "contradictory", "unverifiable", "no_fact"]
    assert batch.rejected[0].startswith("line 3: expected one JSON object a line")
    assert batch.rejected[1] == "line 4: reference: expected at most 2,000 characters, got 2,001 characters"
    assert [row["line"] for row in read_rows(batch.rejected_file)] == [3, 4]
    assert "2 of 3 factual sentences hallucinated" in batch.files()[1].read_text()
    with pytest.raises(Refusal, match="more than 3 records"):
        list(run_batch(serving(RuleAnnotator(), Limits(records=3)), source, None))
    source.write_text("nothing\n")
    with pytest.raises(Refusal, match=r"The file has no good record\. The first bad line: line 1"):
        list(run_batch(service, source, None))


def test_fewl_equals_that_of_the_library() -> None:
    from fewl import FewlOptions, cosine, score_records

    record = {
        "question": "Do camels store water in their humps?",
        "answers": [{"text": "No, they store fat.", "model": "a"}, {"text": "Yes, water.", "model": "b"}, {"text": ""}],
        "reference_answers": {"one": "Their humps hold fat.", "two": ["No.", "Humps are fat."]},
        "iw": ["They hold water."], "co": ["They hold fat."],
    }  # fmt: skip
    other = {"question": "Are bats blind?", "answers": [], "reference_answers": {"one": "No.", "two": "They see."}}
    service = Service(Shelf(), Limits())
    found = service.fewl(record, neighbours=[other])
    options = FewlOptions(aggregation="eq6", expertise="similarity")
    encode = service.shelf.embedder.encode
    scored, _ = score_records([record, other], similarity=cosine(encode), encode=encode, options=options)
    for ours, theirs in zip(found["answers"], scored[0]["answers"], strict=True):
        for name in ("score", "truthfulness", "laziness"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4)
    a, b = encode([record["answers"][0]["text"], "Their humps hold fat."])
    assert found["answers"][0]["similarity"]["one"] == pytest.approx(float(a @ b), abs=1e-4)
    assert found["answers"][2]["similarity"] == {"one": None, "two": None}
    assert service.fewl(record)["answers"][0]["laziness"] is None


@pytest.mark.parametrize(("change", "message"), [
    ({"question": " "}, "question: expected a string with text in it"),
    ({"answers": [{"text": ""}]}, "There is no answer to score"),
    ({"reference_answers": {}}, "There is no reference answer"),
    ({"answers": [{"text": "x" * 60_000}]}, "The answer has 60,000 characters"),
    ({"reference_answers": {"llm": ["x"] * 201}}, "201 reference, wrong and corrected answers"),
])  # fmt: skip
def test_fewl_refuses_with_the_reason(change: dict[str, Any], message: str) -> None:
    record = {"question": "q", "answers": [{"text": "a"}], "reference_answers": {"llm": "b"}, **change}
    with pytest.raises(Refusal, match=message):
        Service(Shelf(), Limits()).fewl(record)
    with pytest.raises(Refusal, match="Expected an aggregation of eq6"):
        Service(Shelf(), Limits()).fewl(record, aggregation="x")
