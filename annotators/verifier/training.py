"""The training run of the embedded annotator, stage by stage; each stage's result is kept and read again.

    1. edited.jsonl           sentences of documents and people's supported ones, reworded, half of them made false
    2. edits/, labels/        the pair encoder learns from these, then from people's labels (checkpoints inside)
    3. windows.npz, .jsonl    features of every labelled row, and what the encoder reads of its window
    4. the combiner           networks over the features; calibrated with the encoder's logits on fold 1

People's labels are learned beside the combiner: the encoder's logits are to be right by themselves and added to
those of networks that did not see the row, so that it learns what the features can't tell. The same settings and
data give the same annotator, up to the order in which a machine adds numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
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
from annotators.verifier.combiner import Combiner, decide, multitask_loss, votes_of
from annotators.verifier.encoder import EXCERPT_TOKENS, LEAST_GAIN, Pair, PairEncoder, excerpt
from annotators.verifier.features import FEATURES, FORM, VERSION, Idf, coverage
from annotators.verifier.judging import Item, Judge, as_judged
from annotators.verifier.synthetic import SMALL_TALK, SUPPORTED, TARGET, Company, Example, Maker, changed, edit, proper
from engines.embedding import Embedder

# ----------------------------------------------------------------------------------------------------
# Rows, features and the combiner of the embedded annotator; what a training run does with them: annotators/verifier/training.py.
#
# python -m annotators.verifier.training --data ../shared/data --work out/embedded --output annotators/embedded
#
# is `mitigate train recipes/annotators/embedded.yaml` without a run folder. Reads the
# labelled-sentence files of DATA/sentences and DATA/binary of the sources named by --sources (by default those whose
# licences allow shipped weights), English rows only. Folds 2 to 4 train, fold 1 calibrates, chooses the threshold and is
# never trained on, fold 0 is not read beyond its fold number (annotators/evaluation/splits.py).

log = logging.getLogger(__name__)
SOURCES = (
    "begin", "dialfact_small", "expertqa", "factcheckgpt", "factcheckgpt_pair", "faithdial_audit", "fm2",
    "halueval_qa", "summedits", "wice",
)  # fmt: skip
"""English sources whose licences allow shipped weights."""
MAX_IDF_PASSAGES = 60
SYNTHETIC_WEIGHT = 0.5
"""Of an edit, where human rows weigh 1 on average; see docs/LOG.md for others that were tried."""
TALK_REFERENCES = 3
TALK_WEIGHT = 6.0
"""Of a row of small talk: few rows, and a refusal called a hallucination is a bad error."""


def read_rows(data: Path) -> list[dict[str, Any]]:
    """All labelled sentences below ``data`` with their fold; folds are computed over every file at once."""
    rows = []
    for path in sorted(p for folder in ("sentences", "binary", "spans") for p in (data / folder).glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            rows += [json.loads(line) | {"folder": path.parent.name} for line in lines]
    for row, fold in zip(rows, assign_folds(rows), strict=True):
        row["fold"] = fold
    return [row for row in rows if row["folder"] != "spans"]


def usable(row: Mapping[str, Any], sources: Sequence[str]) -> bool:
    """Whether a row is of a named source, English, and can be judged at all."""
    if row["source"] not in sources or (row.get("lang") or row.get("language")) != "en":
        return False
    return unjudgeable({"reference": row["reference"] or ""}, clean_text(row["sentence"])) is None


def fit_idf(rows: Sequence[Mapping[str, Any]]) -> Idf:
    """Word weights from the sentences of the rows' distinct references, at most 60 of each."""
    return Idf.fit(_passages({row["reference"] for row in rows}))


def _passages(references: set[str]) -> Iterator[str]:
    for reference in sorted(references):
        for start, end in split_sentences(reference)[:MAX_IDF_PASSAGES]:
            yield clean_text(reference[start:end])


def read_windows(
    rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """(n, F) features of each row's sentence in its first window, and what the encoder reads of that window."""
    judge = Judge(Combiner({}), idf, embedder)
    order = sorted(range(len(rows)), key=lambda i: rows[i]["reference"])
    parts: list[np.ndarray] = []
    read: dict[int, tuple[str, ...]] = {}
    started = time.monotonic()
    for at in range(0, len(order), 4 * CHUNK):
        chunk = order[at : at + 4 * CHUNK]
        items = [
            Item(clean_text(rows[i]["sentence"]), rows[i]["reference"], clean_text(rows[i]["question"] or ""))
            for i in chunk
        ]
        with judge.memory():
            features, excerpts = judge.read(items)
        parts.append(features)
        read.update(zip(chunk, excerpts, strict=True))
        log.info("windows: %d of %d rows, %.0f s", at + len(items), len(order), time.monotonic() - started)
    features = np.concatenate(parts)
    out = np.empty_like(features)
    out[order] = features
    return out, [read[i] for i in range(len(rows))]


def row_weights(sources: Sequence[str], targets: np.ndarray, power: float = 0.5) -> np.ndarray:
    """Weights of mean 1 under which a source of n rows counts n^power, and its labels equally within it.

    Supported rows weigh as much as hallucinated ones, "no fact" rows half as much.

    Args:
        sources: Of each row.
        targets: (n,) positions in LABELS, or UNSUPPORTED.
        power: 1 leaves sources as large as they are, 0 makes all equal.
    """
    kind = np.where(targets == 0, 0, np.where(targets == LABELS.index("no_fact"), 2, 1))
    size = Counter(sources)
    cell = Counter(zip(sources, kind.tolist(), strict=True))
    weight = np.array(
        [size[s] ** power / cell[s, k] * (0.5 if k == 2 else 1.0) for s, k in zip(sources, kind.tolist(), strict=True)]
    )
    return weight / weight.mean()


def best_threshold(probabilities: np.ndarray, targets: np.ndarray, sources: Sequence[str]) -> float:
    """The threshold with the highest mean balanced accuracy over sources, on the rows of the development fold."""
    source = np.array(sources)
    factual = targets != LABELS.index("no_fact")
    grid = np.linspace(0.5, 0.8, 31)  # never "supported" against the odds
    means = []
    for threshold in grid:
        clean_ = np.isin(decide(probabilities, float(threshold)), (0, LABELS.index("no_fact")))
        scores = []
        for name in sorted(set(sources)):
            good, bad = (source == name) & (targets == 0), (source == name) & factual & (targets != 0)
            if good.any() and bad.any():
                scores.append((clean_[good].mean() + (~clean_[bad]).mean()) / 2)
        means.append(np.mean(scores))
    smooth = np.convolve(np.pad(means, 3, mode="edge"), np.ones(7) / 7, mode="valid")
    return float(grid[int(smooth.argmax())])


def false_edits(rows: Sequence[Mapping[str, Any]], folds: Sequence[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """A false edit of each supported row of some folds where one applies, and the number of the row it is made from."""
    made, parents = [], []
    for i, row in enumerate(rows):
        if row["label"] == "supported" and row["fold"] in folds:
            edited = edit(row["sentence"], row["reference"], Random(str(row["id"])))
            if edited is not None:
                made.append({**row, "sentence": edited, "label": "contradictory"})
                parents.append(i)
    return made, parents


def synthetic(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """False edits of supported training rows, and small talk beside references of training rows.

    Returns:
        (new rows: edits, then talk; the number of the row that each was made from).
    """
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


@dataclass(frozen=True)
class Table:
    """Rows with their features (n, F), and the synthetic ones (m) made of them, with theirs."""

    rows: Sequence[Mapping[str, Any]]
    features: np.ndarray
    extra_rows: Sequence[Mapping[str, Any]]
    extra: np.ndarray
    parents: np.ndarray

    @cached_property
    def targets(self) -> np.ndarray:
        """(n,) positions in LABELS, or UNSUPPORTED."""
        return np.array([TARGET[row["label"]] for row in self.rows])

    @cached_property
    def names(self) -> np.ndarray:
        """(n,) sources."""
        return np.array([row["source"] for row in self.rows])

    @cached_property
    def folds(self) -> np.ndarray:
        """(n,) folds."""
        return np.array([row["fold"] for row in self.rows])

    def without(self, sources: Collection[str]) -> tuple[Table, np.ndarray]:
        """The table without some sources, and the numbers of the rows that are left."""
        keep = ~np.isin(self.names, list(sources))
        made = keep[self.parents]
        left = np.flatnonzero(keep)
        place = np.cumsum(keep) - 1
        part = Table(
            [self.rows[i] for i in left.tolist()], self.features[left],
            [self.extra_rows[i] for i in np.flatnonzero(made).tolist()], self.extra[made], place[self.parents[made]],
        )  # fmt: skip
        return part, left

    @property
    def dev(self) -> np.ndarray:
        """(n,) whether a row is of the development fold."""
        return np.isin(self.folds, FOLD_NAMES["dev"])


def fit_combiner(table: Table, folds: Sequence[int], *, members: int = 5, seed: int = 0) -> Combiner:
    """Train on some folds and the synthetic rows made of them; calibration is neutral.

    Rows that edits were made from count once more, so that edits do not tip the balance.
    """
    train = np.isin(table.folds, folds)
    made = np.isin(table.folds[table.parents], folds)
    talk = np.array([row["label"] == "no_fact" for row in table.extra_rows], dtype=bool)
    again = table.parents[made & ~talk]
    extra_targets = np.array([TARGET[row["label"]] for row in table.extra_rows], dtype=int)
    return Combiner.fit(
        np.concatenate([table.features[train], table.extra[made], table.features[again]]),
        np.concatenate([table.targets[train], extra_targets[made], table.targets[again]]),
        np.concatenate(
            [
                row_weights(table.names[train].tolist(), table.targets[train]),
                np.where(talk, TALK_WEIGHT, SYNTHETIC_WEIGHT)[made],
                np.full(len(again), SYNTHETIC_WEIGHT),
            ]
        ),
        members=members,
        seed=seed,
        unread=[i for i, name in enumerate(FEATURES) if name in FORM],
    )


@dataclass(frozen=True)
class Edits:
    """False edits of the development fold: features (m, F), rows they are made from, logits (m, 4) of the encoder."""

    features: np.ndarray
    parents: np.ndarray
    beside: np.ndarray | None


def calibrate(combiner: Combiner, table: Table, beside: np.ndarray | None, edits: Edits | None) -> Combiner:
    """Calibrate and choose the threshold on the development fold.

    Edits, and the rows they are made from once more, count half, since people's rows seldom turn on one wrong word. The
    threshold is chosen on people's rows. With an encoder both are done twice: the first calibration says for which rows
    judging will not ask it, the second one reads the votes so.

    Args:
        combiner: Not yet calibrated.
        table: All rows.
        beside: The encoder's logits of all rows, or None.
        edits: Of the development fold, or None.
    """
    dev = table.dev
    votes = None if beside is None else votes_of(beside)
    own = None if votes is None else votes[dev]
    targets = table.targets[dev]
    features, all_targets, weights = table.features[dev], targets, np.ones(len(targets))
    both = own
    if edits is not None:
        again = edits.parents
        features = np.concatenate([features, edits.features, table.features[again]])
        all_targets = np.concatenate([targets, np.full(len(again), TARGET["contradictory"]), table.targets[again]])
        weights = np.concatenate([weights, np.full(2 * len(again), SYNTHETIC_WEIGHT)])
        if own is not None and votes is not None and edits.beside is not None:
            both = np.concatenate([own, votes_of(edits.beside), votes[again]])

    def fitted(own: np.ndarray | None, both: np.ndarray | None) -> Combiner:
        found = combiner.calibrated(features, all_targets, weights, both)
        probabilities = found.predict_proba(table.features[dev], own)
        return found.with_threshold(best_threshold(probabilities, targets, table.names[dev].tolist()))

    first = fitted(own, both)
    if own is None or both is None:
        return first
    return fitted(as_judged(first, table.features[dev], own), as_judged(first, features, both))


def main() -> None:
    """Train and write the annotator."""

    parser = argparse.ArgumentParser(description="Train the embedded annotator.")
    parser.add_argument("--data", type=Path, required=True, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the annotator into")
    parser.add_argument("--work", type=Path, required=True, help="folder for what a next start goes on from")
    parser.add_argument("--sources", nargs="+", default=list(SOURCES))
    parser.add_argument("--embedder", default=None, help="hub id or path; the packaged MiniLM by default")
    parser.add_argument("--base", default=None, help="of the pair encoder: hub id or path; default as above")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not (args.data / "sentences").is_dir():
        parser.error(f"--data: expected a folder with sentences/ and binary/, found none in {args.data}")
    settings = Settings(args.data, tuple(args.sources), args.base, args.embedder, args.seed)
    train_annotator(settings, args.work).save_pretrained(args.output)
    log.info("wrote %s", args.output)


if __name__ == "__main__":
    main()


# ----------------------------------------------------------------------------------------------------
# The two sets of examples that the pair encoder learns from: edited sentences of documents, and people's labels.

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


# ----------------------------------------------------------------------------------------------------
# Train the pair encoder on examples: two heads, one loop, checkpoints from which it goes on.
#
# The label head learns four-way and two-way labels at once (``combiner.multitask_loss``), the token head learns which
# words are unsupported where that is known. Stages differ only in their examples, learning rate and passes.

encoder_training_log = logging.getLogger(__name__)
TOKEN_WEIGHT = 0.5
POSITIVE_TOKEN = 3.0
CHECKPOINT_STEPS = 250


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
    encoder: PairEncoder,
    pairs: Sequence[Pair],
    examples: Sequence[Example],
    numbers: Sequence[int],
    beside: np.ndarray | None,
) -> torch.Tensor:
    """Loss of one batch; with ``beside``, logits (n, 4) of another model, also that of the two added up."""
    batch = encoder.batch([pairs[i] for i in numbers])
    kind = encoder.device.split(":")[0]
    with torch.autocast(kind, torch.bfloat16, enabled=encoder.dtype == "bfloat16"):
        label_B4, token_BT = encoder.model(**batch)
    target_B = torch.tensor([examples[i].target for i in numbers], device=encoder.device)
    weight_B = torch.tensor([examples[i].weight for i in numbers], device=encoder.device)
    loss = multitask_loss(label_B4, target_B, weight_B)
    if beside is not None:
        other = torch.tensor(beside[list(numbers)], dtype=torch.float32, device=encoder.device)
        loss = 0.5 * loss + multitask_loss(label_B4 + other, target_B, weight_B)
    wanted = torch.full(token_BT.shape, -1.0)
    for row, i in enumerate(numbers):
        first = pairs[i].first
        wanted[row, first : first + len(pairs[i].offsets)] = torch.from_numpy(token_targets(pairs[i], examples[i]))
    wanted = wanted.to(encoder.device)
    known = (wanted >= 0) & batch["sentence_BT"]
    if known.any():
        each = binary_cross_entropy_with_logits(
            token_BT[known], wanted[known], pos_weight=torch.tensor(POSITIVE_TOKEN, device=encoder.device)
        )
        loss = loss + TOKEN_WEIGHT * each
    return loss


def train_stage(
    encoder: PairEncoder,
    examples: Sequence[Example],
    folder: Path,
    *,
    epochs: float,
    rate: float,
    batch: int = 32,
    seed: int = 0,
    beside: np.ndarray | None = None,
) -> None:
    """Train in place; the state is kept in ``folder`` every CHECKPOINT_STEPS steps and taken up again from there.

    Args:
        encoder: What is trained.
        examples: n rows.
        folder: For checkpoints; of this stage alone.
        epochs: Passes over the rows.
        rate: Highest learning rate; rises over the first 6 % of steps, then falls linearly to 0.
        batch: Rows of a step.
        seed: Of the order.
        beside: (n, 4) logits of another model to which the encoder's are to be added, or None.
    """
    pairs = encoder.pairs([(e.question, e.sentence, e.passages) for e in examples])
    lengths = [len(pair.ids) for pair in pairs]
    per_epoch = -(-len(examples) // batch)
    total = max(1, round(per_epoch * epochs))
    model = encoder.model
    body = [p for n, p in model.named_parameters() if p.requires_grad and n.startswith("base.")]
    heads = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("base.")]
    optimizer = torch.optim.AdamW([{"params": body, "lr": rate}, {"params": heads, "lr": 5 * rate}], weight_decay=0.01)
    highest = [group["lr"] for group in optimizer.param_groups]
    step = restore(model, folder, optimizer)
    encoder_training_log.info("%s: %d examples, %d steps from %d, %.0f tokens a row", folder.name, len(examples), total, step,
             float(np.mean(lengths)))  # fmt: skip
    started, running = time.monotonic(), 0.0
    for numbers in _steps(lengths, batch, seed, step, total):
        share = min((step + 1) / (0.06 * total + 1), max(0.0, (total - step) / (0.94 * total)))
        for group, top in zip(optimizer.param_groups, highest, strict=True):
            group["lr"] = top * share
        optimizer.zero_grad()
        loss = loss_of(encoder, pairs, examples, numbers, beside)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(body + heads, 1.0)
        optimizer.step()
        step += 1
        running += loss.item()
        if step % 50 == 0:
            encoder_training_log.info("%s: step %d of %d, loss %.3f, %.0f s", folder.name, step, total, running / 50,
                     time.monotonic() - started)  # fmt: skip
            running = 0.0
        if step % CHECKPOINT_STEPS == 0 or step == total:
            keep(model, optimizer, folder, step)
    model.eval()


def _steps(lengths: Sequence[int], size: int, seed: int, done: int, total: int) -> Iterator[list[int]]:
    at = 0
    epoch = 0
    while at < total:
        for numbers in batch_order(lengths, size, seed + epoch):
            if at >= total:
                return
            if at >= done:
                yield numbers
            at += 1
        epoch += 1


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


def restore(model: torch.nn.Module, folder: Path, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Take up what ``keep`` wrote, without an optimizer the weights alone; the step, 0 where there is nothing."""
    from safetensors import safe_open

    path = folder / "state.safetensors"
    if not path.is_file():
        return 0
    with safe_open(path, "pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        step = int(json.loads(stored.metadata()["step"]))
    model.load_state_dict(
        {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}, strict=False
    )
    if optimizer is None:
        return step
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, group, key = name.split(".", 2)
            state.setdefault(int(group), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


stages_log = logging.getLogger(__name__)
EDIT_SHARE, EDIT_WEIGHT = 0.5, 0.7
"""Of people's supported sentences in false versions beside people's labels: how many, and the weight of each."""
REPLAYED = 1500
"""Examples of the first stage in the second one, the first of its random order, so that what only they teach (who did
what) is not forgotten."""


@dataclass(frozen=True)
class Settings:
    """What a training run depends on.

    Args:
        data: Folder with sentences/, binary/ and spans/.
        sources: To train on.
        base: Of the pair encoder: hub id or folder; None for the packaged MiniLM.
        embedder: For windows and features, likewise.
        seed: Of everything drawn.
        edit_rate, label_rate: Highest learning rates of the encoder's two stages.
        edit_epochs, label_epochs: Passes over their examples.
        batch: Rows of a step.
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
    import torch

    work.mkdir(parents=True, exist_ok=True)
    test = FOLD_NAMES["test"]
    rows = [r for r in read_rows(settings.data) if r["fold"] not in test and usable(r, settings.sources)]
    train_rows = [row for row in rows if row["fold"] in FOLD_NAMES["train"]]
    idf = fit_idf(train_rows)
    idf = Idf(idf.table.astype(np.float16))  # as it is stored
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
    logits = np.zeros((len(rows), 4), np.float32)
    dev = np.flatnonzero(table.dev).tolist()
    logits[dev] = logits_of(encoder, [rows[i] for i in dev], [passages[i] for i in dev])
    edits = dev_edits(encoder, rows, passages, idf, embedder, work)
    combiner = fit_combiner(table, FOLD_NAMES["train"], seed=settings.seed)
    combiner = calibrate(combiner, table, logits, edits)
    stages_log.info("calibration: %s", {k: combiner.tensors[k].tolist() for k in CALIBRATION})
    return DiscriminativeAnnotator(combiner, idf, embedder, encoder=encoder, embedder_id=settings.embedder)


CALIBRATION = ("temperature", "bias", "threshold")


def train_labels(
    encoder: PairEncoder,
    table: Table,
    passages: Sequence[tuple[str, ...]],
    replayed: Sequence[Example],
    settings: Settings,
    folder: Path,
) -> None:
    """People's labels of the training folds, some of the synthetic rows and examples of stage 1, for the encoder."""
    train = np.flatnonzero(np.isin(table.folds, FOLD_NAMES["train"])).tolist()
    beside, extra_beside = unseen_logits(table, settings.seed)
    random = Random(settings.seed)
    kept = [i for i, row in enumerate(table.extra_rows) if row["label"] == "no_fact" or random.random() < EDIT_SHARE]
    rows = [table.rows[i] for i in train] + [made_row(table, i) for i in kept]
    weights = np.concatenate(
        [row_weights(table.names[train].tolist(), table.targets[train]), np.full(len(kept), EDIT_WEIGHT)]
    )
    texts = [passages[i] for i in train] + [passages[table.parents[i]] for i in kept]
    again = [replace(example, weight=EDIT_WEIGHT) for example in replayed]
    train_stage(
        encoder, [*labelled_examples(rows, texts, weights), *again], folder, epochs=settings.label_epochs,
        rate=settings.label_rate, batch=settings.batch, seed=settings.seed,
        beside=np.concatenate([beside[train], extra_beside[kept], np.zeros((len(again), 4), np.float32)]),
    )  # fmt: skip


def made_row(table: Table, number: int) -> dict[str, Any]:
    """A synthetic row; an edit carries the true sentence as its correction."""
    row, parent = table.extra_rows[number], table.rows[table.parents[number]]
    return {**row, "correction": None if row["label"] == "no_fact" else parent["sentence"]}


def logits_of(
    encoder: PairEncoder, rows: Sequence[Mapping[str, Any]], passages: Sequence[tuple[str, ...]]
) -> np.ndarray:
    """Logits (n, 4) of the encoder for rows and what it reads beside them."""
    examples = labelled_examples(rows, passages, np.ones(len(rows)))
    return encoder([(e.question, e.sentence, e.passages) for e in examples])[0]


def dev_edits(
    encoder: PairEncoder,
    rows: Sequence[Mapping[str, Any]],
    passages: Sequence[tuple[str, ...]],
    idf: Idf,
    embedder: Embedder,
    work: Path,
) -> Edits:
    """False edits of the development fold; their features are kept in ``work``."""
    made, parents = false_edits(rows, FOLD_NAMES["dev"])
    key = _digest(made, idf, embedder)
    cache = work / "edits.npz"
    features: np.ndarray | None = None
    if cache.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            if str(stored["key"]) == key:
                features = np.asarray(stored["features"])
    if features is None:
        features = read_windows(made, idf, embedder)[0]
        np.savez(cache, key=np.array(key), features=features)
    beside = logits_of(encoder, made, [passages[i] for i in parents])
    return Edits(features, np.array(parents, dtype=int), beside)


def _digest(rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder) -> str:
    digest = hashlib.sha256(f"{VERSION} {FEATURES} {EXCERPT_TOKENS} {LEAST_GAIN} {embedder.fingerprint}".encode())
    digest.update(idf.table.tobytes())
    for row in rows:
        digest.update(json.dumps([row["sentence"], row["reference"], row["question"]]).encode())
    return digest.hexdigest()


def unseen_logits(table: Table, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, 4) and (m, 4) of rows and synthetic rows by networks trained on the other training folds."""
    rows, extra = np.zeros((len(table.rows), 4), np.float32), np.zeros((len(table.extra_rows), 4), np.float32)
    for fold in FOLD_NAMES["train"]:
        combiner = fit_combiner(table, [f for f in FOLD_NAMES["train"] if f != fold], members=2, seed=seed)
        mine, made = table.folds == fold, table.folds[table.parents] == fold
        rows[mine], extra[made] = combiner.logits(table.features[mine]), combiner.logits(table.extra[made])
    return rows, extra


def windows(
    rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder, work: Path
) -> tuple[Table, list[tuple[str, ...]]]:
    """The table of all rows, and what the encoder reads beside each; kept in ``work``."""
    extra_rows, parents = synthetic(rows)
    key = _digest([*rows, *extra_rows], idf, embedder)
    cache, texts = work / "windows.npz", work / "windows.jsonl"
    features: np.ndarray | None = None
    if cache.is_file() and texts.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            if str(stored["key"]) == key:
                features = np.asarray(stored["features"])
    if features is None:
        features, read = read_windows([*rows, *extra_rows], idf, embedder)
        texts.write_text("".join(json.dumps(passages) + "\n" for passages in read[: len(rows)]), encoding="utf-8")
        np.savez(cache, key=np.array(key), features=features)
    passages = [tuple(json.loads(line)) for line in texts.read_text(encoding="utf-8").splitlines()]
    n = len(rows)
    return Table(rows, features[:n], extra_rows, features[n:], np.array(parents, dtype=int)), passages
