"""The generative annotator: a language model writes, for every sentence, evidence, label and correction in tags.

    annotator = GenerativeAnnotator.from_pretrained("openai:MODEL@http://127.0.0.1:8000/v1", protocol="three-turn")
    annotator.annotate(question=…, reference=…, answer=…)

It asks in rounds and reads the replies strictly (``protocols.py``, ``tagged.py``), asks once more with six times the
window where a sentence was found unverifiable, and looks fragments and corrections up. "Supported" counts only with
evidence that stands in the reference. A sentence of which no reply could be read has the status "failed" and its
``problems`` say why; nothing is guessed. English and Chinese.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from annotators.base import Annotator, Sentence, spans_of, thought
from annotators.generative import protocols
from annotators.generative.prompts import Protocol
from annotators.generative.protocols import NO_EVIDENCE, Item, Mode, Options, Request, Shown, Verdict, Windows
from annotators.generative.tagged import locate_fragments, locate_words, restored
from annotators.records import Edit, SentenceAnnotation, read_saved
from annotators.retrieval import budget_of
from annotators.text.language import declared_or_found, stated
from annotators.text.sentences import anah_units
from engines.types import ChatResult, Engine, canonical

if TYPE_CHECKING:
    from engines.embedding import Embedder


VERSION = 4  # raised when the prompts' frame, the windows or the readers change: it is part of the fingerprint
MAX_CHARACTERS = 4000  # sentences of more characters are not judged ("too_long")
NO_DOCUMENT = {"en": "(No document is given. Judge by what you know.)", "zh": "（没有文档，请依据你自己的知识判断。）"}
"""Shown in place of the reference of a record whose ``parametric`` is true, for evaluation without references."""
_WORD = re.compile(r"[^\W_]")


class GenerativeAnnotator(Annotator):
    """Judges sentences by asking a language model; ``close`` closes its engine.

    ``embedder`` chooses windows; None takes the packaged one, loaded on ``device`` when a reference does not fit.
    """

    list_marks = True

    def __init__(
        self, engine: Engine, options: Options | None = None, *, embedder: Embedder | None = None,
        device: str | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.options = options = options or Options()
        self.name = f"generative:{engine.name}"
        prompts = [options.chooser.identity, options.in_tags.chooser.identity]
        if "{name}" in canonical(prompts):
            self.reads = (*self.reads, "name", "topic")
        if options.window == "answer" or options.together:
            self.reads = (*self.reads, "answer")

        @lru_cache(maxsize=1)
        def embeddings() -> Embedder:
            from engines.embedding import Embedder

            return embedder or Embedder(device=device)

        mode = "answer" if options.together and options.window == "sentence" else options.window
        self._windows = Windows(mode, options.window_tokens, embeddings)
        made_of = [VERSION, protocols.TOP, dict(engine.identity), prompts, asdict(options) | {"templates": None}]
        if options.window != "whole":
            from engines.packaged import PACKAGED

            made_of.append(embedder.fingerprint if embedder else PACKAGED["minilm"].sha256)
        self.fingerprint = hashlib.sha256(canonical(made_of).encode()).hexdigest()[:16]

    @classmethod
    def from_pretrained(
        cls, name: str, *, cache: str | Path | None = None, concurrency: int | None = None, device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto", trust_remote_code: bool = False, **options: Any,
    ) -> GenerativeAnnotator:  # fmt: skip
        """The annotator of an engine string KIND:MODEL[@BASE_URL] (``engines``), after "generative:" or not.

        ``cache`` is a file of replies, made where there is none; ``concurrency`` counts the requests in flight of an
        openai engine (None: 16); ``device`` and ``dtype`` are for a model in this process, and so is
        ``trust_remote_code``, which runs the code that a checkpoint brings; ``options`` are those of ``Options``, and
        ``preset``, "anah-v1" or "anah-v2". A model that training wrote is asked as it was trained (first wording).
        ValueError where the name or an option is wrong, ImportError without the engine's library, OSError without a
        checkpoint.
        """
        from engines import load_engine, parse_engine

        spec = name.removeprefix("generative:")
        engine_spec = parse_engine(spec)
        trained = trained_as(engine_spec.model)
        if trained.prompts and not {"templates", "preset"} & options.keys():
            shown = trained.model_dump(include={"window", "window_tokens"}, exclude_unset=True)
            options = {"protocol": trained.protocol, "prompt": trained.prompts[0], **shown, **options}
        chosen = protocols.options_of(options)
        protocols.check_engine(chosen, engine_spec.kind)
        of_kind: dict[str, dict[str, Any]] = {
            "transformers": {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code},
            "vllm": {"dtype": dtype, "trust_remote_code": trust_remote_code},
            "openai": {} if concurrency is None else {"concurrency": concurrency},
        }
        engine = load_engine(spec, cache=cache, **of_kind[engine_spec.kind])
        return cls(engine, chosen, device=device)

    def close(self) -> None:
        """Close the engine and its cache."""
        self.engine.close()

    def spans(self, record: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Where the sentences, or ANAH's units, of a record's answer stand."""
        if not self.options.units:
            return super().spans(record)
        language = declared_or_found(record.get("language"), record["answer"][thought(record["answer"]) :])
        return spans_of(record["answer"], partial(anah_units, language="zh" if language == "zh" else "en"))

    def foreseen(self, records: Iterable[Mapping[str, Any]], *, given: bool = False) -> tuple[int, int, int]:
        """The fewest requests that these records need, about how many tokens their prompts have, and how many at most
        their replies; ``given``: they are rows of ``predict``.

        A token is taken to have four bytes of UTF-8; what follows a first turn or an unreadable reply comes on top.
        """
        requests = size = judged = 0
        groups: Counter[Hashable] = Counter()
        for record in records:
            text = record["sentence" if given else "answer"]
            language = stated(record) if given else record.get("language")
            for a, b in [(0, len(text))] if given else self.spans(record):
                sentence = Sentence(text[a:b], a, text, record, language)
                item = self._item(sentence)
                if self._without_asking(sentence, item) is not None:
                    continue
                first = self.options.chooser.by_language[item.language][0].turns[0]
                shown, said, asked = (len(t.encode("utf-8", "replace")) for t in (item.reference, sentence.text, first))
                if self.options.window != "whole":
                    shown = min(shown, 4 * (self.options.window_tokens or budget_of(item.reference)))
                key = self._group(sentence, item) if self.options.together else None
                if key is None or groups[key] % self.options.schema == 0:  # it begins a call
                    requests += 1
                    size += shown + asked
                groups[key] += 1
                judged += 1
                size += said
        return requests, size // 4, judged * self.options.max_tokens  # a call about several has room for each

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """One judgement per sentence, in order; EngineError where the engine can't answer anything."""
        items = {place: self._item(sentence) for place, sentence in enumerate(sentences)}
        out = {p: found for p, item in items.items() if (found := self._without_asking(sentences[p], item))}
        items = {place: item for place, item in items.items() if place not in out}
        groups = self._groups(sentences, items)
        for group in groups if self.options.together else ():
            peers = tuple(items[place].sentence for place in group)
            items |= {place: replace(items[place], peers=peers) for place in group}
        known: dict[Request, ChatResult] = {}
        shown = dict(zip(items, self._windows.first(list(items.values())), strict=True))
        verdicts = self._ask(groups, items, shown, known)
        open_ones = [p for p, v in verdicts.items() if v.label == "unverifiable" or v.problems[-1:] == (NO_EVIDENCE,)]
        again = [p for p in open_ones if not shown[p].whole]
        wider = dict(zip(again, self._windows.second([items[p] for p in again]), strict=True))
        open_groups = [left for group in groups if (left := [p for p in group if p in wider])]
        for place, other in self._ask(open_groups, items, wider, known).items():
            if other.label is not None:  # else the first judgement stands
                verdicts[place], shown[place] = other, wider[place]
        for place, verdict in verdicts.items():
            out[place] = _annotation(sentences[place], verdict, shown[place])
        return [out[place] for place in range(len(sentences))]

    def _groups(self, sentences: Sequence[Sentence], items: dict[int, Item]) -> list[list[int]]:
        """The places of sentences that share a call: of one answer, up to ``schema`` of them, else each for itself."""
        if not self.options.together:
            return [[place] for place in items]
        answers: dict[object, list[int]] = {}
        for place, item in items.items():
            answers.setdefault(self._group(sentences[place], item), []).append(place)
        size = self.options.schema
        return [places[n : n + size] for places in answers.values() for n in range(0, len(places), size)]

    def _group(self, sentence: Sentence, item: Item) -> Hashable:
        """What sentences that may share a call have in common."""
        return (item.reference, item.question, item.language, item.blind, sentence.record.get("answer"))

    def _ask(
        self, groups: list[list[int]], items: dict[int, Item], shown: dict[int, Shown], known: dict[Request, ChatResult]
    ) -> dict[int, Verdict]:
        talks = [protocols.conversation([items[p] for p in group], shown[group[0]], self.options) for group in groups]
        found = zip(groups, protocols.converse(self.engine, talks, known), strict=True)
        return {place: verdict for group, verdicts in found for place, verdict in zip(group, verdicts, strict=True)}

    def _item(self, sentence: Sentence) -> Item:
        language = _language(sentence.language, sentence.answer, sentence.reference)
        reference = sentence.reference
        if sentence.record.get("parametric"):
            reference = NO_DOCUMENT["zh" if language == "zh" else "en"]
        answer = sentence.record.get("answer")
        peers = _sentences(answer) if self.options.window == "answer" and isinstance(answer, str) else ()
        blind = bool(sentence.record.get("parametric"))
        name = next((n for key in ("name", "topic") if isinstance(n := sentence.record.get(key), str)), "")
        return Item(sentence.text, reference, sentence.question, language, (*peers, sentence.text), name, blind)

    def _without_asking(self, sentence: Sentence, item: Item) -> SentenceAnnotation | None:
        """The annotation of a sentence about which nothing need or can be asked."""
        if not item.reference.strip():
            return sentence.judged("no_reference")
        if item.language not in self.options.chooser.languages:
            return sentence.judged("language_unsupported")
        if len(sentence.text) > MAX_CHARACTERS:
            return sentence.judged("too_long")
        if not _WORD.search(sentence.text):  # dashes, emoji: nothing is claimed
            return sentence.judged("checked", "no_fact")
        return None


def _language(declared: str | None, answer: str, reference: str) -> str:
    """In which language to ask: the declared one, that of the answer or, where that has no letters, the reference."""
    known = (found for text in (answer, reference) if (found := declared_or_found(declared, text)) != "none")
    return next(known, "en")


class Trained(BaseModel):
    """What annotator.json says of how a model was asked in training; that of older releases tells no window."""

    protocol: Protocol = "tagged"
    prompts: list[str] | None = None
    window: Mode = "sentence"
    window_tokens: int | None = None


def trained_as(model: str) -> Trained:
    """How a model was asked in training, by its folder; without wordings where no annotator.json is there."""
    path = Path(model).expanduser() / "annotator.json"
    return read_saved(path, Trained) if path.is_file() else Trained()


@lru_cache(maxsize=64)  # asked for each sentence of an answer
def _sentences(answer: str) -> tuple[str, ...]:
    return tuple(answer[a:b] for a, b in spans_of(answer))


def _annotation(sentence: Sentence, verdict: Verdict, shown: Shown) -> SentenceAnnotation:
    if verdict.label is None:
        return sentence.judged("failed", problems=verdict.problems)
    text, reference, offset = sentence.text, sentence.reference, sentence.start
    fragments, missing = locate_fragments(verdict.fragments, reference, shown.runs)
    edits: list[Edit] = []
    problems, at = list(verdict.problems), 0
    for old, new in verdict.corrections:
        behind = locate_words(old, text[at:])  # of equal words those after the correction before this one
        place = locate_words(old, text) if behind is None else (at + behind[0], at + behind[1])
        if place is None:  # it is one of the problems
            continue
        at, target = place[1], restored(new, text, reference)
        start, end = offset + place[0], offset + place[1]
        if clash := [edit for edit in edits if edit.start < end and start < edit.end]:
            if (clash[0].start, clash[0].end, clash[0].target) != (start, end, target):
                problems.append("overlapping_correction")
        elif text[slice(*place)] != target:
            edits.append(Edit(text[slice(*place)], target, start, end))
    return sentence.judged(
        "checked", verdict.label, verdict.scores, fragments=tuple(fragments),
        correction=tuple(sorted(edits, key=lambda edit: edit.start)), not_verbatim=tuple(missing),
        problems=tuple(problems),
    )  # fmt: skip
