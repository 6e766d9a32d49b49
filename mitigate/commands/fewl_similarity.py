"""Similarities and encoders by name; here FEWL and the annotators meet."""

from __future__ import annotations

from collections.abc import Sequence

from annotators.records import Annotator, SentenceAnnotation
from annotators.sentences import split_sentences
from fewl.similarity import (
    Encode,
    Similarity,
    char_tfidf,
    cosine,
    each_once,
    from_function,
    is_chinese,
    new_words,
    rouge_l,
)
from mitigate.errors import UsageError

TFIDF = "character TF-IDF"
NAMES = "cosine, rouge-l, new-words or annotator:NAME"


def check_similarity(name: str) -> None:
    """Refuse an unknown name before anything is loaded.

    Raises:
        UsageError: With the names there are.
    """
    kind, _, rest = name.partition(":")
    if name not in ("cosine", "rouge-l", "new-words") and not (kind == "annotator" and rest):
        raise UsageError(f"--similarity: expected {NAMES}, got {name!r}")


def load_encoder(name: str, texts: Sequence[str]) -> tuple[str, Encode]:
    """The encoder of that name, which encodes each text once, and what it is called.

    Args:
        name: ``auto``, ``tfidf``, or a folder or hub id of a sentence-transformers model.
        texts: The questions, to see whether they are Chinese.

    Raises:
        UsageError: There is no such model.
    """
    if name == "tfidf":
        return TFIDF, char_tfidf()
    from engines.embedding import Embedder

    try:
        embedder = Embedder(None if name == "auto" else name, dtype="float32")
    except (OSError, ValueError) as error:
        raise UsageError(f"--embedding {name}: {error}") from error
    if name == "auto" and any(is_chinese(text) for text in texts) and not embedder.reads_chinese:
        return f"{TFIDF} ({embedder.name} cannot read Chinese)", char_tfidf()
    return f"{embedder.name} {embedder.fingerprint[:12]}", each_once(embedder.encode)


def load_similarity(name: str, encode: Encode) -> tuple[str, Similarity]:
    """The similarity of that name and what it is called.

    Raises:
        UsageError: There is no such annotator.
    """
    if name.startswith("annotator:"):
        from annotators import load_annotator

        try:
            annotator = load_annotator(name.partition(":")[2])
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(f"--similarity {name}: {error}") from error
        return f"annotator {annotator.name} {annotator.fingerprint[:12]}", annotator_similarity(annotator)
    return name, {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}[name]


def annotator_similarity(annotator: Annotator) -> Similarity:
    """How far a reference answer supports an answer, in [0, 1], judged by an annotator.

    Σ P(supported) / Σ (1 − P(no_fact)) over the sentences of the answer, each judged against the reference answer:
    the expected share of supported among factual sentences. For one sentence it is P(supported)/(1 − P(no_fact)).
    Sentences that could not be judged are left out; None where none is left.
    """

    def judge(candidates: list[str], references: list[str], questions: list[str]) -> list[float | None]:
        rows, owners = [], []
        for owner, (candidate, reference, question) in enumerate(
            zip(candidates, references, questions, strict=True)
        ):
            for start, end in split_sentences(candidate):
                rows.append({"sentence": candidate[start:end], "reference": reference, "question": question})
                owners.append(owner)
        supported, factual = [0.0] * len(candidates), [0.0] * len(candidates)
        for owner, judged in zip(owners, annotator.predict(rows), strict=True):
            if (parts := _parts(judged)) is not None:
                supported[owner] += parts[0]
                factual[owner] += parts[1]
        return [s / f if f > 0 else None for s, f in zip(supported, factual, strict=True)]

    return from_function(judge)


def _parts(judged: SentenceAnnotation) -> tuple[float, float] | None:
    """P(supported) and P(a fact) of a judged sentence."""
    if judged.status != "checked" or judged.scores is None:
        return None
    return judged.scores["supported"], 1.0 - judged.scores["no_fact"]
