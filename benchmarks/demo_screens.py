"""Pictures of the page for README and docs: light, dark, on a phone, the other tabs; docs/demo-*.png.

    python -m benchmarks.demo_screens [--output docs]

Starts the page with the embedded annotator and drives a headless Chromium (`apt-get install chromium fonts-noto-cjk`).
The Training tab shows a run of examples/pocket/rlhf.yaml (simulated), made first (minutes), or that of `--run`.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from examples.pocket.__main__ import main as pocket
from mitigate.demo.launch import launch
from mitigate.demo.limits import Limits
from mitigate.demo.page import build
from mitigate.demo.service import Service, Shelf

WAIT = 300_000  # milliseconds
COLOURS = 256  # of a picture; text stays sharp


def main() -> None:
    """Take every picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument("--run", type=Path, help="a finished run folder for the Training tab")
    args = parser.parse_args()
    output: Path = args.output
    output.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright

    limits = Limits()
    service = Service(Shelf(), limits)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run: Path = args.run or Path(folder) / "pocket"
        if args.run is None and (
            code := pocket(["make"]) or pocket(["run", "examples/pocket/rlhf.yaml", "--output", str(run)])
        ):
            raise SystemExit(code)
        page = build(service, runs=str(run.parent))
        url = launch(page, limits, block=False)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            tab = opened(browser, url, 1200, 800, scheme)
            annotate(tab, "Lighthouse (English)")
            tab.locator("#annotated .s.contradictory").first.click()
            tab.locator("#annotated .s.contradictory").first.click()
            save(tab, output / f"demo-{scheme}.png")
        phone = opened(browser, url, 390, 844, "light", scale=2)
        annotate(phone, "茶马古道 (Chinese)")
        phone.evaluate("document.querySelector('#annotated').scrollIntoView()")
        save(phone, output / "demo-mobile.png", full=False)
        tab = opened(browser, url, 1200, 800, "light")
        tab.get_by_role("tab", name="Compare").click()
        tab.get_by_text("Do camels store water? (English)").click()
        tab.wait_for_function("document.querySelector('#compare-question textarea').value.length > 10")
        tab.click("#compare")
        tab.wait_for_selector("#compared .mt-view:not(.busy) >> nth=1")
        save(tab, output / "demo-compare.png", element="#compared")
        tab.get_by_role("tab", name="Training").click()
        tab.fill("#run-folder input", run.name)
        tab.keyboard.press("Enter")
        tab.click("#run-open")
        tab.wait_for_selector("#trained .curve")
        save(tab, output / "demo-training.png", element="#trained")
        browser.close()
        page.close(verbose=False)


def opened(browser: Any, url: str, width: int, height: int, scheme: str, scale: float = 1) -> Any:
    """The page in a window of that size and colour scheme."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale
    )
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(url)
    page.wait_for_selector("#annotate")
    return page


def annotate(page: Any, example: str) -> None:
    """Annotate an example and wait for the end."""
    page.get_by_text(example).click()
    page.wait_for_function("document.querySelector('#answer textarea').value.length > 10")
    page.click("#annotate")
    page.wait_for_selector("#annotated .mt-view:not(.busy) .s")


def save(page: Any, path: Path, *, full: bool = True, element: str | None = None) -> None:
    """Take a picture with few colours, so that it is small."""
    from PIL import Image

    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    data = page.locator(element).screenshot() if element else page.screenshot(full_page=full)
    picture = Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
