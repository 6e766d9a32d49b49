"""What the verifier learns from: labelled pairs of evidence and claim, edited sentences of documents, human labels;
and the settings of a training run.

Every example is a sentence beside passages of evidence, cut to what judging reads, with a target and, where they are
known, the words that lack support. Examples of one contrastive case (the same claim beside evidence that supports it
and evidence that does not, or the same evidence beside two claims) carry the same ``case`` and are ranked.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from annotators.evaluation.splits import assign_folds, plain
from annotators.records import LABELS
from annotators.retrieval import Tokenize, index_references, select
from annotators.text.normalise import clean_text
from annotators.text.sentences import split_sentences
from annotators.text.words import stem_set, words_of

Row = Mapping[str, Any]
Span = tuple[int, int]
SUPPORTED, CONTRADICTORY, UNVERIFIABLE, NO_FACT = range(len(LABELS))
UNSUPPORTED = len(LABELS)  # a two-way label: contradictory or unverifiable
TARGET: dict[str, int] = {label: n for n, label in enumerate((*LABELS, "unsupported"))}

PAIR_SHARES = {
    "vitaminc": 1.0, "vitaminc_synthetic": 0.5, "fever": 1.0, "dialfact_valid": 1.0, "wanli": 1.0, "snli_cad": 1.0,
    "paws": 0.75, "mnli_validation": 0.6, "snli": 0.3,
}  # fmt: skip
"""Share of each source's cases that is read: all of what is nearest to judging answers, less of captions and genres."""
BURIED, MOST_WORDS = 0.4, 110
"""Share of pairs whose evidence is put among other sentences, and how many words there are then at most."""
FOREIGN = 0.06  # further examples: a claim beside sentences of the same page, without its own evidence
UNLIKE = 0.2  # stems that two sentences may share (Jaccard), so that one is no revision of the other


# --- settings ------------------------------------------------------------------------------------------------------

_GIVEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Stage(BaseModel):
    model_config = _GIVEN
    rate: float = Field(gt=0, description="highest learning rate")
    epochs: float = Field(gt=0)


class Further(Stage):
    """The last stage, after which weights are the mean of those before and after it."""

    examples: int = Field(default=23_040, ge=1, description="labelled, edited and paired sentences")
    labels: int | None = Field(default=None, ge=0, description="labelled ones that these are drawn from; null: all")
    edits: int = Field(default=16_000, ge=0, description="edited sentences among them")
    pairs: int = Field(default=8_000, ge=0, description="pairs among them")
    texts: int = Field(default=0, ge=0, description="written texts, the first ones; the tenth is watched and left out")
    teacher: str | None = Field(default=None, description="an embedded annotator or its folder; null: their own labels")


class Settings(BaseModel):
    """What a training run depends on; ``base`` is a hub id, a folder or a packaged model."""

    model_config = _GIVEN
    data: Path = Field(description="folder with sentences/, binary/, pairs/ and documents/, JSON Lines; not all needed")
    sources: list[str] = Field(min_length=1, description="labelled sentences to train on")
    pair_sources: list[str] = Field(description="entailment pairs to train on first; with `start` there may be none")
    base: str = "packaged:minilm"
    layers: int | None = Field(default=None, ge=1, description="how many of its layers are taken; null: all")
    lora: int | None = Field(default=None, ge=1, description="rank of LoRA; null: all weights are trained")
    pairs: Stage = Stage(rate=1.5e-4, epochs=1.0)
    labels: Stage = Stage(rate=8e-5, epochs=2.0)
    further: Further | None = Field(default=None, description="null: no such stage")
    start: str | None = Field(
        default=None, description="annotator that the last stage begins with; null: the first two stages"
    )
    edited: int = Field(default=9_000, ge=0, description="edited sentences among the labels")
    replayed: int = Field(default=6_000, ge=0, description="pairs among the labels")
    tokens: int = Field(default=4096, ge=512, description="of a step")
    evidence_tokens: int = Field(default=128, ge=16, le=320, description="of a reference that are read at once")
    narrow_tokens: int | None = Field(
        default=None, ge=8, le=320, description="of a reference, read once more; null: not"
    )
    seed: int = Field(default=0, ge=0)
    languages: list[str] | None = Field(default=["en"], min_length=1, description="of what is judged; null: any")


# --- examples ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A sentence to judge beside passages of evidence."""

    question: str
    sentence: str
    passages: tuple[str, ...]
    target: int  # TARGET
    spans: tuple[Span, ...] | None  # the unsupported ones; None: not known which
    source: str
    weight: float = 1.0
    case: str = ""  # within which examples are ranked; "" for none
    taught: tuple[float, ...] | None = None  # a teacher's probabilities in the order of LABELS


_EXAMPLE = TypeAdapter(Example)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON Lines."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]  # of bytes: no other signs end a line


def read_rows(data: Path) -> list[dict[str, Any]]:
    """All labelled sentences below ``data`` with their fold; folds are computed over every file at once."""
    paths = sorted(p for folder in ("sentences", "binary", "spans") for p in (data / folder).glob("*.jsonl"))
    rows = [row | {"folder": path.parent.name} for path in paths for row in json_lines(path)]
    for row, fold in zip(rows, assign_folds(rows), strict=True):
        row["fold"] = fold
    return [row for row in rows if row["folder"] != "spans"]


def write_examples(examples: Sequence[Example], path: Path) -> None:
    """Write one JSON object per line, the whole file or none."""
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(asdict(example)) + "\n" for example in examples), encoding="utf-8")
    part.replace(path)


def read_examples(path: Path) -> list[Example]:
    """Read what ``write_examples`` wrote."""
    return [_EXAMPLE.validate_python(row) for row in json_lines(path)]


# --- stage 0: pairs of evidence and claim --------------------------------------------------------------------------


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, clean."""
    return [clean_text(text[a:b]) for a, b in split_sentences(text)]


def read_pairs(data: Path, sources: Iterable[str], held_out: Sequence[Row]) -> list[dict[str, Any]]:
    """The pairs of some sources below ``data``/pairs, without those that share a text with ``held_out`` rows.

    A pair is left out where its claim is a held-out sentence, or a sentence of its evidence (of six words or more)
    stands in a held-out reference.
    """
    claims = {plain(row["sentence"]) for row in held_out}
    known = {plain(s) for row in held_out for s in sentences_of(row["reference"] or "") if s.count(" ") > 4}
    pairs = []
    for source in sources:
        for row in json_lines(data / "pairs" / f"{source}.jsonl"):
            own = {plain(s) for s in sentences_of(row["evidence"])}
            if plain(row["claim"]) not in claims and not own & known:
                pairs.append(row)
    return pairs


def pair_examples(pairs: Sequence[Row], seed: int) -> list[Example]:
    """Examples of pairs, some with their evidence among other sentences, in random order, cases together."""
    random = Random(f"pairs {seed}")
    of_claim = Counter(plain(row["claim"]) for row in pairs)
    cases: dict[str, list[Row]] = defaultdict(list)
    pages: dict[tuple[str, str], list[str]] = defaultdict(list)
    others: dict[str, list[str]] = defaultdict(list)
    for row in pairs:
        claim, beside = plain(row["claim"]), f"evidence {row['group']} {plain(row['evidence'])}"
        cases[f"claim {claim}" if of_claim[claim] > 1 else beside].append(row)
        pages[row["source"], row["group"]].append(row["evidence"])
        others[row["source"]].append(row["evidence"])
    names = sorted(cases)
    random.shuffle(names)
    out: list[Example] = []
    for name in names:
        rows = cases[name]
        if random.random() >= max(PAIR_SHARES[row["source"]] for row in rows):
            continue
        hidden = random.random() < BURIED  # a case whole, so that its rows differ in what counts alone
        for row in rows:
            gold, claim = clean_text(row["evidence"]), clean_text(row["claim"])
            page = list(dict.fromkeys(pages[row["source"], row["group"]]))
            made = Example("", claim, (gold,), TARGET[row["label"]], None, row["source"], 1.0, name)
            if hidden:
                pool = page if len(page) > 2 and random.random() < 0.5 else others[row["source"]]
                made = replace(made, passages=buried(gold, claim, pool, random))
            out.append(made)
            if len(page) > 2 and random.random() < FOREIGN:
                around = tuple(text for text in buried(gold, claim, page, random) if text != gold)
                out += [replace(made, passages=around, target=UNVERIFIABLE)] if around else []
    return out


def buried(gold: str, claim: str, pool: Sequence[str], random: Random) -> tuple[str, ...]:
    """The gold evidence at a random place among texts of ``pool`` that are unlike it and the claim."""
    own, said = stem_set(gold), stem_set(claim)
    room = random.uniform(0.3, 1.0) * MOST_WORDS - gold.count(" ") - 1
    around: list[str] = []
    for other in random.sample(pool, min(len(pool), 8)):
        text = clean_text(other)
        stems = stem_set(text)
        if text in around or any(len(stems & own) > UNLIKE * len(stems | own) for own in (own, said)):
            continue
        room -= text.count(" ") + 1
        if room < 0:
            break
        around.append(text)
    around.insert(random.randint(0, len(around)), gold)
    return tuple(around)


# --- texts written for this toolkit, and sentences about them ------------------------------------------------------

TEXTS = Path(__file__).with_name("texts.jsonl")


def text_examples(number: int) -> list[Example]:
    """Sentences that texts of ordinary kinds support, contradict or leave open, beside the whole text: a case.

    Labelled pairs have one sentence of evidence. In a text that people write every sentence is about the same thing,
    and what is false of one part is often true of another. Of the first ``number`` texts those of ``watched_text`` are
    left out.
    """
    made: list[Example] = []
    for text in (text for text in json_lines(TEXTS)[:number] if not watched_text(text)):
        told: list[tuple[str, int, tuple[Span, ...] | None]] = []
        for true, false in (map(clean_text, pair) for pair in text["pairs"]):
            told += [(true, SUPPORTED, ()), (false, CONTRADICTORY, changed(true, false) or None)]
        told += [(clean_text(said), UNVERIFIABLE, None) for said in text["open"]]
        question, passages = clean_text(text["question"]), (clean_text(text["passage"]),)
        made += [
            Example(question, said, passages, target, spans, "texts", 1.0, f"text {text['topic']}")
            for said, target, spans in told
        ]
    return made


def watched_text(text: Row) -> bool:
    """Whether a written text is of the tenth that is not learned, so that one can see what was."""
    return sha256(text["topic"].encode()).digest()[0] % 10 == 0


# --- stage 2: human labels -----------------------------------------------------------------------------------------

CORRECTED = ("expertqa", "factcheckgpt", "factcheckgpt_pair", "summedits")
"""Sources whose corrections are sentences that people hold to be supported."""


def windows(items: Sequence[tuple[str, str]], tokenize: Tokenize, budget: int) -> list[tuple[str, ...]]:
    """For each (reference, clean sentence) the passages that judging reads first, clean, within ``budget`` tokens."""
    indexes = index_references([reference for reference, _ in items], tokenize, None, budget)
    found = select([(index, sentence) for index, (_, sentence) in zip(indexes, items, strict=True)])
    return [tuple(clean_text(passage.text) for passage in window.passages) for window in found]


def labelled_examples(rows: Sequence[Row], tokenize: Tokenize, budget: int) -> list[Example]:
    """Examples of labelled sentences, each weighed by ``row_weights``; a false sentence that people corrected carries
    the words that they changed, and its correction is a supported example of the same case.
    """
    made: list[Example] = []
    for row in rows:
        sentence, right = clean_text(row["sentence"]), clean_text(row.get("correction") or "")
        spans: tuple[Span, ...] | None = () if row["label"] == "supported" else None
        case = ""
        corrected = row["label"] != "supported" and row["source"] in CORRECTED and len(right.split()) > 3
        if corrected:
            spans, case = changed(right, sentence) or None, f"row {row['id']}"
        first = Example(
            clean_text(row["question"] or ""), sentence, (row["reference"],), TARGET[row["label"]], spans,
            row["source"], 1.0, case,
        )  # fmt: skip
        made += [first, replace(first, sentence=right, target=SUPPORTED, spans=())] if corrected else [first]
    passages = windows([(e.passages[0], e.sentence) for e in made], tokenize, budget)
    weights = row_weights([e.source for e in made], [e.target for e in made])
    return [replace(e, passages=p, weight=w) for e, p, w in zip(made, passages, weights, strict=True)]


def row_weights(sources: Sequence[str], targets: Sequence[int]) -> list[float]:
    """Weights of mean 1 under which a source of n rows counts √n, and its labels equally within it.

    Supported rows weigh as much as hallucinated ones, "no fact" rows half as much.
    """
    kinds = [0 if target == SUPPORTED else 2 if target == NO_FACT else 1 for target in targets]
    cells = list(zip(sources, kinds, strict=True))
    of_source, of_cell = Counter(sources), Counter(cells)
    weights = [of_source[s] ** 0.5 / of_cell[s, k] * (0.5 if k == 2 else 1.0) for s, k in cells]
    return [weight * len(weights) / sum(weights) for weight in weights]


def changed(before: str, after: str) -> tuple[Span, ...]:
    """Character spans of ``after`` whose words are not in ``before``; at a deletion, the words around it."""
    first, second = words_of(before), words_of(after)
    spans: list[Span] = []
    for tag, _, _, c, d in SequenceMatcher(None, first.lower, second.lower, autojunk=False).get_opcodes():
        if c == d:
            c, d = max(0, c - 1), min(len(second), d + 1)
        if tag != "equal" and c < d:
            spans.append((second.starts[c], second.ends[d - 1]))
    return tuple(spans)
