"""What the tests of the demo share: an answer, a slow annotator, a language model."""

import time
from pathlib import Path
from typing import Any

from tests.helpers.engines_server import Scripted
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
        if any("Fail" in record["answer"] for record in records):
            raise RuntimeError("the server went away")
        time.sleep(self.seconds * len(records))
        return super().annotate_batch(records)

    def annotate_spans(self, record: Any, spans: Any) -> list[Any]:
        time.sleep(self.seconds * len(spans))
        return super().annotate_spans(record, spans)


class Stub(Scripted):
    """A language model that always writes the same answer, or a sentence anew."""

    def __init__(self) -> None:
        super().__init__(self.write, "stub:one")

    def write(self, text: str, call: int) -> str:
        anew = "Write that sentence again" in text
        return "Its owner was a miller." if anew else "The mill was built in 1804. Its owner was a baker."
