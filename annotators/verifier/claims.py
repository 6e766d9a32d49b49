"""Sentences that claim nothing about the world, told by rule: greetings, refusals, offers, questions, headings.

A sentence is cut into clauses, and every clause must be one of the closed forms below; with one that is not, such as
"but Einstein was born in 1902", the sentence is left to the annotator. English, and Chinese by its own forms.
"""

from __future__ import annotations

import re

from annotators.text.language import language_of
from annotators.text.words import FUNCTION_WORDS, PERSONAL

CHAT = frozenset(
    """
    able absolute another absolutely accurate additional advice advise afraid afternoon agree ah ahead ai aim align
    alright amazing answer answered answers anything anytime apologies apologise apologize apology appreciate
    appreciated ask asked asking assist assistance assistant assure aware away awesome back bad based basis bear begin
    believe best better beyond bit body break brief briefly bring bye call can't cannot care careful cause caused
    certain certainly chat check clarification clarify clear clearer clears close closer comfortable comment computer
    concern concise conclude conclusion confuse confused confusion congratulations consider considered consult content
    context continue conversation cool correct couldn't course curious data day deal dear decide decline deeper
    definite definitely delighted depends depth detail detailed details didn't discuss doesn't don't done double doubt
    doubts earlier easier easy elaborate else end enjoy enough entirely error errors especially evening everyone exact
    exactly example examples excellent exciting exhaustive expert explain explained explanation fact facts fair
    fantastic feedback feel feelings final finally find fine finish first focus follow following forgive form forward
    free friend full fun gave generate get give given glad gladly go goes going good goodbye got great greetings guess
    guide hand handy happens happy hard haven't hear hello help helped helpful helping helps hesitate hey hi hmm hold
    honest honestly hope hopefully i'd i'll i've idea important inconvenience incorrect indeed information inquiries
    inquiry instance instead intend interest interested interesting internet introduction issue keep key kind kindly
    know knowledge lack language last later leave let let's like limitations limited list little live long longer look
    looking love lovely luck madam made main make makes many matter mean meant meet mention message mind misread
    misspoke mistake mistakes misunderstanding mix model moment moment's morning move moved moving name near necessary
    need next nice no note notice offer oh ok okay oops open opinion opinions opportunity option order others
    otherwise overview pardon part particular pass patience perfect person personal personally phrase pick place
    pleasant please pleased pleasure point pointed pointing points political possible prefer preferences previous
    probably problem proceed professional program prompt provide provided question questions quick quickly quite
    rather reach read ready real really reason recheck refer regards regret reliable remember repeat rephrase replace
    reply request response response's responses rest review right rude safe said sake say search second see sense
    senses share short shortly show silent simple simplified simply sincere sincerely sir something soon sorry sort
    sound sounds specific specify speculate start started stay step steps stop straight sufficient suggest suit
    summarise summarised summarize summarized summary super support suppose sure tailor take takeaway takeaways talk
    task tell term text thank thanks thing things think third thought thoughts time title today together told tomorrow
    topic totally touch trained translate true try trying turn type understand understanding unfortunately unsure
    update us use useful user verify version view views wait want wanted warm week weekend welcome well what's
    whatever whenever whoops wish won't wonder wonderful wondering word words work worries wouldn't wow write writing
    wrong yeah year's yes you'd you'll you're you've yourself
    """.split()
)
"""Words of talk about the conversation itself; a clause of nothing else claims nothing."""
META_NOUNS = frozenset(
    """
    analysis answer answers background bio biography breakdown bullet bullets comparison conclusion content context
    details draft events example examples explanation explanations fact facts findings highlights idea ideas
    information introduction items key list notes options outline overview paragraph part parts passage points quote
    quotes reasons reply response responses result results review section sentence sentences solution steps
    suggestions summary takeaway takeaways text thoughts timeline tips title topics translation version versions ways
    """.split()
)
"""What an announcement ("here is a …") announces."""
FILLERS = frozenset(
    " ".join(phrase.split())
    for phrase in """
    absolutely | actually | additionally | again | ah | all right | alright | also | although | and | anyway | as
    always | as requested | as you asked | at last | because | but | by the way | certainly | dear | definitely |
    finally | first | first of all | firstly | for example | for instance | furthermore | good afternoon | good
    evening | good morning | goodbye | great | greetings | hello | hello there | hey | hi | hi there | hmm | however |
    if | in addition | in any case | in brief | in conclusion | in contrast | in other words | in short | in summary |
    in that case | indeed | last | lastly | let me see | meanwhile | moreover | moving on | my apologies | next | no |
    no problem | no worries | nope | note that | now | of course | oh | ok | okay | on the contrary | on the one hand
    | on the other hand | once again | oops | or | overall | perfect | perhaps | please | please note | please note
    that | regrettably | right | sadly | second | secondly | similarly | since | so | sorry | step | step by step |
    still | sure | sure thing | thank you | thanks | that being said | that said | then | third | thirdly | though |
    thus | to be honest | to begin with | to conclude | to sum up | to summarise | to summarize | to the best of my
    knowledge | ultimately | unfortunately | well | while | with that said | wow | yeah | yep | yes | yet | you are
    right | you're right
    """.split("|")
)
"""Words and phrases that only lead on to what follows."""
PAST_FORMS = frozenset(
    """
    became began born bought brought built came chose died drew drove fell felt flew fought found founded gave got
    grew held joined kept knew led left lost made married met moved ran rose said sang saw sent shot sold spent spoke
    stood swam taught threw told took went won wore worked wrote
    """.split()
)
"""Forms of common verbs that state something; the regular ones are told by their ending."""

_ZH_MARKS = re.compile(r"^[\s#>*•·\-—]+|^\s*[（(]?[\d一二三四五六七八九十]{1,3}[）)、.．]\s*|[\s*]+$")
_ZH_CLAUSE = re.compile(r"[，,。.！!？?；;：:…、\s]+")
_ZH_NUMBER = re.compile(r"[0-9０-９]|[一二三四五六七八九十百千万亿零〇]{2,}|[二三四五六七八九十两]+[年月日岁个]")
_ZH_SOURCE = (
    r"(?:根据)?(?:所?提供的?|上述|给定的?|以上|该|本|这段|这篇|此)?"
    r"(?:文章|文本|文中|文|资料|参考资料|材料|原文|段落|上下文|内容|信息|文档)(?:中|里|内|来看)?"
)
_ZH_REST = r"(?:(?!但|而是|因为|因此|所以|不过|然而).)*"  # all that follows, unless it turns to a statement
_ZH_OPENERS = re.compile(
    "^(?:非常|十分|真的?|很)?(?:抱歉|对不起|不好意思|遗憾|谢谢|感谢|多谢|你好|您好|嗨|好的|好|当然|没问题|是的|不是|对|嗯|哦|"
    "首先|其次|最后|总之|综上所述|综上|另外|此外|不过|但是|但|所以|因此|而且|那么|请注意|注意|例如|比如|其实|早上好|上午好|下午好|"
    "晚上好|晚安|再见|欢迎|哇|啊)+"
)
_ZH_WHOLE = re.compile(
    "^(?:"
    r"(?:我|我们|本助手)?(?:目前|暂时|恐怕|也|还|真的?|并)*(?:无法|不能|没办法|没法|难以|不便|不方便)(?:为|给|向|帮|您|你|从|中|得到|"
    rf"文|这|在)*(?:回答|提供|确定|判断|访问|确认|得知|知道|告诉|告知|核实|给出|帮助|协助|透露|查询|评论|答案){_ZH_REST}|"
    r"(?:我|我们|本助手)(?:目前|暂时|恐怕|也|还|真的?|并)*(?:不知道|不清楚|不太清楚|不确定|不太确定|不了解|没有找到|没找到|找不到|查不到|"
    rf"没有查到|拒绝){_ZH_REST}|"
    rf"(?:我|我们)(?:没有|缺乏|缺少)(?:足够的?|相关的?|这方面的?|任何|个人)*(?:信息|资料|数据|观点|情感|意见|感受|看法|经历|身体|权限){_ZH_REST}|"
    rf"(?:{_ZH_SOURCE})?(?:并|也|都)?(?:没有|没|未|并未|未曾)(?:明确)?(?:提到|提及|说明|给出|说|写明|涉及|包含|讨论|回答|指出){_ZH_REST}|"
    rf"(?:根据)?{_ZH_SOURCE}|"
    r"(?:该|这个|此|您的|你的)问题(?:无法|不能|难以)(?:(?!但|而是|因为|因此|所以|是).)*|"
    r"(?:作为|我(?:只|只不过|仅仅|就)?是)(?:一个|一款|一名|个)?(?:人工智能|AI|ai|大?语言模型|智能|大型语言模型|机器人|助手|程序|助理)*|"
    r"(?:我的)(?:回答|知识|信息|答案|理解|数据)(?:(?!但|而是|因为|因此|所以|是).)*(?:有误|有限|过时|不准确|不全)|"
    r"(?:给)?(?:您|你)?(?:带来|造成)(?:了)?(?:不便|困扰|麻烦)|(?:我)?(?:为|对)[^是]*(?:道歉|抱歉|感到抱歉)|(?:我)?(?:刚才|之前)?(?:说|弄|搞|看|理解)错了?|"
    r"(?:很|非常|十分)?(?:高兴|乐意|愿意|荣幸)(?:能)?(?:为|帮|见|认识|回答|和|与)(?:(?!但|而是|因为).)*|(?:我)(?:很|非常|十分|也)?(?:高兴|乐意|愿意|荣幸)(?:(?!但|而是|因为).)*|"
    r"(?:为)?(?:您|你)服务|(?:希望|但愿)(?:这|以上|我的回答|这些|它|能|可以|对|会)*(?:您|你|大家)?(?:能|会|可以)?(?:有所|有|所)?(?:帮助|用|帮到您|帮到你)?|"
    r"(?:如果|如|若|要是)(?:您|你)?(?:还|仍|需要|有|想|愿意)[^是]*|(?:请|欢迎|您可以|你可以|可以)?(?:随时)?(?:告诉|联系|提问|提出|询问|提供|参考|自行核实|咨询|核实|确认)(?:我|更多|问题|专业|信息|一下|[^是]{0,6}$)[^是]*|"
    r"请(?:您|你)?(?:随时|自行|再|先|稍等|提供|告诉|核实|注意|谅解|见谅|放心|问|说|继续)[^是]*|以便[^是]*|"
    r"(?:需要|要)我[^是]*|让我们?[^是]*|(?:我们|我)(?:先|再|接着|接下来)?(?:来)?(?:看看?|分析|讨论|谈谈?|解释|说明|总结)(?:一下|这个|那个|以下|下面)?(?:问题|这一点|内容|情况)?|"
    r"(?:以下|下面|如下|接下来)(?:是|为|列出|给出|将|介绍)?[^是]*(?:摘要|总结|要点|答案|内容|步骤|列表|概述|介绍|解释|回答|说明|几点|信息)?|"
    r"(?:答案|结果|总结|要点|内容|原因|解释|说明)?(?:如下|见下文|见上文)|这(?:就)?是(?:我的|最终的?|一个)?(?:[很非常十分]*[好有趣重要的]*)?(?:回答|答案|问题|总结|建议|想法)|"
    r"(?:您|你)的(?:提问|问题|反馈|耐心|理解|支持|关注|来信)|提问|不客气|不用谢|别客气|祝[^是]*|(?:一步)+(?:地)?来看?|(?:当然|完全)?可以|没关系|明白了?|知道了|好问题|"
    r"(?:生平|主要|基本|个人|早年|背景|相关)?(?:成就|简介|概述|介绍|总结|结论|背景|要点|摘要|概要|前言|引言|答案|解释|说明|回答|注|生平|信息|资料|贡献|影响|步骤|结语)"
    ")$"
)
_ZH_QUESTION = re.compile("(?:什么|哪|谁|几|多少|怎么|怎样|如何|为何|为什么|吗|呢|么|是否|还是)")
_ZH_LOADED = re.compile("知道|不是|难道|听说|对吧|是吧|对吗|是吗|了解到|没错吧|真的")


def claims_nothing_chinese(sentence: str) -> bool:
    """Whether a clean Chinese sentence is one of the forms that state no fact to check; False says nothing."""
    text = sentence.strip()
    for _ in range(3):
        text = _ZH_MARKS.sub("", text).replace("**", "")
    clauses = [clause for clause in _ZH_CLAUSE.split(text) if clause]
    if text.endswith(("?", "？")) and clauses:
        *clauses, last = clauses
        if not _zh_asks(last):
            return False
    return all(_zh_empty(clause) for clause in clauses)


def _zh_empty(clause: str) -> bool:
    rest = _ZH_OPENERS.sub("", clause)
    return not rest or (not _ZH_NUMBER.search(rest) and bool(_ZH_WHOLE.match(rest)))


def _zh_asks(clause: str) -> bool:
    return _zh_empty(clause) or bool(
        _ZH_QUESTION.search(clause) and not _ZH_LOADED.search(clause) and not _ZH_NUMBER.search(clause)
    )


VERSION = 2  # raised whenever a rule changes, since verdicts depend on it
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
    rf"^(?:according to|based (?:only |solely )?on|from|judging (?:by|from)|in|given|using) {_SOURCE}$", re.IGNORECASE
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
    """Whether a clean sentence, markdown or not, is one of the forms that state no fact; False: judge it."""
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
    for form, part in ((_REFUSAL, clause), (_REFUSAL, rest), (_NEXT, rest), (_PRESENTING, rest)):  # "no" also leads on
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
    while size := next((n for n in range(5, 0, -1) if " ".join(words[skip:][:n]) in FILLERS), 0):
        skip = min(skip + size, len(words))
    return skip


def _from_word(clause: str, number: int) -> str:
    """The clause from its ``number``-th word on; the whole clause for 0."""
    starts = [match.start() for match in _WORD.finditer(clause)]
    return clause if not number else clause[starts[number] :] if number < len(starts) else ""


def _only_topic(rest: str) -> bool:
    """Whether a refusal or announcement goes on with a topic; only an embedded question in it may have a verb."""
    before, *embedded = _EMBEDDED.split(rest, maxsplit=1)
    if re.search(r"\bwhy\b", rest, re.IGNORECASE) and (_NUMBER.search(rest) or _has_name(" " + embedded[0])):
        return False  # "why" takes what follows for true
    if not (_VERB.search(before) or _ED.search(before)):
        return True
    return not (
        _has_name(" " + before)
        or _NUMBER.search(before)
        or set(_WORD.findall(before.lower())) - FUNCTION_WORDS - CHAT - META_NOUNS
    )


def _has_name(clause: str) -> bool:
    """A capital in a word that does not open the clause, but for "I" and "AI", or in an opening one that is no talk."""
    words = _WORD.findall(clause)
    opening, later = ([], words) if clause.startswith(" ") else (words[:1], words[1:])
    return any(w[0].isupper() and not re.fullmatch(r"I|I'\w+|AI|LLM|OK", w) for w in later) or any(
        w[0].isupper() and w.lower() not in FUNCTION_WORDS | CHAT for w in opening
    )


def _asks(text: str) -> bool:
    """A question that hides no claim: none that starts from one ("did you know that …") or ends in a tag."""
    clauses = [c.strip() for c in re.split(r"[,;:]\s+|\s[–—-]+\s", text.rstrip("? "))]
    last = clauses[-1]
    body = _from_word(last, _fillers(_WORD.findall(last.lower())))
    if not all(map(_empty_clauses, clauses[:-1])):
        return False
    if _empty_clauses(last):
        return True
    return bool(_OPEN.match(body) or _POLAR.match(body)) and not (_LOADED.search(body) or _NUMBER.search(body))


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
