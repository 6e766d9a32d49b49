"""Several annotators as one judge, so that a policy has to deceive all of them at once.

    SentenceReward("ensemble:min:embedded+minicheck:lytang/MiniCheck-Flan-T5-Large")

Source: Coste et al. 2024, "Reward Model Ensembles Help Mitigate Overoptimization" (the worst and the mean of several
rewards); here verdicts on sentences are joined, before anything is made of them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from annotators.base import Annotator, Sentence
from annotators.records import HALLUCINATED, Label, SentenceAnnotation

How = Literal["min", "mean", "vote"]
Verdict = Label | float | None
"""A label; or P(supported) of a sentence of which the annotator is unsure; or None where it was not judged."""


def verdict_of(sentence: SentenceAnnotation) -> Verdict:
    """What the annotator found: a label, a doubt, or nothing."""
    return sentence.support if sentence.status == "unsure" else sentence.label


def _support(verdict: Verdict) -> float:
    """P(supported) of a verdict, in [0, 1]; a sentence without a fact lies between a true and a false one."""
    if isinstance(verdict, float):
        return verdict
    return 0.5 if verdict == "no_fact" else float(verdict == "supported")


def joined(found: Sequence[SentenceAnnotation], how: How) -> SentenceAnnotation:
    """One annotation of several of the same sentence.

    "min" takes the one with the lowest P(supported); "vote" the verdict that most have (unsure is one; the lower of
    equals); "mean" is unsure with the mean P(supported) of those that find a fact, or has the verdict that all share.
    What an annotator does not judge is left to the others, but one that failed fails the sentence: a dead judge must
    not look like an easy one.
    """
    if failed := [one for one in found if one.status == "failed"]:
        return failed[0]
    known = [(verdict, one) for one in found if (verdict := verdict_of(one)) is not None]
    if not known:
        return found[0]
    known.sort(key=lambda pair: _support(pair[0]))
    if how == "min":
        return known[0][1]
    kinds = ["unsure" if isinstance(v, float) else "hallucinated" if v in HALLUCINATED else v for v, _ in known]
    most, n = Counter(kinds).most_common(1)[0]  # of equals the first, which is the lowest
    if how == "vote" or n == len(kinds) > kinds.count("unsure") or most == "no_fact":
        return known[kinds.index(most)][1]
    facts = [_support(v) for v, _ in known if v != "no_fact"]
    mean = sum(facts) / len(facts)
    wrong = next((v for v, _ in known if v in HALLUCINATED), "unverifiable")
    scores: dict[Any, float] = {"supported": mean, "contradictory": 0.0, "unverifiable": 0.0, "no_fact": 0.0}
    return replace(known[0][1], status="unsure", label=None, scores=scores | {wrong: 1 - mean})


class EnsembleAnnotator(Annotator):
    """Asks all annotators about every sentence; ValueError where there are fewer than two."""

    def __init__(self, annotators: Sequence[Annotator], how: How) -> None:
        if len(annotators) < 2 or how not in get_args(How):
            raise ValueError(
                f"ensemble: expected two annotators or more, joined by {', '.join(get_args(How))}, got "
                f"{len(annotators)} by {how!r}"
            )
        self.annotators, self.how = tuple(annotators), how
        self.name = f"ensemble:{how}:{'+'.join(one.name for one in annotators)}"
        prints = " ".join([how, *(one.fingerprint for one in annotators)])
        self.fingerprint = hashlib.sha256(prints.encode()).hexdigest()[:16]
        self.reads = tuple(dict.fromkeys(field for one in annotators for field in one.reads))
        known = [set(one.languages) for one in annotators if one.languages is not None]
        self.languages = tuple(sorted(set.intersection(*known))) if known else None  # what all of them judge
        self.embedder = annotators[0].embedder

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """One verdict per sentence, in order."""
        every = [one.verdicts_of(sentences) for one in self.annotators]
        return [joined(found, self.how) for found in zip(*every, strict=True)]

    def close(self) -> None:
        """Close all."""
        for one in self.annotators:
            one.close()


def load_judge(name: str, *, calibration: Any = None, expected_rate: float | None = None, **options: Any) -> Annotator:
    """What ``load_annotator`` loads, or ``ensemble:HOW:FIRST+SECOND+…``, whose first one a calibration is for."""
    from annotators import load_annotator

    operating: Any = {"calibration": calibration, "expected_rate": expected_rate}
    if not name.startswith("ensemble:"):
        return load_annotator(name, **options, **operating)
    how, first, *others = parts_of(name)
    loaded = [load_annotator(first, **options, **operating), *(load_annotator(one, **options) for one in others)]
    return EnsembleAnnotator(loaded, how)  # type: ignore[arg-type]  # parts_of has checked it


def parts_of(name: str) -> list[str]:
    """How, and the names of the annotators, in ``ensemble:HOW:FIRST+SECOND+…``; ValueError where it is none."""
    how, _, rest = name.removeprefix("ensemble:").partition(":")
    names = [one.strip() for one in rest.split("+")]
    if how not in get_args(How) or len(names) < 2 or not all(names) or any(n.startswith("cascade:") for n in names):
        raise ValueError(
            f"annotator {name!r}: expected ensemble:HOW:FIRST+SECOND with HOW one of {', '.join(get_args(How))} and no "
            "cascade in it"
        )
    return [how, *names]
