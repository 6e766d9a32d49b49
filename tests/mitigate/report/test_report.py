"""Totals and the terminal report: right figures, exact text, nothing from a record steers the terminal."""

import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mitigate.report.terminal import print_records, rate_line, summary
from mitigate.report.totals import KINDS, REASONS, merge, one_line, percent, printable
from tests.helpers.report_cases import ANSWER, REFERENCE, annotated, record_of, totals_of


def test_totals_count_what_was_judged_and_what_was_not():
    totals = totals_of([record_of("sscun-"), record_of("--"), record_of("s")])
    assert (totals.records, totals.sentences, totals.hallucinated, totals.factual) == (3, 9, 2, 5)
    assert [totals.kinds[kind] for kind in KINDS] == [3, 1, 1, 1, 3]
    assert totals.reasons == {"too_long": 3}
    assert totals.rate == 0.4  # (1 c + 1 u) / (3 s + 1 c + 1 u)


def test_nothing_judged_is_not_a_rate_of_zero():
    totals = totals_of([record_of("n-"), record_of("")])
    assert totals.rate is None
    assert totals.interval is None
    assert rate_line(totals) == "not known: no factual sentence was judged"


def test_the_interval_by_hand():
    # Records with (h, f) = (1, 2), (0, 2), (2, 2): F = 6, r = 3/6 = 0.5.
    # Residuals h - r f = 0, -1, 1: sum of squares 2; Var = 3/2 * 2 / 36 = 1/12; n_eff = 0.25 / (1/12) = 3,
    # which is the number of records. Wilson with n = 3, z² = 3.8415: centre (0.5 + 0.64024) / 2.28049 = 0.5,
    # half = 1.95996 * sqrt(0.25/3 + 3.8415/36) / 2.28049 = 0.374665
    low, high = totals_of([record_of("sc"), record_of("ss"), record_of("cc")]).interval or (0, 0)
    assert low == pytest.approx(0.125335, abs=1e-5)
    assert high == pytest.approx(0.874665, abs=1e-5)


def test_the_interval_never_claims_certainty_and_knows_that_sentences_of_a_record_go_together():
    # ten clean records of five sentences: n_eff is 10 records, not 50 sentences; Wilson's upper end is z²/(n + z²)
    low, high = totals_of([record_of("sssss")] * 10).interval or (1, 0)
    assert low == 0
    assert high == pytest.approx(1.959964**2 / (10 + 1.959964**2), abs=1e-9)
    alike = totals_of([record_of("ccccc"), record_of("sssss")] * 10).interval or (0, 0)
    mixed = totals_of([record_of("cscsc"), record_of("scscs")] * 10).interval or (0, 0)
    assert alike[1] - alike[0] > 2 * (mixed[1] - mixed[0])
    assert totals_of([record_of("sc")]).interval is None
    # shares that hardly differ between records (9 of 1/2, one of 1/3) do not count for more than 21 sentences:
    # Wilson for 10 of 21: centre (0.476190 + 0.091463) / 1.182927 = 0.479872,
    # half 1.959964 * sqrt(0.0118778 + 0.0021777) / 1.182927 = 0.196433
    even = totals_of([record_of("sc")] * 9 + [record_of("ssc")]).interval
    assert even == pytest.approx((0.283439, 0.676305), abs=2e-6)


@given(st.lists(st.text("scun-", max_size=6), max_size=8))
def test_the_interval_holds_the_rate(kinds):
    totals = totals_of(record_of(k) for k in kinds)
    if totals.interval is not None and totals.rate is not None:
        low, high = totals.interval
        assert 0 <= low <= totals.rate + 1e-12
        assert totals.rate - 1e-12 <= high <= 1
        assert not math.isnan(low + high)


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "not known"), (0.0, "0 %"), (1.0, "100 %"), (0.001, "<1 %"), (0.9999, ">99 %"), (0.312, "31 %")],
)
def test_percent_never_rounds_to_none_or_all(share, text):
    assert percent(share) == text


def test_merge_joins_overlapping_pairs():
    assert merge([(5, 8), (0, 2), (1, 3), (3, 4), (9, 9)]) == [(0, 4), (5, 8), (9, 9)]


def test_printable_leaves_no_character_that_steers_a_terminal():
    text = printable("a\x1b[31mb\x07\x9b\u202ec\ud800\rd\r\ne\tf中")
    assert text == "a[U+001B][31mb[U+0007][U+009B][U+202E]c[U+D800][U+000D]d\ne\tf中"


def test_one_line_is_one_line_and_short():
    assert one_line(" a \n\n b ", 10) == "a b"
    assert one_line("x" * 11, 10) == "x" * 9 + "…"
    assert one_line("x" * 10, 10) == "x" * 10
    assert one_line("a" + " " * 100 + "b", 10) == "a…"
    assert len(one_line("word " * 1_000_000, 50)) <= 50


def printed(records: list[dict[str, Any]], *, terminal: bool, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        highlight=False,
        markup=False,
    )
    print_records(console, records)
    console.print(summary(totals_of(records), 2, [("output", Path("out.jsonl"))]))
    return out.getvalue()


def test_the_terminal_report_shows_label_probability_evidence_and_correction():
    text = " ".join(printed([annotated(REFERENCE, ANSWER, id="tower", question="How high?")], terminal=False).split())
    assert "1 tower" in text
    assert "Question How high?" in text
    assert "✓ supported 100 % It stands in Paris. evidence “It stands in Paris.” (30–49 of 49)" in text
    assert (
        "✗ contradictory 100 % The tower is 300 metres high. "
        "evidence “The tower is 330 metres high.” (0–29 of 49) correction “300” → “330”"
    ) in text
    assert "? unverifiable 100 % It is grey." in text
    assert "○ no fact 100 % Thanks!" in text
    assert "hallucination rate 67 % of 3 judged factual sentences" in text
    assert "rejected lines 2" in text
    assert "output out.jsonl" in text


def test_what_was_not_checked_says_why():
    text = " ".join(printed([annotated("", "Who knows. Nobody.")], terminal=False).split())
    assert "– not checked Who knows. because there is no reference text to check it against" in text
    assert "no_reference 2 (there is no reference text to check it against)" in text
    assert "hallucination rate not known" in text
    assert set(REASONS) == {"no_reference", "language_unsupported", "too_long", "failed", "unsure"}


def test_colours_only_on_a_terminal_and_escape_sequences_of_records_never():
    hostile = annotated("r", "\x1b]0;owned\x07 [bold red]markup[/] \x9b2J.", question="\x1b[2J?", id="\x1b[1m")
    assert "\x1b" not in printed([hostile], terminal=False)
    coloured = printed([hostile], terminal=True)
    # only rich's own colour codes are left
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).isprintable() is False  # line feeds
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", re.sub(r"\x1b\[[0-9;]*m", "", coloured))
    assert "[bold red]markup[/]" in coloured
    assert "\x1b[1;31m" in printed([annotated(REFERENCE, ANSWER)], terminal=True)  # contradictory is bold red


def test_an_answer_without_sentences_says_so():
    assert "The answer holds no sentence" in printed([record_of("")], terminal=False)
