"""Cut an English or Chinese answer into sentences, as character offsets into it.

One compiled expression finds the characters that may matter (line breaks, stops, quotes, brackets, inline list
markers); small functions decide each. A list item, a heading and a table row are sentences; a list marker stays with
its item and a citation mark with the sentence before it; a short quotation or bracket is never cut inside, a long
quotation is; a fenced code block is one piece. Time is linear in the text: every look back or ahead is bounded. Left
out: other languages, and what only meaning can tell ("a plant in the U.S. Howard Mosher runs").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from annotators.text.words import tables

# --- word lists and character classes -------------------------------------------------------------------------

# Inside character classes of regular expressions.
NL = r"\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"  # what ends a line
BLANK = rf"[^\S{NL}]"  # white space within a line
HAN = r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
HAN_STOPS = "。！？｡．"
STOPS = ".!?…‼⁇⁈⁉" + HAN_STOPS
QUOTE_ENDS = "\"'”’」』"
ITEM_DOTS = ".．、"
BULLETS = "•●▪■◦‣⁃➢➤"


_LISTS = {name: frozenset(words.split()) for name, words in tables(__file__).items()}
NEVER, TITLES, NUMBERED, DATES, DATE_WORDS, LATE, PLACES, UNITS, TIMES, ERAS = (
    _LISTS[name] for name in "never titles numbered dates date_words late places units times eras".split()
)
COUNTED, SUBJECTS, HANGING, MARKED_NAMES = (_LISTS[name] for name in "counted subjects hanging marked_names".split())
STARTERS = SUBJECTS | _LISTS["starters"]


# --- whether a stop (. ! ? … 。 and their kin) ends its sentence ----------------------------------------------

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
_LIST_MARK = re.compile(
    rf"(?:[*_]{{0,3}}(?:\d{{1,3}}\.|[(（]?(?:\d{{1,3}}|[a-zA-Z])[)）])[*_]{{0,3}}\s+"
    rf"|[-–]\s+(?!\d)|[*+{BULLETS}]\s+|\d{{1,3}}[、．）](?!\d))(?=\S)"  # "- 40 °C" and "7、8月" are numbers
)
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
    r"(?: is)?:? [A-Z]$|World War I$|\d ?[ghlms]$"
)
_TIME_LEAD = re.compile(r"(?:At|By|Around|About|Before|After|Until|Till|Since|From|Just|Shortly)[\w :.–-]{0,18}")
_AFTER_TIME = re.compile(r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|[ECMP][SD]?T\b|GMT|UTC|Eastern|Pacific|Central")
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
    """One run of stops in a text and what is known about it."""

    text: str
    start: int  # where the sentence starts
    left: int  # where the run starts and ends
    right: int
    tail: int  # where the closing marks after it end
    opener: int  # where the bracket or quotation opens that closes right after the run; -1: none
    quoted: bool  # whether a long straight quotation is open
    uncased: bool  # whether the text has no capital at all


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
    if text[start] == "[" and (entry := text.find(" [", right, tail)) > 0:  # a list of references: "[1] A. [2] B."
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
    low, single = word.lower(), len(word) == 1
    capital = uncased or word[:1].isupper()
    vowelless = inside and 1 < len(word) <= 4 and word.isalpha() and word.istitle() and not _VOWEL.search(word)
    kinds = (  # the first that holds
        ("initial", single and word.isupper()),
        ("never", low in NEVER or (capital and low in TITLES)),
        ("numbered", low in NUMBERED or (low in DATES and (capital or low not in DATE_WORDS))),
        ("time", low in TIMES),
        ("era", low in ERAS),
        ("late", (low in LATE and word != "Al") or (capital and low in PLACES)),
        ("unit", low in UNITS or low == "st"),
        ("initial", single and word.isalpha()),
        ("late", _DOTTED.fullmatch(word) or vowelless),  # "Hdqr"; but "Hmm." alone is a sentence
    )
    return next((kind for kind, holds in kinds if holds), "")


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
        return word.islower() or not (inside or named or follower in ("is", "was", "are", "were", "has", "had"))
    if not word.isalpha():
        return before[-1:] in ")%" or (word.isdigit() and len(word) > 3)
    if word == "in" and before[:-2].rstrip()[-1:].isdigit():  # inches
        return False
    if not inside or word in STARTERS or word in HANGING:
        return True
    return bool(_VOWEL.search(word)) and len(word) > (2 if word.islower() else 3)


def _ends_dot(s: Stop, word: str, kind: str, closers: str, first: int, starter: bool) -> bool:
    """Whether the full stop ends the sentence when a capital, a digit or a sign stands at ``first``."""
    text, left = s.text, s.left
    char, low = text[first], word.lower()
    if not kind:  # "，2. 苹果" is an item of a list within a sentence
        item = word.isdigit() and len(word) < 3 and text[left - len(word) - 1 : left - len(word)] in "，,、；;：:"
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
    return (len(word) > 1 or word.isdigit()) and text[tail : end_of(_NEXT_WORD, text, tail)].lower() in STARTERS


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
    if lead and (lead[2] in ITEM_DOTS) == dotted and text[lead.end() : at].strip() and _successor(lead[1]) == token:
        return 0 if previous[-1:] in ",，、" or previous.lower() in COUNTED else at
    if token in ("1", "a", "A") and previous[-1:] in (":", "："):
        mark = "[.．、]" if dotted else "[)）]"
        second = re.compile(rf"(?<![,，、])[\s{HAN}。；;.]{_successor(token)}{mark}(?!\d)")
        return at if second.search(text, left, left + 600) else 0
    return 0


def _successor(token: str) -> str:
    return str(int(token) + 1) if token.isdigit() else chr(ord(token) + 1)


# Longest span (code points) that is kept whole; a longer quotation is cut into its sentences.
MAX_QUOTE, MAX_QUOTE_HAN, MAX_BRACKET = 120, 60, 200

# Every character that may end a sentence or open a span; not the dot of "3.5" or "example.com", of "、" that of "2、".
_HOT = re.compile(rf"[{NL}{STOPS}{BULLETS}\"'“‘`(（\[【《〈「『)、](?:(?<![.、])|(?<=\.)(?![a-z0-9])|(?<=[0-9]、))")
_RUN = re.compile(rf"[{STOPS}]++(?:[ ][.!?]++(?!\S))*+")
_MOST = {
    **dict.fromkeys(("()", "（）", "[]", "【】", "《》", "〈〉"), MAX_BRACKET),
    **dict.fromkeys(("「」", "『』", "“”"), MAX_QUOTE),
}
_SPANS = {
    **{p[0]: rf"\{p[0]}[^\{p[0]}\{p[1]}{NL}]{{0,{most}}}\{p[1]}" for p, most in _MOST.items()},
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
_TABLE_ROW = re.compile(rf"\|[^{NL}]*\|{BLANK}*(?=[{NL}]|$)")
_WORDLESS_LINE = re.compile(rf"(?![-*+{BULLETS}][ \t]*[{NL}])(?:[^\w{NL}]|_)++(?=[{NL}]|$)")
_FENCE = re.compile(rf"(?:^|(?<=[{NL}]))[ \t]*+(`{{3}}|~{{3}})[^`{NL}]*+(?=[{NL}]|$)")
_LINE = re.compile(rf"[^{NL}]*+")
_SPACE = re.compile(r"\s*+")
_LETTER = re.compile(r"[^\W_]")
_HAN_STOP = re.compile(f"[{HAN_STOPS}]")
_CAPITAL_NEXT = re.compile(r"[ \t][A-Z]")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Sentences of ``text`` as ``(start, end)`` code-point offsets, in order; between them stands only white space.
    Marks alone (``"---"``, ``"1."``) give one.
    """
    return trimmed(text, [0, *_cuts(text), len(text)])


def without_mark(sentence: str) -> int:
    """Where a sentence begins behind a list marker; 0 where it has none, or is nothing else."""
    return found.end() if (found := _LIST_MARK.match(sentence)) else 0


def trimmed(text: str, edges: Sequence[int]) -> list[tuple[int, int]]:
    """The pieces of a text between edges, without the white space around each; empty ones are left out."""
    pieces = []
    for left, right in pairwise(edges):
        body = text[left:right].lstrip()
        if bare := body.rstrip():
            pieces.append((right - len(body), right - len(body) + len(bare)))
    return pieces


_UNIT = {"en": re.compile(r"[.!?;]\s+|\n+"), "zh": re.compile(r"[。！？；]|\n+")}
_NO_END = re.compile(
    r"(?:(?:^|\W)(?:[A-Z]|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept|Oct|Nov|Dec|No|Op|D|Dr|St)|(?:^|\n\s*|\. )\d+)\.$"
)
"""Full stops that end no unit of ANAH: of initials, months and other abbreviations, and of numbers in lists."""


def anah_units(answer: str, language: str) -> list[tuple[int, int]]:
    """The units that ANAH annotates, as offsets: they end with a stop, a semicolon or a line, in English only before a
    blank; a colon at the end of a line goes on to the next.
    """
    cuts = [0]
    for match in _UNIT[language].finditer(answer):
        start, end = match.span()
        if match.group().isspace():
            keeps = answer[:start].rstrip(" \t").endswith((":", "："))
        else:
            keeps = match.group()[0] == "." and (
                _NO_END.search(answer, max(0, start - 32), start + 1) is not None
                or (answer[max(0, start - 5) : start] == "et al" and answer[end : end + 1].islower())
            )
        if not keeps:
            cuts.append(end)
    return trimmed(answer, [*cuts, len(answer)])


def _cuts(text: str) -> list[int]:
    """Offsets at which one sentence ends and the next may begin."""
    cuts: list[int] = []
    start = line_start = end_of(_SPACE, text, 0)
    word_at = -1  # first letter or digit of the sentence, once looked for
    done = ended = 0  # text before `done` is dealt with; the last stop at a line's end closed at `ended`
    rows = -1  # the line that was last looked at for a row of a table
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
        elif char in STOPS and rows < line_start and (row := _TABLE_ROW.match(text, rows := line_start)):
            done = row.end()
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
            if span is None:
                continue
            # A long Chinese quotation is cut inside.
            if char in _QUOTES and span.end() - i > MAX_QUOTE_HAN and _HAN_STOP.search(text, i, span.end() - 2):
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
    broken_off = cuts and len(text) - start <= 24 and MARKER.fullmatch(text, start) and not text[-1:].isalnum()
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
    """Whether the sentence goes on over the line break ``text[end:begin]``: a list marker, an underline, a wrap."""
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
