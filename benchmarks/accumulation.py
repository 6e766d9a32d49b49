"""Do hallucinations accumulate? `mitigate stats` on public data whose answers are annotated sentence by sentence.

    python -m benchmarks.accumulation --data ../shared/data --output docs/results/statistics.md

The sources with whole answers are cliff, qags (summaries), lfqa_verification and expertqa (long answers). Nothing is
trained or chosen on them, so all rows count.
"""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from pathlib import Path

from benchmarks.splits import DATA, require_data
from mitigate.cli.stats import statistics_page
from mitigate.labels import read_answers

FILES = ("sentences/cliff", "binary/qags", "binary/lfqa_verification", "binary/expertqa")
RESAMPLES = 1000


def main() -> None:
    """Compute, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/ and binary/")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    require_data(args.data)
    answers, _ = read_answers([args.data / f"{name}.dev.jsonl" for name in FILES])
    whole, _ = statistics_page(answers, argparse.Namespace(whole=0.9, resamples=RESAMPLES))
    judged, _ = statistics_page(answers, argparse.Namespace(whole=0.0, resamples=RESAMPLES))
    lines = [
        "# Label shares and the accumulation effect", "",
        "`python -m benchmarks.accumulation --data ../shared/data --output docs/results/statistics.md`; Python "
        f"{platform.python_version()}, numpy {version('numpy')}. Human labels; P(H) in percent. ANAH reports 58.5 "
        "against 14.6 (English) and 52.5 against 17.2 (Chinese) on its own data.", "",
        whole,
        "With every answer of at least two judged sentences, however little of it they are (sentences that its source "
        "left out as doubtful are then missing between them):", "",
        judged.split("## Accumulation", 1)[1].split("\n\n", 2)[2],
    ]  # fmt: skip
    lines += [
        "A hallucinated sentence is more often followed by another one in all sources, but most of that difference is "
        "there in random order too: some answers are bad throughout. `order` is what is left for the order of "
        "sentences, a trend to worse sentences at the end among it; where its interval includes "
        "0, these data show no snowball."
    ]
    page = "\n".join(lines)
    print(page)
    if args.output:
        args.output.write_text(page.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
