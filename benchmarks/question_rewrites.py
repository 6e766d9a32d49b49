"""Rules that reword a question, and rules that turn it into another one that looks alike. Labels by construction.

A rule gives None where it does not apply. Rewordings keep what is asked; minimal pairs change it by one word or number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Rule = Callable[[str], "str | None"]
Rules = Mapping[str, Mapping[str, Rule]]


def _first(text: str, changes: Mapping[str, str]) -> str | None:
    """The text with the first of the patterns that it holds replaced, whole words only."""
    for pattern, target in changes.items():
        new, n = re.subn(pattern, target, text, count=1)
        if n:
            return new
    return None


def _frame(before: str) -> Rule:
    def rule(text: str) -> str:
        head = text if re.match(r"[A-Z]{2}|I\b", text) else text[0].lower() + text[1:]
        return before + head

    return rule


def _words(changes: Mapping[str, str]) -> Rule:
    return lambda text: _first(text, changes)


def _front(text: str) -> str | None:
    """ "Who … in Peru?" → "In Peru, who …?"; only where the last phrase is short."""
    found = re.match(r"(.+) (in|at|on|during|after|before) ((?:\S+ ){0,3}\S+)\?$", text)
    if found is None:
        return None
    return f"{found[2].capitalize()} {found[3]}, {found[1][0].lower()}{found[1][1:]}?"


def _number(text: str) -> str | None:
    found = re.search(r"\d+", text)
    return None if found is None else text[: found.start()] + str(int(found[0]) + 1) + text[found.end() :]


REWORDED: Rules = {
    "en": {
        "polite frame": _frame("Could you tell me "),
        "contraction": _words(
            {
                r"\b(What|Who|Where|How|There|It) is\b": r"\1's",
                r"\b(What|Who|Where)'s\b": r"\1 is",
                r"\b(do|does|did|is|are|was|were|would) not\b": r"\1n't",
                r"\b(do|does|did|is|are|was|were)n't\b": r"\1 not",
            }
        ),
        "question word": _words(
            {
                r"^How many\b": "What number of",
                r"^Why\b": "For what reason",
                r"^Who\b": "Which person",
                r"^Where\b": "In what place",
                r"^When\b": "At what time",
                r"^How do(es)?\b": r"In what way do\1",
                r"^What happens\b": "What will happen",
                r"^Can\b": "Is it possible that",
            }
        ),
        "phrase in front": _front,
    },
    "zh": {
        "polite frame": lambda text: "请问，" + text,
        "question word": _words(
            {
                "为什么": "为何",
                "什么时候": "何时",
                "哪里": "什么地方",
                "哪一年": "什么年份",
                "如何": "怎样",
                "怎么": "如何",
                "是谁": "是哪位",
                "是否": "是不是",
                "哪个": "哪一个",
                "哪一个": "哪个",
                "多少": "几",
                "会发生什么": "会怎么样",
            }
        ),
        "what is asked in front": lambda text: (
            f"什么是{m[1]}？" if (m := re.match(r"(.{3,30})是什么[?？]$", text)) else None
        ),
    },
}

MINIMAL: Rules = {
    "en": {
        "other question word": _words(
            {r"^When\b": "Where", r"^Where\b": "When", r"^Who\b": "When", r"^Why\b": "When", r"^How many\b": "Which"}
        ),
        "opposite": _words(
            {
                r"\bfirst\b": "last",
                r"\blast\b": "first",
                r"\bmost\b": "least",
                r"\bmore\b": "less",
                r"\bbefore\b": "after",
                r"\bafter\b": "before",
                r"\b([Bb])est\b": "worst",
                r"\blargest\b": "smallest",
                r"\bhigh(er|est)?\b": r"low\1",
                r"\bold(er|est)?\b": r"young\1",
                r"\blegal\b": "illegal",
                r"\bcan\b": "can't",
                r"\bprevent\b": "cause",
                r"\bprevented\b": "caused",
                r"\bpreventing\b": "causing",
                r"\balways\b": "never",
                r"\bman\b": "woman",
                r"\bhelp\b": "hinder",
                r"\bstart": "end",
                r"\btrue\b": "false",
                r"\bgood\b": "bad",
                r"\bin common\b": "apart",
            }
        ),
        "other number": _number,
        "other name": _words(
            {
                r"\b(the United States|the US|America|the U\.S\.)(?!\w)": "France",
                r"\bGermany\b": "Italy",
                r"\b(China|Japan|Mexico|Canada|India|Russia|Spain|England|Ireland|Australia)\b": "Norway",
                r"(?<=\w )([A-Z][a-z]{3,}) ([A-Z][a-z]{3,})\b": "Martin Keller",
            }
        ),
    },
    "zh": {
        "other question word": _words(
            {
                "什么时候": "在哪里",
                "哪一年": "在哪里",
                "谁": "哪里",
                "哪里": "什么时候",
                "为什么": "什么时候",
                "多少": "哪些",
            }
        ),
        "opposite": _words(
            {
                "最大": "最小",
                "最高": "最低",
                "最多": "最少",
                "最长": "最短",
                "第一": "最后",
                "最早": "最晚",
                "首次": "末次",
                "以前": "以后",
                "之前": "之后",
                "可以": "不可以",
                "能够": "不能够",
                "会发生": "不会发生",
                "有没有": "缺不缺",
                "最好": "最差",
                "男": "女",
                "好": "坏",
                "出生": "去世",
            }
        ),
        "other number": _number,
        "other name": _words(
            {"中国": "法国", "北京": "南京", "美国": "德国", "日本": "韩国", "英国": "印度", "上海": "天津"}
        ),
    },
}
