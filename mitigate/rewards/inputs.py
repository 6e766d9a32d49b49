"""What TRL hands to a reward function, cut into answers and sentences, and what of these sentences is new.

Which columns there are is checked before any model runs, so that a mistake shows at the first step; the rows of a data
set are checked before training by ``SentenceReward.check``. During training a row that can't be used gets no score and
is counted: no run is lost to one row. All offsets are code points into the completion's text: the string itself, or the
content of the last assistant message. Leaves out what sentences are worth (``aspects.py``).
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import fmean
from typing import Any

from annotators.base import Verdict
from annotators.retrieval import BM25
from annotators.text.language import declared_or_found, language_of, only_names
from annotators.text.sentences import split_sentences, without_mark
from annotators.text.words import FUNCTION_WORDS, chinese_words, common_subsequence, is_chinese, units, words_of
from mitigate.rewards.aspects import Judged, completeness
from mitigate.rewards.config import RewardFile

LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]+")
Tags = tuple[str, str]
"""An opening and a closing tag."""

UNSCORED = ("no_reference", "no_question", "other_language")
"""Why a completion gets no score before anything is judged: its row lacks something, or the language is another."""


@dataclass(frozen=True)
class Answer:
    """One completion, ready to be judged."""

    text: str
    spans: tuple[tuple[int, int], ...]  # start and end of each sentence in the text, in order
    cut_off: bool  # the completion ran into its limit, so its last sentence is not whole
    reference: str
    question: str  # "" where there is none
    language: str | None  # as declared
    points: tuple[str, ...] | None
    answerable: bool = True  # the reference answers the question, as far as the row says
    unscored: str | None = None  # why nothing of it is judged: one of UNSCORED

    @property
    def last_is_part(self) -> bool:
        """Whether the last sentence was cut off; thinking that was cut off leaves it whole."""
        return self.cut_off and bool(self.spans) and self.spans[-1][1] == len(self.text.rstrip())

    @property
    def sentences(self) -> list[str]:
        return [self.text[a:b] for a, b in self.spans]

    @property
    def said(self) -> str:
        """The sentences without the thinking around them."""
        return " ".join(self.sentences)


@dataclass
class Reader:
    """Reads what TRL hands over, as the arguments of a ``SentenceReward`` say."""

    config: RewardFile
    ends: Sequence[int] | None = None  # a trainer's tokens that end a completion, where the config has none
    _longest: int = 0  # tokens of the longest completion so far

    @property
    def needs_question(self) -> bool:
        return not {"relevance", "completeness"}.isdisjoint(self.config.aspects)

    def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Any] | None,
        completion_ids: Sequence[Sequence[int]] | None,
        data: Mapping[str, Any],
    ) -> list[Answer]:
        """Check the inputs, as ``SentenceReward`` does, and cut completions into the sentences of their answers."""
        if isinstance(completions, str):
            raise ValueError("reward: expected a list of completions, got one string; put it into a list")
        for name, values in (("prompts", prompts), ("completion_ids", completion_ids)):
            if values is not None and len(values) != len(completions):
                raise ValueError(f"reward: expected {len(completions)} {name}, one per completion, got {len(values)}")
        self.check_columns(data, len(completions), prompts=prompts is not None)
        texts, how = [completion_text(completion) for completion in completions], self.config
        apart = [thinks_apart(completion) for completion in completions]
        ends = self.ends if how.eos_token_ids is None else how.eos_token_ids
        cut_off, self._longest = cut_offs(texts, completion_ids, ends, self._longest)
        answers = []
        for i, text in enumerate(texts):
            row = {default: data[name][i] for default, name in how.columns if name in data}
            question, language, points = (row.get(name) for name in ("question", "language", "points"))
            own = question_of(prompts[i]) if prompts is not None else ""
            told = points if isinstance(points, list | tuple) else ()
            answer = Answer(
                text=text,
                spans=tuple(sentence_spans(text, how.thinking, how.response, how.thinking_opened and not apart[i])),
                cut_off=cut_off[i],
                reference=reference_text(row["reference"]),
                question=((question if isinstance(question, str) else "") or own).strip(),
                language=language if isinstance(language, str) else None,
                points=tuple(point for point in told if isinstance(point, str) and point.strip()) or None,
                answerable=row.get("answerable") is not False,
            )
            answers.append(replace(answer, unscored=self._unscored(answer)))
        return answers

    def _unscored(self, answer: Answer) -> str | None:
        """Why an answer can't be judged, one of UNSCORED. One in Chinese where it should not be, or the other way."""
        if not answer.reference.strip():
            return "no_reference"
        if self.needs_question and not answer.question:
            return "no_question"
        found = language_of(answer.said)
        asked = declared_or_found(answer.language, answer.question)
        # Names of the reference stand in Latin letters in a Chinese answer, too.
        names = found == "en" and only_names(answer.said)
        names = names and all(word in answer.reference for word in LATIN.findall(answer.said))
        if "none" not in (found, asked) and (found == "zh") != (asked == "zh") and not names:
            return "other_language"
        return None

    def check_columns(self, data: Mapping[str, Any], rows: int, *, prompts: bool) -> None:
        """Raise ValueError where a column is missing, or has not as many values as rows."""
        names = self.config.columns
        if names.reference not in data:
            raise ValueError(
                f"reward: expected a column {names.reference!r} with the text to judge against, got the columns "
                f"{sorted(data)}; add it to the data set or name another with columns={{'reference': …}}"
            )
        for default, name in names:  # pairs of field and value, and each default is the field's own name
            if name != default and name not in data:
                raise ValueError(f"reward: expected a column {name!r}, got the columns {sorted(data)}")
        if self.needs_question and not prompts and names.question not in data:
            raise ValueError(
                f"reward: the aspects relevance and completeness need a column {names.question!r} or the prompts; got "
                f"the columns {sorted(data)}"
            )
        for name in (name for _, name in names if name in data):
            got = "one string" if isinstance(data[name], str) else len(data[name])
            if got != rows:
                raise ValueError(f"reward: expected {rows} values in column {name!r}, got {got}")

    def check(self, data: Mapping[str, Any]) -> None:
        """As ``check_columns`` for a data set; raise ValueError also where a row has a value that can't be used."""
        names = self.config.columns
        rows = len(data.get(names.reference, ()))
        self.check_columns(data, rows, prompts="prompt" in data)
        kinds: dict[str, tuple[str, tuple[type, ...]]] = {
            names.points: ("a list of texts", (list, tuple)),
            names.reference: ("a text or a list of texts", (str, list, tuple)),
            names.answerable: ("true or false", (bool,)),
        }
        for name in (name for _, name in names if name in data):
            what, types = kinds.get(name, ("a text", (str,)))
            for row, value in enumerate(data[name]):
                where = f"reward: expected {what} in column {name!r}, row {row}, got"
                if not isinstance(value, types) and (value is not None or name == names.reference):
                    raise ValueError(f"{where} {type(value).__name__}")
                if isinstance(value, list | tuple) and not all(isinstance(part, str) for part in value):
                    raise ValueError(f"{where} {value!r}")
        if empty := [row for row, value in enumerate(data[names.reference]) if not reference_text(value).strip()]:
            raise ValueError(
                f"reward: expected a text in column {names.reference!r}, it is empty in {len(empty)} of {rows} rows "
                f"(row {empty[0]} first); drop these rows from the data set, nothing can be judged without a reference"
            )


def reference_text(value: object) -> str:
    """A reference as one text: itself, or its passages with a blank line between; "" for what is neither."""
    if isinstance(value, list | tuple):
        return "\n\n".join(passage for passage in value if isinstance(passage, str) and passage.strip())
    return value if isinstance(value, str) else ""


def completion_text(completion: object) -> str:
    """The text of a completion: the string, or the content of the last assistant message; "" after a tool's result.

    Raises TypeError where it is neither a string nor a list of messages.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(m, Mapping) for m in completion):
        unanswered = bool(completion) and completion[-1].get("role") == "tool"  # what follows the result never came
        return "" if unanswered else _last_content(completion, "assistant")
    raise TypeError(
        f"completions: expected strings or lists of messages with role and content, got {type(completion).__name__}"
    )


def thinks_apart(completion: Any) -> bool:
    """Whether a parser took the thinking out of the text, into a key of its own, as TRL's does for some templates."""
    last = completion[-1] if completion and not isinstance(completion, str) else {}
    return not last.keys().isdisjoint(("reasoning_content", "reasoning", "thinking"))


def question_of(prompt: object) -> str:
    """The last user message of a conversational prompt, or the whole of a plain one."""
    if isinstance(prompt, str):
        return prompt
    return _last_content(prompt, "user", "\n") if isinstance(prompt, Sequence) else ""


def _last_content(messages: Sequence[Any], role: str, joint: str = "") -> str:
    """The text of the last message of a role, "" where there is none; content may be a list of parts."""
    found = [m for m in messages if isinstance(m, Mapping) and m.get("role") == role]
    content = (found[-1].get("content") if found else None) or ""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    return joint.join(part for part in parts if isinstance(part, str))


def sentence_spans(
    text: str, thinking: Tags | None, response: Tags | None, thinking_opened: bool = False
) -> list[tuple[int, int]]:
    """The sentences of a completion's answer, as offsets into the whole completion.

    Thinking comes first: a block that follows other text is text, or a model could hide there what it says. A block
    that is never closed goes to the end. A closing tag without an opening one ends a block that the prompt opened, so
    all before it is thinking; where prompts do, a text without a closing tag is thinking as a whole. With response tags
    only what stands between them counts; an opened one that is never closed goes to the end. List markers are left out.
    """
    start = 0
    if thinking:
        opened, closed = map(text.find, thinking)
        if thinking_opened and closed < 0:
            return []
        if closed >= 0 and (opened < 0 or closed < opened):
            start = closed + len(thinking[1])
        for outer, _, _, end in _blocks(text, thinking, start, len(text)):
            if text[start:outer].strip():
                break
            start = end
    parts = [(start, len(text))]
    if response:
        parts = [(a, b) for start, end in parts for _, a, b, _ in _blocks(text, response, start, end)]
    spans = [(start + a, start + b) for start, end in parts for a, b in split_sentences(text[start:end])]
    return [(a + without_mark(text[a:b]), b) for a, b in spans]


def _blocks(text: str, tags: Tags, start: int, end: int) -> list[tuple[int, int, int, int]]:
    """Blocks between tags: where the opening tag starts and ends, where the closing one starts and ends."""
    found, at = [], start
    while (outer := text.find(tags[0], at, end)) >= 0:
        inner = outer + len(tags[0])
        stop = text.find(tags[1], inner, end)
        stop, at = (end, end) if stop < 0 else (stop, stop + len(tags[1]))
        found.append((outer, inner, stop, at))
    return found


_FINISHED = re.compile(r"[.!?…。！？；][\"'”’»」』)\]）】*_`~]*$")


def cut_offs(
    texts: Sequence[str], ids: Sequence[Sequence[int]] | None, eos_token_ids: int | Sequence[int] | None, longest: int
) -> tuple[list[bool], int]:
    """Which completions ran into their limit, and the number of tokens of the ``longest`` in this and earlier calls.

    With ``eos_token_ids`` these are the completions whose last token is none of them; without, those as long as the
    longest ever seen whose text ends without a full stop; without ids, none.
    """
    if ids is None:
        return [False] * len(texts), longest
    longest = max([longest, *map(len, ids)])
    if eos_token_ids is not None:
        ends = (eos_token_ids,) if isinstance(eos_token_ids, int) else eos_token_ids
        return [not len(row) or int(row[-1]) not in ends for row in ids], longest
    both = zip(texts, ids, strict=True)
    return [len(row) == longest and not _FINISHED.search(text.rstrip()) for text, row in both], longest


# --- which sentences repeat or copy ----------------------------------------------------------------------------------

# Numbers with their separators, words of other letters, single Chinese characters (they have no spaces).
_WORD = re.compile(r"[0-9]+(?:[.,:][0-9]+)*|[^\W\d_\u3400-\u9fff]+|[\u3400-\u9fff]|\d")
REPEAT_SHARE = 0.85
# Questions that can't be answered in their own words: neither "is it …?" nor "which, A or B?".
_OPEN = re.compile(
    r"^\W*(?:(?:and|but|so|then|in|on|at|by|for|from|to|of|with|under|during|since|until|about)\W+){0,2}"
    r"(?:who|whom|whose|what|which|(?:when|where|why|how)\b"
    r"(?!.*,\W*(?:and\W+)?(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b))\b(?!.*\bor\b)",
    re.IGNORECASE | re.DOTALL,
)
_OPEN_HAN = re.compile(r"(?!.*(?:还是|吗|是否|任何|几乎)).*(?:谁|什么|哪|何|多少|几|怎)", re.S)
# "Tell me about the bridge.", "Could you describe it?"
_TELL = re.compile(
    r"^\W*(?:please\W+)?(?:(?:can|could|will|would) you\W+(?:please\W+)?)?"
    r"(?:tell|describe|explain|summari[sz]e|introduce|outline|discuss|write|list|give)\b(?!.*\b(?:or|if|whether)\b)"
    r"(?!.*[,:]\W*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b)"
    r"|^\W*(?:请|你|能|可以)*(?:介绍|描述|说明(?!书)|讲讲|告诉|谈谈|解释|总结|概述|列出)"
    r"(?!.*(?:还是|是否|吗|有没有|任何|几乎))",
    re.IGNORECASE | re.DOTALL,
)


def words(text: str) -> list[str]:
    """Words in lower case; a Chinese character is one."""
    return _WORD.findall(text.lower())


def content_words(text: str) -> frozenset[str]:
    """Words without function words; pairs of neighbours for Chinese. All words where nothing else is left."""
    found = words(text)
    pairs = {a + b for a, b in pairwise(found) if _han(a) and _han(b)}
    single = {word for word in found if not _han(word) and word not in FUNCTION_WORDS}
    return frozenset(single | pairs) or frozenset(found)


def _han(word: str) -> bool:
    return "\u3400" <= word[0] <= "\u9fff"


def repeats(sentences: Sequence[str]) -> list[bool]:
    """Which sentences repeat one earlier sentence: at least 85 % of the content words and all numbers are in it."""
    seen = [content_words(sentence) for sentence in sentences]

    def in_one(own: frozenset[str], earlier: Sequence[frozenset[str]]) -> bool:
        numbers = {word for word in own if word[0].isdigit()}
        return any(len(own & before) >= REPEAT_SHARE * len(own) and numbers <= before for before in earlier)

    return [bool(own) and in_one(own, seen[:i]) for i, own in enumerate(seen)]


def open_question(text: str) -> str:
    """The question or request that a text ends with, if no answer can be made of its own words alone; else ""."""
    spans = split_sentences(text)
    last = text[spans[-1][0] : spans[-1][1]] if spans else ""
    asks = last.rstrip(" \"'”’」』)").endswith(("?", "？")) and (_OPEN.search(last) or _OPEN_HAN.match(last))
    return last if asks or _TELL.match(last) else ""


# "I can't tell", "the document does not say"; "it is not mentioned", "there is no information".
_CANNOT = re.compile(
    r"(.*)\b(?:i|we|documents?|texts?|passages?|references?|articles?|context|sources?)\b(.*?)"
    r"\b(?:can(?:not|['’]t| not)|could(?: not|n['’]t)|(?:am|are|is) unable to|do(?:es)?(?: not|n['’]t)) (?:\w+ )?"
    r"(?:tell|say|answer|determine|know|find|state|mention|specify|contain|give|provide|include)\b",
    re.IGNORECASE | re.DOTALL,
)
_UNSAID = re.compile(
    r"(.*?)(?:\b(?:not|never|nowhere) (?:\w+ )?(?:mentioned|stated|specified|answered)\b"
    r"|\b(?:cannot|can['’]t|can not) be (?:\w+ )?(?:determined|answered|told|known)\b"
    r"|(?:\b(?:no|not(?: have)? enough|insufficient)|n['’]t have enough) (?:information|mention)\b"
    r"|(?:无法|不能|没法)(?:可靠地|准确|直接)?(?:回答|确定|判断|得知|知道)|不知道"
    r"|(?:没有|未|并未)(?:提到|提及|说明|给出|指出|提供))",
    re.IGNORECASE | re.DOTALL,
)


CLAUSE = re.compile(
    r"[,;:—–，；：]|\b(?:and|but|although|though|because|while|whereas|yet|however|so|since|as|than)\b|但|因为|虽然|而且",
    re.IGNORECASE,
)
"""Where a clause ends."""
STOCK = frozenset(
    "based according given unfortunately sorry document text passage article reference source context provided i "
    "information question answer tell say determine know find state mention specify contain give provide include "
    "m stated mentioned specified answered determined known told regarding enough insufficient unable not no never "
    "抱歉 可靠 准确 直接 提供 参考 参考资料 根据 文中 文章 文档 文本 资料 材料 原文 上下文 没有 中未 "
    "并未 提到 提及 说明 给出 指出 无法 不能 没法 回答 无法回答 确定 判断 得知 知道 因此 所以 这个 问题 "
    "有关 相关 信息 内容".split()
)
"""Words of which abstentions are made, beyond those of the question."""
NEW_WORDS = 2  # other words that an abstention may have: with more it says something ("… the mayor jailed for fraud")


# Before "… not mentioned" a topic ends so: "The length of the bridge is", "关于建造费用文中".
_TOPIC_OF = re.compile(
    r"(?<!what )(?<!which )(?<!that )(?<!who )\b(?:is|are|was|were)\s*$"
    r"|^[^了]*(?:文[中章档本]|资料|材料|原文|上下文)[中里]?[并也]?$",
    re.IGNORECASE,
)


def abstains(sentence: str) -> tuple[str, str] | None:
    """Where a sentence says that its writer, or the document, can't tell: what stands before that, and between the
    writer or the document and the verb; None where it does not say so.

    It is found by phrases of English and Chinese. Someone in the document who does not know something is no abstention.
    """
    found = _CANNOT.match(sentence) or _UNSAID.match(sentence)
    return found and (found[1], found[2] if found.re is _CANNOT else "")


# --- what of a reference a sentence states, and whether in its words -------------------------------------------------

COPY_SHARE, FADE = 0.8, 0.2  # copying from which a sentence is a copy, and over which range below it credit fades
COPY_WORDS = 6  # an answer of fewer words is no copy and no list: it can't help being literal
LONG = 4  # content words from which they say more about a copy than all words do
WHOLE = 0.85  # share of a sentence of the reference that makes a copy whatever else is put between its words
RUN = 3  # words in a row that are not found together by chance
WINDOW = 3  # sentences of the reference beside which a sentence is laid
ORDERS = 32  # most places of a sentence at which its end is put before its beginning
BARE = 0.5  # worth of words that are no clause: whether they answer the question, an annotator hardly sees
GLUE = 0.2  # share of function words from which words are a clause
MAX_POINTS = 5  # sentences of the reference, best for the question, that stand for what an answer should say
MIN_POINT_WORDS = 4
FULL = 3.0  # weight of specifics that makes a full sentence: a number or name and two other words, or six words
_STRONG, _WEAK = 2.0, 0.5


def stems(text: str) -> tuple[list[str], list[str]]:
    """Stems of the content words of a text, and all its words in lower case, in order; Chinese by characters."""
    if is_chinese(text):
        return words(text), words(text)
    found = words_of(text)
    return [stem for stem, kept in zip(found.stems, found.content, strict=True) if kept], list(found.lower)


def specifics(sentence: str) -> dict[str, float]:
    """The specifics of a sentence with their weights: numbers, years, months and names 2, other content words ½."""
    if is_chinese(sentence):
        cut = [(word, word[0].isdigit()) for word in chinese_words(sentence)]
        return {word: _STRONG if number else _WEAK for word, number in cut if number or (len(word) > 1 and _han(word))}
    strong = {stem for unit in units(sentence) for stem in unit.key}
    return {stem: _STRONG if stem in strong else _WEAK for stem in stems(sentence)[0]}


def clause_share(sentence: str) -> float:
    """How far an English sentence is one, in [0, 1]: 0 for bare names and numbers, 1 from a fifth of function words.

    An annotator finds a list of true names supported, though it says nothing of them.
    """
    found = words_of(sentence).content
    return min(1.0, found.count(False) / len(found) / GLUE) if found else 1.0


# "The text discusses …", then "It also highlights …"; "文章介绍了……". Other things do the last verbs, too.
_NAMES = (
    "delv|describ|discuss|emphasi|examin|explor|highlight|mention|outlin|summari|talk|tell|touch",
    r"(?:giv|offer|present|provid)\w*(?: \w+){0,3} (?:accounts?|backgrounds?|descriptions?|details?|facts|information"
    r"|insights?|overview|summary)\b",
    "cover|deal|depict|detail|focus|illustrat|includ|introduc|refer|revolv|showcas|speak",
)
_TOPIC = re.compile(
    r"^\W*(?:\d+[.)]\W*)?(?:(?:overall|\w+ly),? )?(?:(?P<it>it|this)(?: also| does| further| then| \w+ly)* "
    rf"(?:(?:{_NAMES[0]})\w*|{_NAMES[1]})|(?:the|this)(?: \w+)? (?:text|passage|document|article)(?:['’]s \w+)?"
    rf"(?: also| does| further| then| \w+ly)* (?:(?:{_NAMES[0]}|{_NAMES[2]})\w*|{_NAMES[1]}|(?:is|was) about (?!\d))"
    rf"|the(?: \w+)? (?P<writer>author|writer)s?(?: also| then| \w+ly)* (?!\w+ed\b)(?:{_NAMES[0]})\w*)"
    r"|^\W*(?:本文|该文|这篇文章|文章|文中|文本|文档|资料)(?:还|也|主要|详细)*(?:讨论|介绍|描述|讲述|提供|探讨|涉及|概述|叙述)了?",
    re.IGNORECASE,
)
# Where such a sentence begins to say something: a relative clause, an apposition, what stands behind a colon.
_SAYS = re.compile(
    r"\b(?:that|who|whom|whose|which|where|when|(?<!such )(?<!well )as(?! well\b| follows\b)|because)\b|, (?:an?|one)\b"
    r"|(?<!following)(?<!follows)(?<!topics)(?<!points)(?<!aspects)(?<!themes):|[，：]",
    re.IGNORECASE,
)


def claims(sentences: Sequence[str], reference: str) -> list[str]:
    """What each sentence says of the world: of one that names what the text is about, what follows that, or "".

    "The text discusses her career and her family" is true of nearly any text with these words in it: a policy that is
    paid for it learns to write nothing else. "It" stands for the text after such a sentence only, and "the writer" for
    the text's own only where the reference speaks of none: else it may be a writer of whom it tells.
    """
    about, found = False, []
    for sentence in sentences:
        topic = _TOPIC.match(sentence)
        stray = topic and topic["it"] and not about  # it stands for something else
        writer = topic and topic["writer"]
        if stray or (writer and re.search(rf"\b{writer}s?\b", reference, re.IGNORECASE)):
            topic = None
        about = topic is not None
        if topic:
            said = _SAYS.search(sentence, topic.end())
            sentence = sentence[said.end() :] if said else ""
        found.append(sentence)
    return found


def runs(words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """All runs of so many words, in order."""
    return list(zip(*(words[i:] for i in range(size)), strict=False))


def in_runs(words: Sequence[str], size: int, known: Container[tuple[str, ...]]) -> set[int]:
    """The places of words that stand in known runs of so many words."""
    return {i + k for i, run in enumerate(runs(words, size)) if run in known for k in range(size)}


def _highest(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """All specifics of these, each with the highest weight that it has in one."""
    return dict(sorted((pair for row in rows for pair in row.items()), key=lambda pair: pair[1]))


class Reference:
    """A reference made ready for many answers: its specifics, its points, and who copies from it."""

    def __init__(self, text: str) -> None:
        sentences = [text[a:b] for a, b in split_sentences(text)]
        self._stems = [stems(sentence) for sentence in sentences]
        self._specifics = [specifics(sentence) for sentence in sentences]
        self.all = _highest(self._specifics)
        read = words_of(text)
        self.plain = frozenset(stem for stem, name in zip(read.stems, read.names, strict=True) if not name)
        windows = [self._stems[i : i + WINDOW] for i in range(max(1, len(sentences) - WINDOW + 1))]
        self._windows = [tuple([stem for row in rows for stem in row[k]] for k in (0, 1)) for rows in windows]
        some = any(kept for kept, _ in self._stems)
        self._like = BM25([kept for kept, _ in self._windows]) if some else None
        self._about = BM25([kept for kept, _ in self._stems]) if some else None
        self._long_enough = [len(words(sentence)) >= MIN_POINT_WORDS for sentence in sentences]

    def points(self, question: str) -> list[dict[str, float]]:
        """Specifics of the sentences that answer the question, by BM25, then in order: the first say most."""
        if self._about is None:
            return []
        scores = self._about.scores([stems(question)[0]])[0]
        places = [i for i in range(len(scores)) if self._long_enough[i]] or range(len(scores))
        return [self._specifics[i] for i in sorted(places, key=lambda i: -scores[i])[:MAX_POINTS]]

    def density(self, sentence: str) -> float:
        """How much of a sentence is the reference's, in [0, 1]: 1 is a copy.

        The share of its distinct words that stand in this order in the three sentences of the reference that are most
        like it (BM25), mean of content words and of all words; of all words alone where it has fewer than four content
        words. More where a sentence of the reference with four content words or more stands in it, 85 % or more, or
        its end before its beginning, where it makes up half of the content words; or where a larger share of its words
        stands there in unbroken runs of three. So neither left-out words nor added ones, neither other function words
        nor parts in another order, make a copy one's own.

        Source: longest common subsequence, as ROUGE-L's precision and recall (Lin 2004 §3.2), which another order
        evades; coverage by extractive fragments (Grusky et al. 2018, "Newsroom", §4.1), which a word between evades.
        """
        kept, said = stems(sentence)
        if not kept or self._like is None:
            return 0.0
        kept = list(dict.fromkeys(kept))
        place = int(self._like.scores([kept])[0].argmax())
        common = common_subsequence(kept)
        near = self._stems[place : place + WINDOW]
        rows = [row for row, _ in near if len(row) >= LONG]
        found = [common(row) / len(row) for row in rows]
        turned = [row for row in rows if 2 * len(row) >= len(kept)]
        if turned:
            every = 1 + len(kept) // ORDERS
            orders = [common_subsequence(kept[i:] + kept[:i]) for i in range(1, len(kept), every)]
            found += [max((common(row) for common in orders), default=0) / len(row) for row in turned]
        known = {run for _, row in near for run in runs(row, RUN)}
        shares = [self._share(place, sentence), len(in_runs(said, RUN, known)) / len(said)]
        return max([*shares, *(whole for whole in found if whole >= WHOLE)])

    def _share(self, place: int, part: str) -> float:
        """How much of its distinct words stands in this order in the sentences from a place on, in [0, 1]."""
        kept, every = (list(dict.fromkeys(found)) for found in stems(part))
        like_kept, like_every = self._windows[place]
        share = common_subsequence(every)(like_every) / len(every)
        return (share + common_subsequence(kept)(like_kept) / len(kept)) / 2 if len(kept) >= LONG else share

    def copying(self, sentence: str) -> float:
        """The density of a sentence, or more, in [0, 1], where words of its own only stand around a copy.

        In English the share is also taken of the shortest part, of three words or more, that tells all that the
        sentence tells of the reference; not where that is a name or a date, which nobody can say otherwise. GRPO put
        words before copies (docs/rewards.md, "Red team").
        """
        found, density = words_of(sentence), self.density(sentence)
        read = zip(found.stems, found.content, found.lower, strict=True)
        last, parts = dict[str, int](), [(0, 0, -1)]  # the last place of each word; minus how many, length − 1, end
        for i, (stem, kept, word) in enumerate(read):
            if stem in self.all and kept and word != "one":  # as "us" and "may", it tells nothing
                last.pop(stem, None)
                last[stem] = i
                parts.append((-len(last), i - next(iter(last.values())), i))
        _, length, end = min(parts)
        core = sentence[found.starts[end - length] : found.ends[end]] if last and not is_chinese(sentence) else ""
        if self._like is None or len(words(core)) < RUN or {*stems(core)[0]} <= {k for u in units(core) for k in u.key}:
            return density
        place = int(self._like.scores([list(dict.fromkeys(stems(core)[0]))])[0].argmax())
        return max(density, self._share(place, core))


@lru_cache(maxsize=1024)
def reference_of(text: str) -> Reference:
    """The reference with this text, made once as long as it is among those used last."""
    return Reference(text)


def copied(record: Mapping[str, Any], labels: Container[str | None] | None = None) -> float | None:
    """How much of an annotated answer is its reference's, in [0, 1]: the mean density of its sentences, or of those
    with these labels; None without such a sentence, or a reference.
    """
    known = reference_text(record["reference"])
    spans = [(s["start"], s["end"]) for s in record["sentences"] if labels is None or s["label"] in labels]
    if not known.strip() or not spans:
        return None
    return fmean(reference_of(known).density(record["answer"][start:end]) for start, end in spans)


# --- what was found out about the sentences of an answer --------------------------------------------------------------


def judged_sentences(
    answer: Answer, labels: Sequence[Verdict], copy_share: float | None = COPY_SHARE
) -> tuple[list[Judged], float]:
    """The sentences with all that was found out, and how complete they are, in [0, 1].

    Of a sentence without a label only the words are counted. One bears on the question when it shares a content word
    with the question or the reference. It is worth the specifics that it states and no credited sentence before it:
    those of the points in full, of the rest of the reference one half. An open question said back is nothing new, nor
    is what a text is about ("The text discusses …"). What stands in no clause ("Ada Finch.", "Built: 1931") is worth
    half a sentence, as long as it has fewer than six words in all, and makes no answer more complete: more is a list.

    ``labels`` are the verdicts on the sentences, but for a last one that was cut off; ``copy_share`` is the copying
    from which a sentence is a copy, and up to which its value fades (None: never).
    """
    reference = reference_of(answer.reference)
    again = repeats(answer.sentences[: len(labels)])
    asked = open_question(answer.question)
    known = content_words(asked) if asked else frozenset()
    points = [specifics(p) for p in answer.points] if answer.points else reference.points(answer.question)
    said = frozenset(specifics(asked))
    points = [{u: w for u, w in point.items() if u not in said} for point in points]
    full = min(FULL, sum(dict(pair for point in points for pair in point.items()).values()))
    counted = frozenset().union(*points)
    weights = _highest([reference.all, *points])
    bearing = weights.keys() | specifics(answer.question).keys()
    if copy_share is None or len(words(" ".join(answer.sentences))) < COPY_WORDS:
        copy_share = 2.0  # nothing is one
    english = declared_or_found(answer.language, answer.said) in ("en", "none")
    stated: dict[str, float] = {}
    doubted: dict[str, float] = {}  # by unsure sentences, with P(supported)
    bare, left = 0, BARE  # words without a clause around them, and what they may still earn
    out = []
    pairs = zip(answer.sentences, claims(answer.sentences, answer.reference), strict=True)
    for i, (sentence, claim) in enumerate(pairs):
        label = labels[i] if i < len(labels) else None
        if label is None:
            out.append(Judged(None, len(words(sentence))))
            continue
        own = specifics(sentence)
        new = {u: w for u, w in specifics(claim).items() if u not in stated and u not in said}
        # Capital letters of its own make no word a name that the reference writes without.
        new = {u: min(w, weights.get(u, w)) if u in reference.plain else w for u, w in new.items()}
        # What an unsure sentence may have said is left to a later one by as much as the annotator doubts it.
        new = {u: w * (1 - doubted.get(u, 0.0)) for u, w in new.items()}
        weight = sum(w if u in counted else w / 2 for u, w in new.items() if u in weights)
        value = min(1.0, weight / full) if full else float(bool(claim))
        support = label if isinstance(label, float) else None
        copying = 0.0
        if support is not None or label == "supported":
            copying = reference.copying(claim)
        original = min(1.0, max(0.0, (copy_share - copying) / FADE))
        clause = clause_share(sentence) if english else 1.0
        if clause < 1:
            bare += len(words(sentence))
            short = min(value, left) if bare < COPY_WORDS else 0.0
            value, left = max(clause * value, short), left - short
        earned = original * clause
        one = Judged(
            None if isinstance(label, float) else label,
            len(words(sentence)),
            relevant=not bearing.isdisjoint(own),
            repeat=again[i] or content_words(sentence) <= known,
            copied=not original,
            value=original * value,
            support=support,
        )
        if one.credited:
            if support is None:
                stated |= {u: earned + (1 - earned) * doubted.pop(u, 0.0) for u in new}
            else:
                doubted |= {u: (share := doubted.get(u, 0.0)) + (1 - share) * earned * support for u in new}
        out.append(one)
    return out, completeness(doubted | stated, points)


@lru_cache(maxsize=1)
def _stock_stems() -> frozenset[str]:
    return frozenset(specifics(" ".join(word for word in STOCK if word.isascii())))


def _claims(before: str, between: str, reference: Mapping[str, float]) -> bool:
    """Whether a claim rides on an abstention ("Ada paid for the bridge the document does not mention"), by what of the
    reference, without what was asked about, stands before it or in it: names do, and other words that are no topic.
    """
    first = [reference[stem] for stem in specifics(before) if stem in reference]
    stated = any(weight > 1 for weight in first) or bool(first and not _TOPIC_OF.search(before))
    return stated or sum(stem in reference for stem in specifics(between)) > NEW_WORDS


def _content(clause: str) -> Set[str]:
    return specifics(clause).keys() if is_chinese(clause) else content_words(clause)


def cannot_tell(answer: Answer, sentence: str) -> bool:
    """Whether a sentence abstains; not where it brings in a number, a name or much else that nobody asked about."""
    reference, asked = reference_of(answer.reference).all, specifics(answer.question).keys()
    known = reference.keys() | asked
    free = content_words(answer.question) | asked | STOCK
    stock = STOCK if is_chinese(sentence) else _stock_stems()
    new = {stem: weight for stem, weight in specifics(sentence).items() if stem not in known | stock}
    # Each clause by itself: a claim must not ride on "…, although the document does not mention it".
    clauses = [clause for clause in CLAUSE.split(sentence) if clause.strip(" .!?。！？")]
    before = [abstains(clause) for clause in clauses]
    unasked = {stem: weight for stem, weight in reference.items() if stem not in asked | stock}
    return (
        abstains(sentence) is not None
        and all(b is not None or _content(c) <= free for c, b in zip(clauses, before, strict=True))
        and not any(_claims(*b, unasked) for b in before if b is not None)
        and all(weight < 1 for weight in new.values())
        and len(new) <= NEW_WORDS
    )
