"""The demo page as it is served: the endpoints through gradio_client, the page in a headless Chromium.

One server for all. Without a browser (`apt-get install chromium`) or playwright the browser's tests say so and skip.
"""

import asyncio
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.demo_parts import ANSWER, CONTRAST, FILLED, HOSTILE, REFERENCE, Slow, Stub
from tests.helpers.jsonl import write_rows
from tests.helpers.rule_annotator import RuleAnnotator

gr = pytest.importorskip("gradio", reason="skipped: gradio is not installed (the demo extra)")

import httpx  # noqa: E402

from mitigate.demo.limits import Limits  # noqa: E402
from mitigate.demo.page import build, launch  # noqa: E402
from mitigate.demo.service import Service, Shelf  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the servers' libraries
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets closed late
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(900),
]
WAIT = 240_000  # milliseconds; pages are quick, test machines are not
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]  # containers have little of that memory


class Served:
    def __init__(self) -> None:
        self.slow = Slow()
        limits = Limits()
        self.shelf = Shelf(["rule", "slow", "embedded", "broken"], load=self._load, open_choice=True)
        self.shelf.engine = lambda name: Stub()
        self.service = Service(self.shelf, limits, fetch=True)
        self.closed = build(Service(self.shelf, limits))  # of an owner who does not let visitors fetch; not served
        self.page = build(self.service)
        self.url = launch(self.page, limits, block=False)

    def _load(self, name: str) -> Any:
        if name == "embedded":
            from annotators import load_annotator

            return load_annotator()
        if name == "broken":
            raise OSError("no <b>folder</b>")
        return self.slow if name == "slow" else RuleAnnotator(scores=True)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    loops: list[asyncio.AbstractEventLoop] = []  # Gradio makes some while it starts, and leaves them open
    new_loop = asyncio.new_event_loop

    def noted() -> asyncio.AbstractEventLoop:
        loops.append(new_loop())
        return loops[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", noted)
        patch.setenv("GRADIO_SHARE", "True")  # the page must not listen to this
        patch.setenv("GRADIO_SERVER_NAME", "0.0.0.0")
        patch.setattr("gradio.networking.url_ok", lambda url: True)  # its own look allows three seconds
        one = Served()
    yield one
    one.page.close(verbose=False)
    one.page.server.thread.join(60)  # Gradio itself waits five seconds
    asyncio.set_event_loop(None)
    for loop in loops:
        loop.close()


def test_endpoints_on_loopback_annotate_as_annotate(served: Served) -> None:
    from gradio_client import Client
    from gradio_client.exceptions import AppError

    client = Client(served.url, verbose=False, httpx_kwargs={"timeout": WAIT / 1000})
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", served.url)
    assert served.page.share_url is None
    assert set(client.view_api(return_format="dict")["named_endpoints"]) == {"/annotate"}

    record = {"question": "Who?", "reference": REFERENCE, "answer": ANSWER}
    found = client.predict(**record, annotator="rule", api_name="/annotate")
    assert found == {**RuleAnnotator(scores=True).annotate(**record).to_dict()}
    assert client.predict("", REFERENCE, ANSWER, api_name="/annotate")["sentences"] == found["sentences"]
    with pytest.raises(AppError, match="'broken' can't be loaded: no <b>folder</b>"):
        client.predict("", "r", "a", "broken", api_name="/annotate")
    client.close()


def test_addresses_are_fetched_only_where_allowed(served: Served) -> None:
    for page, offered in ((served.closed, False), (served.page, True)):
        named = {getattr(event.fn, "__name__", "") for event in page.fns.values()}
        assert ("from_files" in named, "from_web" in named) == (True, offered)


def test_foreign_names_and_too_large_requests_are_refused(served: Served) -> None:
    foreign = httpx.get(served.url, headers={"Host": "evil.example:7860"}, timeout=60)
    told = "This page answers to 127.0.0.1 and localhost, not to evil.example. Behind a proxy, start it with --auth"
    assert (foreign.status_code, foreign.json()["detail"].startswith(told)) == (403, True)
    body = {"data": ["", "r", "x" * 8_000_000, "rule"]}
    large = httpx.post(f"{served.url}gradio_api/call/annotate", json=body, timeout=60)
    assert large.status_code == 413
    assert "bytes; this page takes 6,000,000" in large.json()["detail"]


def test_where_it_listens_and_whom_it_answers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        gr.Blocks, "launch", lambda page, **options: given.append(options) or (None, "http://here", None)
    )
    for host, auth in (("localhost", []), ("localhost", [("me", "word")]), ("0.0.0.0", [])):
        launch(served.page, Limits(), host=host, auth=auth, block=False)
    hosts = [one["app_kwargs"]["middleware"][0].kwargs["hosts"] for one in given]
    assert hosts == [("127.0.0.1", "localhost"), (), ()]  # a proxy before a page with passwords may have any name
    for wrong in ("192.0.2.1", "no-such-host.invalid", "localhost:80"):
        with pytest.raises(OSError, match=r"\[Errno"):
            launch(served.page, Limits(), host=wrong, block=False)
    assert len(given) == 3  # Gradio, which would try for minutes, was not asked


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="skipped: playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("skipped: no browser here (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=path, args=FLAGS)
        yield one
        one.close()


@pytest.fixture
def visit(browser: Any, served: Served) -> Iterator[Any]:
    """Opens the page; at the end nothing may have gone wrong in the console, nor left this machine."""
    contexts, wrong, asked = [], [], []

    def note(message: Any) -> None:
        if message.type == "error":
            wrong.append(message.text)

    def visit(**options: Any) -> Any:
        context = browser.new_context(accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append("dialog") or dialog.dismiss())
        page.on("request", lambda request: asked.append(request.url))
        page.goto(served.url)
        page.wait_for_selector("#annotate")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith((served.url, "data:", "blob:"))] == []


def judge(page: Any, answer: str, reference: str = REFERENCE, annotator: str = "rule", wait: bool = True) -> None:
    if not page.locator("#reference textarea").is_visible():
        page.click("#inputs button")  # folded away by the annotation before
    page.fill("#reference textarea", reference)
    page.fill("#answer textarea", answer)
    choose(page, ".mt-annotator:visible", annotator)
    page.click("#annotate")
    if wait:
        page.wait_for_selector("#annotated .mt-view:not(.busy) .s")


def downloaded(page: Any, button: str) -> tuple[str, str]:
    """Name and content of the file that a button gives."""
    with page.expect_download() as download:
        page.click(button)
    return download.value.suggested_filename, Path(download.value.path()).read_text()


def add_document(page: Any, file: Any) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add documents").locator("visible=true").click()
    chooser.value.set_files(file)


def add_address(page: Any, address: str) -> None:
    box = page.get_by_label("Web address").locator("visible=true")
    box.fill(address)
    box.press("Enter")


def choose(page: Any, box: str, name: str) -> None:
    page.fill(f"{box} input", name)
    page.keyboard.press("Enter")


def test_chosen_sentence_shows_its_card_and_evidence(visit: Any) -> None:
    page = visit(viewport={"width": 1280, "height": 900})
    page.get_by_text("Lighthouse", exact=True).first.click()
    page.wait_for_function(FILLED)
    answer, reference = page.input_value("#answer textarea"), page.input_value("#reference textarea")
    choose(page, ".mt-annotator:visible", "embedded")
    page.click("#annotate")
    page.wait_for_selector("#annotated .mt-view:not(.busy) .s")
    assert page.text_content("#annotated .answer") == answer
    assert page.text_content("#annotated .reference") == reference
    first = page.locator("#annotated .s").first
    first.click()
    assert first.get_attribute("aria-pressed") == "true"
    card = page.locator("#annotated .card:visible")
    assert card.count() == 1
    assert "sentence 1 of 8" in card.inner_text()
    assert re.search(r"supported\s+\d+ %", card.inner_text())
    (evidence,) = page.locator("#annotated mark.on").all_text_contents()
    assert "about 14 kilometres off the coast" in evidence
    page.locator("#annotated mark[data-e='6']").click()  # from the evidence to its sentence
    assert page.locator("#annotated .s[aria-pressed=true]").text_content().startswith("It has worked without")
    first.click()
    page.keyboard.press("ArrowRight")
    assert page.locator("#annotated .s[aria-pressed=true]").text_content().startswith("The first lighthouse")
    page.keyboard.press("Enter")  # closes the card
    assert page.locator("#annotated .card:visible").count() == 0
    page.click("#annotated .measured summary")
    assert re.search(
        r"[1-9] of 10 sentences marked .* were wrong in our tests", page.inner_text("#annotated .measured")
    )
    with page.expect_popup() as popup:
        page.click("#annotated .measured a")
    assert "**Not for**" in popup.value.text_content("body")  # its model card
    page.click("#how label:has-text('decide all')")
    page.wait_for_selector("#annotated .measured", state="detached")  # those verdicts were not measured
    assert json.loads(downloaded(page, "#save")[1])["answer"] == answer


def test_hostile_text_is_text(visit: Any) -> None:
    page = visit()
    judge(page, HOSTILE, reference=HOSTILE)
    assert page.text_content("#annotated .answer") == HOSTILE
    assert page.text_content("#annotated .reference") == HOSTILE
    page.locator("#annotated .s").first.click()
    for tag in ("script", "img", "a", "iframe"):
        assert page.locator(f"#annotated {tag}").count() == 0
    assert page.evaluate("window.hacked") is None
    assert page.locator("#annotated .answer .hidden[data-name='U+202E']").count() == 1
    judge(page, "x" * 50_001, wait=False)
    page.wait_for_selector("#annotated .notice")  # which also takes the sentences away that are waited for next
    told = page.inner_text("#annotated .notice")
    assert "The answer has 50,001 characters; this page takes at most 50,000 characters." in told
    long = "The mill was built in 1804, and its red roofs can be seen from Ostrand. " * 230
    judge(page, long)
    assert page.text_content("#annotated .answer") == page.input_value("#answer textarea") == long


def test_stopped_stream_leaves_other_visitors_alone(visit: Any, served: Served) -> None:
    one, two = visit(), visit()
    one.route("**/cancel", lambda route: (time.sleep(1), route.continue_()))  # more sentences come meanwhile
    before = served.slow.sentences
    judge(one, "".join(f"Ship {i} sank. " for i in range(400)), annotator="slow", wait=False)
    judge(two, "Boat 1 sank. Boat 2 sank. Boat 3 sank.", annotator="slow", wait=False)
    one.wait_for_selector("#annotated .s.unverifiable")  # shown while others wait
    assert one.locator("#annotated .s.waiting").count() > 0
    one.click("#stop")
    one.wait_for_selector("#annotated .s.not_checked")
    shown = one.locator("#annotated .s.unverifiable").count()
    assert 0 < shown < 400
    two.wait_for_selector("#annotated .mt-view:not(.busy) .s")
    assert "Ship" not in two.text_content("#annotated")
    assert two.locator("#annotated .s.unverifiable").count() == 3
    judged = before
    while served.slow.sentences > judged:  # the sentence under way is finished
        judged = served.slow.sentences
        assert judged - before < 400
        time.sleep(2 * served.slow.seconds)
    assert judged - before >= shown + 3
    assert one.locator("#annotated .s.unverifiable").count() == shown
    assert "because it was stopped" in one.inner_text("#annotated .unchecked")
    one.locator("#annotated .s.unverifiable").nth(1).click()
    one.wait_for_selector("#annotated .card:visible")
    assert len(json.loads(downloaded(one, "#save")[1])["sentences"]) == shown


def upload(page: Any, source: Path, more: str = "") -> None:
    with source.open("a") as file:
        file.write(more)
    page.get_by_role("tab", name="Batch").click()
    page.set_input_files("#batch-file input[type=file]", source)
    page.wait_for_selector("#batch-file .file-preview [aria-label='in.jsonl']")  # the file, not its progress


def test_batch_goes_up_and_comes_down(visit: Any, tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "question": f"<b>{i}</b>?", "reference": REFERENCE, "answer": ANSWER} for i in range(6)]
    page = visit()
    slow = {"rate": 3}  # times slower: a table that comes up while further updates come stays out there
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", slow)
    upload(page, write_rows(tmp_path / "in.jsonl", rows), "<i>bad</i>\n")
    page.click("#batch-run")
    page.wait_for_selector("#batch-save-0:not([disabled])")
    assert "6 of 6 records, done" in page.inner_text("#batched")
    assert "line 7: expected one JSON object a line" in page.inner_text("#batched .notice")
    page.locator("#batch-records").get_by_text("<b>3</b>?").first.click()
    page.wait_for_selector("#batch-opened .answer")
    assert page.text_content("#batch-opened .answer") == ANSWER
    page.set_viewport_size({"width": 390, "height": 844})
    heights = page.eval_on_selector_all("#batch-records th span", "all => all.map(e => e.offsetHeight)")
    assert 0 < max(heights) < 60  # no word of the header is broken, on a phone neither
    found = [downloaded(page, f"#batch-save-{number}") for number in range(3)]
    assert [name for name, _ in found] == ["annotated.jsonl", "report.html", "rejected.jsonl"]
    written = [json.loads(line) for line in found[0][1].splitlines()]
    assert [row["id"] for row in written] == [f"r{i}" for i in range(6)]
    assert written[5]["hallucination_rate"] == pytest.approx(2 / 3)
    assert "Hallucination report" in found[1][1]
    page.get_by_label("Clear").locator("visible=true").click()  # the file goes, and all that was made of it
    page.wait_for_selector("#batch-save-0[disabled]")
    assert page.locator("#batch-records").is_hidden()
    assert page.locator("#batch-opened .answer").count() == 0
    page.click("#batch-run")
    page.wait_for_selector("#batched .notice >> text=Choose a file")


def test_stopped_and_failed_batches_keep_what_is_done(visit: Any, tmp_path: Path) -> None:
    page = visit()
    upload(page, write_rows(tmp_path / "in.jsonl", [{"reference": REFERENCE, "answer": ANSWER}] * 200))
    page.click(".mt-annotator:visible input")
    page.get_by_role("option", name="slow", exact=True).click()
    page.click("#batch-run")
    page.get_by_text(re.compile(r"[1-9]\d* of 200")).wait_for()
    assert page.get_by_label("Clear").locator("visible=true").count() == 0  # its results would show under another file
    page.click("#batch-stop")
    page.wait_for_selector("#batch-save-0:not([disabled])")
    done = int(re.search(r"(\d+) of 200 records, stopped", page.inner_text("#batched"))[1])
    assert len(downloaded(page, "#batch-save-0")[1].splitlines()) == done > 0
    page = visit()
    answers = ["It is 1.", "It is 2.", "Fail."]
    upload(page, write_rows(tmp_path / "in.jsonl", [{"reference": REFERENCE, "answer": a} for a in answers]))
    choose(page, ".mt-annotator:visible", "slow")
    page.click("#batch-run")
    page.wait_for_selector("#batched .notice")
    assert "'slow' failed: the server went away" in page.inner_text("#batched .notice")
    assert "2 of 3 records, stopped" in page.inner_text("#batched")
    rows = downloaded(page, "#batch-save-0")[1].splitlines()
    assert [json.loads(row)["answer"] for row in rows] == answers[:2]


def test_compare_ranks_the_answers(visit: Any) -> None:
    page = visit()
    page.get_by_role("tab", name="Compare").click()
    page.click("#compare-answer-5 textarea")  # room for five
    page.keyboard.insert_text("Typed at once.")
    assert page.input_value("#compare-answer-5 textarea") == "Typed at once."
    page.get_by_text("Do camels store water?").click()
    page.wait_for_function("document.querySelector('#compare-question textarea').value")
    page.click("#compare")
    page.wait_for_selector("#compared .mt-view:not(.busy) >> nth=1")
    names, verdicts = (page.locator(f"#compared td:nth-child({n})").all_inner_texts() for n in (1, 2))
    assert [name.partition("\n")[0] for name in names] == ["model A", "model B"]
    assert verdicts[0] == "2 sentences are supported."
    choose(page, ".mt-annotator:visible", "embedded")
    page.click("#compare")
    page.wait_for_selector("#compared .measured")  # once, below the table
    assert page.locator("#compared .measured").count() == 1
    assert "were wrong in our tests" in page.inner_text("#compared .measured")
    choose(page, ".mt-annotator:visible", "slow")
    page.click("#compare")
    page.wait_for_selector("#compared .s.waiting")
    page.keyboard.press("Escape")
    page.wait_for_selector("#compared .s.not_checked")
    assert page.locator("#compared .busy").count() == 0
    assert "judged, then stopped" in page.inner_text("#compared")
    assert "not judged yet" not in page.inner_text("#compared")
    assert page.locator("#compare-stop").is_disabled()
    page.fill("#compare-reference textarea", "")
    page.click("#compare")
    page.wait_for_selector("#compared .notice >> text=There is no reference to compare by.")


def test_stop_is_heard_before_anything_is_shown(visit: Any, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    page = visit()
    page.get_by_role("tab", name="Mitigate").click()
    page.fill("#ask-question textarea", "Who owned it?")
    page.click("#ask")
    page.wait_for_selector("#asked .mt-view:not(.busy)")
    page.wait_for_selector("#ask-stop[disabled]")
    monkeypatch.setattr(served.shelf, "engine", lambda name: free.wait(300))
    page.click("#ask")
    page.wait_for_selector("#asked >> text=Asking …")
    page.wait_for_selector("#ask[disabled]")  # one at a time: what is left of one would stand beside the other
    page.click("#ask-stop:not([disabled])")
    page.wait_for_selector("#asked >> text=An answer appears here")
    page.wait_for_selector("#ask:not([disabled])")
    assert page.locator("#asked .verdict").count() == 0
    free.set()


def test_mitigate_tab_asks_and_mends(visit: Any, served: Served, tmp_path: Path) -> None:
    page = visit()
    page.get_by_role("tab", name="Mitigate").click()
    page.fill("#ask-question textarea", "Who owned it?")
    tmp_path.joinpath("mill.html").write_text(f"<script>no</script><p>{REFERENCE.replace(chr(10), '<p>')}")
    add_document(page, tmp_path / "mill.html")
    page.wait_for_function("document.querySelector('#ask-document textarea').value.includes('miller')")
    add_document(page, {"name": "x.pdf", "mimeType": "application/pdf", "buffer": b"no pdf"})
    page.wait_for_selector(".mt-wrong .notice >> text=x.pdf can't be read")
    add_address(page, served.url)  # the page itself, on loopback
    page.wait_for_selector(".mt-wrong .notice >> text=is inside a private network (127.0.0.1)")
    page.get_by_role("button", name="Ollama").click()
    page.wait_for_function("document.querySelector('#ask-engine input').value.endsWith('@http://127.0.0.1:11434/v1')")
    page.click("#ask")
    page.wait_for_selector("#mend", state="visible")
    assert page.inner_text("#asked .verdict").strip() == "1 sentence contradicts the source, 1 is supported."
    page.click("#mend")
    page.wait_for_selector("#mended .columns")
    page.wait_for_selector("#ask:not([disabled])")
    assert "Flagged sentences: 1 before, 0 after; not sure: 0 before, 0 after." in page.inner_text("#mended")
    assert page.input_value("#final textarea") == "The mill was built in 1804. Its owner was a miller."
    page.locator("#edits input").uncheck()  # the edit is taken back
    page.wait_for_function("document.querySelector('#final textarea').value.includes('baker')")
    page.fill("#ask-question textarea", "Who built it?")
    page.wait_for_selector("#mended.stale")


def test_documents_join_what_came_meanwhile(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    come = threading.Event()
    monkeypatch.setattr("mitigate.demo.parts.read_address", lambda *_: come.wait(300) and "From the web.")
    page = visit()
    page.fill("#reference textarea", "Typed.")
    add_address(page, "https://docs.example")
    add_document(page, {"name": "a.txt", "mimeType": "text/plain", "buffer": b"From a file."})
    for text in ("Typed.\n\nFrom a file.", "Typed.\n\nFrom a file.\n\nFrom the web."):
        page.wait_for_function(f"document.querySelector('#reference textarea').value === {json.dumps(text)}")
        come.set()


def test_changed_input_is_stale_and_labels_stay(visit: Any, served: Served) -> None:
    page = visit()
    page.fill("#reference textarea", REFERENCE)
    page.fill("#answer textarea", ANSWER)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#annotated .mt-view:not(.busy) .s")
    assert page.locator("#reference textarea").is_hidden()  # folded: the verdict is in sight
    page.locator("#annotated .card:visible [data-label=supported]").click()
    page.wait_for_selector("#labels")
    page.click("#inputs button")
    page.fill("#answer textarea", "Other. ü")
    page.wait_for_selector("#annotated.stale")
    page.click("#annotate")
    page.wait_for_selector("#annotated:not(.stale)")
    page.click("#link")
    page.wait_for_function("location.hash")
    page.reload()  # the link fills the boxes, and the browser has kept the rest
    page.wait_for_function("document.querySelector('#answer textarea')?.value === 'Other. ü'")
    assert page.input_value("#reference textarea") == REFERENCE
    page.wait_for_selector("#earlier")  # filled by an event of its own
    page.click("#earlier input")
    page.get_by_role("option", name=ANSWER[:20]).click()
    page.wait_for_function("document.querySelector('#answer textarea').value.startsWith('The mill')")
    row = json.loads(downloaded(page, "#labels")[1])
    assert row == {"reference": REFERENCE, "sentence": "Its owner was a baker.", "label": "supported"}
    other = page.context.new_page()  # another tab of the browser: what both label is kept
    other.goto(served.url)
    other.wait_for_selector("#labels >> text=My labels (1)")
    for one, answer in ((page, "It is mine."), (other, "It is yours.")):
        one.fill("#reference textarea", REFERENCE)
        judge(one, answer)
        one.locator("#annotated .card:visible [data-label=supported]").click()
    other.wait_for_selector("#labels >> text=My labels (3)")
    other.evaluate("localStorage.setItem('mitigate-labels', 'null')")  # what another page of this address left
    other.locator("#annotated .card:visible [data-label=contradictory]").click()
    other.wait_for_selector("#labels >> text=My labels (1)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_readable_on_phones_light_and_dark(visit: Any, scheme: str) -> None:
    page = visit(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    judge(page, ANSWER)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) >= 8
    assert [pair for pair in ratios if pair[1] < 4.5] == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(20, 23, 27)") == (scheme == "dark")
    page.locator("#annotated .s.contradictory").click()
    sheet = page.locator("#annotated .cards").bounding_box()
    assert (sheet["width"], sheet["y"] + sheet["height"]) == (390, 844)
    sizes = page.eval_on_selector_all(".mt .steps button", "all => all.map(e => e.getBoundingClientRect().width)")
    assert all(width >= 24 for width in sizes)  # WCAG 2.2, target size
    page.locator("#annotated [aria-label=Close]").click()
    assert page.locator("#annotated .cards").is_hidden()
