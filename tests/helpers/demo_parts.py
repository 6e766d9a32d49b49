"""What the tests of the demo share: an answer, a slow annotator, a run folder."""

import time
from pathlib import Path
from typing import Any

from tests.helpers.jsonl import write_rows
from tests.helpers.rule_annotator import RuleAnnotator

REFERENCE = "The mill was built in 1804. It has red roofs.\nbaker -> miller"
ANSWER = "The mill was built in 1804. Its owner was a baker. It stood near Ostrand. how nice."
HOSTILE = (
    "<script>window.hacked = 1</script> <img src=x onerror='window.hacked=2'> </div></span>. ${window.hacked=3} "
    "{{value}} `backtick` &amp; \u202egnissim\u202c \u2066in\u2069 \u200f. <a href=javascript:window.hacked=4>x</a> "
    '" onclick="window.hacked=5. Ünïcode 文字 🙂.\n\n\tTab and  two spaces.'
)
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
FILLED = "Array.from(document.querySelectorAll('textarea')).every(e => e.value || !e.offsetParent)"


class Slow(RuleAnnotator):
    """Takes its time for a sentence, or a record of a file: a starved machine, too, comes in time to stop hundreds."""

    name = "slow"
    seconds = 0.4

    def annotate_batch(self, records: Any) -> list[Any]:
        records = list(records)
        time.sleep(self.seconds * len(records))
        return super().annotate_batch(records)

    def annotate_spans(self, record: Any, spans: Any) -> list[Any]:
        time.sleep(self.seconds * len(spans))
        return super().annotate_spans(record, spans)


def write_run(folder: Path) -> Path:
    rows = [{"step": i, "reward": i / 2, "factuality/hallucination_rate": None if i == 1 else 0.5} for i in range(3)]
    with write_rows(folder / "metrics.jsonl", rows).open("a") as file:
        file.write('{"step": 3, "rew')
    (folder / "config.yaml").write_text("task: rlhf\nabout: <b>bold</b>\n")
    annotator = RuleAnnotator()
    before = annotator.annotate(question="q?", reference=REFERENCE, answer="Its owner was a baker.").to_dict()
    after = {"question": "q?", "reference": REFERENCE, "answer": "The mill was <i>built</i> in 1804."}
    samples = [{"when": "before", "set": "a", **before}, {"when": "after", "set": "a", **after}, {"when": "later"}]
    write_rows(folder / "samples.jsonl", samples)
    return folder
