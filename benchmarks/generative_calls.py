"""Calls and prompt tokens of the generative annotator: both protocols, both orders, three windows, with prefix caching.

    OMP_NUM_THREADS=1 python -m benchmarks.generative_calls
    OMP_NUM_THREADS=1 python -m benchmarks.generative_calls --schema --answers 40    # tags, three turns, JSON objects

The requests are real; gold labels play the replies: evidence is the passage of the shown text that shares most words
with the sentence; unsupported and unverifiable sentences are unverifiable for want of evidence, so that early exit and
second pass take place. Nothing here says how good an annotation is.

Tokens are MiniLM's; "computed" leaves out the blocks of 16 that some earlier request began with, as vLLM's prefix cache
does with room for all. Requests in flight together can't use each other's blocks yet.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from annotators.generative.annotator import GenerativeAnnotator
from annotators.generative.protocols import Options
from annotators.generative.tagged import neutral
from benchmarks.common import Row, load_rows, parser, row, save
from engines.embedding import Embedder
from engines.types import Chat, ChatResult, OnResult, Sample, Sampling
from fewl.similarity import each_once

SOURCES = ("lfqa_verification", "cliff")
LEAST = 400  # tokens of a document
BLOCK = 16
COUNTED = {"calls": "calls", "total": "prompt tokens", "computed": "computed prompt tokens"}
CHUNK = 32
Costs = Counter[str]


@dataclass
class Played:
    """An engine that plays an annotator with gold labels and keeps what it was asked."""

    labels: Mapping[str, str]
    asked: list[tuple[Chat, Sampling, str]] = field(default_factory=list)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"engine": "played"}

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        sampling = sampling or Sampling()
        play = self._object if sampling.json_schema else self._reply
        replies = [play(chat) for chat in chats]
        self.asked += [(chat, sampling, reply) for chat, reply in zip(chats, replies, strict=True)]
        return [ChatResult((Sample(reply, "stop"),)) for reply in replies]

    def close(self) -> None:
        """Nothing is held."""

    def _object(self, chat: Chat) -> str:
        texts, rows = [chat[0]["content"]], []
        for line in _between(texts, "sentence").split("\n"):
            number, _, sentence = line.partition(". ")
            evidence = self._evidence(sentence, texts)
            kind = "supported" if evidence else "unverifiable"
            rows.append({"number": int(number), "evidence": evidence, "type": kind, "corrections": []})
        return json.dumps({"sentences": rows}, ensure_ascii=False)

    def _reply(self, chat: Chat) -> str:
        texts = [message["content"] for message in chat if message["role"] == "user"]
        evidence = self._evidence(folded(_between(texts, "sentence")), texts)
        if "<Facts Present>" not in texts[0]:
            return f"<Reference> {evidence[0]}\n<Hallucination> None" if evidence else "<Hallucination> Unverifiable"
        turns = ("<Facts Present>", evidence[0] if evidence else "<No Reference Information>", "<No Hallucination>")
        return turns[len(texts) - 1]

    def _evidence(self, sentence: str, texts: Sequence[str]) -> list[str]:
        """The piece of the document that shares most words with a sentence, where gold has evidence."""
        if self.labels[sentence] not in ("supported", "contradictory"):
            return []
        wanted = set(sentence.lower().split())
        lines = [line for line in _between(texts, "document").replace("[…]", "").split("\n") if line.strip()] or [""]
        pieces = [piece for line in lines for piece in line.split(". ")]
        return [max(pieces, key=lambda piece: len(wanted & set(piece.lower().split())))]


def folded(sentence: str) -> str:
    """A sentence as it is shown, on one line."""
    return " ".join(neutral(sentence).split())


def _between(texts: Sequence[str], mark: str) -> str:
    for text in texts:
        if f"<{mark}>\n" in text:
            return text.split(f"<{mark}>\n")[1].split(f"\n</{mark}>")[0]
    return ""


def rows_of(rows: Sequence[Row], source: str, embedder: Embedder, answers: int) -> list[list[Row]]:
    """Labelled sentences of a source by answer, of up to ``answers`` answers with a long document."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        if r["source"] == source and r["answer"]:
            groups.setdefault((r["reference"], r["answer"]), []).append(r)
    keys = sorted(groups)
    sizes = embedder.count_tokens([reference for reference, _ in keys])
    long = [key for key, size in zip(keys, sizes, strict=True) if size > LEAST]
    random.Random(0).shuffle(long)
    return [groups[key] for key in long[:answers]]


def computed(tokens: Sequence[int], seen: set[int]) -> int:
    """Tokens of a prompt that a cache of ``seen`` beginnings does not hold; the last one is always computed."""
    names = [0]  # of each beginning of whole blocks
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        names.append(hash((names[-1], *tokens[start : start + BLOCK])))
    known = sum(name in seen for name in names[1:]) * BLOCK
    seen.update(names[1:])
    return len(tokens) - min(known, len(tokens) - 1)


def measure(groups: Sequence[Sequence[Row]], embedder: Embedder, **options: Any) -> list[Costs]:
    """What each answer costs, by the names of COUNTED, its reply tokens and sentences."""
    labels = {folded(row["sentence"]): row["label"] for group in groups for row in group}
    costs: list[Costs] = []
    seen: set[int] = set()
    for start in range(0, len(groups), CHUNK):
        chunk = groups[start : start + CHUNK]
        engine = Played(labels)
        annotator = GenerativeAnnotator(engine, Options(**options), embedder=embedder)
        annotator.predict([row for group in chunk for row in group])
        texts = ["".join(f"{m['role']}: {m['content']}\n" for m in chat) for chat, _, _ in engine.asked]
        tokens = [ids.tolist() for ids, _ in embedder.tokenize(texts)]
        written = embedder.count_tokens([reply for _, _, reply in engine.asked])
        owner = {folded(row["sentence"]): n for n, group in enumerate(chunk) for row in group}
        of_chunk = [Counter(sentences=len(group)) for group in chunk]
        for (chat, sampling, _), ids, size in zip(engine.asked, tokens, written, strict=True):
            users = [m["content"] for m in chat if m["role"] == "user"]
            named = _between(users, "sentence")
            if sampling.json_schema:
                named = named.split("\n")[0].partition(". ")[2]
            cost = of_chunk[owner[folded(named)]]
            cost.update(calls=1, written=size, total=len(ids))
            cost["computed"] += computed(ids, seen)
        costs += of_chunk
    return costs


def per_sentence(what: str, costs: Sequence[Costs], name: str) -> Row:
    """A figure a sentence with its 95 % interval from 1,000 draws of answers."""
    values = np.array([[cost[name], cost["sentences"]] for cost in costs], float)
    draws = np.random.default_rng(0).integers(0, len(values), (1000, len(values)))
    totals, sentences = values[draws].sum(axis=1).T
    limits = np.percentile(totals / sentences, [2.5, 97.5])
    return row(what, int(values[:, 1].sum()), values[:, 0].sum() / values[:, 1].sum(), limits)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--answers", type=int, default=120)
    made.add_argument("--schema", action="store_true", help="compare tags, three turns and several sentences a call")
    args = made.parse_args()
    everything = [r for r in load_rows(args.data) if "label" in r]
    embedder = Embedder(device="cpu")
    embedder.encode = each_once(embedder.encode)  # windows are chosen a dozen times here
    rows = []
    if args.schema:
        groups = rows_of(everything, SOURCES[0], embedder, args.answers)
        kinds: dict[str, dict[str, Any]] = {
            "tags": {}, "three turns": {"protocol": "three-turn"}, "JSON, up to 5 sentences a call": {"schema": 5}
        }  # fmt: skip
        for name, options in kinds.items():
            costs = measure(groups, embedder, window="whole", **options)
            for figure, what in {**COUNTED, "written": "reply tokens"}.items():
                rows.append(per_sentence(f"whole document, {name}: {what} a sentence", costs, figure))
        shown = [one for one in rows if re.search(": (calls|prompt)", one["what"])]
        save("llm-annotators", "generative_calls", shown, tables={"all": rows}, part="schema")
        return
    for source in SOURCES:
        groups = rows_of(everything, source, embedder, args.answers)
        orders, windows = ("reference-first", "question-first"), ("sentence", "answer", "whole")
        for protocol, order, window in product(("tagged", "three-turn"), orders, windows):
            costs = measure(groups, embedder, protocol=protocol, prompt=f"plain/{order}", window=window)
            where = f"{source}, {protocol}, {order}, window of the {window}"
            rows += [per_sentence(f"{where}: {called} a sentence", costs, name) for name, called in COUNTED.items()]
    shown = [one for one in rows if re.search("reference-first, .* (sentence|answer): computed", one["what"])]
    save("llm-annotators", "generative_calls", shown, tables={"all": rows})


if __name__ == "__main__":
    main()
