"""Models by the names that commands and recipes take, and what FEWL records lack, asked from language models.

Here FEWL and the annotators meet: an annotator becomes one of FEWL's similarities. Replies of language models are kept
in a cache (`engines/cache.py`), so that whatever runs again asks only what has no answer yet.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from annotators.base import Annotator, engines_in, parts_of
from annotators.records import SentenceAnnotation, failed_share
from annotators.text.sentences import split_sentences
from annotators.text.words import is_chinese
from engines import load_engine, packaged, parse_engine
from engines.cache import CachedEngine, kept_vectors
from engines.checkpoint import HUB_ID
from engines.types import Engine, EngineError, OnResult, canonical
from fewl.expertise import PAIRS, TOKENS, Pairs, generate_pairs, prompted_expertise, reference_answers
from fewl.expertise import report as pairs_report
from fewl.records import read_record
from fewl.score import Expertise
from fewl.similarity import (
    Encode,
    Similarity,
    both_ways,
    by_question,
    char_tfidf,
    cosine,
    each_once,
    from_function,
    new_words,
    rouge_l,
)
from mitigate.io import OutputError, Record, UsageError, counted, dump_line, files, read_rows, say, usage, write_lines

EngineName = Annotated[str, AfterValidator(lambda text: str(parse_engine(text)))]
"""An option of a recipe: KIND:MODEL[@BASE_URL]."""
ModelName = Annotated[str, Field(min_length=1), AfterValidator(packaged.checked)]
"""An option of a recipe: a folder, a hub id or packaged:NAME."""
SimilarityName = Annotated[str, AfterValidator(lambda name: (check_similarity(name), name)[1])]
"""An option of a recipe: the name of a similarity."""
OLD_ID = re.compile(r"[\w.-]+")  # models of the hub's first years have no owner, as nli:roberta-large-mnli
TFIDF = "character TF-IDF"
EVERY = 10.0  # seconds between two lines about one engine
T = TypeVar("T")
Tell = Callable[[str], None]


def open_engine(name: str, option: str, cache: Path | None = None, **options: Any) -> Engine:
    """The engine of a name that the user gave as ``option``, to be closed by the caller; see ``load_engine``. Raises
    UsageError: there is no such engine, or it can't be loaded; CacheError: the cache file is damaged.
    """
    with usage(f"{option}: ", (ValueError, ImportError, OSError)):
        return load_engine(name, cache=cache, **options)


def check_named(specs: Sequence[str], option: str) -> dict[str, str]:
    """The engines of strings ``[NAME=]KIND:MODEL[@BASE_URL]`` by name, which is the string itself where none is given.
    UsageError: a name or an engine is given twice, or is not of that form.
    """
    named = []
    for spec in specs:
        name, sign, engine = spec.partition("=")
        named.append((name.strip(), engine) if sign and name.strip() and ":" not in name else (spec, spec))
    if twice := [name for name, n in Counter(name for name, _ in named).items() if n > 1]:
        raise UsageError(f"{option}: expected a name of its own for each language model, got {twice[0]!r} twice")
    if twice := [engine for engine, n in Counter(engine for _, engine in named).items() if n > 1]:
        raise UsageError(f"{option}: expected each language model once, got {twice[0]!r} twice")
    with usage(f"{option}: "):
        for _, engine in named:
            parse_engine(engine)
    return dict(named)


def open_named(
    specs: Sequence[str], option: str, stack: ExitStack, opened: dict[str, Engine], cache: Path | None, concurrency: int
) -> dict[str, Engine]:
    """The engines of these strings by name: those ``opened`` by their string, and new ones, which join and are closed
    by the ``stack``. UsageError: see :func:`check_named`, whose checks come first, and :func:`open_engine`.
    """
    named = check_named(specs, option)
    for engine in named.values():
        if engine not in opened:
            options = {"concurrency": concurrency} if parse_engine(engine).kind == "openai" else {}
            opened[engine] = stack.enter_context(closing(open_engine(engine, f"{option} {engine}", cache, **options)))
    return {name: opened[engine] for name, engine in named.items()}


def failures(engines: Iterable[Engine], *, refused: bool = True) -> str | None:
    """Which engines with a cache left requests without an answer, how many and why, those that were ``refused`` among
    them or not; None where none did.
    """
    said = []
    for engine in engines:
        errors = engine.errors.values() if isinstance(engine, CachedEngine) else ()
        if why := [one.error for one in errors if refused or not one.refused]:
            said.append(f"{engine.name}: {counted(len(why), 'request')} failed, the last: {why[-1]}")
    return "; ".join(said) or None


def check_place(option: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse what is no known word, no folder that is there, and does not look like a hub id."""
    folder = bool(value) and Path(value).expanduser().is_dir()  # of "" it says the working folder
    prefixes = tuple(word for word in known if word.endswith(":"))
    if value not in known and not value.startswith(prefixes) and not folder and not HUB_ID.fullmatch(value):
        words = ", ".join([*(word.rstrip(":") for word in known), "a folder or a hub id"])
        raise UsageError(f"{option}: no such folder {value!r}, and it is no hub id; expected {words}")


def check_annotator(name: str, option: str, own: Iterable[str] = ()) -> list[str]:
    """The annotators in a name, those of an ensemble in a cascade apart too. UsageError, before any is opened: one
    can't be an annotator, nor is it of ``own``, further names that are known.
    """
    from annotators.published import KINDS
    from annotators.verifier.annotator import SHIPPED

    if name in own:
        return [name]
    with usage(f"{option}: "):
        parts = [one for part in parts_of(name) for one in parts_of(part)]
    for part in parts:
        kind, _, model = part.partition(":")
        if kind not in KINDS or not OLD_ID.fullmatch(model):
            check_place(option, model if kind in KINDS else part, (*SHIPPED, "generative:", *own))
    return parts


def check_generative(name: str, options: Mapping[str, Any], option: str) -> bool:
    """Whether an annotator is a generative one. UsageError, before it is opened: the name or an option is wrong."""
    from annotators.generative.protocols import check_engine, options_of

    engines, concurrency = engines_in(name), options.get("concurrency", 1)
    check_annotator(name, option.removesuffix("_options"))
    with usage(f"{option}: ", (ValueError, TypeError, OSError)):
        for engine in engines:
            asked = options_of({key: value for key, value in options.items() if key != "concurrency"})
            check_engine(asked, parse_engine(engine).kind)
        if engines and (type(concurrency) is not int or concurrency < 1):
            raise ValueError(f"concurrency: expected a whole number of at least 1, got {concurrency!r}")
    return bool(engines)


def refuse_failures(where: str, statuses: Iterable[str], most: float, option: str = "") -> None:
    """Raise EngineError where more than a share ``most`` of sentences failed, as their statuses say."""
    if (failed := failed_share(Counter(statuses))) > most:
        raise EngineError(f"{where}: {failed:.0%} of the sentences failed, more than {option}{most:g}")


def open_annotator(name: str, options: Mapping[str, Any] | None = None, option: str = "--annotator") -> Annotator:
    """The annotator of that name, as `load_annotator` gives it; what is wrong with the name is a usage error."""
    from rich.console import Console

    from annotators import load_annotator

    loading = Console(stderr=True).status("loading the annotator")  # shown on a terminal only
    with usage(f"{option} {name}: ", (ValueError, OSError, ImportError)), loading:
        return load_annotator(name, **(options or {}))


class Judgements:
    """What annotators said of chunks of rows, kept in a file until all is done: a killed run asks no chunk twice.
    Without a path nothing is kept. A chunk with a failed judgement is not kept: the next run tries again.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.said = path, {row["of"]: row["judged"] for row in (read_rows(path) if path else ())}
        if path is not None and path.is_file():
            write_lines(path, ({"of": of, "judged": judged} for of, judged in self.said.items()))  # no half last line
        if self.said:
            say(f"continuing with the judgements in {path}")

    def asking(self, name: str, annotator: Annotator) -> Callable[[Sequence[Mapping[str, Any]]], Any]:
        """The ``predict`` of the annotator that was asked for by this name, for chunks that are not known yet."""

        def ask(rows: Sequence[Mapping[str, Any]]) -> Sequence[SentenceAnnotation]:
            asked = canonical([name, annotator.name, annotator.fingerprint, list(rows)])
            of = hashlib.sha256(asked.encode()).hexdigest()
            if of in self.said:
                return [SentenceAnnotation.from_dict(row) for row in self.said[of]]
            judged = annotator.predict(rows)
            if self.path is not None and all(one.status != "failed" for one in judged):
                with files(OutputError, f"cannot write {self.path}"), self.path.open("ab") as file:
                    file.write(dump_line({"of": of, "judged": [one.to_dict() for one in judged]}))
            return judged

        return ask

    def delete(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


# --- similarities and encoders ------------------------------------------------------------------------------------


def check_similarity(name: str) -> str | None:
    """The annotator that a similarity asks, if it asks one. UsageError, with the known names, for another name."""
    kind, _, annotator = name.partition(":")
    if kind in ("annotator", "entailment") and annotator:
        check_annotator(annotator, f"--similarity {kind}")
        return annotator
    if name not in ("cosine", "rouge-l", "new-words"):
        known = "cosine, rouge-l, new-words, annotator:NAME or entailment:NAME"
        raise UsageError(f"--similarity: expected {known}, got {name!r}")
    return None


def load_similarity(name: str, encode: Encode, options: Mapping[str, Any] | None = None) -> tuple[str, Similarity]:
    """What the similarity of that name is called, and the similarity; an annotator is loaded with these options.
    UsageError: there is no such annotator.
    """
    kind = name.partition(":")[0]
    if (asked := check_similarity(name)) is not None:
        annotator = open_annotator(asked, options, f"--similarity {kind}:")
        judge = annotator_similarity(annotator)
        named = f"{kind} {annotator.name} {annotator.fingerprint[:12]}"
        return named, both_ways(judge) if kind == "entailment" else judge
    if name == "cosine" and isinstance(encode, ByLanguage):
        return name, by_question(is_chinese, cosine(encode.chinese), cosine(encode.others))
    return name, {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}[name]


@dataclass(frozen=True)
class ByLanguage:
    """An encoder of questions of two languages: a Chinese one and one in another language have the cosine 0."""

    chinese: Encode
    others: Encode

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        zh_T = np.array([is_chinese(text) for text in texts], dtype=bool)
        parts = []
        for encode, there_T in ((self.chinese, zh_T), (self.others, ~zh_T)):
            some = encode([text for text, there in zip(texts, there_T, strict=True) if there])
            parts.append(np.zeros((len(texts), some.shape[1]), np.float32))
            parts[-1][there_T] = some
        return np.concatenate(parts, axis=1)


def load_encoder(name: str, texts: Sequence[str], cache: Path | None = None) -> tuple[str, Encode]:
    """What the encoder of that name is called, and the encoder, which encodes each text once.

    ``auto`` and ``tfidf`` are known names, others a folder or hub id of a sentence-transformers model. ``texts`` are
    the questions: with ``auto``, Chinese ones and their answers are compared by TF-IDF where the model cannot read
    them. A ``cache`` file keeps the model's vectors for later runs. Raises UsageError: there is no such model.
    """
    if name == "tfidf":
        return TFIDF, char_tfidf()
    from engines.embedding import Embedder

    with usage(f"--embedding {name}: ", (OSError, ValueError)):
        embedder = Embedder(None if name == "auto" else name, dtype="float32")
    called = f"{embedder.name} {embedder.fingerprint[:12]}"
    encode = each_once(embedder.encode if cache is None else kept_vectors(embedder.encode, cache, embedder.fingerprint))
    chinese = {is_chinese(text) for text in texts}
    if name != "auto" or True not in chinese or embedder.reads_chinese:
        return called, encode
    if False not in chinese:
        return f"{TFIDF} ({embedder.name} cannot read Chinese)", char_tfidf()
    return f"{called}, and {TFIDF} for Chinese questions, which it cannot read", ByLanguage(char_tfidf(), encode)


def annotator_similarity(annotator: Annotator) -> Similarity:
    """How far a reference answer supports an answer, in [0, 1], judged by an annotator.

    Σ P(supported) / Σ (1 − P(no_fact)) over the sentences of the answer, each judged against the reference answer:
    the expected share of supported among factual sentences. For one sentence it is P(supported)/(1 − P(no_fact)).
    Sentences that could not be judged are left out; None where none is left.
    """

    def judge(candidates: list[str], references: list[str], questions: list[str]) -> list[float | None]:
        rows, owners = [], []
        for owner, (candidate, reference, question) in enumerate(zip(candidates, references, questions, strict=True)):
            for start, end in split_sentences(candidate):
                rows.append({"sentence": candidate[start:end], "reference": reference, "question": question})
                owners.append(owner)
        supported, factual = [0.0] * len(candidates), [0.0] * len(candidates)
        judged: SentenceAnnotation
        for owner, judged in zip(owners, annotator.predict(rows), strict=True):
            if judged.scores is not None:
                supported[owner] += judged.scores["supported"]
                factual[owner] += 1.0 - judged.scores["no_fact"]
        return [s / f if f > 0 else None for s, f in zip(supported, factual, strict=True)]

    return from_function(judge)


# --- what FEWL records lack ---------------------------------------------------------------------------------------


@dataclass
class Asked:
    """What was asked about one record beside its reference answers."""

    pairs: Pairs | None = None  # how its IW/CO pairs were made; None where it had them, or none were wanted
    prompted: dict[str, float] = field(default_factory=dict)  # r of each reference LLM that was asked about them

    def to_dict(self) -> Record:
        return {"pairs": self.pairs and vars(self.pairs), "prompted": self.prompted}

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Asked:
        pairs = known["pairs"]
        return cls(pairs and Pairs(**{**pairs, "problems": Counter(pairs["problems"])}), known["prompted"])


def wants_pairs(expertise: Expertise | None) -> bool:
    """Whether a reference LLM makes the IW/CO pairs that records lack."""
    return expertise in (None, "similarity", "prompted")


def fill(
    records: Sequence[Record], references: Mapping[str, Engine], *, answers: Mapping[str, Engine] | None = None,
    samples: int = 1, tokens: int = TOKENS, pairs: int = PAIRS, seed: int = 0, expertise: Expertise | None = None,
    tell: Tell = lambda _: None,
) -> list[Asked]:  # fmt: skip
    """Ask LLMs what FEWL records lack, put their answers in, and return what the expertise needs.

    ``references`` are the reference LLMs by name: each gives ``samples`` answers of at most ``tokens`` tokens, and the
    first one makes ``pairs`` IW/CO pairs. ``answers`` are the LLMs to be scored. ``expertise`` says where λ is to come
    from (None: similarity, if there are pairs). ``tell`` is called with a line about each thing asked.
    """
    asked = [Asked() for _ in records]

    def unanswered(record: Record, name: str) -> bool:
        return all(answer.get("model") != name for answer in record["answers"])

    def answered(engines: Mapping[str, Engine], lacks: Callable[[Record, str], bool], n: int) -> Iterable[Any]:
        """(name, record, texts) of what each LLM was asked, all of them at once."""
        lacking = {name: [record for record in records if lacks(record, name)] for name in engines}

        def work(name: str, engine: Engine) -> list[list[str]]:
            rows = lacking[name]
            tell(f"{name}: answers {len(rows):,} of {counted(len(records), 'question')}")
            progress = _progress(name, n * len(rows), tell)
            texts = [row["question"] for row in rows]
            return reference_answers(engine, texts, samples=n, seed=seed, tokens=tokens, on_result=progress)

        for name, found in at_once(engines, work).items():
            if lost := n * len(found) - sum(map(len, found)):
                tell(f"{name}: {counted(lost, 'reply')} failed, or held no whole sentence within {tokens} tokens")
            yield from ((name, *pair) for pair in zip(lacking[name], found, strict=True))

    for name, record, texts in answered(references, lambda r, name: not read_record(r).references.get(name), samples):
        if texts:
            record["reference_answers"] = {**(record.get("reference_answers") or {}), name: texts}
    for name, record, texts in answered(answers or {}, unanswered, 1):
        record["answers"] = [*record["answers"], *({"text": text, "model": name} for text in texts)]
    bare = [place for place, record in enumerate(records) if not (record.get("iw") and record.get("co"))]
    if references and wants_pairs(expertise) and bare:
        name, engine = next(iter(references.items()))
        tell(f"{name}: makes wrong and corrected answers to {counted(len(bare), 'question')}")
        texts, progress = [records[place]["question"] for place in bare], _progress(name, None, tell)
        made = generate_pairs(engine, texts, n=pairs, seed=seed, on_result=progress)
        read = pairs_report(made, pairs)
        if read["pairs"] < read["pairs_wanted"]:
            why = ", ".join(f"{problem} {times:,}" for problem, times in read["problems"].items())
            tell(f"{name}: {read['pairs']:,} of {read['pairs_wanted']:,} pairs came ({why})")
        for place, one in zip(bare, made, strict=True):
            had = read_record(records[place])
            records[place] |= {"iw": list(had.iw or one.iw), "co": list(had.co or one.co)}
            asked[place].pairs = one
    if expertise == "prompted":
        known = [read_record(record) for record in records]

        def rated(name: str, engine: Engine) -> list[float | None]:
            total = sum(len(one.iw) + len(one.co) for one in known if one.references.get(name))
            return prompted_expertise(engine, name, known, tokens=tokens, on_result=_progress(name, total, tell))

        for name, r_Q in at_once(references, rated).items():
            for row, r in zip(asked, r_Q, strict=True):
                if r is not None:
                    row.prompted[name] = r
    return asked


def at_once(engines: Mapping[str, Engine], work: Callable[[str, Engine], T]) -> dict[str, T]:
    """``work`` for each engine by name: servers side by side, models in this process one after another."""
    servers = [name for name, engine in engines.items() if engine.identity.get("engine") == "openai"]
    if len(servers) < 2:  # in this thread Ctrl-C stops the requests that are left
        return {name: work(name, engine) for name, engine in engines.items()}
    begun: dict[str, Future[T]] = {name: Future() for name in servers}

    def ask(name: str) -> None:
        try:
            begun[name].set_result(work(name, engines[name]))
        except BaseException as error:
            begun[name].set_exception(error)

    # Nobody waits for these threads after Ctrl-C, as a pool would. Each ends with its next reply, which finds its
    # cache closed, or with the program.
    for name in servers:
        Thread(target=ask, args=(name,), daemon=True).start()
    here = {name: work(name, engine) for name, engine in engines.items() if name not in begun}
    # One that fails takes no replies from the others. A Ctrl-C that comes just as a wait begins does not end it.
    while wait(begun.values(), timeout=1).not_done:
        pass
    return {name: begun[name].result() if name in begun else here[name] for name in engines}


def _progress(name: str, total: int | None, tell: Tell) -> OnResult:
    """Tells now and then how many replies are there, of ``total`` where that is known."""
    done, last = 0, time.monotonic()

    def on_result(place: int, result: object) -> None:
        nonlocal done, last
        done += 1
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            tell(f"{name}: {done:,} replies" if total is None else f"{name}: {done:,} of {total:,} replies")

    return on_result
