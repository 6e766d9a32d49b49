"""Calibration: the sigmoid, thresholds and limits by hand, the file, and the commands end to end."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from annotators import LABELS, load_annotator
from annotators import operating as op
from annotators.operating import Calibration, Flagging, OutOfReach, fit_calibration, fit_sigmoid, flaggings, sigmoid
from annotators.records import SentenceAnnotation
from mitigate.cli.main import main

REFERENCE = "The lighthouse at Cape Farewell was built in {} by {} and stands {} metres high."


def test_sigmoid_by_hand() -> None:
    # logit(0.8) = ln 4; slope 0.5 halves it: 1 / (1 + e^(−ln 2)) = 2/3. Intercept ln 3 alone: 3/4 at even odds.
    assert sigmoid(np.array([0.8]), 0.5, 0.0)[0] == pytest.approx(2 / 3)
    assert sigmoid(np.array([0.5]), 1.0, math.log(3))[0] == pytest.approx(3 / 4)


def test_fit_by_hand() -> None:
    # Two shares, 0.2 and 0.8, thirty rows each; 9 of 30 and 21 of 30 supported. Platt's targets are t₊ = 31/32 and
    # t₋ = 1/32, so the fitted probabilities are (9·31/32 + 21·1/32) / 30 = 300/960 = 0.3125 and 0.6875.
    share = np.repeat([0.2, 0.8], 30)
    y = np.array([i < 9 for i in range(30)] + [i < 21 for i in range(30)])
    slope, intercept = fit_sigmoid(share, y)
    assert intercept == pytest.approx(0.0, abs=1e-8)
    assert slope == pytest.approx(math.log(0.6875 / 0.3125) / math.log(4))


def test_fit_beside_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    share = rng.uniform(0.01, 0.99, 4000)
    y = rng.random(4000) < sigmoid(share, 0.6, -0.4)
    slope, intercept = fit_sigmoid(share, y)
    other = LogisticRegression(C=1e9).fit(np.log(share / (1 - share))[:, None], y)
    assert slope == pytest.approx(float(other.coef_[0, 0]), abs=0.01)  # Platt's targets differ by 1/2000
    assert intercept == pytest.approx(float(other.intercept_[0]), abs=0.01)


def test_separable_rows_and_wrong_scores() -> None:
    share, y = np.repeat([0.2, 0.8], 30), np.repeat([False, True], 30)
    assert sigmoid(np.array([0.2, 0.8]), *fit_sigmoid(share, y)) == pytest.approx([1 / 32, 31 / 32])  # finite
    with pytest.raises(ValueError, match="a higher score does not mean supported"):
        fit_sigmoid(share, ~y)


def test_flaggings_by_hand() -> None:
    # strictest first: 0.9 right; 0.8 twice, right and wrong, together; 0.4 right. NaN is never flagged.
    found = flaggings(
        np.array([0.4, 0.8, 0.9, np.nan, 0.8]), np.array([True, False, True, True, True]), list("abcde"), 0.9
    )
    assert [(f.threshold, f.precision, f.n_flagged) for f in found] == [
        (pytest.approx(0.85), 1.0, 1), (pytest.approx(0.6), pytest.approx(2 / 3), 3), (0.4, 0.75, 4),
    ]  # fmt: skip
    assert [f.recall for f in found] == [1 / 4, 2 / 4, 3 / 4]
    # Wilson, one-sided 90 %: z = 1.2816; n = 4, r = 3/4; every row its own group, so Var = 4/3 · 4·(3/4·1/4)/16 =
    # 1/16 and n_eff = (3/16) / (1/16) = 3, raised to the 4 groups.
    z2 = 1.2815515655446004**2
    centre = (0.75 + z2 / 8) / (1 + z2 / 4)
    half = math.sqrt(z2) * math.sqrt(0.75 * 0.25 / 4 + z2 / 64) / (1 + z2 / 4)
    assert found[-1].low == pytest.approx(centre - half)


def test_rows_of_one_group_count_as_fewer() -> None:
    hallucination, right = np.linspace(0.9, 0.6, 40), np.arange(40) % 10 != 0
    apart = flaggings(hallucination, right, list(range(40)), 0.9)[-1]
    whole = flaggings(hallucination, right, ["one", "two"] * 20, 0.9)[-1]
    assert apart.precision == whole.precision == 0.9
    assert whole.low < apart.low < 0.9


def test_choice() -> None:
    found = [Flagging(0.9, 1.0, 0.95, 0.1, 30), Flagging(0.8, 0.95, 0.91, 0.2, 60), Flagging(0.5, 0.7, 0.6, 0.9, 99)]
    assert op.choose(found, 0.9).threshold == 0.8
    assert op.choose(found, 0.95).threshold == 0.9
    with pytest.raises(OutOfReach, match=r"the best is 1\.000 \(at least 0\.950\) of 30 flagged rows"):
        op.choose(found, 0.99)
    with pytest.raises(OutOfReach, match="at least 20 rows that can be flagged, got 5"):
        op.choose([Flagging(0.9, 1.0, 0.95, 1.0, 5)], 0.9)


def test_judging_by_hand() -> None:
    # slope 1, intercept 0: shares stay. Flagged from 0.7: row 0 (0.75) yes, row 1 (0.6) neither, row 2 supported.
    calibration = Calibration("f", 1.0, 0.0, 0.7)
    p = np.array([[0.2, 0.2, 0.4, 0.2], [0.4, 0.6, 0.0, 0.0], [0.9, 0.1, 0.0, 0.0], [0.1, 0.1, 0.1, 0.7]])
    out, labels = calibration.judge(p, np.array([0, 1, 1, 3]))
    assert labels.tolist() == [2, op.UNSURE, 0, 3]
    assert out == pytest.approx(p)
    # intercept ln 3 on row 1: odds 2/3 · 3 = 2, so 2/3 supported, all the rest contradictory
    out, labels = Calibration("f", 1.0, math.log(3)).judge(p, np.array([0, 1, 1, 3]))
    assert out[1] == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert labels.tolist() == [2, 0, 0, 3]  # row 0: odds 1/3 · 3 = 1, an even chance is flagged
    assert out[0] == pytest.approx([0.4, 0.4 / 3, 0.8 / 3, 0.2])


def test_one_sentence() -> None:
    scores = dict(zip(LABELS, (0.4, 0.6, 0.0, 0.0), strict=True))
    sentence = SentenceAnnotation("a", 3, 4, "checked", "contradictory", scores)
    assert Calibration("f", 1.0, 0.0, 0.7).apply(sentence) == SentenceAnnotation("a", 3, 4, "unsure")
    assert Calibration("f", 1.0, 0.0, 0.5).apply(sentence).label == "contradictory"
    unchecked = SentenceAnnotation("a", 3, 4, "too_long")
    assert Calibration("f", 1.0, 0.0, 0.5).apply(unchecked) == unchecked


def rows(n: int, noise: float = 0.0) -> tuple[list[dict[str, float]], list[str], list[str]]:
    """Scores that are right but for some noise, and too sure of themselves."""
    rng = np.random.default_rng(1)
    scores, gold = [], []
    for i in range(n):
        supported = i % 2 == 0
        seen = supported if rng.random() >= noise else not supported
        share = 0.97 - 0.1 * rng.random() if seen else 0.03 + 0.1 * rng.random()
        scores.append(dict(zip(LABELS, (share, 1 - share, 0.0, 0.0), strict=True)))
        gold.append("supported" if supported else "unsupported")
    return scores, gold, [f"g{i}" for i in range(n)]


def test_fit_improves_calibration_and_reaches_the_target() -> None:
    scores, gold, groups = rows(400, noise=0.2)
    labels = ["supported" if s["supported"] > 0.5 else "contradictory" for s in scores]
    calibration = fit_calibration(scores, labels, gold, groups, annotator="f", target_precision=0.7)
    report = calibration.report
    assert report["ece_before"] > 0.05 > report["ece_after_cross_fitted"]
    assert report["flagging"]["low"] >= 0.7
    assert (report["n_supported"], report["n_hallucinated"]) == (200, 200)
    with pytest.raises(OutOfReach, match=r"target precision 0\.95 cannot be reached"):
        fit_calibration(scores, labels, gold, groups, annotator="f", target_precision=0.95)
    with pytest.raises(ValueError, match=r"at least 50 labelled factual rows.*got 49, 25 and 24"):
        fit_calibration(scores[:49], labels[:49], gold[:49], groups[:49], annotator="f")


def test_false_alarms_on_no_fact_count() -> None:
    scores, gold, groups = rows(100)
    labels = ["supported" if s["supported"] > 0.5 else "contradictory" for s in scores]
    talk = [{"supported": 0.0, "contradictory": 1.0, "unverifiable": 0.0, "no_fact": 0.0}] * 50
    groups += [f"t{i}" for i in range(50)]

    def fitted(called: str) -> Calibration:
        more = [*scores, *talk], [*labels, *[called] * 50], [*gold, *["no_fact"] * 50]
        return fit_calibration(*more, groups, annotator="f", target_precision=0.9)

    assert fitted("no_fact").hallucinated_at
    with pytest.raises(OutOfReach):
        fitted("contradictory")


def test_file(tmp_path: Path) -> None:
    calibration = Calibration("f", 0.7, -0.1, 0.8, {"n": 60})
    calibration.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == calibration
    assert replace(calibration, hallucinated_at=None).fingerprint != calibration.fingerprint
    assert replace(calibration, report={}).fingerprint == calibration.fingerprint
    row = json.loads((tmp_path / "c.json").read_text())
    for bad in ("[]", "{", json.dumps({**row, "version": 0}), json.dumps({**row, "slope": -1}),
                json.dumps({**row, "slope": True}), json.dumps({**row, "report": None})):  # fmt: skip
        (tmp_path / "bad.json").write_text(bad)
        with pytest.raises(ValueError, match=r"bad\.json: expected .*fit it again"):
            Calibration.load(tmp_path / "bad.json")


# --- the commands ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty labelled sentences; every second one has another year. Half as annotated records with gold labels."""
    path = tmp_path_factory.mktemp("calibrate") / "my.jsonl"
    lines = []
    for i in range(60):
        reference = REFERENCE.format(1800 + i, "Robert Wilson", 20 + i)
        text = f"The lighthouse at Cape Farewell was built in {1800 + i + 500 * (i % 2)}."
        label = "contradictory" if i % 2 else "supported"
        if i < 30:
            lines.append({"reference": reference, "sentence": text, "label": label})
        else:
            sentences = [{"text": text, "gold": label}, {"text": "Not labelled."}, {"text": "Nor this.", "gold": None}]
            lines.append({"reference": reference, "answer": text, "sentences": sentences})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_calibrate_then_annotate(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "c.json"
    assert main(["calibrate", "--input", str(data), "--target-precision", "0.6", "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "60 factual and checked in 60 groups: 30 supported, 30 hallucinated" in printed
    plain = load_annotator("embedded")
    calibration = Calibration.load(out)
    assert calibration.annotator == plain.fingerprint
    assert calibration.report["data"][0]["file"] == "my.jsonl"
    unreachable = ["--target-precision", "0.999", "--output", str(tmp_path / "none.json")]
    assert main(["calibrate", "--input", str(data), *unreachable]) == 1
    assert "target precision 0.999 cannot be reached on these rows; the best is" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()
    annotator = load_annotator("embedded", calibration=out)
    assert annotator.fingerprint == calibration.fingerprint != plain.fingerprint
    row = {"reference": REFERENCE.format(1850, "R", 7), "sentence": "It was built in 1850."}
    (before,), (after,) = plain.predict([row]), annotator.predict([row])
    expected = calibration.apply(before)
    assert after.scores == pytest.approx(expected.scores)
    assert after.label == expected.label
    (tmp_path / "reference.txt").write_text(row["reference"])
    (tmp_path / "answer.txt").write_text(row["sentence"])
    one = ["--reference", f"{tmp_path}/reference.txt", "--answer", f"{tmp_path}/answer.txt", "--json"]
    assert main(["annotate", *one, "--calibration", str(out)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["annotator"]["fingerprint"] == calibration.fingerprint
    assert record["sentences"][0]["scores"] == pytest.approx(expected.scores)
    replace(calibration, annotator="another").save(out)
    assert main(["annotate", *one, "--calibration", str(out)]) == 2
    assert "got one for another; fit it again with `mitigate calibrate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target-precision", "1.5"], "--target-precision: expected a number between 0 and 1, got 1.5"),
        (["--confidence", "0.3"], "--confidence: expected a number between 0.5 and 1, got 0.3"),
        (["--input", "nowhere.jsonl"], "cannot read nowhere.jsonl: no such file; --input takes a file of JSON Lines"),
    ],
)
def test_wrong_options(
    data: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--input", str(data), "--output", str(tmp_path / "c.json"), *options]) == 2
    assert message in capsys.readouterr().err


def test_few_and_bad_rows(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = data.read_text().splitlines()[:4]
    bad = ['{"sentence": "x", "reference": "y", "label": "maybe"}',
           '{"reference": "y", "answer": "x", "sentences": [{"text": "x", "gold": "true"}]}']  # fmt: skip
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join([*good, *bad]))
    assert main(["calibrate", "--input", str(path), "--output", str(tmp_path / "c.json")]) == 2
    err = capsys.readouterr().err
    assert "got 4, 2 and 2" in err
    assert "few.jsonl:5: label: expected one of supported, contradictory, unverifiable, no_fact, unsupported" in err
    assert "sentences[0].gold: expected one of" in err
