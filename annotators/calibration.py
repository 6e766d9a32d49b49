"""A calibration: what `mitigate calibrate` fits for one annotator, its file, and what it does to judgements.

P(supported) among factual labels goes through a sigmoid of its log-odds (Platt 1999), and "hallucinated" needs a
threshold; what is neither that nor more likely supported than not gets the status "unsure". Works on scores alone, of
whichever annotator has them. Fitting is in ``annotators/calibration_fit.py``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annotators.records import LABELS, SentenceAnnotation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
VERSION = 1
CLIP = 1e-6
UNSURE = -1
SUPPORTED, CONTRADICTORY, UNVERIFIABLE, NO_FACT = range(len(LABELS))


@dataclass(frozen=True)
class Calibration:
    """What is fitted for one annotator.

    Args:
        annotator: Fingerprint of the annotator whose scores were used.
        slope: Of the sigmoid, above 0.
        intercept: Of the sigmoid.
        hallucinated_at: Least probability of a hallucination that is flagged; None for the likelier of the two.
        report: n, figures, data and versions, for people.
    """

    annotator: str
    slope: float
    intercept: float
    hallucinated_at: float | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Of what changes verdicts: 16 hex digits over annotator, sigmoid and threshold."""
        parts = json.dumps([VERSION, self.annotator, self.slope, self.intercept, self.hallucinated_at])
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def judge(self, probabilities: Floats, labels: Ints) -> tuple[Floats, Ints]:
        """Calibrated probabilities and labels of sentences.

        P(no_fact) stays, as does a "no_fact" label; the rest is shared anew between supported and hallucinated, and
        among the two kinds of hallucination as before.

        Args:
            probabilities: (n, 4) in the order of LABELS.
            labels: (n,) the annotator's own labels, positions in LABELS.

        Returns:
            (n, 4) probabilities, rows sum to 1, and (n,) positions in LABELS, or UNSURE.
        """
        p = np.asarray(probabilities, dtype=np.float64)
        factual = 1.0 - p[:, NO_FACT]
        share = sigmoid(p[:, SUPPORTED] / np.maximum(factual, 1e-12), self.slope, self.intercept)
        wrong = p[:, [CONTRADICTORY, UNVERIFIABLE]]
        mass = wrong.sum(1, keepdims=True)
        split = np.where(mass > 1e-12, wrong / np.maximum(mass, 1e-12), 0.5)
        out = np.column_stack(
            [share * factual, split * ((1.0 - share) * factual)[:, None], p[:, NO_FACT]]
        )  # in the order of LABELS
        flagged = 1.0 - share >= (0.5 if self.hallucinated_at is None else self.hallucinated_at)
        judged = np.where(flagged, CONTRADICTORY + split.argmax(1), np.where(share > 0.5, SUPPORTED, UNSURE))
        return out, np.where(labels == NO_FACT, NO_FACT, judged)

    def apply(self, sentence: SentenceAnnotation) -> SentenceAnnotation:
        """A sentence judged anew by its scores; one without scores stays as it is."""
        if sentence.status != "checked" or sentence.scores is None or sentence.label is None:
            return sentence
        chances, labels = self.judge(
            np.array([[sentence.scores[label] for label in LABELS]]),
            np.array([LABELS.index(sentence.label)]),
        )
        if labels[0] == UNSURE:
            return SentenceAnnotation(sentence.text, sentence.start, sentence.end, "unsure")
        scores = {label: float(p) for label, p in zip(LABELS, chances[0], strict=True)}
        return replace(sentence, label=LABELS[int(labels[0])], scores=scores)

    def for_annotator(self, fingerprint: str, name: str) -> Calibration:
        """Itself, where it was fitted for this annotator.

        Raises:
            ValueError: It was fitted for another one.
        """
        if fingerprint != self.annotator:
            raise ValueError(
                f"calibration: expected one fitted for {name} with fingerprint {fingerprint}, got one for "
                f"{self.annotator}; fit it again with `mitigate calibrate --annotator {name}`"
            )
        return self

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        row = {"kind": "calibration", "version": VERSION, **asdict(self)}
        path.write_text(json.dumps(row, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what ``save`` wrote.

        Raises:
            OSError: There is no such file.
            ValueError: It is no calibration of this version.
        """
        try:
            row = json.loads(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: expected JSON in UTF-8; fit it again") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: expected JSON ({error}); fit it again") from error
        if not isinstance(row, dict) or (row.get("kind"), row.get("version")) != ("calibration", VERSION):
            raise ValueError(f"{path}: expected a file of `mitigate calibrate` of this version; fit it again")
        at = row.get("hallucinated_at")
        numbers: list[Any] = [row.get("slope"), row.get("intercept"), 0.5 if at is None else at]
        if not all(type(x) in (int, float) and math.isfinite(x) for x in numbers) or row["slope"] <= 0:
            raise ValueError(
                f"{path}: expected slope > 0, intercept and hallucinated_at as numbers; fit it again"
            )
        if not isinstance(row.get("annotator"), str) or not isinstance(row.get("report"), dict):
            raise ValueError(f"{path}: expected an annotator's fingerprint and a report; fit it again")
        return cls(row["annotator"], row["slope"], row["intercept"], at, row["report"])


def sigmoid(share: Floats, slope: float, intercept: float) -> Floats:
    """1 / (1 + exp(−(slope · logit(share) + intercept))), shares clipped to [CLIP, 1 − CLIP]."""
    s = np.clip(share, CLIP, 1 - CLIP)
    return np.asarray(1 / (1 + np.exp(-(slope * np.log(s / (1 - s)) + intercept))))
