"""A suite of sentences that state nothing, and of facts, true and false, that begin like them; all about one reference.

``small_talk.tsv`` holds it: refusals, apologies, greetings, offers, headings … and facts.
"""

import hashlib
from pathlib import Path

SUITE = Path(__file__).parent / "small_talk.tsv"
REFERENCE = {
    "en": "Albert Einstein was born in Ulm, in the Kingdom of Württemberg, on 14 March 1879. He worked at the patent "
    "office in Bern from 1902 to 1909. In 1921 he was awarded the Nobel Prize in Physics for his explanation of the "
    "photoelectric effect. He moved to Princeton in 1933 and became a citizen of the United States in 1940. He played "
    "the violin from the age of five. He died in Princeton on 18 April 1955.",
    "zh": "阿尔伯特·爱因斯坦于1879年3月14日出生在符腾堡王国的乌尔姆。他从1902年到1909年在伯尔尼专利局工作。"
    "1921年他因解释光电效应获得诺贝尔物理学奖。他1933年移居普林斯顿，1940年成为美国公民。他五岁开始拉小提琴。他于1955年4月18日在普林斯顿去世。",
}
QUESTION = {"en": "When and where was Albert Einstein born?", "zh": "爱因斯坦什么时候出生，出生在哪里？"}
FACTS = ("true", "false")


def read_suite(path: Path = SUITE) -> list[dict[str, str]]:
    """Rows of the suite: lang, kind, sentence, part ("first" was seen while the rules were written)."""
    rows = []
    later = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            later = later or line.startswith("# later")
        else:
            lang, kind, sentence = line.split("\t")
            half = ("first", "second")[int(hashlib.sha256(sentence.encode()).hexdigest(), 16) % 2]
            rows.append({"lang": lang, "kind": kind, "sentence": sentence, "part": "later" if later else half})
    return rows
