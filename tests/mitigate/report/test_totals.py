"""Totals, safe text and Markdown tables: right figures, and nothing that steers a terminal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mitigate.report.terminal import rate_line
from mitigate.report.totals import (
    KINDS,
    Totals,
    interval_text,
    likelihood,
    merge,
    one_line,
    percent,
    printable,
    rival_of,
    table,
    verdict,
)
from tests.helpers.report_cases import record_of


def test_totals_count_judged_and_unchecked_sentences() -> None:
    totals = Totals.of([record_of("sscun-"), record_of("--~~"), record_of("s")])
    assert (totals.records, totals.sentences, totals.hallucinated, totals.factual) == (3, 11, 2, 5)
    assert [totals.kinds[kind] for kind in KINDS] == [3, 1, 1, 1, 2, 3]
    assert totals.reasons == {"too_long": 3}
    assert totals.rate == 0.4  # (1 c + 1 u) / (3 s + 1 c + 1 u)
    assert totals.coverage == 0.5  # 5 of 11 less 1 n
    assert verdict(totals) == (
        "1 sentence contradicts the source, 1 is not in it, 3 are supported, 2 are too close to call, "
        "3 were not checked."
    )
    assert verdict(Totals.of([record_of("uun")])) == "2 sentences are not in the source."
    assert verdict(Totals.of([record_of("")])) == "It has no sentence to judge: it is empty, or thinking alone."
    assert verdict(Totals.of([record_of("n")])) == "Nothing in it states a fact that could be checked."
    assert [Totals.of([record_of(kinds)]).undecided for kinds in ("s~", "s~-", "n~")] == [False, True, True]
    # Nothing judged is not a rate of zero.
    totals = Totals.of([record_of("n-"), record_of("")])
    assert (totals.rate, totals.interval, interval_text(totals)) == (None, None, "")
    assert rate_line(totals) == "not known: no factual sentence was judged"
    lost = {"label": None, "status": "failed"}
    one = {"annotator": {}, "sentences": [{"label": "supported", "status": "checked"}, lost]}
    totals.add(one)  # 1 of 4 sentences failed
    assert totals.rate == 0
    totals.add({**one, "sentences": [lost] * 3})  # 4 of 7
    assert (totals.rate, totals.interval) == (None, None)
    assert rate_line(totals) == "not known: the judgement of 57 % of the sentences failed"


def test_rival_is_the_likeliest_other_label() -> None:
    scores = {"supported": 0.2, "contradictory": 0.5, "unverifiable": 0.3}
    assert rival_of({"label": "contradictory", "scores": scores}) == "unverifiable 30 %"
    assert rival_of({"label": "contradictory", "scores": {"contradictory": 1.0}}) == ""
    assert rival_of({"label": "contradictory", "scores": None}) == ""


def test_likelihood_in_words() -> None:
    def told(supported: float, no_fact: float, label: str | None = None) -> str:
        scores = {"supported": supported, "no_fact": no_fact}
        return likelihood({"status": "checked" if label else "unsure", "label": label, "scores": scores})

    assert told(0.45, 0.1) == "perhaps supported (50 %)"
    assert told(0.88, 0.12) == "almost certainly supported (100 %)"
    assert told(0.02, 0.0) == "almost certainly not supported (98 %)"
    assert told(0.3, 0.0) == "probably not supported (70 %)"
    assert told(0.48, 0.0, "contradictory") == "perhaps not supported (52 %)"  # the number is that of its words
    assert told(0.25, 0.0, "unverifiable") == "probably not supported (75 %)"
    assert told(0.7, 0.0, "contradictory") == "possibly not supported (30 %)"  # flagged at a low threshold
    assert told(0.55, 0.0, "supported") == "perhaps supported (55 %)"
    assert likelihood({"status": "checked", "label": "supported", "scores": None}) == ""


def test_interval_by_hand() -> None:
    # Records with (h, f) = (1, 2), (0, 2), (2, 2): F = 6, r = 3/6 = 0.5.
    # Residuals h - r f = 0, -1, 1: sum of squares 2; Var = 3/2 * 2 / 36 = 1/12; n_eff = 0.25 / (1/12) = 3,
    # which is the number of records. Wilson with n = 3, z² = 3.8415: centre (0.5 + 0.64024) / 2.28049 = 0.5,
    # half = 1.95996 * sqrt(0.25/3 + 3.8415/36) / 2.28049 = 0.374665
    totals = Totals.of([record_of("sc"), record_of("ss"), record_of("cc")])
    assert totals.interval == pytest.approx((0.125335, 0.874665), abs=1e-5)
    assert interval_text(totals) == "95 % interval over records: 13 % to 87 %"
    # ten clean records of five sentences: n_eff is 10 records, not 50 sentences; Wilson's upper end is z²/(n + z²)
    assert Totals.of([record_of("sssss")] * 10).interval == pytest.approx((0, 1.959964**2 / (10 + 1.959964**2)))
    alike = Totals.of([record_of("ccccc"), record_of("sssss")] * 10).interval or (0, 0)
    mixed = Totals.of([record_of("cscsc"), record_of("scscs")] * 10).interval or (0, 0)
    assert alike[1] - alike[0] > 2 * (mixed[1] - mixed[0])
    assert Totals.of([record_of("sc")]).interval is None
    # shares that hardly differ between records (9 of 1/2, one of 1/3) do not count for more than 21 sentences:
    # Wilson for 10 of 21: centre (0.476190 + 0.091463) / 1.182927 = 0.479872,
    # half 1.959964 * sqrt(0.0118778 + 0.0021777) / 1.182927 = 0.196433
    even = Totals.of([record_of("sc")] * 9 + [record_of("ssc")]).interval
    assert even == pytest.approx((0.283439, 0.676305), abs=2e-6)


@given(st.lists(st.text("scun-", max_size=6), max_size=8))
def test_interval_holds_the_rate(kinds: list[str]) -> None:
    totals = Totals.of(record_of(k) for k in kinds)
    if totals.interval is not None and totals.rate is not None:
        low, high = totals.interval
        assert 0 <= low <= totals.rate + 1e-12
        assert totals.rate - 1e-12 <= high <= 1
        assert not math.isnan(low + high)


def test_texts_by_hand() -> None:
    shares = {None: "not known", 0.0: "0 %", 1.0: "100 %", 0.001: "<1 %", 0.9999: ">99 %", 0.312: "31 %"}
    assert {share: percent(share) for share in shares} == shares
    text = printable("a\x1b[31mb\x07\x9b\u202ec\ud800\rd\r\ne\tf中")
    assert text == "a[U+001B][31mb[U+0007][U+009B][U+202E]c[U+D800][U+000D]d\ne\tf中"
    assert merge([(5, 8), (0, 2), (1, 3), (3, 4), (9, 9)]) == [(0, 4), (5, 8), (9, 9)]
    lines = {" a \n\n b ": "a b", "x" * 11: "x" * 9 + "…", "x" * 10: "x" * 10, "a" + " " * 100 + "b": "a…"}
    assert {text: one_line(text, 10) for text in lines} == lines
    assert table(["a", "b"], [[1234, "x | <b>\n[y](z) `c`"]]) == [
        "| a | b |", "|---|---|", "| 1,234 | x &#124; &lt;b&gt; &#91;y](z) &#96;c&#96; |",
    ]  # fmt: skip
