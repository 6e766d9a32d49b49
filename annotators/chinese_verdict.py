"""Chinese sentences that a reference plainly supports, told without weights: the first step beyond "unsupported".

A sentence counts as supported where it stands in one or two neighbouring sentences of the reference nearly word for
word: every character but function words is found there in the same order, numbers whole, with as many negations, and
nothing in the reference makes it a plan, a hope, a condition or hearsay. All else is left unjudged, so no Chinese
sentence is ever called hallucinated here. What this is worth is on docs/results/chinese-verdict.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from typing import Any

from annotators.chinese_claims import claims_nothing_chinese
from annotators.cleaning import clean_text
from annotators.language import language_of
from annotators.records import LABELS, Fragment, Label, SentenceAnnotation
from annotators.sentences import split_sentences

VERSION = 2
"""Raised whenever the rule changes, since verdicts depend on it."""
MIN_ALIGNED = 0.9
"""Share of the sentence's characters that stand in the window in the same order."""
MAX_STRETCH = 2.5
"""Characters of the window from the first aligned one to the last, for each of the sentence."""
MIN_CHARACTERS, MAX_CHARACTERS = 4, 300
PRECISION = 0.9
"""P(supported) that is stated: about what the rule reached on rows it was not chosen on, where wording differs."""
SCORES: dict[Label, float] = {
    label: PRECISION if label == "supported" else (1 - PRECISION) / (len(LABELS) - 1) for label in LABELS
}
_FUNCTION = frozenset(
    "的了在是和与及也都就而又着过地得之其这那为以于对将把会能说们并且但或等还该此吧呢啊呀嘛哦哎嗯"
)
_NEGATION = re.compile("不|没|未|无|非|莫|别|勿|否|毫|反对|拒绝|禁止|停止|取消")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*%?|[一二三四五六七八九十百千万亿零〇两]+")
_RANGE = re.compile(r"\d%?[-—~～至到]\d")
_UNREAL = re.compile(
    "据说|听说|据传|传闻|可能|也许|或许|大概|会不会|是不是|能不能|有没有|如果|要是|假如|倘若|若|即使|以为|认为|觉得|预期|预计|"
    "预测|计划|目标|希望|应该|应当|必须|需要|要|想|拟|将|吗|[？?]|说是|似乎|好像|仿佛|争取|力争|准备|打算|建议|以便|除非|只要|只有|"
    "差点|几乎|快"
)
"""Words that take what stands beside them out of the facts; abstain where only the reference has one."""


def plainly_supported(sentence: str, reference: str) -> Fragment | None:
    """The one or two sentences of the reference that say the same, or None where that can't be told.

    Args:
        sentence: A Chinese sentence.
        reference: The reference as it came; the fragment's offsets are into it.
    """
    own = clean_text(sentence)
    characters = _characters(own)
    if not MIN_CHARACTERS <= len(characters) <= MAX_CHARACTERS or own.rstrip().endswith(("?", "？")):
        return None
    pairs = {characters[i : i + 2] for i in range(len(characters) - 1)}
    windows = _windows(reference)
    ranked = sorted(windows, key=lambda w: (-len(pairs & w[3]), len(w[2])))
    for start, end, text, _ in ranked[:2]:
        if _says(own, characters, text):
            return Fragment(reference[start:end], start, end)
    return None


def _characters(text: str) -> str:
    return "".join(c for c in text if c.isalnum())


@lru_cache(maxsize=256)
def _windows(reference: str) -> list[tuple[int, int, str, frozenset[str]]]:
    """(start, end, clean text, character pairs) of each sentence of a reference, and of each two neighbours."""
    cuts = split_sentences(reference)
    spans = [*cuts, *((a, d) for (a, _), (_, d) in pairwise(cuts))]
    out = []
    for start, end in spans:
        text = clean_text(reference[start:end])
        bare = _characters(text)
        out.append((start, end, text, frozenset(bare[i : i + 2] for i in range(len(bare) - 1))))
    return out


def _says(own: str, characters: str, text: str) -> bool:
    """Whether a window says what the sentence says."""
    there = _characters(text)
    blocks = [
        b for b in SequenceMatcher(None, characters, there, autojunk=False).get_matching_blocks() if b.size
    ]
    aligned = {i for block in blocks for i in range(block.a, block.a + block.size)}
    if len(aligned) < MIN_ALIGNED * len(characters):
        return False
    if any(c not in _FUNCTION for i, c in enumerate(characters) if i not in aligned):
        return False
    stretch = there[blocks[0].b : blocks[-1].b + blocks[-1].size]
    numbers = _NUMBER.findall(own)
    if len(stretch) > MAX_STRETCH * len(characters):
        return False
    return (
        len(_NEGATION.findall(own)) == len(_NEGATION.findall(stretch))
        and not set(numbers) - set(_NUMBER.findall(text))
        and not set(_UNREAL.findall(text)) - set(_UNREAL.findall(own))
        and not (numbers and _RANGE.search(text) and not _RANGE.search(own))
    )


def judged_chinese(row: Mapping[str, Any], start: int) -> SentenceAnnotation | None:
    """The judgement of a Chinese sentence against a Chinese reference, or None where there is none.

    Args:
        row: With ``sentence``, ``reference`` and maybe ``language``, as declared.
        start: Offset of the sentence in its answer.
    """
    text, declared = row["sentence"], (row.get("language") or "zh").lower()
    own = clean_text(text)
    if not declared.startswith("zh") or {language_of(own), language_of(clean_text(row["reference"]))} != {
        "zh"
    }:
        return None
    end = start + len(text)
    if claims_nothing_chinese(own):
        scores = {label: float(label == "no_fact") for label in LABELS}
        return SentenceAnnotation(text, start, end, "checked", "no_fact", scores)
    fragment = plainly_supported(text, row["reference"])
    if fragment is None:
        return None
    return SentenceAnnotation(text, start, end, "checked", "supported", SCORES, (fragment,))
