"""Reading what LLMs reply: numbered questions, verdicts by number, chosen numbers. Pure functions, strict.

A reply is data: what fits the form is taken, everything else is counted by its reason and left out. Nothing is
guessed, so a verdict that can't be read is None.
"""

from __future__ import annotations

import re
from collections import Counter

from annotators.language import language_of
from fewl.generate import yes_or_no

_ITEM = re.compile(
    r"^[ \t]*(?:[*_#>]+[ \t]*)?(?:(?:Q(?:uestion)?|问题)[ \t]*)?"
    r"(?:(\d{1,3}|[一二三四五六七八九十]{1,3})[ \t]*[.)、:．：）][ \t]*|[-•*][ \t]+)[*_]*[ \t]*(\S.*)$",
    re.I,
)
_MARKUP = re.compile(r"<[^<>\s][^<>]*>|```|\[INST|javascript:", re.I)
_NUMBER = re.compile(r"(?<![\d.])\d{1,4}(?![\d])")
MIN_LETTERS, MAX_CHARACTERS = 4, 400


def parse_questions(reply: str, language: str, *, truncated: bool = False) -> tuple[list[str], Counter[str]]:
    """The questions of a reply, one a line, numbered or with bullets.

    Args:
        reply: What the LLM wrote.
        language: "en" or "zh"; questions in another language are left out.
        truncated: Whether the reply was cut at its token limit; its last line is then dropped.

    Returns:
        Questions in order, and problems by name: ``empty``, ``no_list`` (no line is an item), ``truncated``,
        ``no_question`` (no question mark at its end), ``several_questions``, ``wrong_language``, ``markup``,
        ``too_short``, ``too_long``.
    """
    problems: Counter[str] = Counter()
    lines = [line for line in reply.splitlines() if line.strip()]
    if not lines:
        problems["empty"] += 1
    if truncated and lines:
        lines.pop()
        problems["truncated"] += 1
    items = [match[2] for line in lines if (match := _ITEM.match(line))]
    if lines and not items:
        items = [line for line in lines if line.strip().rstrip("*_ ").endswith(("?", "？"))]
        problems["no_list"] += 1
    good = []
    for item in items:
        text = " ".join(item.split()).strip("*_ ").strip()
        if (problem := _question_problem(text, language)) is None:
            good.append(text)
        else:
            problems[problem] += 1
    return good, problems


def _question_problem(text: str, language: str) -> str | None:
    marks = text.count("?") + text.count("？")
    if _MARKUP.search(text):
        return "markup"
    if not marks or not text.rstrip("\"'”’」』)）").endswith(("?", "？")):
        return "no_question"
    if marks > 1:
        return "several_questions"
    if sum(c.isalpha() for c in text) < MIN_LETTERS:
        return "too_short"
    if len(text) > MAX_CHARACTERS:
        return "too_long"
    return None if language_of(text) == language else "wrong_language"


def parse_verdicts(reply: str, n: int) -> list[bool | None]:
    """n verdicts out of "1. yes" lines, or out of exactly n lines without numbers.

    Returns:
        True, False, or None where a number is missing, out of range, said twice with different verdicts, or where
        its line says neither yes nor no.
    """
    found: dict[int, set[bool | None]] = {}
    bare: list[bool | None] = []
    for line in filter(str.strip, reply.splitlines()):
        item = _ITEM.match(line)
        if item and item[1] and item[1].isdigit():
            found.setdefault(int(item[1]), set()).add(yes_or_no(item[2]))
        else:
            bare.append(yes_or_no(item[2] if item else line))
    if found:
        said = [found.get(number, {None}) for number in range(1, n + 1)]
        return [next(iter(verdicts)) if len(verdicts) == 1 else None for verdicts in said]
    return bare if len(bare) == n else [None] * n


def parse_choice(reply: str, n: int, wanted: int) -> list[int]:
    """The chosen numbers, as places from 0, in the order said, each once and at most ``wanted``.

    Lines of numbers alone count, or else the line that names most. Numbers outside 1 … n are left out.
    """
    lines = reply.splitlines()
    bare = [line for line in lines if _NUMBER.search(line) and not any(c.isalpha() for c in line)]
    chosen = bare or [max(lines, key=lambda line: len(_NUMBER.findall(line)), default="")]
    numbers = [int(text) for line in chosen for text in _NUMBER.findall(line)]
    return list(dict.fromkeys(number - 1 for number in numbers if 1 <= number <= n))[:wanted]
