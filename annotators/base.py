"""What every annotator is: one base class that turns answers into sentences, and judgements into annotations.

A kind of annotator says in :meth:`Annotator.judge` how sentences are judged; splitting, checks, order and the operating
point, which makes three verdicts of scores, are here. A cascade asks a second, slower annotator only about sentences
that the first one can't decide; an ensemble joins the verdicts of several.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

from annotators.records import HALLUCINATED, LABELS, Annotation, Label, SentenceAnnotation
from annotators.text.language import stated
from annotators.text.sentences import split_sentences, without_mark
from engines.types import Sample

if TYPE_CHECKING:
    from annotators.operating import Calibration


@dataclass(frozen=True)
class Sentence:
    """A sentence to judge: ``answer[start : start + len(text)] == text``, offsets in code points.

    In ``answer`` blanks stand for what was thought before it.
    """

    text: str
    start: int
    answer: str  # the sentence itself where it is judged as given
    record: Mapping[str, Any]  # the record or row with its reference
    language: str | None = None  # the declared one

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def reference(self) -> str:
        return str(self.record["reference"])

    @property
    def question(self) -> str:
        return self.record.get("question") or ""

    @property
    def bare(self) -> Sentence:
        """Itself without a list marker before it, whose number would be read as one of the sentence."""
        mark = without_mark(self.text)
        return replace(self, text=self.text[mark:], start=self.start + mark)

    def judged(self, status: str, label: str | None = None, scores: Any = None, **found: Any) -> SentenceAnnotation:
        """The annotation of this sentence; ``found`` are further fields of :class:`SentenceAnnotation`."""
        return SentenceAnnotation(self.text, self.start, self.end, status, label, scores, **found)  # type: ignore[arg-type]

    def scored(self, chances: Iterable[float], **found: Any) -> SentenceAnnotation:
        """The annotation of this sentence as its likeliest label, by (4,) probabilities in the order of LABELS."""
        scores = dict(zip(LABELS, map(float, chances), strict=True))
        return self.judged("checked", max(LABELS, key=scores.__getitem__), scores, **found)


class Annotator(Protocol):
    """Judges whole answers, or sentences as they are given. A kind of annotator derives from it and gives ``judge``.

    ``fingerprint`` changes with everything that verdicts depend on, beside how answers are cut into sentences, and the
    precision in which trained annotators are read: in bfloat16 a sentence near a threshold may get another verdict than
    in float32.
    """

    name: str
    fingerprint: str
    reads: tuple[str, ...] = ("question", "reference", "sentence", "language")  # of a row, what a verdict depends on
    languages: tuple[str, ...] | None = None  # of which every sentence is judged; None: all
    calibration: Calibration | None = None  # makes the verdicts of what has scores; None: the labels of judge() stand
    list_marks: bool = False  # whether it reads list markers before sentences
    asks: tuple[Annotator, ...] = ()  # those that a cascade or an ensemble asks

    @abstractmethod
    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """One judgement per sentence, in order, with the annotator's own scores and no thresholds of a calibration.

        The records have been checked. Spans and corrections are dropped where the verdict is not "hallucinated", so
        they are worth giving wherever it might be.
        """

    @property
    def who(self) -> dict[str, str]:
        """Name and fingerprint, as annotations carry them."""
        return {"name": self.name, "fingerprint": self.fingerprint}

    def annotate(
        self, *, reference: str, answer: str, question: str | None = None, language: str | None = None
    ) -> Annotation:
        """Judge one answer; see ``annotate_batch``."""
        record = {"reference": reference, "answer": answer, "question": question, "language": language}
        return self.annotate_batch([{name: text for name, text in record.items() if text is not None}])[0]

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        """Judge every sentence of every answer; one annotation per record, in order.

        Records are {"reference": str, "answer": str, "question"?: str, "language"?: str}; other keys pass through.
        ValueError where one lacks a reference or an answer, or has one that is not a string.
        """
        records = checked(records, ("reference", "answer"))
        sentences_of = [_sentences(record, self.spans(record)) for record in records]
        judged = iter(self.verdicts_of([sentence for sentences in sentences_of for sentence in sentences]))
        return [
            self.annotation(record, [next(judged) for _ in sentences])
            for record, sentences in zip(records, sentences_of, strict=True)
        ]

    def spans(self, record: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Where the sentences of a record's answer stand."""
        return spans_of(record["answer"])

    def annotate_spans(self, record: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[SentenceAnnotation]:
        """Judge the sentences of one answer at ``spans``, found by ``spans``, as ``annotate`` would."""
        checked([record], ("reference", "answer"))
        return self.verdicts_of(_sentences(record, spans))

    def annotation(self, record: Mapping[str, Any], judged: Iterable[SentenceAnnotation]) -> Annotation:
        """The annotation of a record by this annotator, of its judged sentences in order."""
        point = None if self.calibration is None else self.calibration.point.to_dict()
        return Annotation(dict(record), tuple(judged), self.who, point)

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        """Judge ``row["sentence"]`` as it is given against ``row["reference"]``; offsets point into the sentence.

        Rows are {"reference": str, "sentence": str, "question"?: str, "language"? or "lang"?: str}, and what else the
        annotator ``reads``. ValueError where one lacks a reference or a sentence, or has one that is not a string.
        """
        rows = checked(rows, ("reference", "sentence"), ("question", "language", "lang"))
        return self.verdicts_of([Sentence(r["sentence"], 0, r["sentence"], r, stated(r)) for r in rows])

    def verdicts_of(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """``judge`` at the operating point, where there is one; what is not flagged has no spans."""
        found = self.judge(sentences if self.list_marks else [sentence.bare for sentence in sentences])
        judged = [replace(one, text=s.text, start=s.start) for one, s in zip(found, sentences, strict=True)]
        if self.calibration is not None:
            return self.calibration.apply(judged)
        return [s if s.spans is None or s.label in HALLUCINATED else replace(s, spans=None) for s in judged]

    @property
    def own_fingerprint(self) -> str:
        """The fingerprint without a calibration."""
        return self.fingerprint if self.calibration is None else self.calibration.annotator

    def calibrated(self, calibration: Calibration | None) -> Self:
        """Itself, from now on with this calibration, or with none; ValueError for another annotator's."""
        own = self.own_fingerprint
        if calibration is not None and calibration.annotator != own:
            raise ValueError(
                f"calibration: expected one fitted for {self.name} with fingerprint {own}, got one for "
                f"{calibration.annotator}; fit it again with `mitigate calibrate --annotator {self.name}`"
            )
        self.calibration = calibration
        self.fingerprint = own if calibration is None else calibration.fingerprint
        return self

    def calibrated_by(self, folder: Path, *, strictly: bool = False) -> Self:
        """Itself with the operating point of the folder that its weights come from, where there is one.

        It belongs to the weights that it lies beside, in whatever precision they are read; where the fingerprint does
        not depend on that, ``strictly`` raises ValueError for an operating point of other weights.
        """
        from annotators.operating import FILE, Calibration

        if not (folder / FILE).is_file():
            return self
        found, own = Calibration.load(folder / FILE), self.own_fingerprint
        if strictly and found.annotator != own:
            raise ValueError(
                f"{folder / FILE}: expected the operating point of the weights beside it ({own}), got one of "
                f"{found.annotator}; copy the folder again, or delete this file and fit one with `mitigate calibrate`"
            )
        return self.calibrated(replace(found, annotator=own))

    def save_calibration(self, folder: Path) -> None:
        """Write its operating point beside the weights that were saved there; without one none is left there."""
        from annotators.operating import FILE

        (folder / FILE).unlink(missing_ok=True)
        if self.calibration is not None:
            self.calibration.save(folder / FILE)

    def close(self) -> None:
        """Give back what it holds open; by default that of those that it asks."""
        for one in self.asks:
            one.close()


def thought(answer: str) -> int:
    """How many characters of an answer are thinking before it, which is not judged."""
    return len(answer) - len(Sample(answer).said)


def spans_of(answer: str, split: Callable[[str], list[tuple[int, int]]] = split_sentences) -> list[tuple[int, int]]:
    """Where the sentences of an answer stand, behind what was thought before it."""
    head = thought(answer)
    return [(head + a, head + b) for a, b in split(answer[head:])]


def _sentences(record: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[Sentence]:
    answer, head = record["answer"], thought(record["answer"])
    said = " " * head + answer[head:]
    return [Sentence(answer[a:b], a, said, record, record.get("language")) for a, b in spans]


def checked(
    records: Iterable[Any], required: Sequence[str], optional: Sequence[str] = ("question", "language")
) -> list[Mapping[str, Any]]:
    """The records as a list; ValueError names the first that is no mapping or lacks a ``required`` text."""
    records = list(records)
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise ValueError(
                f"record {number}: expected a mapping with {' and '.join(map(repr, required))}, got "
                f"{type(record).__name__}; hand over a list of records"
            )
        for name in (*required, *optional):
            value, needed = record.get(name), name in required
            if not isinstance(value, str) and (needed or value is not None):
                absent = "" if needed else " or absent"
                advice = f"; give every record {' and '.join(map(repr, required))}" if needed else ""
                raise ValueError(
                    f"record {number}: expected {name!r} to be a string{absent}, got {type(value).__name__}{advice}"
                )
    return records


# --- two annotators in turn: load_annotator("cascade:embedded+generative:openai:MODEL@http://127.0.0.1:8000/v1") ------

OPEN = frozenset({"unsure", "language_unsupported", "too_long"})
"""Statuses with which a sentence goes on to the second annotator."""


class CascadeAnnotator(Annotator):
    """Judges by ``first``, and by ``second`` what that leaves without a verdict.

    Where the second fails, the sentence has failed; where it can't judge it either, the first one's annotation stands.
    ValueError where the first has no operating point: it would decide everything; and where both are the same.
    """

    list_marks = True  # those that it asks leave them out themselves

    def __init__(self, first: Annotator, second: Annotator) -> None:
        if first.calibration is None:
            raise ValueError(
                f"cascade: expected a first annotator with an operating point, {first.name!r} has none, so it is never "
                "unsure; fit one with `mitigate calibrate`"
            )
        check_apart([first, second], "cascade: expected two annotators")
        self.first, self.second = self.asks = first, second
        self.name = f"cascade:{first.name}+{second.name}"
        self.fingerprint = hashlib.sha256(f"{first.fingerprint} {second.fingerprint}".encode()).hexdigest()[:16]
        self.reads = tuple(dict.fromkeys((*first.reads, *second.reads)))
        both = (first.languages, second.languages)
        self.languages = None if None in both else tuple(dict.fromkeys(name for some in both for name in some or ()))

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        out = self.first.verdicts_of(sentences)
        left = [i for i, found in enumerate(out) if found.status in OPEN]
        for i, other in zip(left, self.second.verdicts_of([sentences[i] for i in left]), strict=True):
            decided = other.label is not None or (other.status == "unsure" and out[i].status != "unsure")
            # A failure is reported; else a second annotator that is down would look like an unsure first one.
            out[i] = other if decided or other.status == "failed" else out[i]
        return out

    def annotation(self, record: Mapping[str, Any], judged: Iterable[SentenceAnnotation]) -> Annotation:
        """The annotation of a record, with the first one's operating point, and in it the second one's, if any."""
        found = self.first.annotation(record, judged)
        point = {**(found.operating_point or {}), "second": self.second.annotation(record, ()).operating_point}
        return replace(found, annotator=self.who, operating_point=point)


# --- several at once, so that a policy has to deceive all of them: load_annotator("ensemble:min:embedded+nli:ID") -----

How = Literal["min", "mean", "vote"]
Verdict = Label | float | None
"""A label; or P(supported) of a sentence of which the annotator is unsure; or None where it was not judged."""


def verdict_of(sentence: SentenceAnnotation) -> Verdict:
    """What the annotator found: a label, a doubt, or nothing."""
    return sentence.support if sentence.status == "unsure" else sentence.label


def joined(found: Sequence[SentenceAnnotation], how: How) -> SentenceAnnotation:
    """One annotation of several of the same sentence.

    "min" takes the one with the lowest P(supported); "vote" the verdict that most have (unsure is one; the lower of
    equals); "mean" is unsure with the mean P(supported) of those that find a fact, or has the verdict that these share;
    no fact where most find none. What an annotator does not judge is left to the others, but one that failed fails the
    sentence: a dead judge must not look like an easy one.
    """
    if failed := [one for one in found if one.status == "failed"]:
        return failed[0]
    known = [one for one in found if verdict_of(one) is not None]
    if not known:
        return found[0]
    known.sort(key=lambda one: 0.5 if one.support is None else one.support)  # no fact: between a true and a false one
    if how == "min":
        return known[0]
    verdicts = ["hallucinated" if one.label in HALLUCINATED else one.label or "unsure" for one in known]
    most, n = Counter(verdicts).most_common(1)[0]  # of equals the first, which is the lowest
    if how == "vote" or (most == "no_fact" and 2 * n > len(known)):
        return known[verdicts.index(most)]
    stated = [verdict for verdict in verdicts if verdict != "no_fact"]
    if len(set(stated)) == 1 and stated[0] != "unsure":
        return known[verdicts.index(stated[0])]
    facts = [one.support for one in known if one.support is not None]
    mean = sum(facts) / len(facts)
    wrong = next((one.label for one in known if one.label in HALLUCINATED), "unverifiable")
    scores: dict[Any, float] = {"supported": mean, "contradictory": 0.0, "unverifiable": 0.0, "no_fact": 0.0}
    unsure = replace(known[0], status="unsure", label=None, scores=scores | {wrong: 1 - mean})
    return replace(unsure, spans=None, correction=(), problems=())  # these belong to a flagged sentence


class EnsembleAnnotator(Annotator):
    """Asks all annotators about every sentence; ValueError where there are fewer than two, or one is there twice.

    Source: Coste et al. 2024, "Reward Model Ensembles Help Mitigate Overoptimization" (the worst and the mean of
    several rewards); here verdicts on sentences are joined, before anything is made of them.
    """

    list_marks = True  # those that it asks leave them out themselves

    def __init__(self, annotators: Sequence[Annotator], how: How) -> None:
        wanted = f"ensemble: expected two annotators or more, joined by {', '.join(get_args(How))}"
        if len(annotators) < 2 or how not in get_args(How):
            raise ValueError(f"{wanted}, got {len(annotators)} by {how!r}")
        check_apart(annotators, wanted)
        self.asks, self.how = tuple(annotators), how
        self.name = f"ensemble:{how}:{'+'.join(one.name for one in annotators)}"
        prints = " ".join([how, *(one.fingerprint for one in annotators)])
        self.fingerprint = hashlib.sha256(prints.encode()).hexdigest()[:16]
        self.reads = tuple(dict.fromkeys(field for one in annotators for field in one.reads))
        known = [set(one.languages) for one in annotators if one.languages is not None]
        self.languages = tuple(sorted(set.intersection(*known))) if known else None  # what all of them judge

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        every = [one.verdicts_of(sentences) for one in self.asks]
        return [joined(found, self.how) for found in zip(*every, strict=True)]


# --- both by their names ----------------------------------------------------------------------------------------------


def check_apart(annotators: Sequence[Annotator], wanted: str) -> None:
    """ValueError where two annotators are the same below their calibrations: it begins with what is ``wanted``."""
    prints = [one.own_fingerprint for one in annotators]
    for one in annotators:
        if prints.count(one.own_fingerprint) > 1:
            raise ValueError(
                f"{wanted}, got {one.name!r} twice; name another (`embedded` is `embedded-fast` until `mitigate models "
                "get smollm2` brought its model)"
            )


def _names(name: str) -> list[str]:
    """The names of the annotators in ``cascade:FIRST+SECOND`` or ``ensemble:HOW:FIRST+SECOND+…``, else the name."""
    kind, _, rest = name.partition(":")
    named = {"cascade": rest.split("+", 1), "ensemble": rest.partition(":")[2].split("+")}
    return [one.strip() for one in named.get(kind, [name])]


def engines_in(name: str) -> list[str]:
    """The engine of ``generative:ENGINE``, also those in a cascade or an ensemble, in order; none of others."""
    if name.startswith("generative:"):
        return [name.removeprefix("generative:")]
    return [engine for one in _names(name) if one != name for engine in engines_in(one)]


def engine_in(name: str) -> str | None:
    """The first of ``engines_in``; None where there is none."""
    return next(iter(engines_in(name)), None)


def parts_of(name: str) -> list[str]:
    """The annotators in the name of a cascade or an ensemble, else the name; ValueError where they are not two or more
    different ones.
    """
    names, (kind, _, rest) = _names(name), name.partition(":")
    how = rest.partition(":")[0]
    if kind == "cascade" and not (len(names) == 2 and all(names)):
        raise ValueError(f"annotator {name!r}: expected cascade:FIRST+SECOND, as in cascade:embedded+generative:…")
    nested = any(one.startswith(("cascade:", "ensemble:")) for one in names)
    if kind == "ensemble" and (how not in get_args(How) or len(names) < 2 or not all(names) or nested):
        raise ValueError(
            f"annotator {name!r}: expected ensemble:HOW:FIRST+SECOND with HOW one of {', '.join(get_args(How))} and no "
            "cascade or ensemble in it"
        )
    if twice := [one for one in names if names.count(one) > 1]:
        raise ValueError(f"annotator {name!r}: expected two annotators, got {twice[0]} twice")
    return names
