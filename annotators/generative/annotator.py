"""The generative annotator: a language model writes, for every sentence, evidence, label and correction in tags.

Path of a batch: split answers, set aside what can't be judged, choose what of the reference to show, ask in rounds
(``generative_turns.py``), read the replies strictly (``tagged.py``, ``tagged_turns.py``), ask once more with six times
the window where a sentence was found unverifiable, find fragments and corrections in reference and sentence. A sentence
of which no reply could be read has the status "failed" and its ``problems`` say why; nothing is guessed.

    annotator = GenerativeAnnotator.from_pretrained("openai:MODEL@http://127.0.0.1:8000/v1", protocol="three-turn")
    annotator.annotate(question=…, reference=…, answer=…)

Any engine will do; a model too weak for the format fails by name. English and Chinese.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from annotators.generative.protocols import TOP, Asking, Item, Options, Request, Said, Shown, Windows, converse, judge
from annotators.generative.tagged import locate_fragments, locate_words, restored
from annotators.records import Annotation, Edit, SentenceAnnotation, checked, input_record
from annotators.text.language import language_of
from annotators.text.sentences import split_sentences
from engines.types import ChatResult, Engine, canonical

if TYPE_CHECKING:
    from engines.embedding import Embedder


VERSION = 1
"""Of prompts' frame, windows and readers: part of the fingerprint."""
MAX_CHARACTERS = 4000
"""Sentences of more characters are not judged ("too_long")."""
NO_DOCUMENT = {"en": "(No document is given. Judge by what you know.)", "zh": "（没有文档，请依据你自己的知识判断。）"}
"""Shown in place of the reference of a record whose ``parametric`` is true, for evaluation without references."""
_WORD = re.compile(r"[^\W_]")


class GenerativeAnnotator:
    """Judges sentences by asking a language model.

    ``reads`` names all that a verdict depends on, for whoever keeps verdicts.

    Args:
        engine: Answers; closed by ``close``.
        options: How to ask; None takes the defaults.
        embedder: Chooses windows; None takes the packaged one, loaded when a reference does not fit.
        device: Of that one; None takes cuda where there is one.
    """

    def __init__(
        self,
        engine: Engine,
        options: Options | None = None,
        *,
        embedder: Embedder | None = None,
        device: str | None = None,
    ) -> None:
        self.engine = engine
        self.options = options = options or Options()
        self.name = f"generative:{engine.name}"
        self.reads: tuple[str, ...] = ("question", "reference", "sentence", "language")
        if options.window == "answer":
            self.reads += ("answer",)
        self._given, self._device = embedder, device
        self._asking = Asking(options.max_retries, options.max_tokens, options.seed, options.logprobs)
        self._windows = Windows(options.window, options.window_tokens, lambda: self._embedder)

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        cache: str | Path | None = None,
        concurrency: int | None = None,
        device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        **options: Any,
    ) -> GenerativeAnnotator:
        """The annotator of an engine string; its options are checked before a model loads.

        Args:
            name: KIND:MODEL[@BASE_URL], see ``engines/chat.py``; "generative:" may stand before it.
            cache: File of replies, made where there is none: what is in it is not asked again.
            concurrency: Requests in flight at once, of an openai engine; None for 16.
            device: "cpu", "cuda"…; None takes cuda where there is one.
            dtype: Of a model in this process.
            **options: Of ``Options``.

        Raises:
            ValueError: The name or an option is wrong.
            ImportError: The library behind the engine is not installed.
            OSError: A local checkpoint is not there.
        """
        from engines.chat import load_engine, parse_engine

        chosen = Options(**options)
        spec = name.removeprefix("generative:")
        of_kind: dict[str, dict[str, Any]] = {
            "transformers": {"device": device, "dtype": dtype},
            "vllm": {"dtype": dtype},
            "openai": {} if concurrency is None else {"concurrency": concurrency},
        }
        engine = load_engine(spec, cache=cache, **of_kind[parse_engine(spec).kind])
        return cls(engine, chosen, device=device)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over engine, prompts and options: all that verdicts depend on."""
        options = self.options
        made_of: list[Any] = [VERSION, dict(self.engine.identity), options.chooser.identity, options.protocol]
        made_of += [TOP, options.window, options.max_retries, options.max_tokens, options.logprobs]
        if options.window != "whole":
            from engines.embedding import PACKAGED_SHA256

            made_of += [options.window_tokens, self._given.fingerprint if self._given else PACKAGED_SHA256]
        if options.max_retries:
            made_of.append(options.seed)
        return hashlib.sha256(canonical(made_of).encode()).hexdigest()[:16]

    @cached_property
    def _embedder(self) -> Embedder:
        from engines.embedding import Embedder

        return self._given or Embedder(device=self._device)

    def close(self) -> None:
        """Close the engine and its cache."""
        self.engine.close()

    def annotate(
        self, *, reference: str, answer: str, question: str | None = None, language: str | None = None
    ) -> Annotation:
        """Judge one answer; see ``annotate_batch``."""
        return self.annotate_batch([input_record(reference, answer, question, language)])[0]

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        """Judge every sentence of every answer.

        Args:
            records: {"reference": str, "answer": str, "question"?: str, "language"?: str}; other keys pass through.

        Returns:
            One annotation per record, in order.

        Raises:
            ValueError: A record lacks a reference or an answer, or one is not a string.
            EngineError: The engine can't answer anything.
        """
        records = checked(records, ("reference", "answer"))
        rows_of = [_rows(record, split_sentences(record["answer"])) for record in records]
        judged = iter(self._judge([row for rows in rows_of for row in rows]))
        who = {"name": self.name, "fingerprint": self.fingerprint}
        return [
            Annotation(dict(record), tuple(next(judged) for _ in rows), who)
            for record, rows in zip(records, rows_of, strict=True)
        ]

    def annotate_spans(self, record: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[SentenceAnnotation]:
        """Judge some sentences of one answer as ``annotate`` judges them, for whoever shows them one by one.

        Args:
            record: As for ``annotate_batch``.
            spans: Offsets of sentences, of those that ``split_sentences`` finds in the answer.
        """
        checked([record], ("reference", "answer"))
        return self._judge(_rows(record, spans))

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        """Judge ``row["sentence"]`` as it is given against ``row["reference"]``.

        Args:
            rows: {"reference": str, "sentence": str, "question"?: str, "language"? or "lang"?: str, "answer"?: str};
                the answer is read with the window "answer" only.

        Returns:
            One judgement per row, in order, with offsets into the sentence.

        Raises:
            ValueError: A row lacks a reference or a sentence, or one is not a string.
            EngineError: The engine can't answer anything.
        """
        found = []
        for row in checked(rows, ("reference", "sentence")):
            language = language_for({**row, "language": row.get("language") or row.get("lang")}, row["sentence"])
            peers: tuple[str, ...] = ()
            if self.options.window == "answer" and isinstance(row.get("answer"), str):
                peers = tuple(row["answer"][a:b] for a, b in split_sentences(row["answer"]))
            found.append(_Row(row["sentence"], 0, row, language, tuple(dict.fromkeys((*peers, row["sentence"])))))
        return self._judge(found)

    def _judge(self, rows: Sequence[_Row]) -> list[SentenceAnnotation]:
        out: dict[int, SentenceAnnotation] = {}
        items: dict[int, Item] = {}
        for place, row in enumerate(rows):
            settled = self._without_asking(row)
            if settled is None:
                items[place] = row.item
            else:
                out[place] = settled
        known: dict[Request, ChatResult] = {}
        shown = dict(zip(items, self._windows.first(list(items.values())), strict=True))
        said = self._ask(items, shown, known)
        again = [p for p, one in said.items() if one.label == "unverifiable" and not shown[p].whole]
        wider = dict(zip(again, self._windows.second([items[p] for p in again]), strict=True))
        for place, other in self._ask({p: items[p] for p in again}, wider, known).items():
            if other.label is not None:
                said[place], shown[place] = other, wider[place]
        for place, one in said.items():
            out[place] = _annotation(rows[place], one, shown[place])
        return [out[place] for place in range(len(rows))]

    def _ask(
        self, items: Mapping[int, Item], shown: Mapping[int, Shown], known: dict[Request, ChatResult]
    ) -> dict[int, Said]:
        talks = []
        for place, item in items.items():
            chosen = self.options.chooser(item.language, item.reference, item.question)
            assert chosen is not None
            talks.append(judge(item, shown[place], *chosen, self._asking))
        return dict(zip(items, converse(self.engine, talks, known), strict=True))

    def _without_asking(self, row: _Row) -> SentenceAnnotation | None:
        """The annotation of a sentence about which nothing need or can be asked."""
        text, end = row.text, row.start + len(row.text)
        if not row.item.reference.strip():
            return SentenceAnnotation(text, row.start, end, "no_reference")
        if row.language not in self.options.chooser.languages:
            return SentenceAnnotation(text, row.start, end, "language_unsupported")
        if len(text) > MAX_CHARACTERS:
            return SentenceAnnotation(text, row.start, end, "too_long")
        if not _WORD.search(text):  # dashes, emoji: nothing is claimed
            return SentenceAnnotation(text, row.start, end, "checked", "no_fact")
        return None


@dataclass(frozen=True)
class _Row:
    """A sentence as it came: its text, its offset, the record it is of, its language, the sentences beside it."""

    text: str
    start: int
    record: Mapping[str, Any]
    language: str
    peers: tuple[str, ...]

    @property
    def item(self) -> Item:
        question = self.record.get("question") or ""
        reference = self.record["reference"]
        if self.record.get("parametric"):
            reference = NO_DOCUMENT["zh" if self.language == "zh" else "en"]
        return Item(self.text, reference, question, self.language, self.peers)


def _rows(record: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[_Row]:
    answer = record["answer"]
    peers = tuple(answer[a:b] for a, b in split_sentences(answer))
    language = language_for(record, answer)
    return [_Row(answer[a:b], a, record, language, peers) for a, b in spans]


def language_for(record: Mapping[str, Any], text: str) -> str:
    """The language to judge in: the declared one, else that of the text, else that of the reference, else English."""
    declared = (record.get("language") or "").lower().replace("_", "-").partition("-")[0]
    if declared:
        return declared
    found = language_of(text)
    found = language_of(record["reference"]) if found == "none" else found
    return "en" if found == "none" else found


def _annotation(row: _Row, said: Said, shown: Shown) -> SentenceAnnotation:
    end = row.start + len(row.text)
    if said.label is None:
        return SentenceAnnotation(row.text, row.start, end, "failed", problems=said.problems)
    reference = row.record["reference"]
    fragments, missing = locate_fragments(said.fragments, reference, shown.runs)
    edits: list[Edit] = []
    for old, new in said.corrections:
        place = locate_words(old, row.text)
        target = restored(new, row.text, reference)
        if place is None or any(e.start - row.start < place[1] and place[0] < e.end - row.start for e in edits):
            continue
        source = row.text[slice(*place)]
        if source != target:
            edits.append(Edit(source, target, row.start + place[0], row.start + place[1]))
    return SentenceAnnotation(
        text=row.text,
        start=row.start,
        end=end,
        status="checked",
        label=said.label,
        scores=said.scores,
        fragments=tuple(fragments),
        correction=tuple(sorted(edits, key=lambda edit: edit.start)),
        not_verbatim=tuple(missing),
        problems=said.problems,
    )
