"""The pictures of the demo, with its own examples: docs/demo-*.png. Needs chromium and fonts-noto-cjk.

python -m benchmarks.demo docs
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.common import parser
from mitigate.demo.limits import Limits
from mitigate.demo.page import build, launch
from mitigate.demo.service import Service, Shelf


def opened(browser: Any, url: str, size: tuple[int, int] = (1200, 800), scheme: str = "light", scale: float = 1) -> Any:
    """The page in a window of that size and colour scheme."""
    viewport = {"width": size[0], "height": size[1]}
    tab = browser.new_context(viewport=viewport, color_scheme=scheme, device_scale_factor=scale).new_page()
    tab.set_default_timeout(300_000)
    tab.goto(url)
    tab.wait_for_selector("#annotate")
    return tab


def annotate(tab: Any, example: str) -> None:
    tab.get_by_text(example, exact=True).first.click()
    tab.wait_for_function("document.querySelector('#answer textarea').value.length > 10")
    tab.click("#annotate")
    tab.wait_for_selector("#annotated .mt-view:not(.busy) .s")


def pictures(browser: Any, url: str, output: Path) -> None:
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
    made = parser(__doc__, data=False)
    made.add_argument("folder", type=Path)
    args = made.parse_args()
    with sync_playwright() as playwright:
        page = build(Service(Shelf(), Limits(), fetch=True))
        url = launch(page, Limits(), block=False)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        pictures(browser, url, args.folder)
        browser.close()
        page.close(verbose=False)


if __name__ == "__main__":
    main()
