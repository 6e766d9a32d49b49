"""Operating points: sigmoid, prior, thresholds and verdicts by hand, the table, the file, the commands end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from annotators import LABELS, load_annotator
from annotators import operating as op
from annotators.records import Edit, Fragment, SentenceAnnotation, Span
from mitigate.cli.main import main
from tests.helpers.jsonl import write_rows
from tests.helpers.standin import ExactAnnotator

REFERENCE = "The lighthouse at Cape Farewell was built in {} by {} and stands {} metres high."
POINT = op.OperatingPoint("p", 0.7, 0.8, 0.5, 0.5)


def test_fit_by_hand() -> None:
    # Two shares, 0.2 and 0.8, thirty rows each; 9 of 30 and 21 of 30 supported. Platt's targets are t₊ = 31/32 and
    # t₋ = 1/32, so the fitted probabilities are (9·31/32 + 21·1/32) / 30 = 300/960 = 0.3125 and 0.6875.
    share = np.repeat([0.2, 0.8], 30)
    y = np.array([i < 9 for i in range(30)] + [i < 21 for i in range(30)])
    slope, intercept = op.fit_sigmoid(share, y)
    assert intercept == pytest.approx(0.0, abs=1e-8)
    assert slope == pytest.approx(math.log(0.6875 / 0.3125) / math.log(4))
    share, y = np.repeat([0.2, 0.8], 30), np.repeat([False, True], 30)
    assert op.sigmoid(np.array([0.2, 0.8]), *op.fit_sigmoid(share, y)) == pytest.approx([1 / 32, 31 / 32])  # finite
    for against in (share, np.full(60, 0.5)):  # scores that run against the labels, and scores that say nothing
        with pytest.raises(ValueError, match="a higher score does not mean supported"):
            op.fit_sigmoid(against, ~y)


def test_weights_count_as_repeated_rows() -> None:
    share, y = np.array([0.2, 0.4, 0.7, 0.9]), np.array([False, True, False, True])
    w = np.array([2.0, 1.0, 1.0, 3.0])  # of 7 rows; scaled to mean 1, Platt's targets stay those of 4 rows
    again = np.repeat(np.arange(4), w.astype(int))
    plain = op.fit_sigmoid(share[again], y[again])
    assert op.fit_sigmoid(share, y, w) == pytest.approx(plain)
    # a 3, b 1 row: 4 / (2 · 3) each of a's, 4 / (2 · 1) of b's
    assert op.equal_weights(["a", "b", "a", "a"]) == pytest.approx([2 / 3, 2, 2 / 3, 2 / 3])


def test_prior_correction_by_hand() -> None:
    # From one hallucinated in two to one in five: the odds of supported grow by (0.8 / 0.2) / (0.5 / 0.5) = 4.
    p = op.corrected(np.array([0.0, 0.5, 0.8, 1.0]), 0.5, 0.2)
    assert p == pytest.approx([0, 4 / 5, 16 / 17, 1])
    assert op.corrected(p, 0.2, 0.5) == pytest.approx([0, 0.5, 0.8, 1])
    # Flagged below support 0.3 and supported from 0.8 at even odds: odds 3/7 · 4 = 12/7 and 4 · 4.
    moved = POINT.at(0.2)
    assert (moved.flag_at, moved.support_at, moved.expected_rate) == pytest.approx((7 / 19, 16 / 17, 0.2))
    support = np.linspace(0.01, 0.99, 50)  # verdicts stay where they are
    assert (moved.verdicts(op.corrected(support, 0.5, 0.2)) == POINT.verdicts(support)).all()
    with pytest.raises(ValueError, match="expected_rate: expected a rate of hallucination between 0 and 1, got 1"):
        POINT.at(1)


def test_thresholds_by_hand() -> None:
    # Log-odds of eight rows: ✓ at −2, −1, 2, 3 and ✗ at −3, 0, 1, 2. Of four ✓ one may be flagged, that at −2: the cut
    # is half-way to −1. Of four ✗ one may pass, that at 2: the cut is half-way to 1. Between them three are unsure.
    z = np.array([-2.0, -1, 2, 3, -3, 0, 1, 2])
    y, w, support = np.arange(8) < 4, np.ones(8), 1 / (1 + np.exp(-z))
    flag, passed = op.thresholds(support, y, w, 0.25, 0.25)
    assert (1 - flag, passed) == pytest.approx((1 / (1 + math.exp(1.5)), 1 / (1 + math.exp(-1.5))))
    assert op.OperatingPoint("p", flag, passed).verdicts(support).tolist() == [1, -1, 0, 0, 1, -1, -1, 0]
    # The ✓ at −2 weighs as much as the three others: with it, half of the ✓ would be flagged. Only −3 is.
    heavy = op.thresholds(support, y, np.where(z == -2, 3.0, 1.0), 0.25, 0.25)
    assert 1 - heavy[0] == pytest.approx(1 / (1 + math.exp(2.5)))
    # No row may be flagged wrongly and none passed: nothing but −3, and nothing but 3.
    assert op.thresholds(support, y, w, 0.0, 0.0) == pytest.approx(
        (1 - 1 / (1 + math.exp(2.5)), 1 / (1 + math.exp(-2.5)))
    )
    # They may cross: none is unsure then.
    # Two of four ✓ (1 and 2) may be flagged: cut 2.5; two of four ✗ (−1 and −2) may pass: cut −2.5. The middle is 0.
    z = np.array([1.0, 2, 3, 4, -1, -2, -3, -4])
    flag, passed = op.thresholds(1 / (1 + np.exp(-z)), z > 0, np.ones(8), 0.5, 0.5)
    assert (flag, passed) == pytest.approx((0.5, 0.5))
    assert op.UNSURE not in op.OperatingPoint("p", flag, passed).verdicts(np.linspace(0, 1, 101))


def test_one_threshold_never_stands_on_a_score() -> None:
    """Shares of 0.2, 0.5 and 0.8, of rows of both kinds: both cuts would be 0.5. No rate moves verdicts."""
    levels = {0.2: (1, 30), 0.5: (1, 6), 0.8: (21, 4)}
    share = np.array([s for s, n in levels.items() for _ in range(sum(n))])
    true = np.array([k < n[0] for n in levels.values() for k in range(sum(n))])
    slope, intercept = op.fit_sigmoid(share, true)
    support = 1 / (1 + np.exp(-(slope * np.log(share / (1 - share)) + intercept)))
    cuts, rate = op.thresholds(support, true, np.ones(len(share)), 0.3, 0.3), float((~true).mean())
    one = op.Calibration("x", slope, intercept, op.OperatingPoint("x", *cuts, rate, rate))
    moved = [replace(one, point=one.point.at(r)) for r in (rate, 0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9)]
    found = {tuple(c.point.verdicts(c.support(np.array(list(levels)))).tolist()) for c in moved}
    assert len(found) == 1
    assert op.UNSURE not in found.pop()


def test_judging_by_hand() -> None:
    # Shares stay. Row 0 has 0.25 of 0.8: flagged, since 0.75 ≥ 0.7; row 1 (0.4) neither, row 2 (0.9) supported.
    p = np.array([[0.2, 0.2, 0.4, 0.2], [0.4, 0.6, 0.0, 0.0], [0.9, 0.1, 0.0, 0.0], [0.1, 0.1, 0.1, 0.7]])
    out, labels = op.Calibration("f", 1.0, 0.0, POINT).judge(p, np.array([0, 1, 1, 3]))
    assert labels.tolist() == [2, op.UNSURE, 0, 3]
    assert out == pytest.approx(p)
    # intercept ln 3 on row 1: odds 2/3 · 3 = 2; expected rate 0.2 besides: odds 2 · 4 = 8
    out, labels = op.Calibration("f", 1.0, math.log(3), POINT).judge(p, np.array([0, 1, 1, 3]))
    assert out[1] == pytest.approx([2 / 3, 1 / 3, 0, 0])
    again, same = op.Calibration("f", 1.0, math.log(3), POINT.at(0.2)).judge(p, np.array([0, 1, 1, 3]))
    assert again[1] == pytest.approx([8 / 9, 1 / 9, 0, 0])
    assert same.tolist() == labels.tolist()


def test_sentences_keep_what_their_verdict_needs() -> None:
    def sentence(supported: float) -> SentenceAnnotation:
        scores = dict(zip(LABELS, (supported, 1 - supported, 0.0, 0.0), strict=True))
        found = (Fragment("b", 0, 1),), (Edit("a", "b", 3, 4),), (Span(3, 4),)
        return SentenceAnnotation("a", 3, 4, "checked", "supported", scores, *found)

    unchecked = SentenceAnnotation("a", 3, 4, "too_long")
    unscored = SentenceAnnotation("a", 3, 4, "checked", "supported")
    given = [sentence(0.1), unchecked, sentence(0.5), unscored, sentence(0.9)]
    flagged, same, unsure, plain, supported = op.Calibration("f", 1.0, 0.0, POINT).apply(given)
    assert (flagged.label, flagged.spans, flagged.correction) == ("contradictory", (Span(3, 4),), given[0].correction)
    assert (same, plain) == (unchecked, unscored)
    assert (unsure.status, unsure.label, unsure.spans, unsure.correction) == ("unsure", None, None, ())
    assert unsure.scores == pytest.approx(given[2].scores)
    assert unsure.fragments == supported.fragments == given[0].fragments
    assert (supported.status, supported.label, supported.spans) == ("checked", "supported", None)


def half_sure(fingerprint: str = "own") -> ExactAnnotator:
    made = ExactAnnotator()
    made.fingerprint, made.sure = fingerprint, 0.5
    return made


def test_any_annotator_with_scores_takes_one(tmp_path: Path) -> None:
    text, calibration = "It was built.", op.Calibration("own", 1.0, 0.0, POINT)
    asked = {"reference": text, "answer": text}
    annotator = half_sure().calibrated(calibration)
    record = annotator.annotate(**asked).to_dict()
    assert (record["coverage"], record["hallucination_rate"]) == (0.0, None)
    expected = {"name": "p", "flag_at": 0.7, "support_at": 0.8, "expected_rate": 0.5}
    assert record["operating_point"] == expected
    assert record["annotator"]["fingerprint"] == annotator.fingerprint == calibration.fingerprint
    assert annotator.predict([{"reference": text, "sentence": text}])[0].status == "unsure"
    assert annotator.annotate_spans(asked, [(0, 13)])[0].status == "unsure"
    # The folder of the weights keeps it, whatever their precision makes of the fingerprint, and forgets it.
    annotator.save_calibration(tmp_path)
    other = half_sure("half")
    assert other.calibrated_by(tmp_path).calibration == replace(calibration, annotator="half")
    assert other.calibrated(None).fingerprint == "half"
    other.save_calibration(tmp_path)
    assert other.calibrated_by(tmp_path).annotate(**asked).to_dict()["operating_point"] is None


def test_table_by_hand() -> None:
    # ✓: flagged, unsure, supported (weight 2); ✗: flagged twice, passed, no fact. 1/4 of ✓ and 2/4 of ✗ are flagged.
    verdicts = np.array([1, op.UNSURE, 0, 2, 1, 0, 3, 1])
    gold = ["supported"] * 3 + ["unsupported", "contradictory", "unverifiable", "contradictory", "no_fact"]
    weights = np.array([1, 1, 2, 1, 1, 1, 1, 9.0])
    table = op.operating_table(verdicts, gold, weights, list(range(8)))
    value = {name: row["value"] for name, row in table.items()}
    # at a rate of 0.15: 0.15 · 0.5 / (0.15 · 0.5 + 0.85 · 0.25) = 0.075 / 0.2875
    assert value == pytest.approx({
        "true_flagged": 1 / 4, "true_supported": 2 / 4, "false_flagged": 2 / 4, "false_supported": 1 / 4,
        "unsure": 1 / 8, "precision_at_0.05": 0.025 / 0.2625, "precision_at_0.15": 0.075 / 0.2875,
        "precision_at_0.3": 0.15 / 0.325,
    })  # fmt: skip
    low, high = table["true_flagged"]["interval"]
    assert low < 1 / 4 < high
    assert op.precision_at(0.15, 0.0, 0.0) is None


def rows(n: int, noise: float = 0.0) -> tuple[list[dict[str, float]], list[str], list[str]]:
    rng = np.random.default_rng(0)
    seen = (np.arange(n) % 2 == 0) ^ (rng.random(n) < noise)
    share = np.where(seen, 0.97, 0.13) - 0.1 * rng.random(n)
    scores = [dict(zip(LABELS, (p, 1 - p, 0.0, 0.0), strict=True)) for p in share.tolist()]
    return scores, ["supported", "unsupported"] * (n // 2), [f"g{i}" for i in range(n)]


def test_figures_of_a_group_come_from_the_others() -> None:
    """Five groups are five folds; the last one's scores are lower, which only a fit without it does not know."""
    scores, gold, _ = rows(200, noise=0.2)
    groups = [f"g{i // 40}" for i in range(200)]
    share = [row["supported"] * (0.02 if group == "g4" else 1) for row, group in zip(scores, groups, strict=True)]
    scores = [dict(zip(LABELS, (p, 1 - p, 0.0, 0.0), strict=True)) for p in share]
    labels = ["supported"] * 200
    table = op.fit_calibration(scores, labels, gold, groups, annotator="f").report["table"]
    flagged = np.zeros(200, dtype=bool)
    for group in set(groups):
        others = [i for i in range(200) if groups[i] != group]
        some = [[values[i] for i in others] for values in (scores, labels, gold, groups)]
        found = op.fit_calibration(*some, annotator="f")
        verdicts = found.point.verdicts(found.support(op.supported_score(scores)))
        own = np.array(groups) == group
        flagged[own] = (verdicts == op.CONTRADICTORY)[own]
    true = np.array(gold) == "supported"
    assert table["true_flagged"]["value"] == pytest.approx(flagged[true].mean())
    assert table["false_flagged"]["value"] == pytest.approx(flagged[~true].mean())
    assert flagged[true].mean() > 0.15  # fitted on all rows it would be 0.1


def test_fit_holds_its_limits() -> None:
    scores, gold, groups = rows(400, noise=0.2)
    labels = ["supported" if s["supported"] > 0.5 else "contradictory" for s in scores]
    calibration = op.fit_calibration(scores, labels, gold, groups, annotator="f")
    report, point = calibration.report, calibration.point
    assert report["ece_before"] > 0.05 > report["ece_after"]
    assert (report["n_supported"], report["n_hallucinated"]) == (200, 200)
    assert (point.expected_rate, point.fitted_rate) == (0.15, 0.5)
    verdicts = point.verdicts(calibration.support(op.supported_score(scores)))
    true = np.array(gold) == "supported"
    assert 0.05 < (verdicts[true] == op.CONTRADICTORY).mean() <= 0.1
    assert 0.05 < (verdicts[~true] == op.SUPPORTED).mean() <= 0.1
    assert report["table"]["true_flagged"]["value"] == pytest.approx(0.1, abs=0.04)  # on rows not fitted on
    # Noise of a fifth is more than two tenths: some are unsure. With a limit of a fifth and a bit, none is.
    assert report["table"]["unsure"]["value"] > 0.1
    wide = op.fit_calibration(scores, labels, gold, groups, annotator="f", false_flags=0.3, false_passes=0.3)
    assert wide.report["table"]["unsure"]["value"] == 0
    with pytest.raises(ValueError, match=r"at least 50 labelled factual rows.*got 49, 25 and 24"):
        op.fit_calibration(scores[:49], labels[:49], gold[:49], groups[:49], annotator="f")
    scores, gold, groups = rows(100)
    silent = ["no_fact"] * 50 + ["supported" if s["supported"] > 0.5 else "contradictory" for s in scores[50:]]
    table = op.fit_calibration(scores, silent, gold, groups, annotator="f").report["table"]
    assert table["false_flagged"]["value"] == table["true_supported"]["value"] == 0.5  # no verdict where no fact
    with pytest.raises(ValueError, match=r"gives a verdict, got 0 and 0; it calls 100 of 100 no_fact"):
        op.fit_calibration(scores, ["no_fact"] * 100, gold, groups, annotator="f")


def test_file(tmp_path: Path) -> None:
    calibration = op.Calibration("f", 0.7, -0.1, POINT, {"n": 60})
    calibration.save(tmp_path / "c.json")
    assert op.Calibration.load(tmp_path / "c.json") == calibration
    assert replace(calibration, point=POINT.at(0.2)).fingerprint != calibration.fingerprint
    assert replace(calibration, report={}).fingerprint == calibration.fingerprint
    row = json.loads((tmp_path / "c.json").read_text())
    changes: list[dict[str, Any]] = [
        {"version": 1}, {"slope": -1}, {"slope": True}, {"report": None}, {"more": 1}, {"point": 3},
        *({"point": {**row["point"], k: v}} for k, v in (("flag_at", 0.1), ("support_at", 1.0), ("name", 2), ("x", 1))),
    ]  # fmt: skip
    wrong = [{**row, **change} for change in (*changes, {"kind": "x"})]
    wrong += [{k: v for k, v in row.items() if k != missing} for missing in ("kind", "version", "slope")]
    for bad in ("[]", "{", *map(json.dumps, wrong)):
        (tmp_path / "bad.json").write_text(bad)
        with pytest.raises(ValueError, match=r"bad\.json: expected .*fit it again"):
            op.Calibration.load(tmp_path / "bad.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines: list[dict[str, Any]] = []
    for i in range(60):
        reference = REFERENCE.format(1800 + i, "Robert Wilson", 20 + i)
        text = f"The lighthouse at Cape Farewell was built in {1800 + i + 500 * (i % 2)}."
        label = "contradictory" if i % 2 else "supported"
        if i < 30:
            lines.append({"reference": reference, "sentence": text, "label": label})
        else:
            sentences = [{"text": text, "gold": label}, {"text": "Not labelled."}, {"text": "Nor this.", "gold": None}]
            lines.append({"reference": reference, "answer": text, "sentences": sentences})
    return write_rows(tmp_path_factory.mktemp("calibrate") / "my.jsonl", lines)


def test_calibrate_then_annotate(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "c.json"
    assert main(["calibrate", "--input", str(data), "--expected-rate", "0.2", "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "60 factual and checked in 60 groups: 30 supported, 30 hallucinated" in printed
    assert "where 20 % are expected to be hallucinated" in printed
    plain = load_annotator("embedded").calibrated(None)
    calibration = op.Calibration.load(out)
    assert (calibration.annotator, calibration.report["data"][0]["file"]) == (plain.fingerprint, "my.jsonl")
    assert (calibration.point.name, calibration.point.expected_rate) == ("c", 0.2)
    annotator = load_annotator("embedded", calibration=out)
    assert annotator.fingerprint == calibration.fingerprint != plain.fingerprint
    row = {"reference": REFERENCE.format(1850, "R", 7), "sentence": "It was built in 1850."}
    (before,), (after,) = plain.predict([row]), annotator.predict([row])
    (expected,) = calibration.apply([before])
    assert after.scores == pytest.approx(expected.scores)
    assert after.label == expected.label
    (tmp_path / "reference.txt").write_text(row["reference"])
    (tmp_path / "answer.txt").write_text(row["sentence"])
    one = ["--reference", f"{tmp_path}/reference.txt", "--answer", f"{tmp_path}/answer.txt", "--json"]
    assert main(["annotate", *one, "--calibration", str(out)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["annotator"]["fingerprint"] == calibration.fingerprint
    assert record["sentences"][0]["scores"] == pytest.approx(expected.scores)
    assert main(["annotate", *one, "--calibration", str(out), "--expected-rate", "0.5"]) == 0
    assert json.loads(capsys.readouterr().out)["operating_point"] == calibration.point.at(0.5).to_dict()
    replace(calibration, annotator="another").save(out)
    assert main(["annotate", *one, "--calibration", str(out)]) == 2
    assert "got one for another; fit it again with `mitigate calibrate" in capsys.readouterr().err


def test_few_and_bad_rows(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = data.read_text().splitlines()[:4]
    bad = ['{"sentence": "x", "reference": "y", "label": "maybe"}',
           '{"reference": "y", "answer": "x", "sentences": [{"text": "x", "gold": "true"}]}']  # fmt: skip
    asked = ["calibrate", "--input", str(data), "--output", str(tmp_path / "c.json"), "--annotator"]
    for name in ("generative:openai:m@http://127.0.0.1:1/v1", "cascade:embedded+embedded"):  # neither is loaded
        assert main([*asked, name]) == 2
        assert f"got {name}" in capsys.readouterr().err
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join([*good, *bad]))
    assert main(["calibrate", "--input", str(path), "--output", str(tmp_path / "c.json")]) == 2
    err = capsys.readouterr().err
    assert "got 4, 2 and 2" in err
    assert "few.jsonl:5: label: expected one of supported, contradictory, unverifiable, no_fact, unsupported" in err
    assert "sentences[0].gold: expected one of" in err
