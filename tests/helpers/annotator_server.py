# ruff: noqa: E501  (tables)
"""A server that plays an annotating model: a correct one, a sloppy one and a hostile one, in both protocols and languages.

The correct one judges as `ExactAnnotator` of `standin.py` does, by what stands between the marks of our own prompts. The
sloppy one says the same in every form that a reader must take; the hostile one sends what servers and models send on a
bad day, and on some days the truth.
"""

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from annotators.generative.protocols import CHOICES
from annotators.generative.samples import NO_POINTS
from annotators.generative.tagged import write_tagged
from annotators.records import LABELS, Label
from tests.helpers.engines_server import Reply, Server, completion, error, serving
from tests.helpers.standin import ExactAnnotator

MARKS = {"document": ("document", "文档"), "sentence": ("sentence", "句子"), "question": ("question", "问题")}


def input_of(body: dict[str, Any], name: str) -> str | None:
    for message in reversed(body["messages"]):
        for mark in MARKS[name]:
            if found := re.search(rf"<{mark}>\n(.*?)\n</{mark}>", message["content"], re.DOTALL):
                return found.group(1)
    return None


def language_of(body: dict[str, Any]) -> str:
    return "zh" if "<句子>" in body["messages"][0]["content"] else "en"


def verdict(sentence: str, document: str) -> tuple[Label, str, list[tuple[str, str]]]:
    if sentence.endswith("！"):
        return "no_fact", "", []
    label, at, edits = ExactAnnotator().label(sentence, 0, document)
    changes = [(sentence, "")] if label == "unverifiable" else [(edit.source, edit.target) for edit in edits]
    return label, document[at : at + len(sentence)] if at >= 0 else "", changes


def correct(body: dict[str, Any]) -> str:
    sentence, document, language = input_of(body, "sentence"), input_of(body, "document"), language_of(body)
    assert sentence is not None
    label, fragment, changes = verdict(sentence, document or "")
    (present, absent), kinds = CHOICES[language]
    turn = sum(message["role"] == "user" for message in body["messages"])
    if turn == 1 and present in body["messages"][0]["content"]:
        return absent if label == "no_fact" else present
    if turn == 2:
        return fragment or NO_POINTS[language]
    if turn == 3:
        return kinds[LABELS.index(label)]
    return write_tagged(label, [fragment] * bool(fragment), changes, language)


def correct_object(body: dict[str, Any]) -> str:
    """What ``correct`` says of each numbered sentence, as JSON; ``correct`` itself where no schema was asked for."""
    if "response_format" not in body:
        return correct(body)
    rows = []
    for line in (input_of(body, "sentence") or "").split("\n"):
        number, _, sentence = line.partition(". ")
        label, fragment, changes = verdict(sentence, input_of(body, "document") or "")
        edits = [{"from": old, "to": new} for old, new in changes]
        rows.append(
            {"number": int(number), "evidence": [fragment] * bool(fragment), "type": label, "corrections": edits}
        )
    return json.dumps({"sentences": rows})


SLIPS: tuple[Callable[[str], str], ...] = (
    lambda text: "Sure, here it is:\n" + text,
    lambda text: f"```\n{text}\n```" if not text.startswith("<No") else text,
    lambda text: text.replace("<Hallucination> ", "<Halluciation>").replace("<Reference> ", "<reference>Reference 1: "),
    lambda text: text.replace("<No Fact>", "<NoFact>").replace("<No Facts>", "< no facts >"),
    lambda text: text.replace('"', "”").replace("“", "「").replace("<幻觉>", "< 幻觉 > "),
    lambda text: text.replace("<Correction> ", "<correction>change ").replace("<改正>", "<改正>将"),
    lambda text: "\n".join(reversed(text.split("\n"))),
    lambda text: f"<think>hmm, <Hallucination> None?</think>\n\n{text}\n",
    lambda text: text.replace("None", "NONE.").replace("<矛盾>", "<矛盾>。"),
)  # fmt: skip


def sloppy(body: dict[str, Any]) -> str:
    return SLIPS[_draw(body) % len(SLIPS)](correct(body))


def hostile(body: dict[str, Any]) -> Reply:
    """One of many bad replies; the truth for every seventh request."""
    days: tuple[Callable[[], Reply], ...] = (
        lambda: completion(correct(body)),
        lambda: completion(correct(body)[:25], finish="length"),
        lambda: completion(""),
        lambda: completion(None),
        lambda: completion("<Hallucination> None\n<Hallucination> Contradictory"),
        lambda: completion(f"<Reference> {input_of(body, 'document')} <Hallucination> None".replace("‹", "<").replace("›", ">")),
        lambda: completion("<Référence> le pont <Hallucination> Aucune"),
        lambda: completion("<script>alert(1)</script><img src=x onerror=alert(1)>"),
        lambda: completion("word " * 20_000),
        lambda: completion(body["messages"][-1]["content"]),
        lambda: completion('<Hallucination> Contradictory <Correction> "not in the sentence" to "<b>x</b>"'),
        lambda: completion("\x00\ud800<Hallucination> None".encode("utf-8", "replace").decode()),
        lambda: error(429, "slow down"),
        lambda: error(500, "oops"),
    )  # fmt: skip
    number = _draw(body)
    return days[0 if number % 7 == 0 else number % len(days)]()


def _draw(body: dict[str, Any]) -> int:
    data = json.dumps([body["messages"], body.get("seed")], sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big")


def annotating(play: Callable[[dict[str, Any]], str | Reply]) -> AbstractContextManager[Server]:
    def script(body: dict[str, Any]) -> Reply:
        reply = play(body)
        return reply if isinstance(reply, Reply) else completion(reply)

    return serving(script)
