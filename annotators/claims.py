"""Sentences that claim nothing about the world, told by rule: greetings, refusals, offers, questions, headings.

A sentence is cut into clauses, and every clause must be one of the closed forms below; one clause that is not, such
as "but Einstein was born in 1902", and the sentence is left to the annotator. So the rules only ever say "nothing is
claimed here", and they say it by words and shape, never by a whole sentence. English, and Chinese by its own forms
in ``annotators/chinese_claims.py``. What "no fact" looks like in training is in ``annotators/small_talk.py``.
"""

from __future__ import annotations

import re

from annotators.chinese_claims import claims_nothing_chinese
from annotators.language import language_of
from annotators.talk_words import CHAT, FILLERS, META_NOUNS, PAST_FORMS
from annotators.wordlists import FUNCTION_WORDS, PERSONAL

VERSION = 2
"""Raised whenever a rule changes, since verdicts depend on it."""
MAX_WORDS = 40
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_MARKS = re.compile(r"^(?:[\s#>*•·–—-]|\*\*|__|`)+|(?:[\s*`_]+)$")
_NUMBERING = re.compile(r"^\(?(?:\d{1,2}|[a-z]|[ivx]{1,5})[.)]+(?=\s|$|\*)", re.IGNORECASE)
_CLAUSE = re.compile(r"[.!?…]+[\s\"'”)]*|[,;:]\s+|\s[–—-]+\s|\s(?=but\b)|[,;:]$", re.IGNORECASE)
_NUMBER = re.compile(r"\d")
_NOTHING = re.compile(r"^(?:n/?a|none|nil|nothing|tbd)\W*$", re.IGNORECASE)
_VERB = re.compile(
    r"\b(?:is|are|was|were|am|be|been|has|have|had|do|does|did|can|could|will|would|shall|should|may|might|must|"
    rf"\w+(?:n't|'re|'ve|'ll)|{'|'.join(sorted(PAST_FORMS))})\b|\b[A-Z]\w+ [a-z]+s\b"
)
_ED = re.compile(r"\b[a-z]{2,}ed\b")

_SOURCE = (
    r"(?:(?:the|this|that|your|any|provided|given|supplied|above|available|current|reference|source|attached)\s+)*"
    r"(?:text|document|passage|source|reference|context|article|material|excerpt|paragraph|conversation|input|"
    r"biography|transcript|abstract|information)s?"
    r"(?:\s+(?:provided|given|above|available|here|you (?:gave|provided|shared)(?:\s+me)?))*"
)
_ASK = (
    r"(?:answer|assist|help|know|say|tell|determine|find|locate|verify|confirm|comment|comply|discuss|provide|give|"
    r"offer|share|speculate|guess|access|browse|identify|infer|establish|recall|remember|respond|reply|process|open|"
    r"view|read|search|create|write|generate)"
)
_TOLD = (
    r"(?:mention|say|state|contain|include|specify|provide|give|answer|cover|discuss|address|tell|indicate|explain|"
    r"describe|reveal|disclose|report|offer|clarify|make)"
)
_TOLD_PAST = (
    r"(?:mentioned|said|stated|contained|included|specified|provided|given|answered|covered|discussed|addressed|told|"
    r"indicated|explained|described|revealed|disclosed|possible to (?:say|tell|determine|answer))"
)
_OWNED = (
    r"(?:information|data|detail|details|idea|clue|knowledge|access|answer|answers|opinion|opinions|feeling|feelings|"
    r"emotion|emotions|experience|experiences|view|views|preference|preferences|belief|beliefs|record|context|way|body|"
    r"ability|capability|capacity|permission|memory|senses)"
)
_NOT = r"(?:(?:ca|could|do|did|wo|would|have|am|are|was) ?n[o']t|cannot|can not|will not)"
_REFUSAL = re.compile(
    "^(?:"
    rf"(?:i (?:\w+ )?(?:{_NOT}|never)|we (?:\w+ )?{_NOT}) (?:\w+ ){{0,3}}?{_ASK}\b|"
    rf"(?:i|we)(?:'m| am|'re| are| was| were) (?:\w+ )?(?:unable|not able|not allowed|not permitted|not in a position|"
    r"not comfortable|not qualified|afraid|not (?:\w+ )?(?:sure|certain)|unsure|uncertain|unaware|not aware)\b|"
    rf"i (?:\w+ )?(?:(?:have|possess|hold) (?:no|insufficient|not enough)|{_NOT} (?:\w+ )?(?:have|possess|hold)|lack)"
    rf" (?:[\w-]+ ){{0,4}}?{_OWNED}\b|"
    r"(?:i|we) (?:must|have to|need to|would rather not|would prefer not to|decline|refuse)\b(?: \w+){0,3}? (?:answer|"
    r"decline|say|refuse|guess|help|comment)\b|"
    r"(?:i|we) would need (?:more|further|additional|some)\b|"
    rf"{_SOURCE} (?:\w+ ){{0,2}}?(?:does not|do not|did not|doesn't|don't|didn't|never) (?:\w+ ){{0,3}}?{_TOLD}s?\b|"
    rf"it (?:is|remains) (?:un|not )clear from {_SOURCE}|"
    rf"{_SOURCE} (?:says?|contains?|offers?|gives?|tells? (?:us )?|has|have) nothing\b|"
    rf"{_SOURCE} (?:is|are|remains?) silent\b|{_SOURCE} (?:has|have|gives?|provides?|contains?) no |"
    rf"it(?:'s| is| was) (?:not|never|un) ?(?:\w+ )?{_TOLD_PAST}\b|"
    r"there(?:'s| is| was) (?:no|not enough|not sufficient|insufficient|too little) (?:\w+ )?"
    r"(?:information|data|details?|context|answer|way (?:for me )?to (?:know|tell|say|verify|answer))\b|"
    rf"there(?:'s| is) no mention of [\w' -]+ in {_SOURCE}$|"
    r"(?:no|not enough|insufficient) (?:\w+ )?(?:information|data|details|context|answer)\b[\w' ]*?"
    r"\b(?:is|are|was|were) (?:\w+ )?(?:given|available|provided|found|included|mentioned)\b|"
    rf"(?:nothing|none|nowhere) (?:in|of) {_SOURCE}\b|"
    r"(?:this|that|the|your)(?: \w+)? question (?:cannot|can't|can not|could not|couldn't) be answered\b|"
    r"the (?:answer|information)(?: to \w+ question)? (?:is not|isn't|cannot be found|can't be found)\b"
    ")",
    re.IGNORECASE,
)
_NEXT = re.compile(
    r"^(?:let's|let us|let me|(?:we|i)(?:'ll| will| can| shall| could| want to| would like to| am going to))"
    r" (?:\w+ )?(?:look (?:at|into)|discuss|turn to|consider|examine|explore|talk about|focus on|move on to|go over|"
    r"go through|go back to|come to|cover|start with|begin with)\b",
    re.IGNORECASE,
)
_SELF = re.compile(
    r"^(?:(?:as|being) an? |i(?:'m| am) (?:just |only |merely |simply )*an? )(?:\w+ ){0,3}"
    r"(?:ai|a\.i\.|assistant|language model|model|chatbot|bot|program|machine|system)\b|"
    r"^i was (?:not |never )?(?:trained|designed|built|made|created|programmed)\b|"
    r"^my (?:\w+ )?(?:knowledge|responses?|training|data|apologies|mistake|pleasure|purpose|goal|"
    r"understanding|capabilities|information)\b|"
    r"^(?:you (?:can|may|could)|feel free to|please) (?:\w+ )?(?:ask|tell|write to) me\b",
    re.IGNORECASE,
)
_PRESENTING = re.compile(
    r"^(?:here(?:'s| is| are)|below (?:is|are|you(?:'ll| will) find)|the following (?:is|are)|these are|"
    rf"this is (?:my|your|the|a)|you(?:'ll| will) find below)(?: [\w'-]+){{0,5}}? (?:{'|'.join(sorted(META_NOUNS))})\b",
    re.IGNORECASE,
)
_LEADING = re.compile(
    r"^(?:here(?:'s| is| are)(?: what (?:i|we) .*| you go| it is| goes)?|the following)$", re.IGNORECASE
)
_TITLE = re.compile(
    rf"^(?:\w+ )?(?:{'|'.join(sorted(META_NOUNS))})(?: (?:of|on|about|from|for|to) .*)?$", re.IGNORECASE
)
_ACCORDING = re.compile(
    rf"^(?:according to|based (?:only |solely )?on|from|judging (?:by|from)|in|given|using) {_SOURCE}$",
    re.IGNORECASE,
)
_EXCLAIMED = re.compile(r"^(?:what an?|how) [a-z ]+$", re.IGNORECASE)
_EMBEDDED = re.compile(r"\b(?:when|where|who|whom|whose|what|which|whether|if|how|why)\b", re.IGNORECASE)
_OTHERS = re.compile(
    r"\b(?:he|she|they|him|her|his|hers|them|their|theirs)\b|"
    r"\b(?:it|this|that|these|those|there) (?:was|were|had|did)\b",
    re.IGNORECASE,
)
_BARE_ANSWER = re.compile(r"^(?:yes|no|nope|yep|yeah|correct|true|false|right|wrong)\W*$", re.IGNORECASE)
_OPEN = re.compile(
    r"^(?:what|which|who|whom|whose|when|where|how (?:many|much|long|old|can|could|may))\b", re.IGNORECASE
)
_POLAR = re.compile(
    r"^(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might|must)"
    r" (?:you|i|we|this|that|anything|any|my|your)\b|^(?:anything|any|need|want|ready|how (?:about|are|is))\b",
    re.IGNORECASE,
)
_LOADED = re.compile(
    r"\b(?:do|did) (?:you|we) (?:know|hear|remember|reali[sz]e|believe|notice|agree|learn)\b(?: \w+){2,}|"
    r"\b(?:know|known|aware|hear|heard|remember|reali[sz]e|true|agree|believe|notice|sure|learn|amazing|interesting)"
    r"(?: of the fact)? (?:that|how)\b(?: \w+){2,}|\bthink (?:of|that|about)\b(?: \w+){4,}",
    re.IGNORECASE,
)


def claims_nothing(sentence: str) -> bool:
    """Whether a sentence is one of the forms that state no fact to check.

    False says nothing: such a sentence is to be judged.

    Args:
        sentence: Clean text (``annotators/cleaning.py``), with or without markdown.
    """
    if language_of(sentence) == "zh":
        return claims_nothing_chinese(sentence)
    text = " ".join(sentence.replace("’", "'").split())
    bare = _bare(text)
    if not any(c.isalnum() for c in bare) or _NOTHING.match(bare):
        return True
    if len(bare.split()) > MAX_WORDS or _BARE_ANSWER.match(bare):
        return False
    if bare.endswith("?"):
        *before, last = [part for part in re.split(r"(?<=[.!?])\s+", bare) if part]
        return _asks(last) and all(_empty_clauses(part) for part in before)
    return _is_heading(text, bare) or _empty_clauses(bare)


def _bare(text: str) -> str:
    """Without list marks, numbering and emphasis."""
    for _ in range(3):
        text = _NUMBERING.sub("", _MARKS.sub("", text)).strip()
    return text.replace("**", "").replace("__", "")


def _empty_clauses(text: str) -> bool:
    clauses = [clause.strip(" \"'“”()") for clause in _CLAUSE.split(text)]
    return all(_empty(clause, text) for clause in clauses if clause)


def _empty(clause: str, text: str) -> bool:
    """Whether one clause claims nothing."""
    words = _WORD.findall(clause.lower())
    skip = _fillers(words)
    if skip == len(words) and not _NUMBER.search(clause):
        return True
    rest = _from_word(clause, skip)
    for form, part in (
        (_REFUSAL, clause),
        (_REFUSAL, rest),
        (_NEXT, rest),
        (_PRESENTING, rest),
    ):  # "no" also leads on
        if found := form.match(part):
            return _only_topic(part[found.end() :])
    if _ACCORDING.match(rest) or (_LEADING.match(rest) and not _has_name(rest)):
        return True
    if _has_name(rest) or _NUMBER.search(rest) or _OTHERS.search(rest):
        return False
    if _SELF.match(rest) or (_EXCLAIMED.match(rest) and text.endswith("!") and len(words) <= 6):
        return True
    content = [word for word in words[skip:] if word not in FUNCTION_WORDS]
    talk = CHAT | META_NOUNS if set(words) & PERSONAL else CHAT
    return bool(content or skip) and all(word in talk for word in content)


def _fillers(words: list[str]) -> int:
    """How many words at the start only lead on: "well", "of course", "first of all"."""
    skip = 0
    while skip < len(words):
        for size in (5, 4, 3, 2, 1):
            if " ".join(words[skip : skip + size]) in FILLERS and skip + size <= len(words):
                skip += size
                break
        else:
            break
    return skip


def _from_word(clause: str, number: int) -> str:
    """The clause from its ``number``-th word on; the whole clause for 0."""
    starts = [0, *(match.start() for match in _WORD.finditer(clause))][number > 0 :]
    return clause[starts[number] :] if number < len(starts) else ""


def _only_topic(rest: str) -> bool:
    """Whether what a refusal or announcement goes on with is a topic, not a statement of its own.

    An embedded question ("when she was born") may have a verb; what comes before it may not, and no number stands
    in a statement.
    """
    before, *embedded = _EMBEDDED.split(rest, maxsplit=1)
    if re.search(r"\bwhy\b", rest, re.IGNORECASE) and (_NUMBER.search(rest) or _has_name(" " + embedded[0])):
        return False  # "why" takes what follows for true
    if not (_VERB.search(before) or _ED.search(before)):
        return True
    return not (
        _has_name(" " + before)
        or _NUMBER.search(before)
        or any(
            w not in FUNCTION_WORDS and w not in CHAT and w not in META_NOUNS
            for w in _WORD.findall(before.lower())
        )
    )


def _has_name(clause: str) -> bool:
    """A capital letter in a word that does not open the clause, but for "I" and "AI"."""
    words = _WORD.findall(clause)
    later = words if clause.startswith(" ") else words[1:]
    opening = words[:1] if not clause.startswith(" ") else []
    return any(w[0].isupper() and not re.fullmatch(r"I|I'\w+|AI|LLM|OK", w) for w in later) or any(
        w.lower() not in FUNCTION_WORDS and w.lower() not in CHAT and w[0].isupper() for w in opening
    )


def _asks(text: str) -> bool:
    """A question that hides no claim: none that starts from one ("did you know that …") or ends in a tag."""
    clauses = [c.strip() for c in re.split(r"[,;:]\s+|\s[–—-]+\s", text.rstrip("? "))]
    last = clauses[-1]
    body = _from_word(last, _fillers(_WORD.findall(last.lower())))
    if not all(_empty_clauses(c) for c in clauses[:-1]):
        return False
    if _empty_clauses(last):
        return True
    return bool(_OPEN.match(body) or _POLAR.match(body)) and not (
        _LOADED.search(body) or _NUMBER.search(body)
    )


def _is_heading(text: str, bare: str) -> bool:
    """A line that names what follows: markdown heading, or a noun phrase with a colon, without number and verb."""
    body = bare.rstrip(": ")
    words = body.split()
    if not 1 <= len(words) <= 8 or ":" in body or body.endswith((".", "!", "?")) or _NUMBER.search(body):
        return False
    if _VERB.search(body) or any(w not in CHAT for w in _ED.findall(body)) or re.search(r"[,;]", body):
        return False
    marked = text.lstrip().startswith("#") or bare.endswith(":")
    return marked or bool(_TITLE.match(body))
