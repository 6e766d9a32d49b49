"""The terminal report: exact text, and nothing from a record steers the terminal."""

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from annotators.records import LABELS
from mitigate.report.terminal import print_records, summary
from mitigate.report.totals import REASONS, Totals
from tests.helpers.report_cases import ANSWER, REFERENCE, annotated, record_of, sentence


def printed(*records: dict[str, Any], terminal: bool = False) -> str:
    out = io.StringIO()
    colours = "standard" if terminal else None
    console = Console(file=out, width=100, force_terminal=terminal, color_system=colours, highlight=False, markup=False)
    print_records(console, list(records))
    console.print(summary(Totals.of(records), 2, [("output", Path("out.jsonl"))]))
    return out.getvalue()


def folded(*records: dict[str, Any]) -> str:
    return " ".join(printed(*records).split())


def test_differing_words_of_the_evidence_are_bold() -> None:
    source, claim = "The tower  is, all in\nall, 330 metres high.", "The tower is 300 metres high."
    fragments = [{"start": 0, "end": len(source), "text": source}]
    record = {**record_of(""), "reference": source, "answer": claim}
    record["sentences"] = [sentence(claim, 0, len(claim), label="contradictory", fragments=fragments)]
    shown = printed(record, terminal=True)
    assert "“The tower is, all in all, \x1b[1m330\x1b[0m metres high.”" in shown


def test_unsure_sentences_show_their_probability() -> None:
    point = {"name": "p", "flag_at": 0.7, "support_at": 0.8, "expected_rate": 0.15}
    record = record_of("~s", operating_point=point)
    record["sentences"][0]["scores"] = dict(zip(LABELS, (0.6, 0.2, 0.2, 0.0), strict=True))
    text = folded(record)
    assert "~ not sure A. why: Not sure: no passage of the source was found" in text
    assert "speaks of it. (or supported 60 %)" in text
    assert "p: hallucinated from 70 %, supported from 80 %, where 15 % are expected to be hallucinated" in text
    assert "hallucination rate 0 of 1 decided sentences are flagged; most are undecided" in folded(record_of("~s~"))
    assert "coverage 50 % of the sentences that state something" in text
    # What was not checked says why.
    assert "hallucination rate not known" in folded(annotated("", "Who knows. Nobody."))
    assert set(REASONS) == {"no_reference", "language_unsupported", "too_long", "failed"}
    assert "The answer holds no sentence" in folded(record_of(""))


def test_colours_on_terminals_only_escapes_of_records_never() -> None:
    hostile = annotated("r", "\x1b]0;owned\x07 [bold red]markup[/] \x9b2J.", question="\x1b[2J?", id="\x1b[1m")
    assert "\x1b" not in printed(hostile)
    coloured = printed(hostile, terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)  # rich's own colour codes
    assert plain != coloured
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", plain)
    assert "[bold red]markup[/]" in coloured
    assert "\x1b[1;31m" in printed(annotated(REFERENCE, ANSWER), terminal=True)  # contradictory is bold red
