"""The two sets of examples that the pair encoder learns from: edited sentences of documents, and people's labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from annotators.cleaning import clean_text
from annotators.encoder import PairEncoder
from annotators.features import Idf
from annotators.lexical import coverage
from annotators.pairs import excerpt
from annotators.passages import index_references
from annotators.synthetic import SUPPORTED, TARGET, Company, Example, Maker, changed, proper

MAX_PASSAGES = 150
"""Of a document: what edited sentences are made from."""
STORED_TOKENS, EDITED_TOKENS = 112, 60
"""Of evidence beside an edited sentence, in the stored set and in training: mostly its own passage and another."""
CORRECTED = ("expertqa", "factcheckgpt", "factcheckgpt_pair", "summedits")
"""Sources whose corrections are sentences that people hold to be supported."""


def edited_set(rows: Sequence[Mapping[str, Any]], idf: Idf, encoder: PairEncoder, seed: int) -> list[Example]:
    """Sentences of the rows' documents and their supported sentences, reworded, half of them made false.

    Args:
        rows: Labelled rows of the training folds.
        idf: Word weights.
        encoder: Its tokenizer counts.
        seed: Of the last order; each document has a generator of its own.

    Returns:
        Examples in random order, with STORED_TOKENS of evidence.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(row["reference"], row)
    names = sorted(first)
    texts = {
        name: [clean_text(p.text) for p in index.passages[:MAX_PASSAGES]]
        for name, index in zip(names, index_references(names, encoder.tokenize), strict=True)
    }
    prose = [s for name in names for s in texts[name] if proper(s)]
    maker = Maker(Company(prose), prose)
    made: list[Example] = []
    for name in names:
        question = clean_text(first[name]["question"] or "")
        made += maker.of_document(texts[name], question, first[name]["source"], Random(name[:200]))
        made += maker.of_roles(texts[name], first[name]["source"], Random(f"{name[:200]} roles"))
    for row in rows:
        bare = {**row, "sentence": clean_text(row["sentence"]), "question": clean_text(row["question"] or "")}
        passages, random = texts[row["reference"]], Random(f"{row['id']}x")
        if row["label"] == "supported":
            made += maker.of_supported(bare, passages, random)
        if row.get("correction") and row["source"] in CORRECTED:
            right = clean_text(row["correction"])
            if len(right.split()) > 3:
                bare["sentence"] = right
                made.append(Example(bare["question"], right, tuple(passages), SUPPORTED, (), row["source"]))
                made += maker.of_supported(bare, passages, Random(f"{row['id']}x"))
    made = cut([example for example in made if example.passages], idf, encoder, STORED_TOKENS)
    Random(seed + 1).shuffle(made)
    return made


def cut(examples: Sequence[Example], idf: Idf, encoder: PairEncoder, budget: int) -> list[Example]:
    """The examples with those of their passages that have most of the sentence's words."""
    distinct = list(dict.fromkeys(p for e in examples for p in e.passages))
    length = dict(zip(distinct, (len(ids) for ids, _ in encoder.tokenize(distinct)), strict=True))
    out = []
    for e in examples:
        found, weight, _ = coverage(e.sentence, e.passages, idf)
        places = excerpt(found.astype(float), weight, [length[p] for p in e.passages], budget)
        out.append(Example(**{**vars(e), "passages": tuple(e.passages[i] for i in places)}))
    return out


def labelled_examples(
    rows: Sequence[Mapping[str, Any]], passages: Sequence[Sequence[str]], weights: np.ndarray
) -> list[Example]:
    """Examples of people's labels.

    Args:
        rows: Labelled rows.
        passages: What the encoder reads beside each.
        weights: (n,) of the rows.
    """
    out = []
    for row, texts, weight in zip(rows, passages, weights.tolist(), strict=True):
        sentence = clean_text(row["sentence"])
        spans: tuple[tuple[int, int], ...] | None = () if row["label"] == "supported" else None
        if row["label"] != "supported" and row.get("correction") and row["source"] in CORRECTED:
            spans = changed(clean_text(row["correction"]), sentence) or None
        target = TARGET[row["label"]]
        question = clean_text(row["question"] or "")
        out.append(Example(question, sentence, tuple(texts), target, spans, row["source"], weight))
    return out


def write_examples(examples: Sequence[Example], path: Path) -> None:
    """Write one JSON object a line, whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(asdict(example)) + "\n")
    part.replace(path)


def read_examples(path: Path) -> list[Example]:
    """Read what ``write_examples`` wrote."""
    out = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            fields = json.loads(line)
            spans = fields["spans"]
            fields["spans"] = None if spans is None else tuple((a, b) for a, b in spans)
            out.append(Example(**{**fields, "passages": tuple(fields["passages"])}))
    return out
