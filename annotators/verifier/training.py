"""The training run of the embedded annotator, stage by stage; each stage's result is kept and read again.

    1. edited.jsonl           sentences of documents and people's supported ones, reworded, half of them made false
    2. edits/, labels/        the pair encoder learns from these, then from people's labels (checkpoints inside)
    3. windows.npz, .jsonl    features of every labelled row, and what the encoder reads of its window
    4. the combiner           networks over the features; calibrated with the encoder's logits on fold 1

``mitigate train annotators/embedded`` runs it. Folds 2 to 4 train, fold 1 calibrates and chooses the threshold, fold 0
is not read beyond its fold number. People's labels are learned beside the combiner: the encoder's logits are to be
right by themselves and added to those of networks that did not see the row, so that it learns what features can't tell.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from annotators.evaluation.splits import FOLD_NAMES, assign_folds
from annotators.records import LABELS
from annotators.retrieval.passages import index_references
from annotators.text.normalise import clean_text
from annotators.text.sentences import split_sentences
from annotators.verifier.annotator import CHUNK, DiscriminativeAnnotator, unjudgeable
from annotators.verifier.combiner import (
    CONTRADICTORY,
    NO_FACT,
    SUPPORTED,
    TARGET,
    Combiner,
    decide,
    multitask_loss,
    votes_of,
)
from annotators.verifier.encoder import EXCERPT_TOKENS, LEAST_GAIN, Pair, PairEncoder, excerpt
from annotators.verifier.features import FEATURES, FORM, VERSION, Idf, coverage
from annotators.verifier.judging import Item, Judge, as_judged
from annotators.verifier.synthetic import SMALL_TALK, Example, Maker, Span, Substitutes, changed, edit, proper
from engines.embedding import Embedder

log = logging.getLogger(__name__)
Row = Mapping[str, Any]
SOURCES = (
    "begin", "dialfact_small", "expertqa", "factcheckgpt", "factcheckgpt_pair", "faithdial_audit", "fm2",
    "halueval_qa", "summedits", "wice",
)  # fmt: skip
"""English sources whose licences allow shipped weights."""
MAX_IDF_PASSAGES = 60
SYNTHETIC_WEIGHT = 0.5
"""Weight of an edit in the combiner, where people's rows weigh 1 on average (docs/LOG.md: others that were tried)."""
TALK_REFERENCES = 3
TALK_WEIGHT = 6.0  # weight of a row of small talk: there are few, and a refusal called a hallucination is a bad error
MAX_PASSAGES = 150  # passages of a document that edited sentences are made from
STORED_TOKENS, EDITED_TOKENS = 112, 60
"""Tokens of evidence beside an edited sentence, stored and in training: mostly its own passage and another."""
CORRECTED = ("expertqa", "factcheckgpt", "factcheckgpt_pair", "summedits")
"""Sources whose corrections are sentences that people hold to be supported."""
EDIT_SHARE, EDIT_WEIGHT = 0.5, 0.7
"""Which share of the false edits the encoder sees beside people's labels, and the weight of each."""
REPLAYED = 1500
"""Examples of the first stage in the second one, so that what only they teach (who did what) is not forgotten."""
TOKEN_WEIGHT, POSITIVE_TOKEN = 0.5, 3.0
"""Weight of the token head's loss, and in it of unsupported tokens, which are few."""
CHECKPOINT_STEPS = 250


@dataclass(frozen=True)
class Settings:
    """What a training run depends on.

    ``data`` has sentences/, binary/ and spans/; ``base`` and ``embedder`` are hub ids or folders (None: the packaged
    MiniLM); rates are the highest of the encoder's two stages, epochs the passes over their examples.
    """

    data: Path
    sources: tuple[str, ...]
    base: str | None = None
    embedder: str | None = None
    seed: int = 0
    edit_rate: float = 1.2e-4
    edit_epochs: float = 1.0
    label_rate: float = 8e-5
    label_epochs: float = 2.0
    batch: int = 32


def train_annotator(settings: Settings, work: Path) -> DiscriminativeAnnotator:
    """Train, going on from what an earlier start with the same settings left in ``work``."""
    work.mkdir(parents=True, exist_ok=True)
    test = FOLD_NAMES["test"]
    rows = [r for r in read_rows(settings.data) if r["fold"] not in test and usable(r, settings.sources)]
    train_rows = [row for row in rows if row["fold"] in FOLD_NAMES["train"]]
    idf = Idf(fit_idf(train_rows).table.astype(np.float16))  # as it is stored
    torch.manual_seed(settings.seed)
    encoder = PairEncoder(settings.base)
    edited = work / "edited.jsonl"
    if not edited.is_file():
        write_examples(edited_set(train_rows, idf, encoder, settings.seed), edited)
    examples = cut(read_examples(edited), idf, encoder, EDITED_TOKENS)
    train_stage(
        encoder, examples, work / "edits", epochs=settings.edit_epochs, rate=settings.edit_rate,
        batch=settings.batch, seed=settings.seed,
    )  # fmt: skip
    embedder = Embedder(settings.embedder)
    table, passages = windows(rows, idf, embedder, work)
    train_labels(encoder, table, passages, examples[:REPLAYED], settings, work / "labels")
    encoder = PairEncoder(settings.base, encoder.packed())  # as it is stored
    beside = np.zeros((len(rows), len(LABELS)), np.float32)
    dev = np.flatnonzero(table.dev).tolist()
    beside[dev] = logits_of(encoder, [rows[i] for i in dev], [passages[i] for i in dev])
    made, parents = false_edits(rows, FOLD_NAMES["dev"])
    features = _kept(work / "edits.npz", _key(made, idf, embedder), lambda: read_windows(made, idf, embedder)[0])
    edits = Edits(features, np.array(parents, dtype=int), logits_of(encoder, made, [passages[i] for i in parents]))
    combiner = calibrate(fit_combiner(table, FOLD_NAMES["train"], seed=settings.seed), table, beside, edits)
    log.info("calibration: %s", {k: combiner.tensors[k].tolist() for k in ("temperature", "bias", "threshold")})
    return DiscriminativeAnnotator(combiner, idf, embedder, encoder=encoder, embedder_id=settings.embedder)


# --- labelled rows, their windows, and synthetic rows made of them -------------------------------------------------


def read_rows(data: Path) -> list[dict[str, Any]]:
    """All labelled sentences below ``data`` with their fold; folds are computed over every file at once."""
    rows = []
    for path in sorted(p for folder in ("sentences", "binary", "spans") for p in (data / folder).glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            rows += [json.loads(line) | {"folder": path.parent.name} for line in lines]
    for row, fold in zip(rows, assign_folds(rows), strict=True):
        row["fold"] = fold
    return [row for row in rows if row["folder"] != "spans"]


def usable(row: Row, sources: Sequence[str]) -> bool:
    """Whether a row is of a named source, English, and can be judged at all."""
    if row["source"] not in sources or (row.get("lang") or row.get("language")) != "en":
        return False
    return unjudgeable(clean_text(row["sentence"]), row["reference"] or "") is None


def fit_idf(rows: Sequence[Row]) -> Idf:
    """Word weights from the sentences of the rows' distinct references, at most 60 of each."""
    references = sorted({row["reference"] for row in rows})
    return Idf.fit(clean_text(r[a:b]) for r in references for a, b in split_sentences(r)[:MAX_IDF_PASSAGES])


def read_windows(rows: Sequence[Row], idf: Idf, embedder: Embedder) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """(n, F) features of each row's sentence in its first window, and what the encoder reads of that window."""
    judge = Judge(Combiner({}), idf, embedder)
    order = sorted(range(len(rows)), key=lambda i: rows[i]["reference"])
    features = np.empty((len(rows), len(FEATURES)))
    read: list[tuple[str, ...]] = [()] * len(rows)
    started = time.monotonic()
    for at in range(0, len(order), 4 * CHUNK):
        chunk = order[at : at + 4 * CHUNK]
        with judge.memory():
            compared = judge.read([Item(_sentence(rows[i]), rows[i]["reference"], _question(rows[i])) for i in chunk])
        for i, comparison in zip(chunk, compared, strict=True):
            features[i], read[i] = comparison.features, comparison.text()[2]
        log.info("windows: %d of %d rows, %.0f s", at + len(chunk), len(order), time.monotonic() - started)
    return features, read


def _sentence(row: Row) -> str:
    return clean_text(row["sentence"])


def _question(row: Row) -> str:
    return clean_text(row["question"] or "")


def false_edits(rows: Sequence[Row], folds: Sequence[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """A false edit of each supported row of some folds where one applies, and the number of the row it is made from."""
    made, parents = [], []
    for i, row in enumerate(rows):
        if row["label"] == "supported" and row["fold"] in folds:
            edited = edit(row["sentence"], row["reference"], Random(str(row["id"])))
            if edited is not None:
                made.append({**row, "sentence": edited, "label": "contradictory"})
                parents.append(i)
    return made, parents


def synthetic(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[int]]:
    """False edits of supported training rows, then small talk beside their references, and each one's parent."""
    made, parents = false_edits(rows, FOLD_NAMES["train"])
    train = [i for i, row in enumerate(rows) if row["fold"] in FOLD_NAMES["train"]]
    random = Random(0)
    asked = [i for i in train if rows[i]["question"]]
    for sentence in SMALL_TALK:
        for _ in range(TALK_REFERENCES):
            parent = random.choice(asked if "{question}" in sentence and asked else train)
            question = (rows[parent]["question"] or "that").strip().rstrip("?").lower()
            text = sentence.replace("{question}", question)
            made.append({**rows[parent], "sentence": text, "label": "no_fact"})
            parents.append(parent)
    return made, parents


@dataclass
class Table:
    """n labelled rows with features (n, F), and m synthetic rows with theirs and the rows they are made from (m,)."""

    rows: Sequence[Row]
    features: np.ndarray
    extra_rows: Sequence[Row]
    extra: np.ndarray
    parents: np.ndarray

    def __post_init__(self) -> None:
        self.targets = np.array([TARGET[row["label"]] for row in self.rows])
        self.sources = np.array([row["source"] for row in self.rows])
        self.folds = np.array([row["fold"] for row in self.rows])
        self.dev = np.isin(self.folds, FOLD_NAMES["dev"])
        self.extra_targets = np.array([TARGET[row["label"]] for row in self.extra_rows], dtype=int)


def windows(rows: Sequence[Row], idf: Idf, embedder: Embedder, work: Path) -> tuple[Table, list[tuple[str, ...]]]:
    """The table of all rows, and what the encoder reads beside each; kept in ``work``."""
    extra_rows, parents = synthetic(rows)
    both, texts, n = [*rows, *extra_rows], work / "windows.jsonl", len(rows)

    def make() -> np.ndarray:
        features, read = read_windows(both, idf, embedder)
        texts.write_text("".join(json.dumps(passages) + "\n" for passages in read[:n]), encoding="utf-8")
        return features

    features = _kept(work / "windows.npz", _key(both, idf, embedder), make)
    passages = [tuple(json.loads(line)) for line in texts.read_text(encoding="utf-8").splitlines()]
    return Table(rows, features[:n], extra_rows, features[n:], np.array(parents, dtype=int)), passages


def _key(rows: Sequence[Row], idf: Idf, embedder: Embedder) -> str:
    """sha256 of all that features depend on."""
    digest = hashlib.sha256(f"{VERSION} {FEATURES} {EXCERPT_TOKENS} {LEAST_GAIN} {embedder.fingerprint}".encode())
    digest.update(idf.table.tobytes())
    for row in rows:
        digest.update(json.dumps([row["sentence"], row["reference"], row["question"]]).encode())
    return digest.hexdigest()


def _kept(file: Path, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Features that an earlier start computed under the same key, or that are computed and written now."""
    if file.is_file():
        with np.load(file, allow_pickle=False) as stored:
            if str(stored["key"]) == key:
                return np.asarray(stored["features"])
    features = make()
    with file.with_suffix(".part").open("wb") as part:  # so that a killed run leaves no cut-off file
        np.savez(part, key=np.array(key), features=features)
    file.with_suffix(".part").replace(file)
    return features


# --- the combiner --------------------------------------------------------------------------------------------------


def row_weights(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(n,) weights of mean 1 under which a source of n rows counts √n, and its labels equally within it.

    Supported rows weigh as much as hallucinated ones, "no fact" rows half as much.
    """
    kinds = np.where(targets == SUPPORTED, 0, np.where(targets == NO_FACT, 2, 1)).tolist()
    cells = list(zip(sources.tolist(), kinds, strict=True))
    of_source, of_cell = Counter(sources.tolist()), Counter(cells)
    weight = np.array([of_source[s] ** 0.5 / of_cell[s, k] * (0.5 if k == 2 else 1.0) for s, k in cells])
    return weight / weight.mean()


def best_threshold(probabilities: np.ndarray, targets: np.ndarray, sources: np.ndarray) -> float:
    """The threshold with the highest mean balanced accuracy over sources, on the rows of the development fold."""
    rows = [
        (good, bad)
        for name in np.unique(sources)
        if (good := (sources == name) & (targets == SUPPORTED)).any()
        and (bad := (sources == name) & (targets != NO_FACT) & (targets != SUPPORTED)).any()
    ]
    grid = np.linspace(0.5, 0.8, 31)  # never "supported" against the odds
    means = []
    for threshold in grid:
        passed = np.isin(decide(probabilities, float(threshold)), (SUPPORTED, NO_FACT))
        means.append(np.mean([(passed[good].mean() + (~passed[bad]).mean()) / 2 for good, bad in rows]))
    # Smoothed over seven steps: a single row more or less must not decide.
    smooth = np.convolve(np.pad(means, 3, mode="edge"), np.ones(7) / 7, mode="valid")
    return float(grid[int(smooth.argmax())])


def fit_combiner(table: Table, folds: Sequence[int], *, members: int = 5, seed: int = 0) -> Combiner:
    """Train on some folds and their synthetic rows; edited rows count twice, so that edits do not tip the balance."""
    train = np.isin(table.folds, folds)
    made = np.isin(table.folds[table.parents], folds)
    talk = table.extra_targets == NO_FACT
    again = table.parents[made & ~talk]
    weights = (
        row_weights(table.sources[train], table.targets[train]),
        np.where(talk, TALK_WEIGHT, SYNTHETIC_WEIGHT)[made],
        np.full(len(again), SYNTHETIC_WEIGHT),
    )
    return Combiner.fit(
        np.concatenate([table.features[train], table.extra[made], table.features[again]]),
        np.concatenate([table.targets[train], table.extra_targets[made], table.targets[again]]),
        np.concatenate(weights),
        members=members,
        seed=seed,
        unread=[i for i, name in enumerate(FEATURES) if name in FORM],
    )


@dataclass(frozen=True)
class Edits:
    """False edits of the development fold: features (m, F), rows they are made from, logits (m, 4) of the encoder."""

    features: np.ndarray
    parents: np.ndarray
    beside: np.ndarray


def calibrate(combiner: Combiner, table: Table, beside: np.ndarray | None, edits: Edits | None) -> Combiner:
    """Calibrate and choose the threshold on the development fold.

    Edits, and the rows they are made from once more, count half, since people's rows seldom turn on one wrong word. The
    threshold is chosen on people's rows. With an encoder, whose logits of all rows are ``beside``, both are done twice:
    the first calibration says for which rows judging will not ask it, the second one reads the votes so.
    """
    dev = table.dev
    own, own_targets, sources = table.features[dev], table.targets[dev], table.sources[dev]
    features, targets, weights = own, own_targets, np.ones(len(own))
    votes = None if beside is None else votes_of(beside)
    own_votes = all_votes = None if votes is None else votes[dev]
    if edits is not None:
        again = edits.parents
        features = np.concatenate([own, edits.features, table.features[again]])
        targets = np.concatenate([own_targets, np.full(len(again), CONTRADICTORY), table.targets[again]])
        weights = np.concatenate([weights, np.full(2 * len(again), SYNTHETIC_WEIGHT)])
        if votes is not None:
            all_votes = np.concatenate([votes[dev], votes_of(edits.beside), votes[again]])

    def fitted(own_votes: np.ndarray | None, all_votes: np.ndarray | None) -> Combiner:
        found = combiner.calibrated(features, targets, weights, all_votes)
        return found.with_threshold(best_threshold(found.predict_proba(own, own_votes), own_targets, sources))

    first = fitted(own_votes, all_votes)
    if own_votes is None or all_votes is None:
        return first
    return fitted(as_judged(first, own, own_votes), as_judged(first, features, all_votes))


def unseen_logits(table: Table, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, 4) and (m, 4) of rows and synthetic rows by networks trained on the other training folds."""
    rows, extra = np.zeros((len(table.rows), 4), np.float32), np.zeros((len(table.extra_rows), 4), np.float32)
    for fold in FOLD_NAMES["train"]:
        combiner = fit_combiner(table, [f for f in FOLD_NAMES["train"] if f != fold], members=2, seed=seed)
        mine, made = table.folds == fold, table.folds[table.parents] == fold
        rows[mine], extra[made] = combiner.logits(table.features[mine]), combiner.logits(table.extra[made])
    return rows, extra


# --- what the pair encoder learns from: edited sentences of documents, then people's labels ------------------------


def edited_set(rows: Sequence[Row], idf: Idf, encoder: PairEncoder, seed: int) -> list[Example]:
    """Sentences of the rows' documents and their supported sentences, reworded, half of them made false, shuffled."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row["reference"], row)
    names = sorted(first)
    texts = {
        name: [clean_text(p.text) for p in index.passages[:MAX_PASSAGES]]
        for name, index in zip(names, index_references(names, encoder.tokenize), strict=True)
    }
    prose = [s for name in names for s in texts[name] if proper(s)]
    maker = Maker(Substitutes(prose), prose)
    made: list[Example] = []
    for name in names:
        source = first[name]["source"]
        made += maker.of_document(texts[name], _question(first[name]), source, Random(name[:200]))
        made += maker.of_roles(texts[name], source, Random(f"{name[:200]} roles"))
    for row in rows:
        bare = {**row, "sentence": _sentence(row), "question": _question(row)}
        passages = texts[row["reference"]]
        if row["label"] == "supported":
            made += maker.of_supported(bare, passages, Random(f"{row['id']}x"))
        if row.get("correction") and row["source"] in CORRECTED:
            right = clean_text(row["correction"])
            if len(right.split()) > 3:
                made.append(Example(bare["question"], right, tuple(passages), SUPPORTED, (), row["source"]))
                made += maker.of_supported({**bare, "sentence": right}, passages, Random(f"{row['id']}x"))
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
        out.append(replace(e, passages=tuple(e.passages[i] for i in places)))
    return out


def labelled_examples(rows: Sequence[Row], passages: Sequence[Sequence[str]], weights: np.ndarray) -> list[Example]:
    """Examples of n labelled rows, each with what the encoder reads beside it and its weight (n,)."""
    out = []
    for row, texts, weight in zip(rows, passages, weights.tolist(), strict=True):
        sentence = _sentence(row)
        spans: tuple[Span, ...] | None = () if row["label"] == "supported" else None
        if row["label"] != "supported" and row.get("correction") and row["source"] in CORRECTED:
            spans = changed(clean_text(row["correction"]), sentence) or None
        out.append(Example(_question(row), sentence, tuple(texts), TARGET[row["label"]], spans, row["source"], weight))
    return out


def write_examples(examples: Sequence[Example], path: Path) -> None:
    """Write one JSON object per line, the whole file or none."""
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(asdict(example)) + "\n" for example in examples), encoding="utf-8")
    part.replace(path)


def read_examples(path: Path) -> list[Example]:
    """Read what ``write_examples`` wrote."""
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        spans = None if fields["spans"] is None else tuple((a, b) for a, b in fields["spans"])
        out.append(Example(**{**fields, "passages": tuple(fields["passages"]), "spans": spans}))
    return out


def train_labels(
    encoder: PairEncoder, table: Table, passages: Sequence[tuple[str, ...]], replayed: Sequence[Example],
    settings: Settings, folder: Path,
) -> None:  # fmt: skip
    """The encoder's second stage: people's labels of the training folds, some synthetic rows, and replayed examples."""
    train = np.flatnonzero(np.isin(table.folds, FOLD_NAMES["train"])).tolist()
    beside, extra_beside = unseen_logits(table, settings.seed)
    random = Random(settings.seed)
    kept = [i for i, target in enumerate(table.extra_targets) if target == NO_FACT or random.random() < EDIT_SHARE]
    rows, texts = [table.rows[i] for i in train], [passages[i] for i in train]
    for i in kept:  # the true sentence is an edit's correction, so its wrong words are known
        parent = table.parents[i]
        right = None if table.extra_targets[i] == NO_FACT else table.rows[parent]["sentence"]
        rows.append({**table.extra_rows[i], "correction": right})
        texts.append(passages[parent])
    human = row_weights(table.sources[train], table.targets[train])
    weights = np.concatenate([human, np.full(len(kept), EDIT_WEIGHT)])
    again = [replace(example, weight=EDIT_WEIGHT) for example in replayed]
    train_stage(
        encoder, [*labelled_examples(rows, texts, weights), *again], folder, epochs=settings.label_epochs,
        rate=settings.label_rate, batch=settings.batch, seed=settings.seed,
        beside=np.concatenate([beside[train], extra_beside[kept], np.zeros((len(again), 4), np.float32)]),
    )  # fmt: skip


def logits_of(encoder: PairEncoder, rows: Sequence[Row], passages: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Logits (n, 4) of the encoder for rows and what it reads beside them."""
    texts = [(_question(row), _sentence(row), found) for row, found in zip(rows, passages, strict=True)]
    return encoder(texts)[0]


# --- training the pair encoder: two heads, one loop, checkpoints from which it goes on -----------------------------


def token_targets(pair: Pair, example: Example) -> np.ndarray:
    """(_S,) 1 on tokens of unsupported words, 0 on others, −1 where it is not known."""
    if example.spans is None:
        return np.full(len(pair.offsets), -1.0, np.float32)
    wrong = np.zeros(len(pair.offsets), np.float32)
    for a, b in example.spans:
        wrong[(pair.offsets[:, 0] < b) & (pair.offsets[:, 1] > a)] = 1.0
    return wrong


def batch_order(lengths: Sequence[int], size: int, seed: int) -> list[list[int]]:
    """Rows in random batches of ``size`` rows of like length."""
    random = Random(seed)
    order = list(range(len(lengths)))
    random.shuffle(order)
    groups = [order[i : i + 24 * size] for i in range(0, len(order), 24 * size)]
    batches = []
    for group in groups:
        group.sort(key=lambda i: lengths[i])
        batches += [group[i : i + size] for i in range(0, len(group), size)]
    random.shuffle(batches)
    return batches


def loss_of(
    encoder: PairEncoder, pairs: Sequence[Pair], examples: Sequence[Example], numbers: Sequence[int],
    beside: np.ndarray | None,
) -> torch.Tensor:  # fmt: skip
    """Loss of one batch; with ``beside``, logits (n, 4) of another model, also that of the two added up."""
    device = encoder.device
    batch = encoder.batch([pairs[i] for i in numbers])
    with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=encoder.dtype == "bfloat16"):
        label_B4, token_BT = encoder.model(**batch)
    target_B = torch.tensor([examples[i].target for i in numbers], device=device)
    weight_B = torch.tensor([examples[i].weight for i in numbers], device=device)
    loss = multitask_loss(label_B4, target_B, weight_B)
    if beside is not None:
        other = torch.tensor(beside[list(numbers)], dtype=torch.float32, device=device)
        loss = 0.5 * loss + multitask_loss(label_B4 + other, target_B, weight_B)
    wanted = torch.full(token_BT.shape, -1.0)
    for row, i in enumerate(numbers):
        first = pairs[i].first
        wanted[row, first : first + len(pairs[i].offsets)] = torch.from_numpy(token_targets(pairs[i], examples[i]))
    wanted = wanted.to(device)
    known = (wanted >= 0) & batch["sentence_BT"]
    if known.any():
        positive = torch.tensor(POSITIVE_TOKEN, device=device)
        loss = loss + TOKEN_WEIGHT * binary_cross_entropy_with_logits(
            token_BT[known], wanted[known], pos_weight=positive
        )
    return loss


def train_stage(
    encoder: PairEncoder, examples: Sequence[Example], folder: Path, *, epochs: float, rate: float, batch: int = 32,
    seed: int = 0, beside: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Train in place; the state is kept in ``folder`` every CHECKPOINT_STEPS steps and taken up again from there.

    ``rate`` is reached over the first 6 % of steps and then falls linearly to 0; heads learn five times as fast, since
    they start from nothing. ``beside`` are (n, 4) logits of another model to which the encoder's are to be added, or
    None.
    """
    pairs = encoder.pairs([(e.question, e.sentence, e.passages) for e in examples])
    lengths = [len(pair.ids) for pair in pairs]
    total = max(1, round(-(-len(examples) // batch) * epochs))
    model = encoder.model
    body = [p for n, p in model.named_parameters() if p.requires_grad and n.startswith("base.")]
    heads = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("base.")]
    optimizer = torch.optim.AdamW([{"params": body, "lr": rate}, {"params": heads, "lr": 5 * rate}], weight_decay=0.01)
    step = restore(model, optimizer, folder)
    mean = float(np.mean(lengths))
    log.info("%s: %d examples, %d steps from %d, %.0f tokens a row", folder.name, len(examples), total, step, mean)
    order = chain.from_iterable(batch_order(lengths, batch, seed + epoch) for epoch in count())
    started, running = time.monotonic(), 0.0
    for numbers in islice(order, step, total):
        share = min((step + 1) / (0.06 * total + 1), max(0.0, (total - step) / (0.94 * total)))
        for group, top in zip(optimizer.param_groups, (rate, 5 * rate), strict=True):
            group["lr"] = top * share
        optimizer.zero_grad()
        loss = loss_of(encoder, pairs, examples, numbers, beside)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(body + heads, 1.0)
        optimizer.step()
        step += 1
        running += loss.item()
        if step % 50 == 0:
            seconds = time.monotonic() - started
            log.info("%s: step %d of %d, loss %.3f, %.0f s", folder.name, step, total, running / 50, seconds)
            running = 0.0
        if step % CHECKPOINT_STEPS == 0 or step == total:
            keep(model, optimizer, folder, step)
    model.eval()


def keep(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, step: int) -> None:
    """Write parameters, optimizer state and step; the last complete state survives a kill."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{n}": p.detach() for n, p in model.named_parameters() if p.requires_grad}
    for group, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{group}.{k}": torch.as_tensor(v) for k, v in values.items()}
    part = folder / "state.part"
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, part, metadata={"step": json.dumps(step)})
    part.replace(folder / "state.safetensors")


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Take up what ``keep`` wrote; the step, 0 where there is nothing."""
    from safetensors import safe_open

    path = folder / "state.safetensors"
    if not path.is_file():
        return 0
    state: dict[int, dict[str, torch.Tensor]] = {}
    weights: dict[str, torch.Tensor] = {}
    with safe_open(path, "pt") as stored:
        step = int(json.loads(stored.metadata()["step"]))
        for name in stored.keys():  # noqa: SIM118
            kind, rest = name.split(".", 1)
            if kind == "model":
                weights[rest] = stored.get_tensor(name)
            else:
                group, key = rest.split(".")
                state.setdefault(int(group), {})[key] = stored.get_tensor(name)
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step
