"""How long an annotation takes on the page beside the same call without it; and the page's pictures.

    python -m benchmarks.demo [--repeat 20]           # times
    python -m benchmarks.demo --pictures docs         # docs/demo-*.png for README and docs

Times of a warm annotation of ten sentences by the embedded annotator: the call itself, the endpoint through
gradio_client, and a click in a headless Chromium until the first and the last sentence is shown; they take turns.
Needs chromium and fonts-noto-cjk.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

from gradio_client import Client
from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.common import ROOT, parser, row, save
from mitigate.demo.limits import Limits
from mitigate.demo.page import build, launch
from mitigate.demo.service import Service, Shelf

SENTENCES = (
    "The Eddystone Rocks lie about 14 kilometres off the coast. The first lighthouse was built of wood by Henry "
    "Winstanley. It was lit in November 1698. It was destroyed in the great storm of 1713. Its successor stood until "
    "it burned down in 1755. Smeaton used interlocking granite blocks. The present lighthouse was lit in 1882. It is "
    "94 metres high. It has worked without keepers since 1982. More than two million tourists visit it every summer."
)
CLICKED = """(answer) => new Promise((done) => {
  let begin = performance.now(), first = null;
  const look = () => {
    const text = document.querySelector('#annotated .answer')?.textContent;
    const judged = text === answer ? document.querySelectorAll('#annotated .s[data-s]').length : 0;
    if (judged && first === null) first = performance.now() - begin;
    if (judged === 10) done([first / 1000, (performance.now() - begin) / 1000]);
    else setTimeout(look, 5); };
  document.querySelector('#annotate').click(); look();
})"""


def times(browser: Any, url: str, shelf: Shelf, repeat: int) -> dict[str, list[float]]:
    """Seconds of each way; each repetition has another number in the text, so that nothing is remembered."""
    tab, client = opened(browser, url), Client(url, verbose=False)
    reference = json.loads((ROOT / "mitigate/demo/examples.json").read_text())["annotate"][0]["reference"]
    found: dict[str, list[float]] = {"call": [], "endpoint": [], "page, first sentence": [], "page, all ten": []}
    for number in range(repeat + 1):
        answers = [f"{SENTENCES[:-1]} of {3 * number + way}." for way in range(3)]
        begin = time.perf_counter()
        shelf.annotator(None).annotate(reference=reference, answer=answers[0])
        call = time.perf_counter()
        client.predict("", reference, answers[1], api_name="/annotate")
        endpoint = time.perf_counter()
        if number:
            tab.click("#inputs button")  # folded away by the annotation before
        tab.fill("#reference textarea", reference)
        tab.fill("#answer textarea", answers[2])
        values = call - begin, endpoint - call, *tab.evaluate(CLICKED, answers[2])
        if number:  # the first is not warm
            for name, seconds in zip(found, values, strict=True):
                found[name].append(seconds)
    return found


def opened(browser: Any, url: str, size: tuple[int, int] = (1200, 800), scheme: str = "light", scale: float = 1) -> Any:
    """The page in a window of that size and colour scheme."""
    viewport = {"width": size[0], "height": size[1]}
    tab = browser.new_context(viewport=viewport, color_scheme=scheme, device_scale_factor=scale).new_page()
    tab.set_default_timeout(300_000)
    tab.goto(url)
    tab.wait_for_selector("#annotate")
    return tab


def annotate(tab: Any, example: str) -> None:
    """Annotate an example and wait for the end."""
    tab.get_by_text(example, exact=True).first.click()
    tab.wait_for_function("document.querySelector('#answer textarea').value.length > 10")
    tab.click("#annotate")
    tab.wait_for_selector("#annotated .mt-view:not(.busy) .s")


def pictures(browser: Any, url: str, output: Path) -> None:
    """Light, dark, on a phone, and the other tabs."""
    for scheme in ("light", "dark"):
        tab = opened(browser, url, scheme=scheme)
        annotate(tab, "Lighthouse")
        keep(tab, output / f"demo-{scheme}.png")
    phone = opened(browser, url, (390, 844), scale=2)
    annotate(phone, "Lighthouse")
    phone.locator("#annotated .s.contradictory").first.click()
    phone.evaluate("document.querySelector('#annotated').scrollIntoView()")
    keep(phone, output / "demo-mobile.png", full=False)
    tab = opened(browser, url)
    tab.get_by_role("tab", name="Compare").click()
    tab.get_by_text("Do camels store water?").click()
    tab.wait_for_function("document.querySelector('#compare-question textarea').value.length > 10")
    tab.click("#compare")
    tab.wait_for_selector("#compared .measured")
    keep(tab, output / "demo-compare.png", element="#compared")


def keep(tab: Any, path: Path, *, full: bool = True, element: str | None = None) -> None:
    """Take a picture with few colours, so that it is small; text stays sharp."""
    tab.mouse.move(0, 0)
    tab.wait_for_timeout(500)
    data = tab.locator(element).screenshot() if element else tab.screenshot(full_page=full)
    Image.open(io.BytesIO(data)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Measure and write the page, or take the pictures."""
    made = parser(__doc__, data=False)
    made.add_argument("--repeat", type=int, default=20)
    made.add_argument("--pictures", type=Path, metavar="FOLDER")
    args = made.parse_args()
    shelf = Shelf()
    with sync_playwright() as playwright:
        page = build(Service(shelf, Limits(), fetch=True))
        url = launch(page, Limits(), block=False)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if args.pictures:
            pictures(browser, url, args.pictures)
        else:
            found = times(browser, url, shelf, args.repeat)
            what = "ten sentences on the page, {}: seconds, median [least, most]"
            rows = [row(what.format(name), args.repeat, median(s), (min(s), max(s))) for name, s in found.items()]
            save("speed", "demo", rows, tables=found, packages=["gradio", "playwright"])
        browser.close()
        page.close(verbose=False)


if __name__ == "__main__":
    main()
