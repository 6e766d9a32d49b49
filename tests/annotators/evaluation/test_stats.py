"""`mitigate stats`: accumulation against brute force, agreement against scikit-learn, and what files say."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from annotators.evaluation.agreement import Judged, accumulation, agreement, counts_of, expected_counts, kappa, overlap
from mitigate.cli.main import main
from mitigate.labels import read_answers
from tests.helpers.jsonl import write_rows as write

DATA = Path(__file__).parents[4] / "shared" / "data"


def test_counts_of_one_answer() -> None:
    # F | T F T : the first, one after none (T), two after some (F, T)
    assert counts_of([False, True, False, True]).tolist() == [[1, 0], [1, 1], [2, 1]]
    assert counts_of([]).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(("n", "h"), [(n, h) for n in range(1, 7) for h in range(n + 1)])
def test_expected_counts_are_means_over_all_orders(n: int, h: int) -> None:
    orders = set(itertools.permutations([True] * h + [False] * (n - h)))
    mean = np.mean([counts_of(order) for order in orders], axis=0)  # all distinct orders are equally likely
    np.testing.assert_allclose(expected_counts(n, h), mean, atol=1e-12)


def test_snowballing_differs_from_bad_answers() -> None:
    """Answers that are all wrong or all right: a difference of 1, and no effect of order."""
    found = accumulation([[True] * 3] * 20 + [[False] * 3] * 20, n_resamples=200)
    assert found["after_some"].value == 1.0
    assert found["after_none"].value == 0.0
    assert found["difference"].value == found["difference_if_shuffled"].value == 1.0
    assert found["effect_of_order"].value == 0.0
    # Answers whose wrong sentences all stand at the end: the order does it.
    # seen: after none 1/2 (F, T of F F T T), after some 1/1; shuffled, n=4, h=2: none (4−2)/3 = 2/3 with 1/2 wrong
    # → 3/4; some 3 − 2/3 = 7/3 with 2 − 1/2 − 1/2 = 1 wrong → 3/7
    ends = accumulation([[False, False, True, True]] * 10, n_resamples=100)
    assert ends["difference"].value == pytest.approx(1 - 1 / 2)
    assert ends["difference_if_shuffled"].value == pytest.approx(3 / 7 - 3 / 4)
    assert ends["effect_of_order"].value == pytest.approx(1 / 2 - 3 / 7 + 3 / 4)
    assert ends["after_none"].n == 20
    none = accumulation([[False, False]] * 3, n_resamples=50)
    assert none["after_some"].value is None
    assert none["difference"].value is None


def test_intervals_hold_the_truth_of_simulated_answers() -> None:
    """Sentences wrong with probability 0.2, or 0.6 once one was wrong: the interval holds 0.4 in most repetitions."""
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(20):
        answers = []
        for _ in range(60):
            row: list[bool] = []
            for _ in range(5):
                row.append(bool(rng.random() < (0.6 if any(row) else 0.2)))
            answers.append(row)
        limits = accumulation(answers, n_resamples=100, seed=seed)["difference"].interval
        assert limits is not None
        hits += limits[0] <= 0.4 <= limits[1]
    assert hits >= 16


def test_kappa_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(1)
    first = [str(x) for x in rng.integers(0, 4, 200)]
    second = [a if rng.random() < 0.6 else str(rng.integers(0, 4)) for a in first]
    assert kappa(first, second) == pytest.approx(cohen_kappa_score(first, second))
    weights = rng.integers(0, 3, 200).astype(float)
    repeated = [np.repeat(x, weights.astype(int)) for x in (first, second)]
    assert kappa(first, second, weights) == pytest.approx(cohen_kappa_score(*repeated))
    assert kappa(["a"], ["a"]) is None


def test_agreement_per_type_reference_and_correction() -> None:
    half = frozenset(range(10)), frozenset(range(5, 15))  # 5 of 10 and 10: F1 = 2·5/20 = 0.5
    assert overlap(*half) == 0.5
    assert overlap(frozenset(), frozenset()) == 1.0
    pairs = [
        (Judged("supported", half[0]), Judged("supported", half[1])),
        (Judged("supported", half[0]), Judged("contradictory", frozenset(), "x")),
        (Judged("contradictory", half[0], "a  b"), Judged("contradictory", half[0], "a b")),
        (Judged("unverifiable", None, "a"), Judged("contradictory", None, None)),
        (Judged("no_fact"), Judged("no_fact")),
    ]
    found = agreement(pairs, ["1", "1", "2", "2", "3"], n_resamples=50)
    assert {name: (f.value, f.n) for name, f in found.items() if name != "kappa"} == {
        "type": (3 / 5, 5), "type:supported": (1.0, 1), "type:contradictory": (1 / 3, 3), "type:no_fact": (1.0, 1),
        "reference": (2 / 3, 3), "reference_overlap": (0.5, 3), "correction": (0.5, 2),  # overlaps 0.5, 0, 1
    }  # fmt: skip
    # labels agree 3/5; chance: supported 2·1, contradictory 1·3, no_fact 1·1 of 25 → 6/25
    assert found["kappa"].value == pytest.approx((3 / 5 - 6 / 25) / (1 - 6 / 25))


def annotated(answer: str, labels: list[str | None], **more: object) -> dict[str, object]:
    texts = [text + "." for text in answer.split(".") if text]
    place, sentences = 0, []
    for text, label in zip(texts, labels, strict=True):
        sentences.append({"text": text, "start": place, "end": place + len(text), "label": label,
                          "status": "checked" if label else "failed", "fragments": [], "correction": []})  # fmt: skip
        place += len(text)
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
    assert main(["stats", *files, "--resamples", "0", "--whole", "0.5", "--json"]) == 3
    assert "| with&#124;out (en) | 1 | 2 | 50.00 | 50.00 | 0.00 | 0.00 | 1 |" in page.read_text("utf-8")
    figures = json.loads(capsys.readouterr().out)
    # (supported, contradictory) and (supported, unsupported): both second sentences come after none
    assert figures["all"]["accumulation"]["after_none"] == {"value": 1.0, "interval": None, "n": 2}


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


def test_whole_answers_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "binary" / "qags.dev.jsonl"
    if not path.is_file():
        pytest.skip("skipped: data not here")
    answers, rejected = read_answers([path])
    whole = [a for a in answers if a.ordered and a.coverage >= 0.9 and len(a.sentences) > 1]
    assert rejected == 0
    assert len(whole) == 178
    assert sum(len(a.sentences) for a in answers) == 725
