"""How close generated annotations come to gold ones as texts: ROUGE-L, BERTScore, n-gram precision of fragments.

Source: ANAH (ACL 2024), §4.2. ROUGE-L and BERTScore compare the whole annotation (fragments, type, corrections) written
in tags; n-gram precision says how much of the predicted fragments is verbatim in the reference. English is compared by
words, lower case (ROUGE-L: stemmed); Chinese by jieba's words (n-grams: by characters). N-grams do not run over the
end of a fragment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from annotators.evaluation.anah import gold_edits
from annotators.generative.tagged import write_tagged
from annotators.records import LABELS, SentenceAnnotation
from annotators.text.language import language_of_row
from annotators.text.words import rouge_l, rouge_words

PAPER_MODELS = {"en": "roberta-large", "zh": "bert-base-chinese"}
"""bert-score's own choices for the two languages, which the paper used."""


def ngram_precision(fragments: Sequence[str], reference: str, n: int, language: str) -> float | None:
    """Share of the fragments' n-grams (characters for "zh", else words) in the reference; None without any."""

    def units(text: str) -> list[str]:
        lower = text.lower()
        return [c for c in lower if c.isalnum()] if language == "zh" else re.findall(r"\w+", lower)

    known = set(ngrams(units(reference), n))
    found = [gram in known for fragment in fragments for gram in ngrams(units(fragment), n)]
    return sum(found) / len(found) if found else None


def ngrams(units: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(units[i : i + n]) for i in range(len(units) - n + 1)]


def gold_text(row: Mapping[str, Any]) -> str | None:
    """The gold annotation of a labelled sentence in tags; None without fragments or a correction to give."""
    label = row["label"]
    if label not in LABELS:
        return None
    fragments = row.get("fragments")
    if label != "no_fact" and fragments is None and row.get("correction") is None and not row.get("edits"):
        return None
    return write_tagged(label, fragments or (), gold_edits(row), language_of_row(row))


def written_fragments(annotation: SentenceAnnotation) -> list[str]:
    """The fragments as they were written, not as they were matched: else no misquotation would show in any figure."""
    return [f.written or f.text for f in annotation.fragments] + list(annotation.not_verbatim)


def predicted_text(annotation: SentenceAnnotation, language: str) -> str:
    """The annotation in tags; "" where the sentence was not checked."""
    if annotation.label is None:
        return ""
    edits = [(edit.source, edit.target) for edit in annotation.correction]
    return write_tagged(annotation.label, written_fragments(annotation), edits, language)


def text_figures(
    rows: Sequence[Mapping[str, Any]],
    judged: Sequence[SentenceAnnotation],
    similarity: Sequence[float | None] | None = None,
) -> dict[str, Any]:
    """Means over rows: ``rouge_l``, ``bert_score`` and ``fragment_precision_3`` and ``_4``, each None without rows.

    Rows without a gold annotation text are left out of ROUGE-L and BERTScore; an unchecked row counts 0 there.
    ``similarity`` is BERTScore of each row, None where there is none.
    """
    rouges: list[float] = []
    precision: dict[int, list[float]] = {3: [], 4: []}
    for row, annotation in zip(rows, judged, strict=True):
        gold, language = gold_text(row), language_of_row(row)
        if gold is not None:
            rouges.append(rouge_l(rouge_words(gold))(rouge_words(predicted_text(annotation, language))))
        for n, values in precision.items():
            value = ngram_precision(written_fragments(annotation), row["reference"], n, language)
            values.extend([] if value is None else [value])
    scores = [s for s in similarity or () if s is not None]
    return {
        "n_texts": len(rouges), "rouge_l": _mean(rouges), "bert_score": _mean(scores), "n_fragments": len(precision[3]),
        "fragment_precision_3": _mean(precision[3]), "fragment_precision_4": _mean(precision[4]),
    }  # fmt: skip


def bert_scores(
    rows: Sequence[Mapping[str, Any]], judged: Sequence[SentenceAnnotation], models: str
) -> tuple[list[float | None], dict[str, str]]:
    """BERTScore F1 of each row's annotation text, and the model of each language.

    ``models`` is "paper" (roberta-large and bert-base-chinese) or "packaged" (the MiniLM that comes with the toolkit;
    English only). A row that was not checked has 0, one without a gold text None. ImportError where bert-score,
    OSError where a model is missing.
    """
    from bert_score import score

    from engines.checkpoint import locate

    out: list[float | None] = [None] * len(rows)
    names: dict[str, str] = {}
    for language in ("en",) if models == "packaged" else tuple(PAPER_MODELS):
        of = {i: text for i, row in enumerate(rows) if language_of_row(row) == language and (text := gold_text(row))}
        if not of:
            continue
        where, layers = (locate("packaged:minilm"), 6) if models == "packaged" else (PAPER_MODELS[language], None)
        names[language] = "all-MiniLM-L6-v2 (packaged, layer 6)" if models == "packaged" else where
        for i in of:
            out[i] = 0.0
        if said := {i: predicted_text(judged[i], language) for i in of if judged[i].label is not None}:
            found = score(list(said.values()), [of[i] for i in said], model_type=where, num_layers=layers)[2].tolist()
            for i, value in zip(said, found, strict=True):
                out[i] = float(value)
    return out, names


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
