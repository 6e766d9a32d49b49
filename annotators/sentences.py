"""Cut an English or Chinese answer into sentences, as character offsets into it.

One compiled expression finds the characters that may matter (line breaks, stops, quotes, brackets, inline list
markers); small functions decide each. A list item, a heading and a table row are sentences; a list marker
stays with its item and a citation mark with the sentence before it; a short quotation or bracket is never cut
inside, a long quotation is; a fenced code block is one piece. Between two sentences lies only white space.

Time is linear in the text: every look back or ahead is bounded and no expression backtracks far.
Left out: other languages, and what only meaning can tell ("a plant in the U.S. Howard Mosher runs").
"""

from __future__ import annotations

import re

from annotators.sentence_stops import HAN_CHAR, MARKER, TAIL, Stop, end_of, inline_item, sentence_end
from annotators.sentence_words import BREAKS, BULLETS, HAN, HAN_STOPS, HANGING, NL, QUOTE_ENDS, STOPS

# Longest span (code points) that is kept whole; a longer quotation is cut into its sentences.
MAX_QUOTE, MAX_QUOTE_HAN, MAX_BRACKET = 120, 60, 200

# Every character that may end a sentence or open a span; not the dot of "3.5" or "example.com", of "、" that of "2、".
_HOT = re.compile(
    rf"[{NL}{STOPS}{BULLETS}\"'“‘`(（\[【《〈「『)、](?:(?<![.、])|(?<=\.)(?![a-z0-9])|(?<=[0-9]、))"
)
_RUN = re.compile(rf"[{STOPS}]++(?:[ ][.!?]++(?!\S))*+")
_SPANS = {
    "(": rf"\([^(){NL}]{{0,{MAX_BRACKET}}}\)",
    "（": rf"（[^（）{NL}]{{0,{MAX_BRACKET}}}）",
    "[": rf"\[[^\[\]{NL}]{{0,{MAX_BRACKET}}}\]",
    "【": rf"【[^【】{NL}]{{0,{MAX_BRACKET}}}】",
    "《": rf"《[^《》{NL}]{{0,{MAX_BRACKET}}}》",
    "〈": rf"〈[^〈〉{NL}]{{0,{MAX_BRACKET}}}〉",
    "「": rf"「[^「」{NL}]{{0,{MAX_QUOTE}}}」",
    "『": rf"『[^『』{NL}]{{0,{MAX_QUOTE}}}』",
    "“": rf"“[^“”{NL}]{{0,{MAX_QUOTE}}}”",
    "‘": rf"‘(?:[^‘’{NL}]|’(?=\w)){{0,{MAX_QUOTE}}}+’",
    '"': rf'"[^"{NL}]{{0,{MAX_QUOTE}}}"',
    "'": rf"(?<![^\s(])'(?=\w)(?:[^'{NL}]|'(?=\w)){{1,{MAX_QUOTE}}}+(?<=[.!?,])'",
    "`": rf"``(?!`)[^`{NL}]{{1,{MAX_QUOTE}}}''"
    rf"|(`{{1,2}})(?![`\s])[^`{NL}]{{1,{MAX_BRACKET}}}(?<!\s)\1(?![`\w])",
}
_SPAN = {opener: re.compile(pattern) for opener, pattern in _SPANS.items()}
_QUOTES = frozenset("「『“‘\"'")
_NAMES = frozenset("《〈`")  # spans whose stops never count

_LINE_MARK = re.compile(
    rf"[-*+–—·][ \t]|-(?=[^\W\d])|[{BULLETS}①-⑳]|\#{{1,6}}[ \t]|>|\||`{{3}}|~{{3}}|\*\*|【"
    rf"|(?:Step |Q)?\d{{1,3}}(?:[.．](?!\d)|[)）、])|\d{{1,2}}(?:\.\d{{1,2}}){{1,4}}\.?[ \t]+[A-Z{HAN}]"
    rf"|[(（](?:\d{{1,3}}|[a-zA-Z]|[ivx]{{1,5}}|[一二三四五六七八九十]{{1,3}})[)）]"
    rf"|(?:[a-zA-Z]|[ivx]{{1,5}}|[IVX]{{1,5}})[.)][ \t]|[一二三四五六七八九十]{{1,3}}[、．]|\[\d{{1,3}}\]"
)
_RULE_LINE = re.compile(rf"[-=*_~|:+][-=*_~|:+ \t]{{2,}}+(?=[{NL}]|$)")
_WORDLESS_LINE = re.compile(rf"(?![-*+{BULLETS}][ \t]*[{NL}])(?:[^\w{NL}]|_)++(?=[{NL}]|$)")
_FENCE = re.compile(rf"(?:^|(?<=[{NL}]))[ \t]{{0,3}}(`{{3}}|~{{3}})[^`{NL}]*+(?=[{NL}]|$)")
_LINE = re.compile(rf"[^{NL}]*+")
_SPACE = re.compile(r"\s*+")
_LETTER = re.compile(r"[^\W_]")
_HAN_STOP = re.compile(f"[{HAN_STOPS}]")
_CAPITAL_NEXT = re.compile(r"[ \t][A-Z]")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Sentences of ``text`` as ``(start, end)`` offsets, in order.

    Args:
        text: An answer, English, Chinese or mixed; any characters.

    Returns:
        Code-point offsets with ``text[start:end]`` free of outer white space, and only white space before,
        between and after them. White space alone gives none; marks alone (``"---"``, ``"1."``) give one.
    """
    sentences, left = [], 0
    for right in [*_cuts(text), len(text)]:
        body = text[left:right].lstrip()
        start = right - len(body)
        body = body.rstrip()
        if body:
            sentences.append((start, start + len(body)))
        left = right
    return sentences


def _cuts(text: str) -> list[int]:
    """Offsets at which one sentence ends and the next may begin."""
    cuts: list[int] = []
    start = line_start = end_of(_SPACE, text, 0)
    word_at = -1  # first letter or digit of the sentence, once looked for
    done = ended = 0  # text before `done` is dealt with; the last stop at a line's end closed at `ended`
    quoted = False  # inside a long straight quotation
    uncased = text == text.lower()
    fences = _fences(text) if "```" in text or "~~~" in text else {}
    if start in fences:
        done = fences[start]
        cuts.append(done)
        start = line_start = end_of(_SPACE, text, done)
    for hot in _HOT.finditer(text):
        i = hot.start()
        if i < done:
            continue
        char = text[i]
        cut = 0
        if char in BREAKS:
            done = end_of(_SPACE, text, i)
            fence = fences.get(done, 0)
            if start < i and (fence or not _joins(text, start, line_start, i, done, ended)):
                cut = i
            if fence:
                cuts.append(cut or i)
                cut = done = fence
            line_start = end_of(_SPACE, text, done)
            quoted = False
        elif char in STOPS:
            done = end_of(_RUN, text, i)
            if done == len(text):
                break
            if word_at < start:
                letter = _LETTER.search(text, start)
                word_at = letter.start() if letter else len(text)
            if word_at < i:
                cut = sentence_end(Stop(text, start, i, done, end_of(TAIL, text, done), -1, quoted, uncased))
                quoted = quoted and '"' not in text[i : max(cut, i)]
        elif char in _SPAN:
            if char == '"' and not _opens(text, i, quoted):
                quoted = False
                continue
            span = _SPAN[char].match(text, i)
            quoted = span is None if char == '"' else quoted
            if span is None or (char in _QUOTES and _long_han(text, i, span.end())):
                continue
            done = span.end()
            stop = _inner_stop(text, i, done)
            if stop and (char not in _NAMES or text[done - 1] == "'"):
                cut = sentence_end(Stop(text, start, *stop, end_of(TAIL, text, done), i, False, uncased))
        elif char in ")、":
            cut = inline_item(text, start, i) if char == "、" or _CAPITAL_NEXT.match(text, i + 1) else 0
        elif start < i and text[i - 1].isspace() and not MARKER.fullmatch(text, start, min(i, start + 12)):
            cut = i  # a bullet within a line
        if cut < 0:
            ended = -cut
        elif cut:
            cuts.append(cut)
            done = max(done, cut)
            start = end_of(_SPACE, text, cut)
    broken_off = (
        cuts and len(text) - start <= 24 and MARKER.fullmatch(text, start) and not text[-1:].isalnum()
    )
    if broken_off and text[cuts[-1] - 1] not in "?？":  # "… such as: 1."
        cuts.pop()
    return cuts


def _fences(text: str) -> dict[int, int]:
    """Start → end of each closed block between ``` or ~~~ lines."""
    blocks: dict[int, int] = {}
    opener: re.Match[str] | None = None
    for line in _FENCE.finditer(text):
        if opener is None:
            opener = line
        elif line[1] == opener[1]:
            blocks[opener.start(1)] = line.end()
            opener = None
    return blocks


def _opens(text: str, i: int, quoted: bool) -> bool:
    """Whether the straight quote at ``i`` opens a quotation."""
    before, after = text[i - 1 : i] if i else "", text[i + 1 : i + 2]
    opens = not before or before.isspace() or before in "([{（【《：，。！？、；—–"
    closes = not after or after.isspace() or after in ".,;:!?)]}）。，！？、；："
    return opens if opens != closes else not quoted


def _long_han(text: str, i: int, end: int) -> bool:
    """Whether the quotation ``text[i:end]`` is Chinese and long enough to be cut inside."""
    return end - i > MAX_QUOTE_HAN and _HAN_STOP.search(text, i, end - 2) is not None


def _inner_stop(text: str, opener: int, end: int) -> tuple[int, int] | None:
    """Start and end of the run of stops just inside the closing mark of ``text[opener:end]``."""
    right = end - 1
    while right > opener and (text[right - 1].isspace() or text[right - 1] in QUOTE_ENDS + ")）]*_"):
        right -= 1
    left = right
    while left > opener and text[left - 1] in STOPS:
        left -= 1
    if text[left - 1] in "([（":  # "[...]", "(?)"
        return None
    return (left, right) if left < right and _LETTER.search(text, opener + 1, left) else None


def _joins(text: str, start: int, line_start: int, end: int, begin: int, ended: int) -> bool:
    """Whether the sentence from ``start`` goes on over the line break ``text[end:begin]``.

    It does after a list marker alone, under a heading's underline, and where a line was wrapped.
    """
    line = text[line_start:end].rstrip()
    if begin == len(text) or not line:
        return True
    last, next_char = line[-1], text[begin]
    rule = _RULE_LINE.match(text, line_start)
    if end - start <= 24 and not rule and not last.isalnum() and MARKER.fullmatch(text, start, end):
        return True
    first_break = end + (2 if text.startswith("\r\n", end) else 1)
    if any(char in BREAKS for char in text[first_break:begin]):
        return False
    wordless = end - start <= 24 and not _LETTER.search(text, start, end)
    if _WORDLESS_LINE.match(text, begin) or wordless:  # a rule under a heading, a sign on its own line
        return not rule
    if _LINE_MARK.match(text, begin) or line[0] in "#|" or rule or ended == line_start + len(line):
        return False
    if last in "，、:：":
        return last in "，、"
    if HAN_CHAR.match(next_char):
        return len(line) >= 40 and "，" in line and (last in "）”」》" or bool(HAN_CHAR.match(last)))
    hanging = line.rsplit(None, 1)[-1].strip("(\"'*.,").lower() in HANGING
    if next_char.islower():
        stops_there = text[end_of(_LINE, text, begin) - 1] in STOPS
        return len(line) >= 40 or last in ",;-–—&" or hanging or (line.count(" ") > 1 and stops_there)
    return (last == "," and len(line) >= 60) or (hanging and len(line) >= 20)
