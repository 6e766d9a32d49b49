"""The training run of the verifier: pairs, then edits and human labels; every stage is kept and read again.

    1. pairs.jsonl, pairs/      labelled pairs of evidence and claim: what follows from a text and what does not
    2. edits.jsonl              sentences of documents and people's supported ones, reworded, half of them made false
    3. labels.jsonl, labels/    human labels, with edits and some of the pairs mixed in, so that both stay learned
    4. further/                 the labels with more edits and pairs, by a teacher's verdicts if there is one, and
                                sentences about written texts

``mitigate train annotators/embedded`` runs it. Folds 2 to 4 train, fold 1 chooses, fold 0 is not read beyond its fold
number; pairs that share a text with folds 0 and 1 are left out. Three losses: of the verdict, of the order within a
case (the same claim, with and without support), and of the tokens where it is known which of them lack support. Where a
teacher was asked, what it says replaces the first two (Hinton et al. 2015, section 2, at a temperature of 1).
After the last stage weights are the mean of those before and after it, which judge better than either (Wortsman et al.
2022, section 3).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, logsigmoid, softplus

from annotators.base import Sentence
from annotators.evaluation.splits import FOLD_NAMES, group_rows
from annotators.operating import equal_weights, fit_calibration
from annotators.text.language import stated
from annotators.text.normalise import clean_text
from annotators.verifier import data
from annotators.verifier.annotator import DiscriminativeAnnotator, stored, unjudgeable
from annotators.verifier.data import NO_FACT, SUPPORTED, Example, Further, Row, Settings
from annotators.verifier.model import Input, Verifier, packs_of
from annotators.verifier.synthetic import Maker, proper, talk

log = logging.getLogger(__name__)
TOKEN_WEIGHT, POSITIVE_TOKEN = 0.5, 3.0
"""Weight of the token head's loss, and in it of unsupported tokens, which are few."""
RANK_WEIGHT, MARGIN = 0.5, 1.0
LARGEST, POOL = 24, 2000  # examples of a case that stay together; groups that are sorted by length at once
PART = 512  # sentences that a teacher judges between two files
MAX_PASSAGES = 150  # passages of a document that edited sentences are made from
EDIT_TOKENS = 128  # evidence beside an edited sentence
CHECKPOINT_STEPS = 25


class CannotTrainError(ValueError):
    """There is nothing to learn from, or no teacher."""


def train_annotator(settings: Settings, work: Path) -> DiscriminativeAnnotator:
    """Train, going on from what an earlier start with the same settings left in ``work``; CannotTrainError where no
    labelled sentence can be learned, the teacher is not there, or what is started with has another base.
    """
    rows = data.read_rows(settings.data)
    train = [row for row in rows if row["fold"] in FOLD_NAMES["train"] and usable(row, settings)]
    if not train:
        raise CannotTrainError(
            f"expected labelled sentences to learn below {settings.data}, found none that are of the sources "
            f"{', '.join(settings.sources)} and can be judged with languages "
            f"{settings.languages and tuple(settings.languages)}; name others"
        )
    if unknown := sorted({*settings.sources} - {row["source"] for row in rows}):
        raise CannotTrainError(f"sources: no row below {settings.data} is of {', '.join(unknown)}")
    further = settings.further
    teacher = None if further is None or further.teacher is None else teacher_of(further.teacher)
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    verifier = Verifier(settings.base, layers=settings.layers, lora=settings.lora)
    if settings.start is not None:
        start_with(verifier, settings.start)
    held_out = [row for row in rows if row["fold"] not in FOLD_NAMES["train"]]
    read = data.read_pairs(settings.data, settings.pair_sources, held_out)
    pairs = kept(work / "pairs.jsonl", lambda: data.pair_examples(read, settings.seed))
    learned = [example for example in pairs if not watched(example)]
    stage = partial(train_stage, verifier, tokens=settings.tokens)
    if settings.start is None:
        stage(learned, work / "pairs", epochs=settings.pairs.epochs, rate=settings.pairs.rate, seed=settings.seed)
        labels = kept(
            work / "labels.jsonl", lambda: data.labelled_examples(train, verifier.tokenize, settings.evidence_tokens)
        )
        edits = kept(work / "edits.jsonl", lambda: edited_examples(train, settings, verifier))
        mixed = mixture(labels, edits, learned, settings)
        stage(mixed, work / "labels", epochs=1.0, rate=settings.labels.rate, seed=settings.seed)
    if further is not None:
        before = {name: p.detach().clone() for name, p in verifier.trained.items()}
        more = further_examples(teacher, verifier, settings, further, train, learned, work / "further")
        stage(more, work / "further", epochs=further.epochs, rate=further.rate, seed=settings.seed + 1)
        for name, parameter in verifier.trained.items():
            parameter.data.lerp_(before[name], 0.5)
    stored_one = Verifier(verifier.base, verifier.packed(), layers=verifier.layers, lora=verifier.lora)  # for judging
    annotator = DiscriminativeAnnotator(
        stored_one, languages=settings.languages, evidence_tokens=settings.evidence_tokens,
        narrow_tokens=settings.narrow_tokens,
    )  # fmt: skip
    dev = [row for row in rows if row["fold"] in FOLD_NAMES["dev"] and usable(row, settings)]
    return with_operating_point(annotator, dev)


def with_operating_point(annotator: DiscriminativeAnnotator, rows: Sequence[Row]) -> DiscriminativeAnnotator:
    """The annotator with thresholds fitted on labelled rows, every source alike; as it is where rows are too few."""
    judged = annotator.predict(rows)
    try:
        found = fit_calibration(
            [s.scores for s in judged], [s.label for s in judged], [row["label"] for row in rows], group_rows(rows),
            annotator=annotator.fingerprint, weights=equal_weights([row["source"] for row in rows]), name="default",
        )  # fmt: skip
    except ValueError as error:
        log.warning("no operating point: %s", error)
        return annotator
    log.info("operating point: %s", {name: figure["value"] for name, figure in found.report["table"].items()})
    return annotator.calibrated(found)


def start_with(verifier: Verifier, name: str) -> None:
    """Put the weights of a trained annotator into an untrained verifier; CannotTrainError where they are not of it."""
    from safetensors.torch import load_file

    folder, saved = stored(name)
    wanted, own = (saved.base, saved.layers, saved.lora), (verifier.base, verifier.layers, verifier.lora)
    if wanted != own:
        raise CannotTrainError(f"start: expected base, layers and lora as {name} has them, {wanted}, got {own}")
    verifier.take(load_file(folder / "verifier.safetensors"))


def teacher_of(name: str) -> DiscriminativeAnnotator:
    """The annotator that teaches; CannotTrainError where it can't be loaded, or another one stands in for it, since its
    base could not be fetched."""
    try:
        teacher = DiscriminativeAnnotator.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise CannotTrainError(f"teacher: {error}") from error
    if teacher.name != name:
        raise CannotTrainError(f"teacher: expected {name}, got {teacher.name} in its place; see the warning above")
    return teacher


def further_examples(
    teacher: DiscriminativeAnnotator | None, pupil: Verifier, settings: Settings, further: Further,
    rows: Sequence[Row], pairs: Sequence[Example], folder: Path,
) -> list[Example]:  # fmt: skip
    """Labelled, edited and paired examples, which a teacher judges part by part, beside its own windows, and those of
    written texts, whose labels are better than what it says."""
    verifier, budget = pupil, settings.evidence_tokens
    if teacher is not None:
        verifier, budget = teacher.verifier, teacher.evidence_tokens
    written = data.text_examples(further.texts)
    most = len(rows) if further.labels is None else min(further.labels, len(rows))
    pool = [
        *data.labelled_examples(Random(settings.seed).sample(rows, most), verifier.tokenize, budget),
        *edited_examples(rows, settings.model_copy(update={"edited": further.edits}), verifier),
        *mixture((), (), pairs, settings.model_copy(update={"replayed": further.pairs})),
        *written,
    ]
    chosen = sorted(np.random.default_rng(settings.seed).permutation(len(pool))[: further.examples].tolist())
    folder.mkdir(exist_ok=True)

    def judged(numbers: Sequence[int]) -> list[Example]:
        part = [pool[i] for i in numbers]
        if teacher is None:
            return part
        asked = [n for n, i in enumerate(numbers) if i < len(pool) - len(written)]
        records = [{"question": part[n].question, "reference": " ".join(part[n].passages)} for n in asked]
        sentences = [part[n].sentence for n in asked]
        found = teacher.verdicts([Sentence(s, 0, s, r) for s, r in zip(sentences, records, strict=True)])
        for n, verdict in zip(asked, found, strict=True):
            part[n] = replace(part[n], taught=tuple(verdict.probabilities.tolist()))
        return part

    parts = {f"{at:06d}.jsonl": chosen[at : at + PART] for at in range(0, len(chosen), PART)}
    return [e for name, numbers in parts.items() for e in kept(folder / name, partial(judged, numbers))]


def kept(path: Path, make: Callable[[], list[Example]]) -> list[Example]:
    """The examples that an earlier start wrote, or that are made and written now."""
    if not path.is_file():
        data.write_examples(make(), path)
    examples = data.read_examples(path)
    log.info("%s: %d examples", path.name, len(examples))
    return examples


def watched(example: Example) -> bool:
    """Whether a pair is of the fortieth of cases that is not learned: shipped weights were trained without them."""
    return int(hashlib.sha256(example.case.encode()).hexdigest(), 16) % 40 == 0


def usable(row: Row, settings: Settings) -> bool:
    """Whether a row is of a named source, in one of the languages, and can be judged."""
    if row["source"] not in settings.sources or stated(row) not in (settings.languages or (stated(row),)):
        return False
    return unjudgeable(clean_text(row["sentence"]), row["reference"] or "", settings.languages, stated(row)) is None


def edited_examples(rows: Sequence[Row], settings: Settings, verifier: Verifier) -> list[Example]:
    """Sentences of documents and supported ones of ``rows``, reworded, half of them made false; and small talk.

    Only English rows are taken, which the rules of editing are for. Documents are their references and those of
    ``documents/``. Shuffled, so that a part of them is a fair sample.
    """
    rows = [row for row in rows if stated(row) == "en"]
    documents: dict[str, tuple[list[str], str, str]] = {}  # by their text: sentences, question, source
    for row in rows:
        if row["reference"] not in documents:
            sentences = data.sentences_of(row["reference"])[:MAX_PASSAGES]
            documents[row["reference"]] = sentences, clean_text(row["question"] or ""), row["source"]
    for path in sorted((settings.data / "documents").glob("*.jsonl")):
        for text in (row["text"] for row in data.json_lines(path)):
            documents[text] = data.sentences_of(text.replace("\n", " ")), "", path.stem
    prose = [s for sentences, _, _ in documents.values() for s in sentences if proper(s)]
    maker = Maker(prose)
    made: list[Example] = []
    for name, (sentences, question, source) in sorted(documents.items()):
        made += maker.of_document(sentences, question, source, Random(f"{settings.seed} {name[:200]}"))
        made += maker.of_roles(sentences, source, Random(f"{settings.seed} {name[:200]} roles"))
    for row in rows:
        if row["label"] == "supported":
            bare = {**row, "sentence": clean_text(row["sentence"]), "question": clean_text(row["question"] or "")}
            sentences = documents[row["reference"]][0]
            made += maker.of_supported(bare, sentences, Random(f"{settings.seed} {row['id']}"))
    made = [example for example in made if example.passages]
    random = Random(settings.seed)
    place = {case: random.random() for case in sorted({example.case for example in made})}
    made = sorted(made, key=lambda example: place[example.case])[: settings.edited]  # cases together
    passages = data.windows([(" ".join(e.passages), e.sentence) for e in made], verifier.tokenize, EDIT_TOKENS)
    made = [replace(example, passages=found) for example, found in zip(made, passages, strict=True)]
    questions = [clean_text(row["question"]) for row in rows if row["question"]]
    return made + talk(questions, passages[:500], random)


def mixture(
    labels: Sequence[Example], edits: Sequence[Example], pairs: Sequence[Example], settings: Settings
) -> list[Example]:
    """Human labels as often as ``labels.epochs`` says, all edits, and cases of pairs that hold three-way labels, so
    that contradiction, which few human labels are about, is not unlearned.
    """
    random = Random(f"mixture {settings.seed}")
    cases: dict[str, list[Example]] = defaultdict(list)
    for example in pairs:
        cases[example.case].append(example)
    telling = [rows for rows in cases.values() if len({row.target for row in rows}) > 1]
    random.shuffle(telling)
    replayed = list(islice(chain.from_iterable(telling), settings.replayed))
    times = range(int(settings.labels.epochs))
    return [*(replace(e, case=e.case and f"{e.case} {n}") for n in times for e in labels), *edits, *replayed]


def verdict_loss(logits_B4: torch.Tensor, target_B: torch.Tensor) -> torch.Tensor:
    """(B,) −log P(target) under ``model.probabilities``; P(unsupported) is that of both hallucinations."""
    log_p = log_softmax(logits_B4[:, :3], -1)
    both = torch.logaddexp(log_p[:, 1], log_p[:, 2])
    stated = torch.cat([log_p, torch.zeros_like(both[:, None]), both[:, None]], 1)  # column 3: no fact states none
    of_target = stated.gather(1, target_B[:, None])[:, 0]
    none = torch.where(target_B == NO_FACT, logsigmoid(logits_B4[:, 3]), logsigmoid(-logits_B4[:, 3]))
    return -(of_target + none)


def taught_loss(logits_B4: torch.Tensor, taught_B4: torch.Tensor) -> torch.Tensor:
    """(B,) the cross-entropy to a teacher of the three verdicts, given that there is a fact, plus that of "no fact";
    ``taught_B4`` are the teacher's probabilities (``model.probabilities``)."""
    none = taught_B4[:, 3]
    verdict_B3 = taught_B4[:, :3] / taught_B4[:, :3].sum(1, keepdim=True).clamp(min=1e-9)
    of_verdict = (verdict_B3 * log_softmax(logits_B4[:, :3], -1)).sum(1)
    of_none = none * logsigmoid(logits_B4[:, 3]) + (1 - none) * logsigmoid(-logits_B4[:, 3])
    return -(of_verdict + of_none)


def rank_loss(logits_B4: torch.Tensor, target_B: torch.Tensor, cases: Sequence[str]) -> torch.Tensor:
    """The mean of softplus(MARGIN − (s_i − s_j)) over pairs of one case with i supported and j not; 0 without one; s is
    the log-odds of "supported" among the three verdicts.
    """
    log_p = log_softmax(logits_B4[:, :3], -1)
    score = log_p[:, 0] - torch.logaddexp(log_p[:, 1], log_p[:, 2])
    number = {"": 0}  # cases are long texts, which numpy is slow to compare
    case = np.array([number.setdefault(name, len(number)) for name in cases], dtype=np.int64)
    target = target_B.cpu().numpy()
    false = (target != SUPPORTED) & (target != NO_FACT)
    first, second = np.nonzero((case[:, None] == case) & (case > 0) & (target == SUPPORTED)[:, None] & false)
    if not len(first):
        return score.sum() * 0.0
    return softplus(MARGIN - (score[first] - score[second])).mean()


def token_targets(read: Input, example: Example) -> np.ndarray:
    """(_S,) 1 on tokens of unsupported words, 0 on others, −1 where it is not known."""
    if example.spans is None:
        return np.full(len(read.offsets), -1.0, np.float32)
    wrong = np.zeros(len(read.offsets), np.float32)
    for a, b in example.spans:
        wrong[(read.offsets[:, 0] < b) & (read.offsets[:, 1] > a)] = 1.0
    return wrong


def batch_order(inputs: Sequence[Input], cases: Sequence[str], tokens: int, seed: int) -> list[list[list[int]]]:
    """Random batches of rows of like length, at most ``tokens`` padded tokens; a case stays together, and its examples
    share a row where they begin alike (``packs_of``)."""
    random = Random(seed)
    of_case: dict[str, list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        of_case[case or f" {i}"].append(i)
    groups: list[tuple[list[list[int]], int]] = []  # rows, tokens of the longest one
    for members in of_case.values():
        members.sort(key=lambda i: len(inputs[i].ids))
        for at in range(0, len(members), LARGEST):
            part = members[at : at + LARGEST]
            rows = [[part[k] for k in pack] for pack in packs_of([inputs[i] for i in part])]
            groups.append((rows, max(Verifier.length_of([inputs[i] for i in row]) for row in rows)))
    random.shuffle(groups)
    batches: list[list[list[int]]] = []
    for at in range(0, len(groups), POOL):
        batch: list[list[int]] = []
        for rows, width in sorted(groups[at : at + POOL], key=lambda group: group[1]):
            if batch and width * (len(batch) + len(rows)) > tokens:
                batches.append(batch)
                batch = []
            batch = batch + rows
        batches.append(batch)
    random.shuffle(batches)
    return batches


def loss_of(verifier: Verifier, rows: Sequence[Sequence[Input]], examples: Sequence[Example]) -> torch.Tensor:
    """The loss of one batch: inputs in the rows that they share, and the example of each."""
    device = verifier.device
    batch = verifier.batch(rows, -(-max(map(verifier.length_of, rows)) // 8) * 8)
    with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=verifier.dtype == "bfloat16"):
        label_B4, token_NT = verifier.network(**batch)
    target_B = torch.tensor([example.target for example in examples], device=device)
    weight_B = torch.tensor([example.weight for example in examples], device=device)
    taught_B4 = torch.tensor([example.taught or (0.0,) * 4 for example in examples], device=device)
    taught_B = torch.tensor([example.taught is not None for example in examples], device=device)
    loss_B = torch.where(taught_B, taught_loss(label_B4, taught_B4), verdict_loss(label_B4, target_B))
    loss = (loss_B * weight_B).sum() / weight_B.sum().clamp(min=1e-9)
    cases = [example.case if example.taught is None else "" for example in examples]
    loss = loss + RANK_WEIGHT * rank_loss(label_B4, target_B, cases)
    targets = [token_targets(read, e) for read, e in zip(chain.from_iterable(rows), examples, strict=True)]
    wanted = torch.from_numpy(np.concatenate(targets)).to(device)
    known = wanted >= 0
    if known.any():
        positive, said = torch.tensor(POSITIVE_TOKEN, device=device), token_NT[batch["sentence_NT"]]
        loss = loss + TOKEN_WEIGHT * binary_cross_entropy_with_logits(said[known], wanted[known], pos_weight=positive)
    return loss


def train_stage(
    verifier: Verifier, examples: Sequence[Example], folder: Path, *, epochs: float, rate: float, tokens: int = 4096,
    seed: int = 0,
) -> None:  # fmt: skip
    """Train in place; the state is kept in ``folder`` every CHECKPOINT_STEPS steps and taken up again from there.

    ``rate`` is reached over the first 4 % of steps and then falls linearly to 0; heads learn five times as fast, since
    they start from nothing.
    """
    body = [p for name, p in verifier.trained.items() if name.startswith("base.")]
    heads = [p for name, p in verifier.trained.items() if not name.startswith("base.")]
    optimizer = torch.optim.AdamW([{"params": body, "lr": rate}, {"params": heads, "lr": 5 * rate}], weight_decay=0.01)
    step, finished = restore(verifier, optimizer, folder)
    if finished:
        return
    if not examples:
        raise CannotTrainError(f"{folder.name}: expected examples to learn from, got none; name more sources or data")
    inputs = verifier.inputs([(e.question, e.sentence, e.passages) for e in examples])
    name, lengths, cases = folder.name, [len(read.ids) for read in inputs], [e.case for e in examples]
    total = max(1, round(len(batch_order(inputs, cases, tokens, seed)) * epochs))
    mean = np.mean(lengths)
    log.info("%s: %d examples, %d steps from %d, %.0f tokens a row", name, len(examples), total, step, mean)
    order = chain.from_iterable(batch_order(inputs, cases, tokens, seed + epoch) for epoch in count())
    started, running, seen = time.monotonic(), 0.0, 0
    for rows in islice(order, step, total):
        share = min((step + 1) / (0.04 * total + 1), max(0.0, (total - step) / (0.96 * total)))
        for group, top in zip(optimizer.param_groups, (rate, 5 * rate), strict=True):
            group["lr"] = top * share
        optimizer.zero_grad()
        numbers = [i for row in rows for i in row]
        loss = loss_of(verifier, [[inputs[i] for i in row] for row in rows], [examples[i] for i in numbers])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(body + heads, 1.0)
        optimizer.step()
        step += 1
        running += loss.item()
        seen += sum(lengths[i] for i in numbers)
        if step % 50 == 0:
            speed = seen / (time.monotonic() - started)
            log.info("%s: step %d of %d, loss %.3f, %.0f tokens/s", name, step, total, running / 50, speed)
            running = 0.0
        if step % CHECKPOINT_STEPS == 0 or step == total:
            keep(verifier, optimizer, folder, step, step == total)


def keep(verifier: Verifier, optimizer: torch.optim.Optimizer, folder: Path, step: int, finished: bool) -> None:
    """Write parameters, optimizer state and step; the last complete state survives a kill."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": p.detach() for name, p in verifier.trained.items()}
    for group, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{group}.{k}": torch.as_tensor(v) for k, v in values.items()}
    part = folder / "state.part"
    save_file(
        {k: v.clone().contiguous() for k, v in tensors.items()}, part, metadata={"step": json.dumps([step, finished])}
    )
    part.replace(folder / "state.safetensors")


def restore(verifier: Verifier, optimizer: torch.optim.Optimizer, folder: Path) -> tuple[int, bool]:
    """Take up what ``keep`` wrote; the step, 0 where there is nothing, and whether it was the last one."""
    from safetensors import safe_open

    path = folder / "state.safetensors"
    if not path.is_file():
        return 0, False
    state: dict[int, dict[str, torch.Tensor]] = {}
    weights: dict[str, torch.Tensor] = {}
    with safe_open(path, "pt") as stored:
        step, finished = json.loads(stored.metadata()["step"])
        for name in stored.keys():  # noqa: SIM118
            kind, rest = name.split(".", 1)
            if kind == "model":
                weights[rest] = stored.get_tensor(name)
            else:
                group, key = rest.split(".")
                state.setdefault(int(group), {})[key] = stored.get_tensor(name)
    verifier.network.load_state_dict(weights, strict=False)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step, finished
