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
CONTRAST = """() => {
  const parts = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (c) => { const [r, g, b] = parts(c).map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/rgba\\(.*, 0\\)|transparent/.test(c)) return c; } return 'rgb(255,255,255)'; };
  return Array.from(document.querySelectorAll(
      '#annotated .s, #annotated .legend li .tag, #annotated small'))
    .map(e => { const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
      return [e.className, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; });
}"""  # Source: WCAG 2.2, relative luminance and contrast ratio

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
    """A run folder with a curve, a half-written line and one question before and after."""
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
