"""Tagged annotations, read strictly: what an annotating model wrote, or the name of what is wrong with it.

    <Reference> copied text<SEP>more of it <Hallucination> Contradictory <Correction> "1935" to "1931"
    <参考>原文<SEP>原文 <幻觉>矛盾 <改正>将“1935”改为“1931”            <No Fact>  <无事实>

Tags come in any order and in either language, with other case, blanks and the misspellings of public data. A reply that
can be read in two ways is a failure, never a guess. Leaves out the three turns of the later protocol
(``annotators/tagged_turns.py``), and where fragments and corrections stand (``annotators/tagged_places.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rapidfuzz.distance import OSA

from annotators.records import Label
from annotators.tagged_fields import (
    EDGES,
    FAILURES,
    NO_FACT,
    TYPES,
    ParseFailure,
    Part,
    corrections_in,
    fragments_in,
    neutral,
    not_copied,
    opening,
    parts_of,
    plain,
    stands_alone,
)

__all__ = ["FAILURES", "ParseFailure", "Tagged", "neutral", "parse_tagged", "write_tagged"]


WRITTEN = {
    "supported": ("None", "无"),
    "contradictory": ("Contradictory", "矛盾"),
    "unverifiable": ("Unverifiable", "无法验证"),
}
"""What stands behind the type tag, in English and Chinese."""


@dataclass(frozen=True)
class Tagged:
    """What a reply says.

    Args:
        label: Of the sentence.
        fragments: Pieces of the reference, as the model wrote them.
        corrections: Pairs (from, to); "" as the second deletes.
        type_span: Where the words that decide the label stand in the reply.
    """

    label: Label
    fragments: tuple[str, ...] = ()
    corrections: tuple[tuple[str, str], ...] = ()
    type_span: tuple[int, int] = (0, 0)


def parse_tagged(reply: str, sources: Sequence[str] = ()) -> Tagged:
    """Read a reply of the single-turn protocol.

    Args:
        reply: What the model wrote.
        sources: The texts that it was shown, as they came; a tag copied out of one of them is no tag.

    Raises:
        ParseFailure: With the name of what is wrong.
    """
    start = opening(reply)
    parts = parts_of(reply, start, _single_kind)
    if not parts:
        raise ParseFailure("no_tags")
    decided = [part for part in parts if part.kind in ("type", "nofact")]
    for part in decided:
        not_copied(reply, part, sources)
    if not decided:
        raise ParseFailure("no_type")
    if len(decided) > 1:
        raise ParseFailure("repeated_type")
    stands_alone(reply, decided[0], behind=decided[0].kind == "nofact")
    label, span = _label(reply, decided[0])
    fragments = [f for p in parts if p.kind == "reference" for f in fragments_in(reply[slice(*p.value)])]
    corrections = [c for p in parts if p.kind == "correction" for c in corrections_in(reply[slice(*p.value)])]
    if corrections and label in ("supported", "no_fact"):
        raise ParseFailure("contradicts_itself")
    return Tagged(label, () if label == "no_fact" else tuple(fragments), tuple(corrections), span)


def _single_kind(name: str) -> str | None:
    """What a tag of the single-turn protocol is; None for any other text in angle brackets."""
    fixed = {"参考": "reference", "幻觉": "type", "改正": "correction",
             "要点": "other", "point": "other", **dict.fromkeys(NO_FACT, "nofact")}  # fmt: skip
    if name in fixed:
        return fixed[name]
    for word, kind, slips in (
        ("hallucination", "type", 2),
        ("reference", "reference", 1),
        ("correction", "correction", 1),
    ):
        if OSA.distance(name, word, score_cutoff=slips) <= slips:
            return kind
    return None


def _label(reply: str, part: Part) -> tuple[Label, tuple[int, int]]:
    """The label of a type or no-fact tag, and where its words stand."""
    if part.kind == "nofact":
        return "no_fact", part.tag
    start, end = part.value
    value = reply[start:end]
    first = value.strip().split("\n", 1)[0]  # an explanation may follow on lines of its own
    for text in (value, first):
        if (label := TYPES.get(plain(text))) is not None:
            begin = start + value.index(text) + len(text) - len(text.lstrip(EDGES))
            return label, (begin, begin + len(text.strip(EDGES)))
    raise ParseFailure("unknown_type")


def write_tagged(
    label: Label,
    fragments: Sequence[str] = (),
    corrections: Sequence[tuple[str, str]] = (),
    language: str = "en",
) -> str:
    """An annotation as the single-turn protocol writes it; ``parse_tagged`` reads it back.

    Args:
        label: Of the sentence.
        fragments: Pieces of the reference.
        corrections: Pairs (from, to).
        language: "zh" for Chinese tags, else English ones.
    """
    chinese = language == "zh"
    if label == "no_fact":
        return "<无事实>" if chinese else "<No Fact>"
    lines = []
    if fragments:
        lines.append(("<参考>" if chinese else "<Reference> ") + "<SEP>".join(neutral(f) for f in fragments))
    lines.append(f"<幻觉>{WRITTEN[label][1]}" if chinese else f"<Hallucination> {WRITTEN[label][0]}")
    if corrections:
        form = "“{}”改为“{}”" if chinese else '"{}" to "{}"'
        changes = [form.format(neutral(old), neutral(new)) for old, new in corrections]
        lines.append(("<改正>" if chinese else "<Correction> ") + "\n".join(changes))
    return "\n".join(lines)
