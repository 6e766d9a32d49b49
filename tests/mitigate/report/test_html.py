"""Pages and their parts: exact text, right figures, nothing from a record becomes markup, nothing from outside."""

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mitigate.io import OutputError, UsageError, read_rows
from mitigate.report import html
from mitigate.report.totals import KINDS, Totals
from tests.helpers.report_cases import ANSWER, REFERENCE, Page, annotated, record_of, sentence

TAGS = set(
    "html head meta title style script body header h1 p b code div span small svg rect ul li main article h2 a h3 "
    "details summary blockquote footer mark del ins br bdi".split()
)
HOSTILE = [
    "<script>alert(1)</script><style>*{display:none}</style></style></title><!-- --> ]]> &lt; &amp;lt; &#60;",
    "</a></div></details></article></main></body></html><h1>x",
    '" onmouseover="alert(1)" \' x=\'',
    "javascript:alert(1) <img src=x onerror=alert(1)> <base href=//evil> <meta http-equiv=refresh content=0>",
    "<Hallucination> None <No Fact> <参考> \u202egnp.exe\u202c \u2066x \u200f",
    "tab\there\r\nnext\rreturn\n\n  spaces   kept \x0b\x0c\x01\x7f\x85\x9f\ufeff\u2028",
    "\n\nleading and trailing\n",
]


def page_of(tmp_path: Path, *records: dict[str, Any], rejected: int = 0) -> tuple[Page, str]:
    path = tmp_path / "page.html"
    html.write_page(path, lambda: records, Totals.of(records), rejected=rejected, full_output="out.jsonl")
    text = path.read_bytes().decode("utf-8")
    return Page(text), text


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_record_is_shown_exactly(tmp_path: Path, text: str) -> None:
    record = annotated(text + " It is 5.", text + " It is 4. " + text, question=text + "?", id=text)
    page, raw = page_of(tmp_path, record)
    assert (page.texts("answer"), page.texts("question")) == ([record["answer"]], [record["question"]])
    assert page.texts("s") == page.texts("text", "span") == [s["text"] for s in record["sentences"]]
    fragments = [f["text"] for s in record["sentences"] for f in s["fragments"]]
    assert page.texts("text", "div") == [*fragments, record["reference"]]
    assert page.tags <= TAGS
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    targets = {f"#{value}" for name, value in page.attributes if name == "id"}
    assert {value for name, value in page.attributes if name == "href"} <= targets
    assert page.named("script") == [html.SCRIPT.read_text(encoding="utf-8")]
    assert "\r" not in raw  # a browser would read it as a line feed


def test_unholdable_characters_are_hidden_bidi_controls_isolated() -> None:
    page = Page(f"<p class='x'>{html.marked(chr(0) + 'a' + chr(0xD800), [])}</p>")
    assert page.texts("x") == ["\ufffda\ufffd"]
    assert [value for name, value in page.attributes if name == "data-name"] == ["U+0000", "U+D800"]
    assert re.search(r"\.hidden \{[^}]*unicode-bidi: isolate", html.STYLE.read_text(encoding="utf-8"))
    shown = html.marked("a\u202eb\u2067c\u200fd", [])
    found = re.findall(r'<span class="hidden" data-name="U\+(\w+)">(.)</span>', shown)
    assert found == [("202E", "\u202e"), ("2067", "\u2067"), ("200F", "\u200f")]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_is_shown_exactly(text: str) -> None:
    middle = len(text) // 2
    marks = [(0, middle, "<mark>"), (middle, len(text), '<b class="y">')]
    assert Page(f'<p class="x">{html.marked(text, marks)}</p>').texts("x") == [text]


def test_page_allows_nothing_from_outside(tmp_path: Path) -> None:
    page, raw = page_of(tmp_path, annotated(REFERENCE, ANSWER))
    (policy,) = [a["content"] for _, a, _ in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    (style,), (script,) = page.named("style"), page.named("script")
    look, code = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    own = f"style-src 'sha256-{look}'; script-src 'sha256-{code}'"
    assert policy == f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    assert not re.search(r"https?:|url\(|@import|src=", raw)
    assert "color-scheme: light dark" in style


def test_every_label_has_mark_word_and_style(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, record_of("scun~-"))
    (style,) = page.named("style")
    for kind in KINDS:
        assert f".s.{kind}::before" in style
        assert re.search(rf"\.tag\.{kind} \{{", style)
        assert page.texts(kind, "a") == ["A."]
    words = ["supported", "contradicted", "not found", "no fact", "not sure: compare", "not checked"]
    assert page.texts("tag")[:6] == words
    said = (
        "1 sentence contradicts the source, 1 is not in it, 1 is supported, 1 is too close to call, 1 was not checked."
    )
    assert said in page.texts("meta")[0]
    assert page.texts("verdict") == [said]
    assert page.texts("body", "div")[4].startswith("Not sure: no passage of the source was found")
    lines = dict(re.findall(r"\.s\.(\w+) \{[^}]*text-decoration: ([\w ]+)", style))
    assert len(set(lines.values())) == len(KINDS)  # underlines differ too, colour is not the only cue


def test_evidence_correction_and_totals_are_shown(tmp_path: Path) -> None:
    record = annotated(REFERENCE, ANSWER, id=7)
    page, _ = page_of(tmp_path, record, annotated("", "Nobody knows."), rejected=3)
    assert (page.named("del"), page.named("ins")) == (["300"] * 2, ["330"] * 2)  # of the answer, and of its sentence
    assert "The tower is 300330 metres high." in page.texts("text", "p")
    assert page.named("footer") == ["characters 30–49 of 49", "characters 0–29 of 49"]
    marks = [(attrs["data-e"], text) for tag, attrs, text in page.elements if tag == "mark"]
    assert marks == [("2", "The tower is 330 metres high."), ("1", "It stands in Paris.")]
    assert page.texts("tile")[0].startswith("67 %hallucination rate2 of 3 judged factual sentences")
    tiles = ["75 %coveragechecked of all that state something", "3input lines rejected"]
    assert (page.texts("tile")[1:], page.texts("id")) == (["2records", "5sentences", *tiles], ["7"])
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {f"#{id_}" for id_ in ids} == {value for name, value in page.attributes if name == "href"}
    assert page.texts("fixed") == ["It stands in Paris. The tower is 300330 metres high. It is grey. Thanks!"]
    assert page.texts("differs") == ["300", "330"]
    open_ = [attrs["class"] for tag, attrs, _ in page.elements if tag == "details" and "open" in attrs]
    assert sorted(open_, key=str) == ["contradictory", "not_checked", "unverifiable"]


def test_unsupported_spans_are_marked_inside_their_sentence(tmp_path: Path) -> None:
    record = record_of("sc", question="q")
    record["answer"] = "Yes. Bad word here."
    record["sentences"][0] |= {"text": "Yes.", "start": 0, "end": 4}
    record["sentences"][1] |= {"text": "Bad word here.", "start": 5, "end": 19, "spans": [{"start": 9, "end": 13}]}
    page, _ = page_of(tmp_path, record)
    assert page.texts("span") == ["word", "word"]  # in the answer and in the list of its sentences


def test_page_of_many_records_shows_the_worst(tmp_path: Path) -> None:
    page, raw = page_of(tmp_path, *(record_of("ccc" if i % 100 == 7 else "s", id=i) for i in range(1_000)))
    shown = [int(text) for text in page.texts("id")]
    assert len(shown) == html.MAX_RECORDS == 200
    assert {i for i in range(1_000) if i % 100 == 7} <= set(shown)
    assert shown == sorted(shown)
    assert "This page shows 200 of 1,000 records" in raw
    assert "out.jsonl" in raw
    assert page.texts("tile")[1] == "1,000records"


def test_huge_answers_and_references_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_CHARACTERS", 100_000)
    page, raw = page_of(tmp_path, *(annotated("r", "x" * 40_000 + ".", id=i) for i in range(5)))
    assert page.texts("id") == ["0"]  # twice 40,000 characters for each
    assert "This page shows 1 of 5 records" in raw
    page, raw = page_of(tmp_path, annotated("y" * 60_000 + " It is red.", "It is red."))
    assert page.texts("text", "div") == ["It is red.", "y" * 999 + " It is red."]  # 1,000 characters around it
    page, raw = page_of(tmp_path, annotated("y" * 60_000, "It is red."))
    assert page.texts("text", "div") == ["y" * 50_000]


def test_failed_page_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def broken() -> Iterable[dict[str, Any]]:
        raise OSError("disk gone")

    with pytest.raises(OutputError, match=r"cannot write .*page\.html: disk gone"):
        html.write_page(path, broken, Totals())
    with pytest.raises(UsageError, match=r"^cannot read /proc/self/mem: "):  # a file whose first byte can't be read
        html.write_page(path, partial(read_rows, Path("/proc/self/mem")), Totals())
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_findings_of_generative_annotators_are_escaped() -> None:
    one = sentence("Is it?", 0, 6, label="unverifiable", not_verbatim=["<b>made up</b>"], problems=["no <tag>"])
    page = Page(html.findings(one, 10))
    assert page.texts("foreign") == ["<b>made up</b>written by the annotator, not found in the reference"]
    assert page.named("small") == ["no <tag>"]
    one = sentence("Is it?", 0, 6, fragments=[{"text": "abcd", "start": 0, "end": 4}])
    assert Page(html.findings(one, 10, most=2)).texts("text") == ["Is it?", "ab …"]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 3)), max_size=8))
def test_flattened_pieces_own_what_the_spans_own(spans: list[tuple[int, int, int]]) -> None:
    def owners(place: int) -> tuple[int, ...]:
        return tuple(sorted({owner for start, end, owner in spans if start <= place < end}))

    pieces = html.flattened(spans)
    assert all(a[1] <= b[0] for a, b in pairwise(pieces))
    found = {place: who for start, end, who in pieces for place in range(start, end)}
    assert found == {place: owners(place) for place in range(12) if owners(place)}


def test_word_differences() -> None:
    year = [("same", "built in "), ("gone", "1840"), ("new", "1804")]
    assert html.word_pieces("built in 1840", "built in 1804") == year
    goods = [("same", "用"), ("gone", "丝绸"), ("new", "茶叶"), ("same", "换马")]
    assert html.word_pieces("用丝绸换马", "用茶叶换马") == goods
    good, overlaps = {"start": 5, "end": 7, "from": "in", "to": "at"}, {"start": 6, "end": 9, "from": "n B", "to": "x"}
    edits = [good, overlaps, {"start": 8, "end": 9, "from": "C", "to": "D"}]  # the last does not stand there
    assert html.difference("Live in Bern", edits) == "Live <del>in</del><ins>at</ins> Bern"
    assert html.difference("Bern", [{"start": 8, "end": 12, "from": "Bern", "to": ""}], start=8) == "<del>Bern</del>"


@given(st.text(alphabet="ab 文.", max_size=12), st.text(alphabet="ab 文.", max_size=12))
def test_word_difference_joins_to_both_texts(old: str, new: str) -> None:
    pieces = html.word_pieces(old, new)
    assert "".join(text for kind, text in pieces if kind != "new") == old
    assert "".join(text for kind, text in pieces if kind != "gone") == new


def test_curves_are_sorted_labelled_and_drawn() -> None:
    names = ["loss", "reward_std", "x/hallucination_rate", "factuality/supported", "reward", "no_fact_rate"]
    shown = re.findall("Other|<figcaption>([^<]+)", html.figures({name: [(0, 1.0)] for name in names}))
    first = ["reward", "x/hallucination_rate", "factuality/supported", "no_fact_rate"]
    assert shown == [*first, "", "loss", "reward_std"]
    assert 'class="curve no_fact"' in html.figure("no_fact_rate", [(0, 1.0)])
    assert [html.short(v) for v in (1200.0, 0.35812, 1e-5, -2.0)] == ["1,200", "0.358", "1e-05", "-2"]
    # x from 46 to 310 over steps 0..10, y from 128 (lowest, 1) to 12 (highest, 3)
    drawn = html.figure("a<b", [(0, 1.0), (5, 3.0), (10, 2.0)])
    assert 'd="M46.0 128.0 L178.0 12.0 L310.0 70.0"' in drawn
    assert "a&lt;b" in drawn
    assert "a<b" not in drawn
    assert 'd="M46.0 70.0"' in html.figure("one", [(4, 2.0)])


def test_curves_hold_finite_numbers_and_few_points() -> None:
    rows = [{"step": i, "loss": float(i), "x": (float("nan"), "a", True)[i % 3]} for i in range(1_000)]
    curves = html.curves_of([*reversed(rows), {"loss": 1.0}, {"step": 3}])  # a row without a step is left out
    assert (list(curves), len(curves["loss"])) == (["loss"], 400)
    assert (curves["loss"][0], curves["loss"][-1]) == ((0, 0), (999, 999))
    assert html.figures(curves).startswith("<details open><summary>Other curves, 1</summary>")
    assert html.figures({}) == ""


def test_no_rate_where_most_is_unsure(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, record_of("s~~"))
    assert page.texts("tile")[0].startswith("0flagged; most is undecided, so there is no rate0 of 1 judged")
    page, _ = page_of(tmp_path, record_of("s~"))
    assert page.texts("tile")[0].startswith("0 %hallucination rate")
    base = {"set": "asked", "interval": None, "answers": 3, "factual": 4}
    first = {**base, "rate": 0.75, "hallucinated": 3, "unsure": 9}
    path = tmp_path / "run.html"
    for more, shown in (({"unsure": 4}, "3 → 0"), ({"unsure": 2}, "3 → 0"), (None, "75 % → 0 %")):
        after = {**base, "rate": 0.0, "hallucinated": 0, **(more or {"unsure": 1})}
        before = first if more else {**first, "unsure": 1}
        html.write_run_page(
            path, about=[], comparison=[before, after], head=[], rows=[], note="", metrics=[], samples=[], pairs=1
        )
        text = path.read_text(encoding="utf-8")
        assert shown in text
        assert ("not sure: 9 → " in text) == bool(more)
