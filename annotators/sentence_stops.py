"""Whether a stop (. ! ? … 。 and their kin) ends its sentence. The small decisions behind ``sentences.py``."""

from __future__ import annotations

import re
from typing import NamedTuple

from annotators.sentence_words import (
    BLANK,
    COUNTED,
    DATE_WORDS,
    DATES,
    ERAS,
    HAN,
    HAN_STOPS,
    HANGING,
    ITEM_DOTS,
    LATE,
    MARKED_NAMES,
    NEVER,
    NL,
    NUMBERED,
    PLACES,
    QUOTE_ENDS,
    STARTERS,
    STOPS,
    SUBJECTS,
    TIMES,
    TITLES,
    UNITS,
)

# What follows a stop and still belongs to it: closing marks, emphasis, tags, citations, superscripts, "(see note)".
TAIL = re.compile(
    rf"""(?:[”’」』）)\]】》〉'\u200b-\u200f\u2060\ufeff\x00-\x08\x0e-\x1b\x7f]
    |"(?!\w) |`(?!`) |[*_~]++(?![\w“「『（《]) |[¹²³⁰⁴-⁹]
    |{BLANK}(?:[)\]}}”」』）】》]|''(?!\w))
    |</\w{{1,10}}> |<br[ ]?/?> |{BLANK}?[:;=]['-]?[)(DP](?!\w)
    |(?:{BLANK}?\[\^?\d[\d,，、 –-]{{0,20}}\]|\[[^\[\]{NL}]{{1,30}}\])(?:\([^()\s]{{1,300}}\))?(?!\s[a-z])
    |{BLANK}?【\d{{1,3}}(?:[†:][^【】{NL}]{{0,20}})?】
    |{BLANK}?\([^(){NL}\d]{{0,60}}(?:1[5-9]|20)\d\d[a-z]?\)(?!\w)
    |{BLANK}\((?=[a-z])[^(){NL}]{{1,80}}\)(?=\s{{1,3}}["“(]?[A-Z]|$)
    )*+""",
    re.X,
)
GAP = re.compile(rf"{BLANK}*+")
HAN_CHAR = re.compile(rf"[{HAN}]")

# A list marker and nothing else: "1.", "(a)", "**2.**", "Step 3.", "•".
_LABEL = (
    r"(?:(?:Step|Chapter|Part|Section|Question|Rule|Phase|Tip|Example|Lesson|Item|Point|Option|Figure|Table|Theorem|"
    r"Lemma|Definition|Article|Act|Scene|Day|Week|Level|Stage|Method|Reason)[ ]|Q|[图表])?"
)
_NUMERAL = r"(?:\d{1,3}(?:\.\d{1,3}){0,4}|[A-Za-z]|[ivxIVX]{1,5}|[一二三四五六七八九十]{1,3}|[①-⑳])?"
_MARKER = r"[\s>*_#(（\[【•●▪■◦‣⁃➢➤+–-]*+", rf"{_NUMERAL}[)\]）】.．、*_\s]*+"
MARKER = re.compile("".join(_MARKER))
_LABELLED_MARKER = re.compile(_LABEL.join(_MARKER))
_LEAD = re.compile(r"[*_(（]{0,3}(\d{1,2}|[A-Za-z])([.．、)）])")

_OPENERS = re.compile(r"[\"'“‘«(\[{（【「『《〈*_~`#<>¿¡]{0,8}")
_FACES = (
    r"[\u2639-\u263b\u2665\u2764\U0001f300-\U0001f446\U0001f44a-\U0001f4ff\U0001f54a-\U0001f64f"
    r"\U0001f680-\U0001f6ff\U0001f900-\U0001faff][\ufe0f\u200d\u2640\u2642\U0001f3fb-\U0001f3ff]*+"
)
_EMOJI = re.compile(rf"(?:{BLANK}?{_FACES})++(?=[\s{HAN}]|$)")
_SIGNS_TO_LINE_END = re.compile(rf"[^\w{NL}]{{1,24}}(?=[{NL}]|$)")
_SOURCE = re.compile(rf"\([^(){NL}.!?]{{1,80}}\)(?!\S)|[（(][^()（）{NL}。！？]{{1,60}}[）)](?=[\s。，；]|$)")
_NEXT_WORD = re.compile(r"[^\W\d_]{1,20}(?:['’][a-z]{1,3}\b)?")
_DOTTED = re.compile(r"(?:[A-Za-z]\.|[A-Z][a-z]{1,2}\.)+[A-Za-z]{1,2}")
_VOWEL = re.compile(r"[aeiouy]", re.I)
_NUMERAL_NEXT = re.compile(r"[IVXLC]+\b|[A-Z]\b|#?\d|\(\w{1,3}\)")
_GLUED_WORD = re.compile(r"(?!(?:Com|Org|Net|Edu|Gov|Io)\b)(?:[A-Z][a-z]+|[AI])(?=[\s,'’!?]|$)")
_GLUED_AFTER_MARK = re.compile(r"(?:[A-Z][a-z]+|[AI])(?=[\s,.'’!?]|$)")
# A lone capital after one of these is a label, not an initial: "vitamin C.", "the answer is B."
_LETTERED = re.compile(
    r"\b(?:vitamins?|plan|type|group|class|grade|hepatitis|influenza|option|section|part|point|team|level|category|"
    r"appendix|degrees|series|model|exhibit|factor|channel|letter|column|row|answer|choice|company)"
    r"(?: is)?:? [A-Z]$"
)
_TIME_LEAD = re.compile(
    r"(?:At|By|Around|About|Before|After|Until|Till|Since|From|Just|Shortly)[\w :.–-]{0,18}"
)
_AFTER_TIME = re.compile(
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|[ECMP][SD]?T\b|GMT|UTC|Eastern|Pacific|Central"
)
_SPEECH = re.compile(
    r"(?:[A-Z][\w.’'-]{0,20} ){1,3}(?:said|says|asked|asks|replied|cried|shouted|yelled|exclaimed|wondered|answered"
    r"|whispered|screamed|called|added|wrote|demanded|muttered|inquired|remarked|insisted|laughed)\b"
)
_HAN_SPEECH = re.compile(
    rf"(?!然后|这|那|第|于是|接着|所以|因此|但|而|随后|后来|我知)[{HAN}]{{0,8}}?"
    r"(?:[说說](?![明法服])|[问問](?![题題])|(?<!知)道(?![路理])|喊(?!声)|答(?!案)|想(?![到要起])|表示|指出|回应|补充|解释|感叹)"
)
_HAN_PREDICATE = re.compile(
    r"出自|选自|来自|源[自于]|见于|语出|典出|并[不非]|是(?!的)|一[句词书文诗语]|这[句一首段个几两些]|表达|意思|指的|描[写绘述]"
    r"|体现|反映|被|最早|最初|内容|写的|讲的|咏的|属于|形容|比喻|用来"
)
_HAN_LINK = re.compile(
    r"然[而后]|但|因[此为]|所以|不过|同时|此外|另外|于是|随后|接着|如果|虽然|总之|其[中次]|后来|[他她]们?"
)


class Stop(NamedTuple):
    """One run of stops and what is known about it.

    Args:
        text: The whole answer.
        start: Where the sentence starts.
        left: Where the run starts.
        right: Where the run ends.
        tail: Where the closing marks after it end.
        opener: Where the bracket or quotation opens that closes right after the run; -1: none.
        quoted: Whether a long straight quotation is open.
        uncased: Whether the text has no capital at all.
    """

    text: str
    start: int
    left: int
    right: int
    tail: int
    opener: int
    quoted: bool
    uncased: bool


def end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a match at ``at`` ends; ``at`` itself where there is none."""
    found = pattern.match(text, at)
    return found.end() if found else at


def sentence_end(s: Stop) -> int:
    """Where the sentence ends: an offset, 0 where it goes on, minus the offset where its line ends too."""
    text, start, left, right = s.text, s.start, s.left, s.right
    if right - start <= 24 and _LABELLED_MARKER.fullmatch(text, start, right):
        return 0
    tail = _whole_tail(s)
    if (
        text[start] == "[" and (entry := text.find(" [", right, tail)) > 0
    ):  # a list of references: "[1] A. [2] B."
        tail = entry
    at = end_of(GAP, text, tail)
    run, closers = text[left:right], text[right:tail]
    if any(char in HAN_STOPS for char in run):
        if at == len(text) or text[at].isspace():
            return -tail
        if signs := _SIGNS_TO_LINE_END.match(text, at):
            return -signs.end()
        if run == "．" and (begin := inline_item(text, start, left)):
            return begin
        return tail if _ends_han(s, tail, at) else 0
    before = text[max(start, left - 32) : left].rstrip()
    word = before.rsplit(None, 1)[-1] if before else ""
    if not word.isascii():
        word = HAN_CHAR.split(word)[-1]
    word = word.lstrip("(\"'“‘[*_<>~`#-–—/（《「")
    inside = start < left - len(word) - 2  # other words of the sentence stand before it
    kind = _abbreviation(word, s.uncased, inside) if run == "." else ""
    if at == len(text) or text[at].isspace():
        return 0 if kind == "never" else -tail
    if signs := _SIGNS_TO_LINE_END.match(text, at):
        return -signs.end()
    if run == "." and (begin := inline_item(text, start, left)):
        return begin
    if at == tail:
        return tail if _ends_glued(s, tail, word, kind) else 0
    quote = any(char in QUOTE_ENDS for char in closers)
    source = _SOURCE.match(text, at) if quote else None
    if source:  # “…” (World Report)
        tail = source.end()
        at = end_of(GAP, text, tail)
        if at == len(text) or text[at].isspace():
            return -tail
    if text[at] in ",;:)]}%&=+/|\\^~—，。、；：" or text[at] in STOPS:
        return 0
    if text[at] in "-–":  # "One. - Two" is a list, "“One.” – Author" is not
        follows = text[at + 1 : at + 3]
        item = follows[:1].isspace() and (follows[1:].isupper() or HAN_CHAR.match(follows, 1))
        return tail if item and not quote else 0
    first = end_of(GAP, text, end_of(_OPENERS, text, at))
    if first == len(text):
        return 0
    char = text[first]
    found = _NEXT_WORD.match(text, first)
    follower = found[0].lower().replace("’", "'") if found else ""
    if char.islower() and not text[first + 1 : first + 2].isupper():  # "iPhone" opens like a capital
        marked = quote or s.opener >= 0 or first > at
        return tail if _ends_before_lower(s, run, before, word, kind, inside, marked, follower) else 0
    starter = follower in STARTERS and not (len(follower) == 1 and text.startswith(".", first + 1))
    if run[0] == "…" or (len(run) > 1 and not run.strip(". ")):
        return tail if char.isupper() and follower not in ("i", "i'm", "i've", "i'd", "i'll") else 0
    if run != ".":
        named = word.lower() in MARKED_NAMES or (quote and bool(_SPEECH.match(text, at)))
        factorial = run == "!" and word.isdigit() and HAN_CHAR.match(char)
        return 0 if factorial or (named and not starter) else tail
    return tail if _ends_dot(s, word, kind, closers, first, starter) else 0


def _whole_tail(s: Stop) -> int:
    """The end of everything that belongs to the stop: its tail, a closing quote or emphasis further on, emoji."""
    text, tail = s.text, s.tail
    if s.quoted and text.startswith('"', end_of(GAP, text, tail)):
        tail = end_of(TAIL, text, end_of(GAP, text, tail) + 1)
    if text.startswith("*", tail):  # no space after it: does it close or open?
        mark = "**" if text.startswith("**", tail) else "*"
        line = max(text.rfind("\n", 0, s.left) if s.left < 300 else text.rfind("\n", s.left - 300, s.left), 0)
        if text.count(mark, max(line, s.left - 300), s.left) % 2:
            tail = end_of(TAIL, text, tail + len(mark))
    return end_of(_EMOJI, text, tail)


def _abbreviation(word: str, uncased: bool, inside: bool) -> str:
    """The kind of abbreviation that ``word`` (without its last stop) is; "" for an ordinary word."""
    low = word.lower()
    capital = uncased or word[:1].isupper()
    if len(word) == 1 and word.isupper():
        return "initial"
    if low in NEVER or (capital and low in TITLES):
        return "never"
    if low in NUMBERED or (low in DATES and (capital or low not in DATE_WORDS)):
        return "numbered"
    if low in TIMES:
        return "time"
    if low in ERAS:
        return "era"
    if (low in LATE and word != "Al") or (capital and low in PLACES):
        return "late"
    if low in UNITS or low == "st":
        return "unit"
    if len(word) == 1 and word.isalpha():
        return "initial"
    if _DOTTED.fullmatch(word):
        return "late"
    if inside and 1 < len(word) <= 4 and word.isalpha() and word.istitle() and not _VOWEL.search(word):
        return "late"  # "Hdqr"; but "Hmm." alone is a sentence
    return ""


def _ends_before_lower(
    s: Stop, run: str, before: str, word: str, kind: str, inside: bool, marked: bool, follower: str
) -> bool:
    """Whether a sentence ends although lower case follows; ``marked``: a quote or bracket stands between."""
    if kind or (marked and not s.uncased):
        return False
    if run[0] == "…" or (len(run) > 1 and not run.strip(". ")):
        return False
    named = word.lower() in MARKED_NAMES
    if s.uncased or (follower in SUBJECTS and not named):
        return True
    if run != ".":
        return word.islower() or not (inside or named)
    if not word.isalpha():
        return before[-1:] in ")%" or (word.isdigit() and len(word) > 3)
    if not inside or word in STARTERS or word in HANGING:
        return True
    return bool(_VOWEL.search(word)) and len(word) > (2 if word.islower() else 3)


def _ends_dot(s: Stop, word: str, kind: str, closers: str, first: int, starter: bool) -> bool:
    """Whether the full stop ends the sentence when a capital, a digit or a sign stands at ``first``."""
    text, left = s.text, s.left
    char, low = text[first], word.lower()
    if not kind:  # "，2. 苹果" is an item of a list within a sentence
        item = (
            word.isdigit()
            and len(word) < 3
            and text[left - len(word) - 1 : left - len(word)] in "，,、；;：:"
        )
        return not (item and HAN_CHAR.match(char))
    if kind == "never":
        return starter and ")" in closers
    if kind == "numbered":
        numeral = _NUMERAL_NEXT.match(text, first)
        if numeral is None:
            return char.isalpha()
        if char.isdigit() or char in "#(":
            return False
        if low == "no" or low in DATES:  # "No. I do not."
            return True
        pronoun = numeral[0] in ("I", "A") and text[first + 1 : first + 2].isspace()
        return pronoun and not word[0].isupper() and low not in ("vol", "vols", "ch")
    if kind == "unit":
        return not char.isdigit()
    if kind == "time":
        if _AFTER_TIME.match(text, first):
            return False
        return starter or not (left - s.start < 28 and _TIME_LEAD.fullmatch(text, s.start, left))
    if kind == "era":  # "in 390 B.C. Rome burned", but "in A.D. 64"
        counted = text[max(s.start, left - 12) : left].split()[-2:-1]
        return starter or (char.isalpha() and bool(counted) and counted[0].isdigit())
    if kind == "initial":
        return starter or bool(_LETTERED.search(text[max(s.start, left - 24) : left]))
    return starter


def _ends_glued(s: Stop, tail: int, word: str, kind: str) -> bool:
    """Whether the sentence ends although no space follows the stop: "It fell.The end", "他说yes.然后"."""
    text, left = s.text, s.left
    run, before, char = text[left : s.right], text[left - 1 : left], text[tail]
    if text[tail - 1] == ">":
        return char.isalnum() or char in "\"'“‘(*<"
    if kind or run[0] == "…" or (len(run) > 1 and not run.strip(".")):
        return False
    if HAN_CHAR.match(char) or char in "“‘「『（《【":
        if run == "!" and word.isdigit():  # a factorial
            return False
        if HAN_CHAR.match(before) or before in "）”」』》" or tail > s.right or run != ".":
            return True
        return word.isascii() and len(word) > (2 if word.isdigit() else 1)
    if not char.isupper():
        return False
    if HAN_CHAR.match(before):
        return True
    chunk = text[max(s.start, left - 40) : left].rsplit(None, 1)[-1]
    glued = (_GLUED_WORD if run == "." else _GLUED_AFTER_MARK).match(text, tail)
    if not glued or any(mark in chunk for mark in "./@_\\=&"):
        return False
    if tail > s.right or before in ')]%"”’':
        return True
    if word.isalpha() and word.islower():
        return len(word) > 1
    return (len(word) > 1 or word.isdigit()) and text[
        tail : end_of(_NEXT_WORD, text, tail)
    ].lower() in STARTERS


def _ends_han(s: Stop, tail: int, at: int) -> bool:
    """Whether 。！？ end the sentence: always, save inside brackets, and quotations that the sentence goes on after."""
    text, start, opener = s.text, s.start, s.opener
    char = text[at]
    if char in ",，、；;：:—–~～・）)]】》〉/％%=+的" or char in STOPS:
        return False
    if text[s.left] == "．" and text[s.left - 1].isdigit():
        return False
    goes_on = bool(HAN_CHAR.match(char))
    if opener >= 0 and text[opener] in "（(":
        return opener == start or not goes_on
    if not any(closer in QUOTE_ENDS for closer in text[s.right : tail]):
        return True
    if char in "等之时便就" or _SOURCE.match(text, at):
        return False
    lead = text[max(start, opener - 2) : opener].rstrip() if opener >= 0 else ""
    if not lead or lead[-1] in ",，、":
        return not (_HAN_SPEECH.match(text, at) or _HAN_PREDICATE.match(text, at))
    if lead[-1] in "：:；。！？说說道喊" or (lead[-1] in "问問" and lead != "请问"):
        return True
    return not goes_on or bool(_HAN_LINK.match(text, at))


def inline_item(text: str, start: int, left: int) -> int:
    """Where the inline list item begins whose number or letter ends at ``left`` ("… 2. Pears"); 0: nowhere."""
    at = left - 1
    if at > start and text[at].isdigit() and text[at - 1].isdigit():
        at -= 1
    token, before = text[at:left], text[at - 1 : at]
    if at <= start or not token.isascii() or not token.isalnum():
        return 0
    after_han = token.isdigit() and before != "第" and HAN_CHAR.match(before)
    if not (before.isspace() or after_han or before in ":：；;。"):
        return 0
    lead = _LEAD.match(text, start)
    words = text[max(start, at - 16) : at].split()
    previous = words[-1] if words else ""
    dotted = text[left] in ITEM_DOTS
    if lead and (lead[2] in ITEM_DOTS) == dotted and lead.end() < at and _successor(lead[1]) == token:
        return 0 if previous[-1:] in ",，、" or previous.lower() in COUNTED else at
    if token in ("1", "a", "A") and previous[-1:] in (":", "："):
        mark = "[.．、]" if dotted else "[)）]"
        second = re.compile(rf"(?<![,，、])[\s{HAN}。；;.]{_successor(token)}{mark}(?!\d)")
        return at if second.search(text, left, left + 600) else 0
    return 0


def _successor(token: str) -> str:
    return str(int(token) + 1) if token.isdigit() else chr(ord(token) + 1)
