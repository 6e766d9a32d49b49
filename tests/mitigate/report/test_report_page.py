"""The page: exact text, right figures, nothing from a record becomes markup, nothing from outside."""

import base64
import hashlib
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mitigate.report import html as report_html
from mitigate.report.html import marked, write_page
from mitigate.report.totals import KINDS, Totals
from tests.helpers.report_cases import ANSWER, REFERENCE, annotated, record_of, totals_of

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
def test_text_of_a_record_is_text_of_the_page_exactly(tmp_path, text):
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
    assert not [name for _, attrs, _ in page.elements for name in attrs if name.startswith("on") or name == "style"]
    assert {attrs["href"] for _, attrs, _ in page.elements if "href" in attrs} <= {f"#r1s{i}" for i in range(1, 30)}
    assert "<script" not in raw
    assert "\r" not in raw  # a browser would read it as a line feed


def test_what_html_cannot_hold_is_shown_as_hidden():
    page = Page(f"<p class='x'>{marked(chr(0) + 'a' + chr(0xD800), [])}</p>")
    assert page.texts("x") == ["\ufffda\ufffd"]
    assert [attrs["data-name"] for tag, attrs, _ in page.elements if tag == "span"] == ["U+0000", "U+D800"]


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_is_shown_exactly(text):
    middle = len(text) // 2
    marks = [(10, 10 + middle, "<mark>"), (10 + middle, 10 + len(text), '<b class="y">')]
    assert Page(f'<p class="x">{marked(text, marks, 10)}</p>').texts("x") == [text]


def test_every_bidi_control_is_alone_in_an_isolated_element():
    style = (Path(report_html.__file__).parent / "report.css").read_text()
    assert re.search(r"\.hidden \{[^}]*unicode-bidi: isolate", style)
    out = marked("a\u202eb\u2067c\u200fd", [])
    assert re.findall(r'<span class="hidden" data-name="U\+(\w+)">(.)</span>', out) == [
        ("202E", "\u202e"),
        ("2067", "\u2067"),
        ("200F", "\u200f"),
    ]


def test_the_page_needs_and_allows_nothing_from_outside(tmp_path):
    page, raw = page_of(tmp_path, [annotated(REFERENCE, ANSWER)])
    (policy,) = [a["content"] for t, a, _ in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    (style,) = [text for tag, _, text in page.elements if tag == "style"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"https?:|url\(|@import|src=", raw)
    assert "prefers-color-scheme: dark" in style


def test_every_kind_has_a_mark_a_word_and_a_style(tmp_path):
    page, _ = page_of(tmp_path, [record_of("scun-")])
    (style,) = [text for tag, _, text in page.elements if tag == "style"]
    for kind in KINDS:
        assert f".s.{kind}::before" in style
        assert f".tag.{kind} " in style
        assert page.texts(kind, "a") == ["A."]
    assert page.texts("tag")[:5] == ["supported", "contradictory", "unverifiable", "no fact", "not checked"]
    lines = dict(re.findall(r"\.s\.(\w+) \{[^}]*text-decoration: ([\w ]+)", style))
    assert len(set(lines.values())) == len(KINDS)  # underlines differ too, colour is not the only cue


def test_evidence_place_correction_and_totals_are_in_the_page(tmp_path):
    record = annotated(REFERENCE, ANSWER, id=7)
    page, raw = page_of(tmp_path, [record, annotated("", "Nobody knows.")], rejected=3)
    assert [t for tag, _, t in page.elements if tag == "del"] == ["300"]
    assert [t for tag, _, t in page.elements if tag == "ins"] == ["330"]
    assert "The tower is 300330 metres high." in page.texts("text", "p")
    assert [t for tag, _, t in page.elements if tag == "footer"] == ["characters 30–49 of 49", "characters 0–29 of 49"]
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


def test_every_link_leads_somewhere(tmp_path):
    page, _ = page_of(tmp_path, [record_of("sc"), record_of("u")])
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    links = [attrs["href"] for _, attrs, _ in page.elements if "href" in attrs]
    assert len(set(ids)) == len(ids)
    assert {f"#{id_}" for id_ in ids} == set(links)


def test_unsupported_spans_are_marked_inside_their_sentence(tmp_path):
    record = record_of("sc")
    record["answer"] = "Yes. Bad word here."
    record["sentences"][0] |= {"text": "Yes.", "start": 0, "end": 4}
    record["sentences"][1] |= {"text": "Bad word here.", "start": 5, "end": 19, "spans": [{"start": 9, "end": 13}]}
    page, _ = page_of(tmp_path, [record])
    assert page.texts("span") == ["word"]


def test_a_page_of_many_records_shows_the_worst_and_says_so(tmp_path):
    records = [record_of("ccc" if i % 100 == 7 else "s", id=i) for i in range(1_000)]
    page, raw = page_of(tmp_path, records)
    shown = [int(text) for text in page.texts("id")]
    assert len(shown) == report_html.MAX_RECORDS == 200
    assert {i for i in range(1_000) if i % 100 == 7} <= set(shown)
    assert shown == sorted(shown)
    assert "This page shows 200 of 1,000 records" in raw
    assert "out.jsonl" in raw
    assert page.texts("tile")[1] == "1,000records"


def test_huge_answers_and_references_are_cut_with_a_note(tmp_path, monkeypatch):
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


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")

    def broken() -> Iterable[dict[str, Any]]:
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        write_page(path, broken, Totals())
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
