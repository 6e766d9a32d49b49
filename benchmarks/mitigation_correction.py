"""How good corrections are: edited characters against marked errors, corrected sentences against human corrections.

Part 4 of `benchmarks/mitigation.py`. Only the annotator's own verified corrections are applied (no engine). The promise
that nothing else changes is counted over every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fewl_common import shown, shown_gap, table
from benchmarks.splits import load_rows
from mitigate.inference import Mended, apply, correct, hallucinated

Record = dict[str, Any]
HUMAN = ("sentences/factcheckgpt", "binary/expertqa")
MADE = ("binary/summedits", "sentences/uhgeval")
SPANS = ("spans/cliff", "spans/wice_tokens")
CHUNK = 64


def correction(data: Path) -> list[str]:
    """Tables of part 4."""
    from annotators import load_annotator

    annotator = load_annotator()
    rows = [row for row in load_rows(data) if row["file"] in (*HUMAN, *MADE, *SPANS)]
    rows = [row for row in rows if row["file"] in SPANS or row.get("correction")]
    records = [
        {
            "reference": row["reference"],
            "answer": row["answer"] if row["file"] in SPANS else row["sentence"],
            "question": row.get("question") or "",
            "language": row["lang"],
        }
        for row in rows
    ]
    mended: list[Mended] = []
    for start in range(0, len(records), CHUNK):
        mended += correct(records[start : start + CHUNK], annotator)
        print(f"{len(mended)} of {len(records)}", flush=True)
    found = list(zip(rows, mended, strict=True))
    return [
        "## 4. Correction: the annotator's verified corrections, no engine",
        f"Annotator: {annotator.name} {annotator.fingerprint}. Rows of all folds: {fold_note(rows)}",
        *_spans([pair for pair in found if pair[0]["file"] in SPANS]),
        *_against_corrections([pair for pair in found if pair[0]["file"] not in SPANS]),
        _promise(mended),
    ]


def fold_note(rows: Sequence[Record]) -> str:
    """How many rows the annotator was trained on the like of."""
    seen = sum(row["fold"] > 1 for row in rows)
    return (
        f"{seen:,} of {len(rows):,} are in folds 2 to 4, which trainable sources train on, so figures of factcheckgpt, "
        "expertqa, summedits and wice_tokens are optimistic; cliff was never trained on."
    )


def _spans(found: Sequence[tuple[Record, Mended]]) -> list[str]:
    """Edited characters against error spans."""
    rows = []
    for file in SPANS:
        pairs = [(row, m) for row, m in found if row["file"] == file]
        hits, edited, marked, precision = 0, 0, 0, []
        for row, m in pairs:
            gold = {i for e in row["errors"] for i in range(e["start"], e["end"])}
            touched = {i for c in m.changes for i in range(c.start, c.end)}
            hits += len(gold & touched)
            edited += len(touched)
            marked += len(gold)
            if touched:
                precision.append(len(gold & touched) / len(touched))
        changed = sum(m.action == "corrected" for _, m in pairs)
        rows.append(
            [
                file, len(pairs), f"{sum(bool(hallucinated(m.before)) for _, m in pairs)}", changed,
                f"{hits / edited:.2f}" if edited else "–", f"{hits / marked:.3f}" if marked else "–",
                shown(np.array(precision), percent=False) if len(precision) > 1 else "–",
            ]
        )  # fmt: skip
    head = ["file", "answers with errors", "flagged", "corrected", "precision of edited characters",
            "recall of marked characters", "precision, mean of corrected answers"]  # fmt: skip
    return ["Edited characters against marked errors:", table(head, rows)]


def _against_corrections(found: Sequence[tuple[Record, Mended]]) -> list[str]:
    """ROUGE-L to the given correction, before and after."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)

    def rouge(a: str, b: str) -> float:
        return float(scorer.score(a, b)["rougeL"].fmeasure)

    out = []
    for called, files in (("Human corrections", HUMAN), ("Machine-made corrections", MADE)):
        rows = []
        for file in files:
            pairs = [(row, m) for row, m in found if row["file"] == file]
            changed = [(row, m) for row, m in pairs if m.action == "corrected"]
            unread = sum(
                all(s.status == "language_unsupported" for s in m.before.sentences) for _, m in pairs
            )
            before = np.array([rouge(row["correction"], row["sentence"]) for row, _ in changed])
            after = np.array([rouge(row["correction"], m.answer) for row, m in changed])
            restored = sum(m.answer.split() == row["correction"].split() for row, m in changed)
            many = len(changed) > 1
            rows.append(
                [
                    file, len(pairs), unread, sum(bool(hallucinated(m.before)) for _, m in pairs), len(changed),
                    restored,
                    shown(before, percent=False) if many else "–", shown(after, percent=False) if many else "–",
                    shown_gap(after, before) if many else "–",
                ]
            )  # fmt: skip
        head = ["file", "rows with a correction", "not read (Chinese)", "flagged", "corrected",
                "equal to the correction", "ROUGE-L before", "ROUGE-L after", "gain, points"]  # fmt: skip
        out += [f"{called}; ROUGE-L over the corrected rows:", table(head, rows)]
    return out


def _promise(mended: Sequence[Mended]) -> str:
    """Violations of what is promised; each is recomputed from the texts."""
    outside = rises = spans = 0
    for m in mended:
        old = str(m.before.record["answer"])
        outside += apply(old, m.changes) != m.answer
        rises += len(hallucinated(m.after)) > len(hallucinated(m.before))
        flagged = [m.before.sentences[i] for i in hallucinated(m.before)]
        spans += any(not any(s.start <= c.start and c.end <= s.end for s in flagged) for c in m.changes)
    return (
        f"The promise, over {len(mended):,} answers: {outside} with text changed outside the edits, {spans} with an "
        f"edit outside flagged sentences, {rises} with more hallucinated sentences than before."
    )
