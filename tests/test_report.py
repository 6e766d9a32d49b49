"""Totals, the terminal report and the page: right figures, exact text, nothing from a record becomes markup."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mitigate import report_html
from mitigate.report import KINDS, REASONS, Totals, merge, one_line, percent, printable
from mitigate.report_html import marked, write_page
from mitigate.report_terminal import print_records, rate_line, summary
from tests.standin import ExactAnnotator

LETTERS = {"s": "supported", "c": "contradictory", "u": "unverifiable", "n": "no_fact"}


def record_of(kinds: str, **extra: Any) -> dict[str, Any]:
    """A record with one sentence "A." per letter: s, c, u, n as labels, - for not checked."""
    sentences = [
        {
            "text": "A.",
            "start": 3 * i,
            "end": 3 * i + 2,
            "status": "checked" if kind in LETTERS else "too_long",
            "label": LETTERS.get(kind),
            "scores": None,
            "fragments": [],
            "correction": [],
        }
        for i, kind in enumerate(kinds)
    ]
    answer = " ".join("A." for _ in kinds)
    annotator = {"name": "exact", "fingerprint": "exact-1"}
    return {"reference": "r", "answer": answer, **extra, "sentences": sentences, "annotator": annotator}


def annotated(reference: str, answer: str, **extra: Any) -> dict[str, Any]:
    record = {"reference": reference, "answer": answer, **extra}
    return ExactAnnotator().annotate_batch([record])[0].to_dict()


def totals_of(records: Iterable[dict[str, Any]]) -> Totals:
    totals = Totals()
    for record in records:
        totals.add(record)
    return totals


# --- figures --------------------------------------------------------------------------------------------


def test_totals_count_what_was_judged_and_what_was_not() -> None:
    totals = totals_of([record_of("sscun-"), record_of("--"), record_of("s")])
    assert (totals.records, totals.sentences, totals.hallucinated, totals.factual) == (3, 9, 2, 5)
    assert [totals.kinds[kind] for kind in KINDS] == [3, 1, 1, 1, 3]
    assert totals.reasons == {"too_long": 3}
    assert totals.rate == 0.4  # (1 c + 1 u) / (3 s + 1 c + 1 u)


def test_nothing_judged_is_not_a_rate_of_zero() -> None:
    totals = totals_of([record_of("n-"), record_of("")])
    assert totals.rate is None
    assert totals.interval is None
    assert rate_line(totals) == "not known: no factual sentence was judged"


def test_the_interval_by_hand() -> None:
    # Records with (h, f) = (1, 2), (0, 2), (2, 2): F = 6, r = 3/6 = 0.5.
    # Residuals h - r f = 0, -1, 1: sum of squares 2; Var = 3/2 * 2 / 36 = 1/12; n_eff = 0.25 / (1/12) = 3,
    # which is the number of records. Wilson with n = 3, z² = 3.8415: centre (0.5 + 0.64024) / 2.28049 = 0.5,
    # half = 1.95996 * sqrt(0.25/3 + 3.8415/36) / 2.28049 = 0.374665
    low, high = totals_of([record_of("sc"), record_of("ss"), record_of("cc")]).interval or (0, 0)
    assert low == pytest.approx(0.125335, abs=1e-5)
    assert high == pytest.approx(0.874665, abs=1e-5)


def test_the_interval_never_claims_certainty_and_knows_that_sentences_of_a_record_go_together() -> None:
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
def test_the_interval_holds_the_rate(kinds: list[str]) -> None:
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
def test_percent_never_rounds_to_none_or_all(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_merge_joins_overlapping_pairs() -> None:
    assert merge([(5, 8), (0, 2), (1, 3), (3, 4), (9, 9)]) == [(0, 4), (5, 8), (9, 9)]


# --- text -----------------------------------------------------------------------------------------------


def test_printable_leaves_no_character_that_steers_a_terminal() -> None:
    text = printable("a\x1b[31mb\x07\x9b\u202ec\ud800\rd\r\ne\tf中")
    assert text == "a[U+001B][31mb[U+0007][U+009B][U+202E]c[U+D800][U+000D]d\ne\tf中"


def test_one_line_is_one_line_and_short() -> None:
    assert one_line(" a \n\n b ", 10) == "a b"
    assert one_line("x" * 11, 10) == "x" * 9 + "…"
    assert one_line("x" * 10, 10) == "x" * 10
    assert one_line("a" + " " * 100 + "b", 10) == "a…"
    assert len(one_line("word " * 1_000_000, 50)) <= 50


# --- terminal -------------------------------------------------------------------------------------------

REFERENCE = "The tower is 330 metres high. It stands in Paris."
ANSWER = "It stands in Paris. The tower is 300 metres high. It is grey. Thanks!"


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


def test_the_terminal_report_shows_label_probability_evidence_and_correction() -> None:
    text = " ".join(
        printed([annotated(REFERENCE, ANSWER, id="tower", question="How high?")], terminal=False).split()
    )
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


def test_what_was_not_checked_says_why() -> None:
    text = " ".join(printed([annotated("", "Who knows. Nobody.")], terminal=False).split())
    assert "– not checked Who knows. because there is no reference text to check it against" in text
    assert "no_reference 2 (there is no reference text to check it against)" in text
    assert "hallucination rate not known" in text
    assert set(REASONS) == {"no_reference", "language_unsupported", "too_long", "failed", "unsure"}


def test_colours_only_on_a_terminal_and_escape_sequences_of_records_never() -> None:
    hostile = annotated(
        "r", "\x1b]0;owned\x07 [bold red]markup[/] \x9b2J.", question="\x1b[2J?", id="\x1b[1m"
    )
    assert "\x1b" not in printed([hostile], terminal=False)
    coloured = printed([hostile], terminal=True)
    # only rich's own colour codes are left
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).isprintable() is False  # line feeds
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", re.sub(r"\x1b\[[0-9;]*m", "", coloured))
    assert "[bold red]markup[/]" in coloured
    assert "\x1b[1;31m" in printed([annotated(REFERENCE, ANSWER)], terminal=True)  # contradictory is bold red


def test_an_answer_without_sentences_says_so() -> None:
    assert "The answer holds no sentence" in printed([record_of("")], terminal=False)


# --- page -----------------------------------------------------------------------------------------------

VOID = {"meta", "br", "rect"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in order; text is kept per element with a class or name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        if tag in VOID:
            self.elements.append((tag, dict(attrs), ""))
        else:
            self.stack.append((tag, dict(attrs), []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        name, attrs, text = self.stack.pop()
        assert name == tag
        self.elements.append((tag, attrs, "".join(text)))

    def handle_data(self, data: str) -> None:
        for _, _, text in self.stack:
            text.append(data)

    def texts(self, class_: str, tag: str | None = None) -> list[str]:
        return [
            text
            for name, attrs, text in self.elements
            if class_ in (attrs.get("class") or "").split() and tag in (None, name)
        ]


def page_of(tmp_path: Path, records: list[dict[str, Any]], rejected: int = 0) -> tuple[Page, str]:
    path = tmp_path / "page.html"
    write_page(path, lambda: records, totals_of(records), rejected=rejected, full_output="out.jsonl")
    text = path.read_bytes().decode("utf-8")
    return Page(text), text


HOSTILE = [
    "<script>alert(1)</script><style>*{display:none}</style></style></title><!-- --> ]]> &lt; &amp;lt; &#60;",
    "</a></div></details></article></main></body></html><h1>x",
    '" onmouseover="alert(1)" \' x=\'',
    "javascript:alert(1) <img src=x onerror=alert(1)> <base href=//evil> <meta http-equiv=refresh content=0>",
    "<Hallucination> None <No Fact> <参考> \u202egnp.exe\u202c \u2066x \u200f",
    "tab\there\r\nnext\rreturn\n\n  spaces   kept \x0b\x0c\x01\x7f\x85\x9f\ufeff\u2028",
    "\n\nleading and trailing\n",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_record_is_text_of_the_page_exactly(tmp_path: Path, text: str) -> None:
    record = annotated(text + " It is 5.", text + " It is 4. " + text, question=text + "?", id=text)
    page, raw = page_of(tmp_path, [record])
    assert page.texts("answer") == [record["answer"]]
    assert page.texts("question") == [record["question"]]
    assert page.texts("text", "div")[-1] == record["reference"]
    assert page.texts("s") == [s["text"] for s in record["sentences"]]
    assert page.texts("text", "span") == [s["text"] for s in record["sentences"]]
    fragments = [f["text"] for s in record["sentences"] for f in s["fragments"]]
    assert page.texts("text", "div")[:-1] == fragments
    tags = {tag for tag, _, _ in page.elements}
    assert tags <= set(
        "html head meta title style body header h1 p b code div span small svg rect ul li main article h2 a h3 "
        "details summary blockquote footer mark del ins br bdi".split()
    )
    assert not [
        name for _, attrs, _ in page.elements for name in attrs if name.startswith("on") or name == "style"
    ]
    assert {attrs["href"] for _, attrs, _ in page.elements if "href" in attrs} <= {
        f"#r1s{i}" for i in range(1, 30)
    }
    assert "<script" not in raw
    assert "\r" not in raw  # a browser would read it as a line feed


def test_what_html_cannot_hold_is_shown_as_hidden() -> None:
    page = Page(f"<p class='x'>{marked(chr(0) + 'a' + chr(0xD800), [])}</p>")
    assert page.texts("x") == ["\ufffda\ufffd"]
    assert [attrs["data-name"] for tag, attrs, _ in page.elements if tag == "span"] == ["U+0000", "U+D800"]


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_is_shown_exactly(text: str) -> None:
    middle = len(text) // 2
    marks = [(10, 10 + middle, "<mark>"), (10 + middle, 10 + len(text), '<b class="y">')]
    assert Page(f'<p class="x">{marked(text, marks, 10)}</p>').texts("x") == [text]


def test_every_bidi_control_is_alone_in_an_isolated_element() -> None:
    style = (Path(report_html.__file__).parent / "report.css").read_text()
    assert re.search(r"\.hidden \{[^}]*unicode-bidi: isolate", style)
    out = marked("a\u202eb\u2067c\u200fd", [])
    assert re.findall(r'<span class="hidden" data-name="U\+(\w+)">(.)</span>', out) == [
        ("202E", "\u202e"),
        ("2067", "\u2067"),
        ("200F", "\u200f"),
    ]


def test_the_page_needs_and_allows_nothing_from_outside(tmp_path: Path) -> None:
    page, raw = page_of(tmp_path, [annotated(REFERENCE, ANSWER)])
    (policy,) = [
        a["content"] for t, a, _ in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    (style,) = [text for tag, _, text in page.elements if tag == "style"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"https?:|url\(|@import|src=", raw)
    assert "prefers-color-scheme: dark" in style


def test_every_kind_has_a_mark_a_word_and_a_style(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [record_of("scun-")])
    (style,) = [text for tag, _, text in page.elements if tag == "style"]
    for kind in KINDS:
        assert f".s.{kind}::before" in style
        assert f".tag.{kind} " in style
        assert page.texts(kind, "a") == ["A."]
    assert page.texts("tag")[:5] == ["supported", "contradictory", "unverifiable", "no fact", "not checked"]
    lines = dict(re.findall(r"\.s\.(\w+) \{[^}]*text-decoration: ([\w ]+)", style))
    assert len(set(lines.values())) == len(KINDS)  # underlines differ too, colour is not the only cue


def test_evidence_place_correction_and_totals_are_in_the_page(tmp_path: Path) -> None:
    record = annotated(REFERENCE, ANSWER, id=7)
    page, raw = page_of(tmp_path, [record, annotated("", "Nobody knows.")], rejected=3)
    assert [t for tag, _, t in page.elements if tag == "del"] == ["300"]
    assert [t for tag, _, t in page.elements if tag == "ins"] == ["330"]
    assert "The tower is 300330 metres high." in page.texts("text", "p")
    assert [t for tag, _, t in page.elements if tag == "footer"] == [
        "characters 30–49 of 49",
        "characters 0–29 of 49",
    ]
    assert [t for tag, _, t in page.elements if tag == "mark"] == [
        "The tower is 330 metres high.",
        "It stands in Paris.",
    ]
    assert page.texts("tile")[0].startswith("67 %hallucination rate2 of 3 judged factual sentences")
    assert page.texts("tile")[1:] == ["2records", "5sentences", "1not checked", "3input lines rejected"]
    assert "Not checked: there is no reference text to check it against." in raw
    assert page.texts("id") == ["7"]
    assert "exact-1" in page.texts("by")[0]
    open_ = [attrs["class"] for tag, attrs, _ in page.elements if tag == "details" and "open" in attrs]
    assert sorted(open_, key=str) == ["contradictory", "not_checked", "unverifiable"]


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, [record_of("sc"), record_of("u")])
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    links = [attrs["href"] for _, attrs, _ in page.elements if "href" in attrs]
    assert len(set(ids)) == len(ids)
    assert {f"#{id_}" for id_ in ids} == set(links)


def test_unsupported_spans_are_marked_inside_their_sentence(tmp_path: Path) -> None:
    record = record_of("sc")
    record["answer"] = "Yes. Bad word here."
    record["sentences"][0] |= {"text": "Yes.", "start": 0, "end": 4}
    record["sentences"][1] |= {
        "text": "Bad word here.",
        "start": 5,
        "end": 19,
        "spans": [{"start": 9, "end": 13}],
    }
    page, _ = page_of(tmp_path, [record])
    assert page.texts("span") == ["word"]


def test_a_page_of_many_records_shows_the_worst_and_says_so(tmp_path: Path) -> None:
    records = [record_of("ccc" if i % 100 == 7 else "s", id=i) for i in range(1_000)]
    page, raw = page_of(tmp_path, records)
    shown = [int(text) for text in page.texts("id")]
    assert len(shown) == report_html.MAX_RECORDS == 200
    assert {i for i in range(1_000) if i % 100 == 7} <= set(shown)
    assert shown == sorted(shown)
    assert "This page shows 200 of 1,000 records" in raw
    assert "out.jsonl" in raw
    assert page.texts("tile")[1] == "1,000records"


def test_huge_answers_and_references_are_cut_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_html, "MAX_CHARACTERS", 100_000)
    page, raw = page_of(tmp_path, [annotated("r", "x" * 40_000 + ".", id=i) for i in range(5)])
    assert page.texts("id") == ["0"]  # twice 40,000 characters for each
    assert "This page shows 1 of 5 records" in raw
    long = "y" * 60_000 + " It is red."
    page, raw = page_of(tmp_path, [annotated(long, "It is red.")])
    assert page.texts("text", "div") == ["It is red.", "y" * 50_000]
    assert "The first 50,000 of 60,011 characters." in raw
    assert len(page.texts("i")) == 0
    page, raw = page_of(tmp_path, [record_of("s" * 100), record_of("s")])
    assert "and 40 more" in raw


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def broken() -> Iterable[dict[str, Any]]:
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        write_page(path, broken, Totals())
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
