"""ANAH's published scorer: raw replies against gold annotations by its own formulas, so that figures compare.

A row is {"prompt", "reply", "golden"}: what the model was sent, what it wrote and what it should have written. Source:
ANAH (ACL 2024), §4.2, and `eval/anah_v1` of its repository; the formulas were written again from what that program
computes. docs/annotators.md says how they differ from ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from annotators.evaluation.texts import PAPER_MODELS, ngrams
from annotators.generative.tagged import WRITTEN
from annotators.records import Label
from annotators.text.words import chinese_words, rouge_l

Row = Mapping[str, str]
_NO_FACT = re.compile("<无事实>|<No ?Fact>", re.IGNORECASE)
_TYPES: dict[Label, re.Pattern[str]] = {
    label: re.compile(f"<幻觉>{WRITTEN[label][1]}|<Hallucination> ?{WRITTEN[label][0]}", re.IGNORECASE)
    for label in ("unverifiable", "supported", "contradictory")  # 无法验证 begins like 无
}
_REFERENCE = re.compile("<(?:参考|Reference)>", re.IGNORECASE)
_DOCUMENT = {
    "zh": r"\n参考(?:文档|文件|文章)：(.*?)\n(?:请标记|请分析|开始评估|请标注)(?:答案|回答|要点|信息点)?：",
    "en": r"\nReference: (.*?)(?i:\n(please )?(annotate|mark|analyze) (the )?(answer|(information )?point):) ",
}
"""The document between the words of the published prompts."""
_SPECIAL = re.compile(r"<TOKENS_UNUSED_\d+>")


def language_of(prompt: str) -> str | None:
    """ "zh" or "en" by words of the published prompts, None without any."""
    return "zh" if re.search("参考文档|标注", prompt) else "en" if re.search("annotat|Reference", prompt) else None


def type_of(text: str) -> Label | None:
    """The type that an annotation gives, None without one: no fact anywhere, else that of the first line with one.

    What only begins like a type counts as it ("None of this is so" is supported).
    """
    if _NO_FACT.search(text):
        return "no_fact"
    return next((label for line in text.split("\n") for label, p in _TYPES.items() if p.search(line)), None)


def fragments_of(reply: str) -> list[str]:
    """What counts as fragments: the lines from the reference tag to the correction tag, the line of the type too."""
    lines = reply.split("\n")
    first = next((n for n, line in enumerate(lines) if _REFERENCE.search(line)), len(lines) - 1)
    if not re.search("参考|Reference", lines[first], re.IGNORECASE):
        return []
    found = []
    for line in takewhile(lambda line: not re.search("<(?:改正|Correction)>", line, re.IGNORECASE), lines[first:]):
        text = re.sub(r"(?:参考|Reference)\d+：", "", _REFERENCE.sub("", line), flags=re.IGNORECASE)
        for piece in text.replace("参考文档中的", "").split("<SEP>"):
            bare = re.sub("^[\"”“'’‘]|[\"”“'’‘]$", "", piece.strip()).strip()
            found.append(re.sub("[,.，。;；]$", "", bare).strip())
    return [piece for piece in found if piece.lower() not in ("", "无", "none")]


def document_of(prompt: str, language: str) -> str | None:
    """The document in a published prompt, or between the marks of ours; None where there is none."""
    patterns = (_DOCUMENT[language], r"<(?:document|文档)>\n(.*?)\n</(?:document|文档)>")
    return next((found[1] for pattern in patterns if (found := re.search(pattern, prompt, re.DOTALL))), None)


def ngram_precision(fragments: Sequence[str], document: str, n: int, language: str) -> float:
    """Clipped n-grams of the joined fragments in the document, by the number of different ones: above 1 where some
    repeat. They are of characters with blanks in Chinese, else of what stands between blanks.
    """
    texts = (" ".join(fragments).lower(), document.lower())
    said, known = (Counter(ngrams(text if language == "zh" else text.split(), n)) for text in texts)
    return (said & known).total() / len(said) if said else 0.0


def scores(rows: Sequence[Row], *, bertscore: bool = False) -> dict[str, Any]:
    """The published figures of rows with a gold type and a language: percent, but for ``f1`` in [0, 1].

    Most are {"all", "zh", "en"}, plain means where the published program draws (English ROUGE-L), None without rows.
    ``precision_3`` and ``_4`` are over ``n_fragments`` rows with fragments and a document in their prompt.
    """
    from sklearn.metrics import f1_score

    languages = [language_of(row["prompt"]) or "en" for row in rows]
    gold, types = ([str(type_of(row[key])) for row in rows] for key in ("golden", "reply"))
    replies = [_SPECIAL.sub("", row["reply"]) for row in rows]
    golden = [re.sub(r"<\|.*?\|>:?", "", _SPECIAL.sub("", row["golden"])) for row in rows]
    documents = [document_of(row["prompt"], lang) for row, lang in zip(rows, languages, strict=True)]
    fragments = {i: found for i, row in enumerate(rows) if (found := fragments_of(row["reply"]))}
    located = {i: document for i in fragments if (document := documents[i]) is not None}

    def rouge(i: int) -> float:  # jieba's words with punctuation, or words in small letters, unstemmed
        one, other = (
            " ".join(chinese_words(t)).split() if languages[i] == "zh" else re.findall("[a-z0-9]+", t.lower())
            for t in (replies[i], golden[i])
        )
        return rouge_l(other)(one)

    def by_language(values: Mapping[int, float]) -> dict[str, float | None]:
        parts = {name: [v for i, v in values.items() if name in ("all", languages[i])] for name in ("all", "zh", "en")}
        return {name: round(100 * float(np.mean(part)), 2) if part else None for name, part in parts.items()}

    def precision(n: int) -> dict[str, float | None]:
        return by_language({i: ngram_precision(fragments[i], text, n, languages[i]) for i, text in located.items()})

    similarity: dict[int, float] = {}
    for language in sorted(set(languages)) if bertscore else ():
        from bert_score import score

        places = [i for i, name in enumerate(languages) if name == language]
        pairs = ([texts[i] for i in places] for texts in (replies, golden))
        similarity |= zip(places, score(*pairs, model_type=PAPER_MODELS[language])[2].tolist(), strict=True)
    return {
        "n": len(rows),
        "n_unread": types.count("None"),
        "accuracy": by_language({i: float(types[i] == label) for i, label in enumerate(gold)}),
        "f1": float(f1_score(gold, types, average="weighted")),
        "rouge_l": by_language({i: rouge(i) for i in range(len(rows))}),
        "bert_score": by_language(similarity),
        "precision_3": precision(3),
        "precision_4": precision(4),
        "n_fragments": len(located),
        "n_without_document": len(fragments) - len(located),
    }
