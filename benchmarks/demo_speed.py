"""How long the page takes: until it is there, and an annotation on it beside the same call without it.

    python -m benchmarks.demo_speed [--page docs/results/demo.md] [--repeat 20]

Three times for a warm annotation of ten sentences by the embedded annotator: the call itself (`annotate`), the endpoint
through gradio_client, and a click in a headless Chromium until the last sentence is shown. They alternate within one
run, each repetition with another number in the text; ratios are of medians, since the machine may be busy.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from mitigate.demo.launch import launch
from mitigate.demo.limits import Limits
from mitigate.demo.page import build
from mitigate.demo.service import Service, Shelf

ROOT = Path(__file__).parent.parent
SENTENCES = (
    "The Eddystone Rocks lie about 14 kilometres off the coast.",
    "The first lighthouse was built of wood by Henry Winstanley.",
    "It was lit in November 1698.",
    "It was destroyed in the great storm of 1713.",
    "Its successor stood until it burned down in 1755.",
    "Smeaton used interlocking granite blocks.",
    "The present lighthouse was lit in 1882.",
    "It is 94 metres high.",
    "It has worked without keepers since 1982.",
    "More than two million tourists visit it every summer.",
)


def start_up() -> float:
    """Seconds from the command until the first byte of the page."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "app.py", "--port", "7899"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while time.perf_counter() - begin < 300:
            try:
                with urlopen("http://127.0.0.1:7899/", timeout=60) as page:
                    page.read(1)
                break
            except OSError:
                time.sleep(0.05)
        return time.perf_counter() - begin
    finally:
        process.terminate()
        process.wait()


def annotations(repeat: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each way, and CPU seconds of this process (call, client and server; not the browser)."""
    from gradio_client import Client
    from playwright.sync_api import sync_playwright

    limits, shelf = Limits(), Shelf()
    service = Service(shelf, limits)
    page = build(service)
    url = launch(page, limits, block=False)
    client = Client(url, verbose=False)
    reference = json.loads((ROOT / "mitigate/demo/examples.json").read_text())["annotate"][0]["reference"]
    times: dict[str, list[float]] = {"call": [], "endpoint": [], "page": [], "page, first sentence": []}
    cpu: dict[str, list[float]] = {"call": [], "endpoint": [], "page": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page()
        tab.set_default_timeout(300_000)
        tab.goto(url)
        tab.wait_for_selector("#annotate")
        for number in range(repeat + 1):
            answers = [f"{' '.join(SENTENCES)[:-1]} of {3 * number + way}." for way in range(3)]
            used = [time.process_time()]
            begin = time.perf_counter()
            shelf.annotator(None).annotate(reference=reference, answer=answers[0])
            call = time.perf_counter() - begin
            used.append(time.process_time())
            begin = time.perf_counter()
            client.predict("", reference, answers[1], api_name="/annotate")
            endpoint = time.perf_counter() - begin
            used.append(time.process_time())
            first, whole = clicked(tab, reference, answers[2])
            used.append(time.process_time())
            if number:  # the first is not warm
                for name, seconds in zip(times, (call, endpoint, whole, first), strict=True):
                    times[name].append(seconds)
                for place, name in enumerate(cpu):
                    cpu[name].append(used[place + 1] - used[place])
        browser.close()
    page.close(verbose=False)
    return times, cpu


def clicked(tab: Any, reference: str, answer: str) -> tuple[float, float]:
    """Seconds from the click until the first and until the last sentence is shown with its label."""
    tab.fill("#reference textarea", reference)
    tab.fill("#answer textarea", answer)
    found = tab.evaluate(
        """(answer) => new Promise((done) => {
          const begin = performance.now();
          let first = null;
          const look = () => {
            const text = document.querySelector('#annotated .answer')?.textContent;
            const judged = text === answer ? document.querySelectorAll('#annotated .s[data-s]').length : 0;
            if (judged && first === null) first = performance.now() - begin;
            if (judged === 10) done([first / 1000, (performance.now() - begin) / 1000]);
            else setTimeout(look, 5);
          };
          document.querySelector('#annotate').click();
          look();
        })""",
        answer,
    )
    return float(found[0]), float(found[1])


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/results/demo.md")
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    ready = start_up()
    times, cpu = annotations(args.repeat)
    call, work = statistics.median(times["call"]), statistics.median(cpu["call"])
    rows = [
        f"| {name} | {statistics.median(seconds):.3f} | {min(seconds):.3f} | {max(seconds):.3f} | "
        f"{statistics.median(seconds) / call:.2f} | "
        + (
            f"{statistics.median(cpu[name]):.3f} | {statistics.median(cpu[name]) / work:.2f} |"
            if name in cpu
            else "| |"
        )
        for name, seconds in times.items()
    ]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("gradio", "playwright", "torch"))
    lines = [
        f"`python -m benchmarks.demo_speed --repeat {args.repeat}`, Python {platform.python_version()}, {versions}, "
        "2-core CPU machine, not idle: read the ratios. Not run on a GPU.",
        "",
        f"From `python app.py` to the first byte of the page: {ready:.1f} s. The annotator loads behind it.",
        "",
        f"Ten sentences against a reference of 124 words, embedded annotator, warm, n = {args.repeat}; seconds:",
        "",
        "| | median | least | most | median / call | CPU, median | CPU / call |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        "`call` is `annotate`; `endpoint` the same through gradio_client; `page` from the click until the tenth",
        "sentence is shown, `page, first sentence` until the first is. The page judges in steps, first one sentence",
        "and then more, so that they can be shown; each step reads the reference anew. CPU: of the calling and serving",
        "process, without the browser.",
    ]
    args.page.write_text("\n".join(["# The page", "", *lines, ""]), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
