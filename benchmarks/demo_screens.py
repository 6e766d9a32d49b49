"""Pictures of the page for README and docs: light, dark, on a phone, the other tabs; docs/demo-*.png.

    python -m benchmarks.demo_screens [--output docs]

Starts the page with the embedded annotator and drives a headless Chromium (`apt-get install chromium fonts-noto-cjk`).
The run folder in the picture of the Training tab is made up here and says so.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mitigate.demo.launch import launch
from mitigate.demo.limits import Limits
from mitigate.demo.page import build
from mitigate.demo.service import Service
from mitigate.demo.shelf import Shelf

WAIT = 300_000  # milliseconds
COLOURS = 256  # of a picture; text stays sharp


def main() -> None:
    """Take every picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("docs"))
    output = parser.parse_args().output
    from playwright.sync_api import sync_playwright

    limits = Limits()
    service = Service(Shelf(), limits)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        made_up_run(Path(folder) / "made-up", service)
        page = build(service, runs=folder)
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
        tab.fill("#run-folder input", "made-up")
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


def made_up_run(folder: Path, service: Service) -> None:
    """A run folder with invented curves; its answers are annotated."""
    folder.mkdir()
    about = "invented figures, for the picture of this tab only"
    (folder / "config.yaml").write_text(f"kind: rlhf\nabout: {about}\n", encoding="utf-8")
    rng = random.Random(0)
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(80):
            gain = 1 - math.exp(-step / 30)
            noise = [rng.gauss(0, 0.02) for _ in range(4)]
            row = {
                "step": step,
                "reward": -0.2 + 0.8 * gain + noise[0],
                "factuality/hallucination_rate": 0.56 - 0.4 * gain + noise[1],
                "factuality/supported": 0.44 + 0.4 * gain + noise[2],
                "factuality/contradictory": 0.3 - 0.22 * gain + noise[3] / 2,
            }
            file.write(json.dumps(row) + "\n")
    question = "What is known of the mill of Ostrand?"
    reference = "The mill of Ostrand was built in 1804. It has red roofs. A canal was dug beside it in 1822."
    answers = {
        "before": "The mill of Ostrand was built in 1840. It has red roofs. Four hundred people worked there.",
        "after": "The mill of Ostrand was built in 1804. It has red roofs.",
    }
    with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
        for when, answer in answers.items():
            record = service.annotate(question, reference, answer, None)
            file.write(json.dumps({"when": when, "set": "invented", **record}) + "\n")


if __name__ == "__main__":
    main()
