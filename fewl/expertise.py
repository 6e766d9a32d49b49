"""What FEWL asks LLMs for: reference answers, intentionally wrong (IW) answers with corrections (CO), own expertise.

A reply with pairs holds numbered lines, ``1. Wrong Answer: …`` and ``1. Non-Wrong Answer: …`` (the paper's tags,
Appendix D.1). What can be read of a reply is kept, what is missing is asked for again, and everything else is counted
by its reason. Leaves out whether a wrong answer is in fact wrong: nothing here can know that. Every function that takes
an engine raises EngineError where it cannot answer at all.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from annotators.text.sentences import split_sentences
from engines.types import ChatResult, Engine, OnResult, Sample, Sampling
from fewl.records import FewlRecord, read_record
from fewl.similarity import Similarity, compare

PAIRS = 25
ROUNDS = 3
TOKENS = 256
TAG = re.compile(r"^[ \t*_#>-]*(\d+)[.)][ \t*_]*(Non[-‐‑–])?Wrong[ ]Answer[ \t*_]*[:：][ \t*_]*", re.I | re.M)
YES = re.compile(r"\W*(yes\b|是(?!否|不是))", re.I)
NO = re.compile(
    r"\W*(no\b(?!\W+idea)|not\b(?!\W+(sure|certain|clear|enough|necessarily))|否|不(?!太?(清楚|确定)|能(确定|判断)|知道|一定|好(说|判断)))",
    re.I,
)


def reference_answers(
    engine: Engine, questions: Sequence[str], *, samples: int = 1, seed: int = 0, tokens: int = TOKENS,
    on_result: OnResult | None = None,
) -> list[list[str]]:  # fmt: skip
    """Ask an LLM the questions; ``samples`` answers of each, unless a request failed or has no :func:`whole_answer`.

    One sample is the greedy answer; more are drawn at temperature 1, each by a request with its own seed (a server that
    ignores ``n`` then does no harm). ``on_result`` is told of each result.
    """
    chats = [[{"role": "user", "content": f"Answer the question briefly.\n\n{question}"}] for question in questions]
    answers: list[list[str]] = [[] for _ in questions]
    for sample in range(samples):
        drawn = Sampling(max_tokens=tokens, temperature=1.0, seed=seed + sample)
        how = Sampling(max_tokens=tokens) if samples == 1 else drawn
        for texts, result in zip(answers, engine.chat(chats, how, on_result=on_result), strict=True):
            if result.samples and (text := whole_answer(result.samples[0])):
                texts.append(text)
    return answers


def whole_answer(sample: Sample) -> str:
    """A reply without its thinking and the sentence it was cut off in; "" if nothing is left."""
    text = sample.said.strip()
    if sample.finish_reason == "length" and not text.endswith((".", "!", "?", "。", "！", "？")):
        whole = split_sentences(text)[:-1]
        text = text[: whole[-1][1]] if whole else ""
    return text


@dataclass
class Pairs:
    """The pairs of one question, aligned, and what was counted while getting them."""

    iw: list[str] = field(default_factory=list)
    co: list[str] = field(default_factory=list)
    replies: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    def add(self, answer: ChatResult, n: int) -> None:
        """Take over what a reply has and this lacks, up to n pairs."""
        self.replies += 1
        if answer.text is None:
            self.problems["failed"] += 1
            return
        new, problems = parse_pairs(answer.text, truncated=answer.samples[0].finish_reason == "length")
        self.problems.update(problems)
        known = {folded(text) for text in self.iw}
        for wrong, corrected in new:
            if folded(wrong) in known:
                self.problems["duplicate"] += 1
            elif len(self.iw) < n:
                known.add(folded(wrong))
                self.iw.append(wrong)
                self.co.append(corrected)


def generate_pairs(
    engine: Engine, questions: Sequence[str], *, n: int = PAIRS, seed: int = 0, on_result: OnResult | None = None
) -> list[Pairs]:
    """Ask an LLM for n pairs per question, and again for what is missing, in at most ``ROUNDS`` rounds.

    ``seed`` is that of the first round's draws; the next round has the next seed. Returns at most n pairs per question,
    without repeated wrong answers (case, spaces and punctuation aside).
    """
    results = [Pairs() for _ in questions]
    for turn in range(ROUNDS):
        open_ = [q for q, pairs in enumerate(results) if len(pairs.iw) < n]
        if not open_:
            break
        chats = [_pairs_chat(questions[q], n - len(results[q].iw), results[q].iw) for q in open_]
        sampling = Sampling(max_tokens=100 * n, temperature=0.7, seed=seed + turn)
        for q, answer in zip(open_, engine.chat(chats, sampling, on_result=on_result), strict=True):
            results[q].add(answer, n)
    return results


def _pairs_chat(question: str, n: int, known: Sequence[str]) -> list[dict[str, str]]:
    """The chat that asks for n pairs; ``known`` wrong answers are to be avoided."""
    taken = "\n".join(["\n\nThese false answers are taken, so do not repeat them:", *(f"- {text}" for text in known)])
    content = (
        f"Question: {question}\n\n"
        f"Invent {n} different answers to this question that are false but that somebody could believe. "
        "After each, write a true sentence that sets it right. Word the true sentence afresh instead of putting "
        'a "not" into the false one, and do it in a different way each time. Use the language of the question.'
        f"{taken if known else ''}\n\n"
        "Write nothing but these numbered lines:\n"
        "1. Wrong Answer: <false answer>\n"
        "1. Non-Wrong Answer: <true sentence>\n"
        f"and so on up to number {n}."
    )
    return [{"role": "user", "content": content}]


def parse_pairs(reply: str, *, truncated: bool = False) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Read the numbered pairs of a reply; the last answer of one that was cut off (``truncated``) is dropped.

    Returns (wrong, corrected) pairs in order, and problems by name: ``no_pairs`` (nothing of the template),
    ``truncated``, ``unpaired`` (one of the two is missing), ``empty``, ``repeated_number`` (the first is kept) and
    ``same_text`` (wrong and corrected are equal).
    """
    problems: Counter[str] = Counter()
    found: dict[int, dict[str, str]] = {}
    marks = list(TAG.finditer(reply))
    for place, mark in enumerate(marks):
        last = place + 1 == len(marks)
        if last and truncated:
            problems["truncated"] += 1
            continue
        text = " ".join(reply[mark.end() : len(reply) if last else marks[place + 1].start()].split()).strip("*_ ")
        number, kind = int(mark.group(1)), "non-wrong" if mark.group(2) else "wrong"
        if kind in found.setdefault(number, {}):
            problems["repeated_number"] += 1
        else:
            found[number][kind] = text
    pairs = []
    for pair in found.values():
        wrong, corrected = pair.get("wrong"), pair.get("non-wrong")
        if wrong is None or corrected is None:
            problems["unpaired"] += 1
        elif not wrong or not corrected or set(wrong + corrected) <= set("<>.… "):  # the template's own "<…>"
            problems["empty"] += 1
        elif folded(wrong) == folded(corrected):
            problems["same_text"] += 1
        else:
            pairs.append((wrong, corrected))
    if not marks:
        problems["no_pairs"] += 1
    return pairs, problems


def report(results: Sequence[Pairs], n: int = PAIRS) -> dict[str, Any]:
    """How many pairs were wanted and read, over how many replies, and what went wrong how often."""
    return {
        "questions": len(results),
        "pairs_wanted": n * len(results),
        "pairs": sum(len(pairs.iw) for pairs in results),
        "questions_with_all_pairs": sum(len(pairs.iw) >= n for pairs in results),
        "questions_without_pairs": sum(not pairs.iw for pairs in results),
        "replies": sum(pairs.replies for pairs in results),
        "problems": dict(sum((pairs.problems for pairs in results), Counter())),
    }


def prompted_expertise(
    engine: Engine, name: str, records: Sequence[FewlRecord], *, tokens: int = TOKENS, on_result: OnResult | None = None
) -> list[float | None]:
    """r of one LLM by asking it: (CO answers it calls its own − IW answers it calls its own) / K_pairs.

    Its reference answers are those under ``name``; a reply has at most ``tokens``, thoughts among them. Returns r in
    [−1, 1] per record, higher is better: the share of CO minus the share of IW answers that it calls its own, of those
    where it said yes or no. None where it has no answer, or said so of none.
    """
    asked = [
        (q, kind, text)
        for q, record in enumerate(records)
        if record.references.get(name)
        for kind, texts in (("co", record.co), ("iw", record.iw))
        for text in texts
    ]
    contents = [
        f"Question: {records[q].question}\nYour answer: {records[q].references[name][0]}\nAnother answer: {text}\n\n"
        "Does the other answer say the same as yours? Reply with Yes or No only."
        for q, _, text in asked
    ]
    chats = [[{"role": "user", "content": content}] for content in contents]
    results = engine.chat(chats, Sampling(max_tokens=tokens), on_result=on_result)
    verdicts: Mapping[str, list[list[bool]]] = {kind: [[] for _ in records] for kind in ("co", "iw")}
    for (q, kind, _), result in zip(asked, results, strict=True):
        if (verdict := yes_or_no(result.text or "")) is not None:
            verdicts[kind][q].append(verdict)
    return [
        sum(co) / len(co) - sum(iw) / len(iw) if co and iw else None
        for co, iw in zip(verdicts["co"], verdicts["iw"], strict=True)
    ]


def yes_or_no(reply: str) -> bool | None:
    """True for a reply that begins with yes, False for no (是 and 否 or 不 in Chinese), None for neither."""
    if NO.match(reply):
        return False
    return True if YES.match(reply) else None


def agreement_counts(records: Sequence[Mapping[str, Any]], similarity: Similarity) -> dict[str, list[tuple[int, int]]]:
    """Per LLM and question: how many IW and how many CO answers its answer agrees with (Figure 4).

    Records without ``iw`` and ``co`` are passed over. Two answers agree from a similarity of 0.7 on; the paper
    does not state its own. Returns {LLM: [(wrong, corrected), …]}; fewer wrong and more corrected ones speak for an
    LLM. Of several samples of one LLM the first counts.
    """
    read = [record for record in map(read_record, records) if record.iw and record.co]
    rows = [(name, texts[0], record) for record in read for name, texts in record.references.items() if texts]
    asked = [(text, other, record.question) for _, text, record in rows for other in (*record.iw, *record.co)]
    candidates, references, questions = ([row[i] for row in asked] for i in range(3))
    agreed = iter((compare(similarity, candidates, references, questions) >= 0.7).tolist())
    counts: dict[str, list[tuple[int, int]]] = {}
    for name, _, record in rows:
        wrong, corrected = (sum(next(agreed) for _ in texts) for texts in (record.iw, record.co))
        counts.setdefault(name, []).append((wrong, corrected))
    return counts


def folded(text: str) -> str:
    """A text without case, punctuation and repeated spaces, to find repetitions."""
    return " ".join(
        "".join(ch if ch.isalnum() else " " for ch in unicodedata.normalize("NFKC", text)).casefold().split()
    )
