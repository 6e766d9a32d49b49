"""`mitigate stats`: what its files say, accumulation and agreement of them."""

import json
import re
from pathlib import Path

import pytest

from mitigate.cli.main import main
from mitigate.labels import read_answers
from tests.helpers.jsonl import write_rows as write
from tests.helpers.report_cases import sentence


def annotated(answer: str, labels: list[str | None], **more: object) -> dict[str, object]:
    sentences = [
        sentence(answer, *found.span(), label=label, status="checked" if label else "failed")
        for found, label in zip(re.finditer(r"[^.]+\.", answer), labels, strict=True)
    ]
    return {"answer": answer, "reference": "r", "question": "q", "sentences": sentences, "language": "en", **more}


def test_both_kinds_of_files_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = annotated("One.Two.Three.", ["supported", None, "contradictory"], source="with|out")
    bad = {"answer": "x", "reference": "r", "sentences": [{"text": "y"}]}
    records = write(tmp_path / "a.jsonl", [good, bad, annotated("One.", ["wrong"])])
    shared = {"answer": "Red. Blue.", "reference": "r", "source": "s", "lang": "zh"}
    pair = [{**shared, "sentence": s, "label": x} for s, x in (("Blue.", "unsupported"), ("Red.", "supported"))]
    alone = {"sentence": "Alone.", "reference": "r", "label": "no_fact", "id": 1}
    rows = write(tmp_path / "b.jsonl", [*pair, alone])
    answers, rejected = read_answers([records, rows])
    assert rejected == 2
    first, second, third = answers
    assert first.coverage == pytest.approx(10 / 14)  # "One." and "Three." of "One.Two.Three."
    assert [s.text for s in second.sentences] == ["Red.", "Blue."]
    assert second.coverage == 1.0
    assert (second.source, second.language, second.ordered) == ("s", "zh", True)
    assert not third.ordered
    page = tmp_path / "page.md"
    files = ["--input", str(records), str(rows), "--output", str(page)]
    capsys.readouterr()
    assert main(["stats", *files, "--resamples", "0", "--json"]) == 3
    assert "| with&#124;out (en) | 1 | 2 | 50.00 | 50.00 | 0.00 | 0.00 | 1 |" in page.read_text("utf-8")
    figures = json.loads(capsys.readouterr().out)
    # Whole is only the second answer, (supported, unsupported): its second sentence comes after none.
    assert figures["all"]["accumulation"]["after_none"] == {"value": 1.0, "interval": None, "n": 1}


def test_hostile_records_reach_neither_terminal_nor_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    far = annotated("One.", ["supported"])
    far["sentences"][0]["fragments"] = [{"start": 0, "end": 10**9, "text": "r"}]  # type: ignore[index]
    (records := tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in (annotated("One.", ["supported"], source="\x1b]0;x\x07\ud800"), far))
    )
    assert main(["stats", "--input", str(records), "--output", str(tmp_path / "p.md"), "--resamples", "0"]) == 3
    out = capsys.readouterr().out
    assert "&#91;U+001B]]0;x&#91;U+0007]&#91;U+D800] (en) | 1 |" in out
    assert (tmp_path / "p.md").read_text("utf-8").strip() == out.strip()


def test_agreement_of_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (
        write(tmp_path / name, [annotated("One.Two.", ["supported", second]), annotated(other, ["supported"])])
        for name, second, other in (("a.jsonl", "unverifiable", "Three."), ("b.jsonl", "contradictory", "Four."))
    )
    assert main(["stats", "--agreement", str(a), str(b), "--resamples", "10"]) == 0
    out = capsys.readouterr().out
    assert "2 sentences of 1 answers judged by both; 1 only by the first, 1 only by the second" in out
    assert "| type | 50.00 | 2 |" in out
    assert "| type:contradictory | 0.00 | 1 |" in out
    human = annotated("One.Two.", ["supported", "unverifiable"])  # labels of the machine, one of a person beside
    human["sentences"][0]["gold"] = "contradictory"
    write(b, [human])
    assert main(["stats", "--agreement", str(a), str(b), "--resamples", "0", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["type"]["value"], figures["type"]["n"]) == (0.0, 1)
    write(b, [annotated("Nine.", ["supported"])])
    assert main(["stats", "--agreement", str(a), str(b)]) == 2
    assert "no judged sentence of the same answer in common" in capsys.readouterr().err
    assert main(["stats"]) == main(["stats", "--input", str(tmp_path / "none.jsonl")]) == 2
    write(b, [{"reference": "It opened in 1931.", "answer": "It opened in 1932."}])
    capsys.readouterr()
    assert main(["stats", "--input", str(b)]) == 3
    told = capsys.readouterr().err
    assert "b.jsonl:1: sentences: expected the list that `mitigate annotate` writes, got nothing" in told
    assert "label:" not in told  # it is no labelled sentence that lacks its label


def test_agreement_reads_judgements_and_equal_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three rows have one answer: two of other ids, one of another reference; B has them in another order."""
    shared = {"answer": "It is red.", "sentence": "It is red.", "question": "q", "reference": "It is blue."}
    labels = {"a": "supported", "b": "contradictory", "c": "supported"}
    gold = [{**shared, "id": k, "label": label} for k, label in labels.items()]
    gold[2]["reference"] = "It is red."
    said = {"status": "checked", "scores": None, "fragments": [{"text": "It", "start": 0, "end": 2}],
            "correction": [{"from": "red", "to": "blue", "start": 6, "end": 9}], "annotator": "x"}  # fmt: skip
    judged: list[dict[str, object]] = [{**row, "gold": row["label"], **said} for row in gold[::-1]]
    judged.append({**judged[0], "id": "d", "label": None, "status": "failed"})
    a, b = write(tmp_path / "judged.jsonl", judged), write(tmp_path / "gold.jsonl", gold)
    assert main(["stats", "--agreement", str(a), str(b), "--resamples", "0", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["type"]["value"], figures["type"]["n"]) == (1.0, 3)
    assert (figures["only_first"], figures["only_second"]) == (0, 0)
    assert {s.corrected for answer in read_answers([a])[0] for s in answer.sentences} == {"It is blue."}
    people = [{**row, "annotator": name} for row, name in zip(gold, ("anna", "ben", "anna"), strict=True)]
    assert main(["stats", "--input", str(write(tmp_path / "people.jsonl", people))]) == 0  # several people may label
    several = write(tmp_path / "several.jsonl", [*judged, {**judged[0], "annotator": "y"}])  # of evaluate --compare
    assert main(["stats", "--agreement", str(several), str(b)]) == 2
    assert "expected the judgements of one annotator, got those of x and y" in capsys.readouterr().err


def test_sentences_with_own_references_are_one_answer(tmp_path: Path) -> None:
    """Each sentence of an answer has a reference of its own; the second copy of the answer is another answer."""
    shared = {"question": "q", "answer": "Red. Blue.", "source": "s", "lang": "en"}
    said = [("Red.", "supported", "It is red."), ("Blue.", "unsupported", "It is green.")]
    rows = [{**shared, "sentence": s, "label": label, "reference": r} for s, label, r in said]
    answers, _ = read_answers([write(tmp_path / "a.jsonl", [*rows, *rows, {**rows[0], "question": "other"}])])
    assert [[s.label for s in a.sentences] for a in answers] == [["supported", "unsupported"]] * 2 + [["supported"]]
    assert [a.coverage for a in answers] == [1.0, 1.0, 4 / 9]


def test_agreement_pairs_equal_sentences_by_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without ids, one sentence judged against two references, which the files have in another order and spacing."""
    shared = {"question": "q", "answer": "It is red.", "sentence": "It is red."}
    rows = [
        {**shared, "reference": r, "label": label}
        for r, label in (("Red.", "supported"), ("Blue  it is.", "unsupported"))
    ]
    a = write(tmp_path / "a.jsonl", rows)
    b = write(tmp_path / "b.jsonl", [{**row, "reference": " ".join(row["reference"].split())} for row in rows[::-1]])
    assert main(["stats", "--agreement", str(a), str(b), "--resamples", "0", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["type"]
    assert (figures["value"], figures["n"]) == (1.0, 2)
