"""Hallucination reduced in finished answers: select the best of several, correct, abstain.

What never happens: text outside the sentences that were flagged changes; the number of hallucinated sentences rises
(the edited answer is annotated again, and an edit that did not help is taken back); an unchecked sentence is touched.
Regenerating a flagged sentence needs an engine; without one only the corrections that the annotator gives are applied
(a generative one gives some, the embedded one only marks). The judgement is the annotator's: what it misses stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from annotators.base import Annotator
from annotators.records import HALLUCINATED, Annotation, SentenceAnnotation
from mitigate.inference.regenerate import Request, Unanswered

Action = Literal["unchanged", "corrected", "abstained"]
By = Literal["annotator", "engine", "deleted"]
Regenerate = Callable[[Sequence[Request]], Sequence["str | Unanswered | None"]]
"""Flagged sentences with their evidence to new sentences; None where there is none, "" to delete."""
ABSTENTION = {
    "en": "I can't answer this reliably from the reference that I was given.",
    "zh": "根据给出的参考资料，我无法可靠地回答这个问题。",
}
NOTHING_CLAIMED_RATE = 0.5
"""Where an answer that claims nothing stands among others in `best_of`: after those with a lower rate."""


@dataclass(frozen=True)
class Change:
    """One edit of the original answer: ``original[start:end] == source`` became ``target`` ("" = deleted)."""

    start: int
    end: int
    source: str
    target: str
    by: By

    def to_dict(self) -> dict[str, Any]:
        return {"from": self.source, "to": self.target, "start": self.start, "end": self.end, "by": self.by}


@dataclass(frozen=True)
class Mended:
    """An answer after correction.

    Args:
        before: The annotation of the answer as it came.
        after: The annotation of the answer as it is now; the same object where nothing changed.
        action: What was done.
        changes: Edits of the original answer, in order of offset, that lead from one to the other.
        error: Why a sentence that was to be written anew could not be asked for; None where all went well.
    """

    before: Annotation
    after: Annotation
    action: Action = "unchanged"
    changes: tuple[Change, ...] = ()
    error: str | None = None

    @property
    def answer(self) -> str:
        return str(self.after.record["answer"])

    def to_dict(self) -> dict[str, Any]:
        """The annotated record of the new answer, with what it was, how it changed and, if so, what went wrong."""
        return {
            **self.after.to_dict(),
            "action": self.action,
            "original_answer": self.before.record["answer"],
            "original_sentences": [sentence.to_dict() for sentence in self.before.sentences],
            "original_hallucination_rate": self.before.hallucination_rate,
            "changes": [change.to_dict() for change in self.changes],
            **({} if self.error is None else {"correction_error": self.error}),
        }


@dataclass
class _Draft:
    """An answer on its way: candidate replacements of flagged sentences, one list each, tried in order."""

    before: Annotation
    options: dict[int, list[list[Change]]]  # sentence number → proposals still to be tried, best first
    best: Annotation = field(init=False)
    kept: tuple[Change, ...] = ()
    error: str | None = None

    def __post_init__(self) -> None:
        self.best = self.before


def hallucinated(annotation: Annotation) -> list[int]:
    """The numbers of the sentences that were judged hallucinated."""
    return [i for i, sentence in enumerate(annotation.sentences) if sentence.label in HALLUCINATED]


def apply(answer: str, changes: Sequence[Change]) -> str:
    """The answer with changes made; every code point outside them stays.

    Raises:
        ValueError: Changes overlap, or one does not fit the answer.
    """
    out, place = [], 0
    for change in sorted(changes, key=lambda c: (c.start, c.end)):
        if change.start < place or answer[change.start : change.end] != change.source:
            raise ValueError(
                f"change: expected {change.source!r} at {change.start}, behind the one before, got "
                f"{answer[change.start : change.end]!r}"
            )
        out += [answer[place : change.start], change.target]
        place = change.end
    return "".join([*out, answer[place:]])


def correct(
    records: Sequence[Mapping[str, Any]],
    annotator: Annotator,
    *,
    regenerate: Regenerate | None = None,
    delete: bool = False,
    abstain_above: float | None = None,
) -> list[Mended]:
    """Correct answers: the corrections that the annotator gives, then regenerated sentences, then deletion.

    Args:
        records: {"reference", "answer", "question"?, …}; other keys pass through.
        annotator: Judges before and after.
        regenerate: Writes a flagged sentence anew from its evidence (`mitigate.inference.regenerate.with_engine`).
        delete: Take sentences out that stay flagged.
        abstain_above: Where the hallucination rate is above it after all that, in [0, 1), the answer becomes an
            abstention; None never abstains.

    Returns:
        One per record, in order. ``len(hallucinated(after)) <= len(hallucinated(before))`` always.

    Raises:
        ValueError: A record lacks a reference or an answer, or `abstain_above` is out of range.
    """
    if abstain_above is not None and not 0 <= abstain_above < 1:
        raise ValueError(f"abstain_above: expected a rate in [0, 1) or None, got {abstain_above!r}")
    drafts = [_draft(annotation) for annotation in annotator.annotate_batch(records)]
    if regenerate is not None:
        _add_regenerated(drafts, regenerate)
    while waiting := [draft for draft in drafts if draft.options]:
        _try_next(waiting, annotator)
    if delete:
        _delete(drafts, annotator, rest_only=True)
        _delete(drafts, annotator, rest_only=False)
    return [_abstained(draft, abstain_above) for draft in drafts]


def _draft(annotation: Annotation) -> _Draft:
    edits = {i: annotation.sentences[i].correction for i in hallucinated(annotation)}
    changes = {
        i: [Change(e.start, e.end, e.source, e.target, "annotator") for e in correction]
        for i, correction in edits.items()
    }
    return _Draft(annotation, {i: [change] if change else [] for i, change in changes.items()})


def _delete(drafts: Sequence[_Draft], annotator: Annotator, *, rest_only: bool) -> None:
    """Take out the flagged sentences: those without a kept change, or all of them.

    White space around them stays, so that what stands beside is unchanged.
    """
    tried: list[tuple[_Draft, tuple[Change, ...]]] = []
    for draft in drafts:
        if not hallucinated(draft.best):
            continue
        kept = draft.kept if rest_only else ()
        mended = {_owner(draft.before, change) for change in kept}
        flagged = [draft.before.sentences[i] for i in hallucinated(draft.before) if i not in mended]
        tried.append((draft, (*kept, *(Change(s.start, s.end, s.text, "", "deleted") for s in flagged))))
    judged = annotator.annotate_batch([_edited(draft, changes) for draft, changes in tried])
    for (draft, changes), annotation in zip(tried, judged, strict=True):
        _keep(draft, changes, annotation, [])


def _add_regenerated(drafts: Sequence[_Draft], regenerate: Regenerate) -> None:
    asked = [(draft, i) for draft in drafts for i in draft.options]
    requests = [Request.of(draft.before, i) for draft, i in asked]
    for (draft, i), text in zip(asked, regenerate(requests), strict=True):
        sentence = draft.before.sentences[i]
        if isinstance(text, Unanswered):
            draft.error = text.reason
            continue
        if text is None or text == sentence.text:
            continue
        by: By = "engine" if text else "deleted"
        draft.options[i].append([Change(sentence.start, sentence.end, sentence.text, text, by)])


def _try_next(drafts: Sequence[_Draft], annotator: Annotator) -> None:
    """Try the first proposal of every flagged sentence of every draft at once; keep those that are judged better.

    Sentences are judged one by one by most annotators, so proposals are tried together; where the answer as a
    whole got no better, each draft falls back to what it had, and the proposals are used up.
    """
    tried: list[tuple[_Draft, tuple[Change, ...], list[int]]] = []
    for draft in drafts:
        numbers = [i for i, proposals in draft.options.items() if proposals]
        draft.options = {i: draft.options[i] for i in numbers}
        if numbers:
            new = [change for i in numbers for change in draft.options[i].pop(0)]
            tried.append((draft, (*draft.kept, *new), numbers))
    judged = annotator.annotate_batch([_edited(draft, changes) for draft, changes, _ in tried])
    again = []
    for (draft, changes, numbers), annotation in zip(tried, judged, strict=True):
        worse = _still_flagged(draft.before, changes, annotation)
        if worse and len(worse) < len(numbers):  # some helped: take the others back
            kept = tuple(c for c in changes if _owner(draft.before, c) not in worse)
            again.append((draft, kept, [i for i in numbers if i not in worse]))
        elif not worse:
            _keep(draft, changes, annotation, numbers)
    judged = annotator.annotate_batch([_edited(draft, changes) for draft, changes, _ in again])
    for (draft, changes, numbers), annotation in zip(again, judged, strict=True):
        _keep(draft, changes, annotation, numbers)


def _keep(draft: _Draft, changes: tuple[Change, ...], annotation: Annotation, numbers: list[int]) -> None:
    """Take a trial over where fewer sentences are hallucinated than in the best so far, and no more unchecked."""
    fewer = len(hallucinated(annotation)) < len(hallucinated(draft.best))
    if fewer and _unchecked(annotation) <= _unchecked(draft.best):
        draft.best, draft.kept = annotation, tuple(sorted(changes, key=lambda c: c.start))
        draft.options = {i: p for i, p in draft.options.items() if i not in numbers}


def _unchecked(annotation: Annotation) -> int:
    return sum(sentence.status != "checked" for sentence in annotation.sentences)


def _edited(draft: _Draft, changes: Sequence[Change]) -> dict[str, Any]:
    return {**draft.before.record, "answer": apply(str(draft.before.record["answer"]), changes)}


def _owner(annotation: Annotation, change: Change) -> int:
    """The number of the sentence that a change lies in."""
    return next(i for i, s in enumerate(annotation.sentences) if s.start <= change.start and change.end <= s.end)


def _still_flagged(before: Annotation, changes: Sequence[Change], after: Annotation) -> set[int]:
    """The sentences of the original whose replacement overlaps a sentence that is flagged or unchecked now."""
    flagged = [s for s in after.sentences if s.label in HALLUCINATED or s.status != "checked"]
    found, shift = set(), 0
    for change in sorted(changes, key=lambda c: c.start):
        start = change.start + shift
        end = start + len(change.target)
        shift += len(change.target) - len(change.source)
        if any(s.start < end and start < s.end for s in flagged):
            found.add(_owner(before, change))
    return found


def _abstained(draft: _Draft, above: float | None) -> Mended:
    rate = draft.best.hallucination_rate
    if above is not None and rate is not None and rate > above:
        answer = str(draft.before.record["answer"])
        text = abstention(answer)
        whole = Change(0, len(answer), answer, text, "deleted")
        sentence = SentenceAnnotation(text, 0, len(text), "checked", "no_fact")
        after = replace(draft.best, record={**draft.before.record, "answer": text}, sentences=(sentence,))
        return Mended(draft.before, after, "abstained", (whole,), draft.error)
    action: Action = "corrected" if draft.kept else "unchanged"
    return Mended(draft.before, draft.best, action, draft.kept, draft.error)


def abstention(answer: str) -> str:
    """The sentence that says so, in the language of the answer (Chinese where it holds Chinese characters)."""
    return ABSTENTION["zh" if any("\u4e00" <= c <= "\u9fff" for c in answer) else "en"]


def best_of(annotations: Sequence[Annotation]) -> int | None:
    """Which of several annotated answers to one question to give.

    The lowest hallucination rate; of equals the one with most supported sentences, then with most probability of
    support, then the first. An answer that claims nothing (rate None) stands at NOTHING_CLAIMED_RATE, so that it is
    preferred to one that is mostly wrong, and never to a right one.

    Returns:
        The number of the answer; None where no sentence of any could be checked.
    """
    checked = [i for i, a in enumerate(annotations) if any(s.status == "checked" for s in a.sentences)]
    return min(checked, key=lambda i: (*_rank(annotations[i]), i), default=None)


def _rank(annotation: Annotation) -> tuple[float, int, float]:
    rate = annotation.hallucination_rate
    factual = [s for s in annotation.sentences if s.label not in (None, "no_fact")]
    support = [s.scores["supported"] for s in factual if s.scores]
    return (
        NOTHING_CLAIMED_RATE if rate is None else rate,
        -sum(s.label == "supported" for s in factual),
        -(sum(support) / len(support) if support else 0.0),
    )
