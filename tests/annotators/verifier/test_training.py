"""Training: rows and weights by hand, each stage learns and goes on where it was killed, the whole path learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from annotators import LABELS, load_annotator
from annotators.evaluation.splits import FOLD_NAMES
from annotators.verifier import training
from annotators.verifier.annotator import DiscriminativeAnnotator
from annotators.verifier.combiner import UNSUPPORTED
from annotators.verifier.encoder import PairEncoder
from annotators.verifier.synthetic import SMALL_TALK, Example
from annotators.verifier.training import SOURCES, Settings, train_annotator, train_stage
from engines.embedding import Embedder
from mitigate.io import UsageError
from mitigate.recipes.config import load_recipe, read_yaml, recipes_folder
from mitigate.recipes.embedded_annotator import Options, check
from tests.helpers.labelled_data import DATA, TRAINABLE
from tests.helpers.tiny_bert import save_tiny_bert


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT with MiniLM's tokenizer."""
    return save_tiny_bert(tmp_path_factory.mktemp("tiny"), 32)


def rows_of(label: str, n: int, fold: int | None = None) -> list[dict[str, Any]]:
    """Rows whose labels follow simple rules; without a fold each is of another document, so that all folds occur."""
    sentence = {
        "supported": "The bridge is {} and 134 metres long.",
        "contradictory": "The bridge is {} and 999 metres long.",
        "unverifiable": "Its keeper {} bred dogs in Wales.",
        "no_fact": "I like {} very much, do you?",
    }[label]
    words = "old grand steel famous big wide narrow busy quiet grey".split()
    reference = "The Alder Bridge was opened in May 1902. It is 134 metres long. Anna Berg designed it."
    own = [("", "") if fold is not None else (f" {i}", f" It has {i} arches.") for i in range(n)]
    return [
        {"id": f"{fold}{label}{i}", "source": "made", "lang": "en", "fold": fold, "label": label, "question": None,
         "reference": reference + more, "sentence": sentence.format(words[i % 10] + number)}
        for i, (number, more) in enumerate(own)
    ]  # fmt: skip


def test_row_weights_by_hand() -> None:
    # source a: 4 rows, 1 supported, 3 hallucinated; source b: 1 supported. power ½: a cell weighs 4^½ / its rows
    weights = training.row_weights(np.array(["a", "a", "a", "a", "b"]), np.array([0, 1, 2, UNSUPPORTED, 0]))
    raw = np.array([2 / 1, 2 / 3, 2 / 3, 2 / 3, 1.0])
    assert weights == pytest.approx(raw / raw.mean())


def test_best_threshold_balances_sources() -> None:
    # supported rows score 0.7, others 0.4 in both sources: any threshold in (0.4, 0.7] is perfect
    p = np.array([[0.7, 0.3, 0.0, 0.0], [0.4, 0.6, 0.0, 0.0]] * 2)
    chosen = training.best_threshold(p, np.array([0, 1, 0, 2]), np.array(["a", "a", "b", "b"]))
    assert 0.4 < chosen <= 0.7


def examples(n: int) -> list[Example]:
    """The sentence is supported where its number stands in the evidence."""
    made = []
    for i in range(n):
        true = i % 2 == 0
        number = 100 + i
        made.append(
            Example(
                "", f"It has {number if true else number + 500} rooms.", (f"The house has {number} rooms.",),
                0 if true else UNSUPPORTED, () if true else ((7, 10),), "made",
            )
        )  # fmt: skip
    return made


def test_training_learns_and_resumes(base: str, tmp_path: Path) -> None:
    def trained() -> PairEncoder:
        torch.manual_seed(3)
        encoder = PairEncoder(base, dtype="float32")
        train_stage(encoder, examples(64), tmp_path, epochs=12, rate=3e-3, batch=8)
        return encoder

    encoder = trained()
    logits, tokens = encoder([(e.question, e.sentence, e.passages) for e in examples(40)])
    chance = torch.tensor(logits).softmax(-1)[:, 0].numpy()
    assert chance[0::2].min() > 0.5 > chance[1::2].max()
    wrong = [max(p for a, b, p in t if a < 10 and b > 7) for t in tokens]
    assert np.mean(wrong[1::2]) > np.mean(wrong[0::2]) + 0.3
    state = tmp_path / "state.safetensors"
    before = state.stat().st_mtime_ns
    again = trained()  # complete: nothing is trained
    assert state.stat().st_mtime_ns == before
    for a, b in zip(encoder.model.parameters(), again.model.parameters(), strict=True):
        assert not a.requires_grad or torch.equal(a, b)


def test_interrupted_training_ends_the_same(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 2)

    def start(folder: Path) -> PairEncoder:
        torch.manual_seed(3)
        encoder = PairEncoder(base, dtype="float32")
        train_stage(encoder, examples(24), folder, epochs=2, rate=1e-3, batch=8)
        return encoder

    whole = start(tmp_path / "whole")
    loss_of, calls = training.loss_of, iter(range(5))

    def killed(*args: object) -> torch.Tensor:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return loss_of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "loss_of", killed)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut")
    monkeypatch.setattr(training, "loss_of", loss_of)
    resumed = start(tmp_path / "cut")
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert not a.requires_grad or torch.allclose(a, b, atol=1e-6)


def test_targets_by_hand(base: str) -> None:
    example = examples(2)[1]
    (pair,) = PairEncoder(base).pairs([("", example.sentence, example.passages)])
    wanted = training.token_targets(pair, example)
    hit = [a < 10 and b > 7 for a, b in pair.offsets.tolist()]
    assert wanted.tolist() == [float(h) for h in hit]
    unknown = Example("", example.sentence, example.passages, 2, None, "made")
    assert set(training.token_targets(pair, unknown).tolist()) == {-1.0}
    order = training.batch_order([5] * 10, 4, seed=0)
    assert sorted(i for numbers in order for i in numbers) == list(range(10))


def test_examples_of_labels_and_files(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"label": "supported", "source": "summedits", "sentence": "It is long.", "question": None},
        {"label": "unsupported", "source": "summedits", "sentence": "It is short.", "question": "How long?",
         "correction": "It is long."},
        {"label": "unsupported", "source": "begin", "sentence": "It is red.", "question": None},
    ]  # fmt: skip
    made = training.labelled_examples(rows, [("a",), ("b", "c"), ()], np.array([1.0, 2.0, 3.0]))
    assert [e.spans for e in made] == [(), ((6, 11),), None]
    assert [e.target for e in made] == [0, UNSUPPORTED, UNSUPPORTED]
    assert made[1] == Example("How long?", "It is short.", ("b", "c"), UNSUPPORTED, ((6, 11),), "summedits", 2.0)
    training.write_examples(made, tmp_path / "e.jsonl")
    assert training.read_examples(tmp_path / "e.jsonl") == made


def test_synthetic_rows_come_from_training_folds_only() -> None:
    rows = [row for fold in range(5) for row in rows_of("supported", 4, fold)]
    extra, parents = training.synthetic(rows)
    talk = [row for row in extra if row["label"] == "no_fact"]
    edits = extra[: len(extra) - len(talk)]
    assert len(parents) == len(extra)
    assert len(edits) == 12
    assert {rows[i]["fold"] for i in parents} == {2, 3, 4}
    assert {row["label"] for row in edits} == {"contradictory"}
    assert all(new["reference"] == rows[i]["reference"] for new, i in zip(extra, parents, strict=True))
    assert len(talk) == training.TALK_REFERENCES * len(SMALL_TALK)
    assert not any("{" in row["sentence"] for row in talk)
    assert training.synthetic(rows) == (extra, parents)


def test_the_whole_path_learns(tmp_path: Path) -> None:
    """Made-up rows whose labels follow simple rules: after training, unseen rows of fold 1 are judged right."""
    rows = [row for fold in (1, 2, 3, 4) for label in LABELS for row in rows_of(str(label), 15, fold)]
    embedder = Embedder(dtype="float32")
    idf = training.fit_idf([row for row in rows if row["fold"] != 1])
    table, passages = training.windows(rows, idf, embedder, tmp_path)
    again, same = training.windows(rows, idf, embedder, tmp_path)
    assert np.array_equal(table.features, again.features)
    assert passages == same
    assert len(passages) == len(rows)
    assert all(text in row["reference"] for row, texts in zip(rows, passages, strict=True) for text in texts)
    combiner = training.calibrate(training.fit_combiner(table, FOLD_NAMES["train"]), table, None, None)
    annotator = DiscriminativeAnnotator(combiner, idf, embedder)
    unseen = [row for row in rows if row["fold"] == 1]
    right = [a.label == row["label"] for a, row in zip(annotator.predict(unseen), unseen, strict=True)]
    assert np.mean(right) > 0.8
    assert 0.5 <= float(combiner.tensors["threshold"]) <= 0.8


def test_sources_are_the_english_trainable_ones() -> None:
    assert set(SOURCES) == TRAINABLE - {"uhgeval", "kdconv", "wice_tokens"}


@pytest.mark.slow
def test_fold_0_shares_no_text_with_other_folds() -> None:
    if not (DATA / "sentences").is_dir():
        pytest.skip("skipped: data not here")
    rows = [row for row in training.read_rows(DATA) if training.usable(row, SOURCES)]
    assert {row["source"] for row in rows} == set(SOURCES)
    for text in ("reference", "sentence"):
        seen = {row[text] for row in rows if row["fold"] == 0}
        assert seen
        assert not seen & {row[text] for row in rows if row["fold"] != 0}


def test_a_run_writes_an_annotator_and_goes_on(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base", 16)
    (tmp_path / "data" / "sentences").mkdir(parents=True)
    rows = [row for label in LABELS for row in rows_of(str(label), 24)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "data" / "sentences" / "made.dev.jsonl").write_text(text, encoding="utf-8")
    settings = Settings(tmp_path / "data", ("made",), base=base, edit_epochs=0.5, label_epochs=0.2)
    work = tmp_path / "work"
    annotator = train_annotator(settings, work)
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    assert {path.name for path in files} == {
        "edited.jsonl", "windows.npz", "windows.jsonl", "edits.npz", "state.safetensors",
    }  # fmt: skip
    again = train_annotator(settings, work)  # everything is there already
    assert again.fingerprint == annotator.fingerprint
    assert {path: path.stat().st_mtime_ns for path in files} == files

    labels, edits = work / "labels" / "state.safetensors", work / "edits.npz"
    learned = labels.read_bytes()
    labels.unlink()  # as killed before the labels' first checkpoint: the encoder has learned from edits alone
    edits.unlink()
    again = train_annotator(settings, work)
    assert again.fingerprint == annotator.fingerprint
    assert labels.read_bytes() == learned
    assert {path: path.stat().st_mtime_ns for path in files if path not in (labels, edits)} == {
        path: stamp for path, stamp in files.items() if path not in (labels, edits)
    }
    annotator.save_pretrained(tmp_path / "mine")
    loaded = load_annotator(str(tmp_path / "mine"))
    assert loaded.fingerprint == annotator.fingerprint
    (judged,) = loaded.predict([{"reference": "The mill has 3 wheels.", "sentence": "The mill has 3 wheels."}])
    assert judged.status == "checked"


def test_the_recipe_states_the_defaults() -> None:
    """The recipe's values are the defaults of the run and of the task."""
    data = read_yaml(recipes_folder() / "annotators" / "embedded.yaml")
    options = Options.model_validate(data)
    defaults = Settings(options.data, SOURCES)
    assert tuple(options.sources) == SOURCES
    assert (options.base, options.embedder, options.seed, options.batch) == (None, None, 0, defaults.batch)
    assert (options.edits.rate, options.edits.epochs) == (defaults.edit_rate, defaults.edit_epochs)
    assert (options.labels.rate, options.labels.epochs) == (defaults.label_rate, defaults.label_epochs)
    bare = {k: data[k] for k in ("task", "about", "hardware", "data", "sources")}
    assert Options.model_validate(bare).model_dump() == {**options.model_dump(), "minutes": None}


def test_missing_data_is_named(tmp_path: Path) -> None:
    data = {**read_yaml(recipes_folder() / "annotators" / "embedded.yaml"), "data": str(tmp_path)}
    with pytest.raises(UsageError, match=r"expected a folder with sentences/ and binary/.*has no sentences/"):
        check(Options.model_validate(data))
    with pytest.raises(UsageError, match="unknown key 'sead'; did you mean 'seed'"):
        load_recipe("annotators/embedded", ["sead=1"])
