"""Training: losses by hand, each stage learns and goes on where it was killed, the whole run writes an annotator."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from annotators import LABELS, load_annotator
from annotators.verifier import data, training
from annotators.verifier.annotator import DiscriminativeAnnotator
from annotators.verifier.data import UNSUPPORTED, Example, Further, Settings, read_examples
from annotators.verifier.model import Input, Verifier
from annotators.verifier.training import train_annotator, train_stage
from mitigate.io import UsageError
from mitigate.recipes.config import load_recipe, read_yaml, recipes_folder
from mitigate.recipes.embedded_annotator import Options, check, run
from mitigate.recipes.folder import RunFolder
from tests.helpers.jsonl import write_rows
from tests.helpers.tiny_models import save_decoder, save_tiny_bert


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_bert(tmp_path_factory.mktemp("tiny"), 32)


def test_verdict_loss_by_hand() -> None:
    log = math.log
    logits = torch.tensor([[log(2), 0.0, 0.0, log(1 / 3)]] * 5)  # P: 1/2, 1/4, 1/4 of what is stated; P(no fact) 1/4
    for target, p in ((0, 1 / 2 * 3 / 4), (1, 1 / 4 * 3 / 4), (3, 1 / 4), (UNSUPPORTED, 1 / 2 * 3 / 4)):
        loss = training.verdict_loss(logits[:1], torch.tensor([target]))
        assert float(loss) == pytest.approx(-log(p), abs=1e-5)


def test_rank_loss_by_hand() -> None:
    # log-odds of "supported": 0 for the first (1/2 against 1/4 + 1/4), log(1/2) for the second (1/3 against 2/3)
    logits = torch.tensor([[math.log(2), 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = math.log1p(math.exp(training.MARGIN - math.log(2)))
    assert float(training.rank_loss(logits, torch.tensor([0, 1]), ["a", "a"])) == pytest.approx(expected, abs=1e-5)
    for targets, cases in (([0, 1], ["a", "b"]), ([0, 0], ["a", "a"]), ([0, 1], ["", ""]), ([0, 3], ["a", "a"])):
        assert float(training.rank_loss(logits, torch.tensor(targets), cases)) == 0.0


def reading(length: int, evidence: int = 0) -> Input:
    """``length`` tokens; before a language model the first 8 of them are those of one ``evidence``."""
    ids = np.arange(length) + 100 * evidence
    return Input(ids, np.zeros(length, np.int64), length - 2, np.zeros((2, 2), np.int64), 8 if evidence else 0)


def test_batches_keep_cases_and_the_budget() -> None:
    inputs = [reading(10 + 7 * (i % 5)) for i in range(60)]
    cases = [f"case {i // 3}" if i < 30 else "" for i in range(60)]
    batches = training.batch_order(inputs, cases, 200, seed=1)
    assert sorted(row for batch in batches for row in batch) == [[i] for i in range(60)]
    assert all(max(len(inputs[i].ids) for (i,) in batch) * len(batch) <= 200 for batch in batches)
    of = {i: n for n, batch in enumerate(batches) for (i,) in batch}
    assert all(len({of[i] for i in range(a, a + 3)}) == 1 for a in range(0, 30, 3))
    assert training.batch_order(inputs, cases, 200, seed=2) != batches


def test_batches_count_shared_evidence_once() -> None:
    """Each case is one row of 8 shared tokens and 4 · (12 − 8): 24, so eight are 192 tokens; alone they were 384."""
    inputs = [reading(12, 1 + i // 4) for i in range(64)]
    batches = training.batch_order(inputs, [f"{i // 4}" for i in range(64)], 192, seed=1)
    assert [len(batch) for batch in batches] == [8, 8]
    rows = sorted(sorted(row) for batch in batches for row in batch)
    assert rows == [list(range(at, at + 4)) for at in range(0, 64, 4)]
    ((text,),) = training.batch_order([reading(12, 1)] * 23, ["one"] * 23, 999, seed=1)  # all about a written text
    assert sorted(text) == list(range(23))
    alone = training.batch_order(inputs, [""] * 64, 192, seed=1)  # only what is of one case shares a row
    assert [len(batch) for batch in alone] == [16, 16, 16, 16]


def test_sharing_a_row_changes_neither_loss_nor_gradients(tmp_path: Path) -> None:
    torch.manual_seed(1)
    verifier = Verifier(str(save_decoder(tmp_path)), dtype="float32")
    told = ("The mill has three wheels.", "It was built in 1902."), ("The house is red.",)
    said = (("It has 3 wheels.", 0, ()), ("It has four.", 1, ((7, 11),)), ("It is new.", 2, None), ("Red.", 0, ()))
    made = [
        Example("", text, told[n == 3], target, spans, "made", 1.0 + n, "ab"[n == 3])
        for n, (text, target, spans) in enumerate(said)
    ]
    reads = verifier.inputs([(e.question, e.sentence, e.passages) for e in made])
    found = []
    for rows in ([[0, 1, 2], [3]], [[0], [1], [2], [3]]):
        verifier.network.zero_grad()
        loss = training.loss_of(verifier, [[reads[i] for i in row] for row in rows], made)
        loss.backward()
        grads = [p.grad.flatten() for p in verifier.network.parameters() if p.grad is not None]
        found.append((loss.item(), torch.cat(grads)))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-4)
    assert found[0][1].abs().max() > 1e-2


def examples(n: int) -> list[Example]:
    made = []
    for i in range(n):
        target, spans, said = ((0, (), 100 + i), (UNSUPPORTED, ((7, 10),), 600 + i))[i % 2]
        evidence = (f"The house has {100 + i} rooms.",)
        made.append(Example("", f"It has {said} rooms.", evidence, target, spans, "made", 1.0, f"{i // 2}"))
    return made


def test_an_adapter_learns_in_bfloat16(base: str) -> None:
    torch.manual_seed(3)
    verifier = Verifier(base, lora=4, dtype="bfloat16")
    rows = examples(8)
    texts = [(e.question, e.sentence, e.passages) for e in rows]
    for _ in range(2):  # at first B is 0, and A learns nothing
        verifier.network.zero_grad()
        training.loss_of(verifier, [[read] for read in verifier.inputs(texts)], rows).backward()
        with torch.no_grad():
            for parameter in verifier.network.parameters():
                if parameter.requires_grad:
                    assert parameter.dtype == torch.float32
                    parameter -= 0.1 * parameter.grad
    learned = {
        n.split(".lora_")[-1] for n, p in verifier.network.named_parameters() if p.grad is not None and p.grad.any()
    }
    assert {"A.default.weight", "B.default.weight", "kind.weight", "label.weight"} <= learned


def recipe(data: Path, **changes: Any) -> Options:
    given = read_yaml(recipes_folder() / "annotators" / "embedded-fast.yaml")
    return Options.model_validate({**given, "data": str(data), **changes})


def trained(base: str, folder: Path, n: int, **options: Any) -> Verifier:
    torch.manual_seed(3)
    verifier = Verifier(base, dtype="float32")
    train_stage(verifier, examples(n), folder, tokens=200, **options)
    return verifier


def test_training_learns(base: str, tmp_path: Path) -> None:
    verifier = trained(base, tmp_path, 64, epochs=12, rate=3e-3)
    logits, tokens = verifier([(e.question, e.sentence, e.passages) for e in examples(40)])
    chance = torch.tensor(logits[:, :3]).softmax(-1)[:, 0].numpy()
    assert chance[0::2].min() > 0.5 > chance[1::2].max()
    wrong = [max(p for a, b, p in t if a < 10 and b > 7) for t in tokens]
    assert np.mean(wrong[1::2]) > np.mean(wrong[0::2]) + 0.3
    with pytest.raises(training.CannotTrainError, match="none: expected examples to learn from, got none"):
        trained(base, tmp_path / "none", 0, epochs=1, rate=3e-3)


def test_interrupted_training_ends_the_same(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 2)
    whole = trained(base, tmp_path / "whole", 24, epochs=2, rate=1e-3)
    loss_of, calls = training.loss_of, iter(range(5))

    def killed(*args: object) -> torch.Tensor:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return loss_of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "loss_of", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(base, tmp_path / "cut", 24, epochs=2, rate=1e-3)
    monkeypatch.setattr(training, "loss_of", loss_of)
    resumed = trained(base, tmp_path / "cut", 24, epochs=2, rate=1e-3)
    for a, b in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert not a.requires_grad or torch.allclose(a, b, atol=1e-6)


def test_token_targets_by_hand(base: str) -> None:
    example = examples(2)[1]
    (read,) = Verifier(base).inputs([("", example.sentence, example.passages)])
    hit = [a < 10 and b > 7 for a, b in read.offsets.tolist()]
    assert training.token_targets(read, example).tolist() == [float(h) for h in hit]
    unknown = Example("", example.sentence, example.passages, 2, None, "made")
    assert set(training.token_targets(read, unknown).tolist()) == {-1.0}


def test_the_mixture_repeats_labels_and_replays_cases() -> None:
    labels, edits = examples(4), examples(2)
    told = [Example("", f"c{i}", ("e",), i % 2, None, "vitaminc", 1.0, f"claim {i // 2}") for i in range(20)]
    alone = [Example("", "d", ("e",), 0, None, "snli", 1.0, "claim alone")]
    settings = Settings(data=Path(), sources=["made"], pair_sources=[], replayed=6)  # twice, by default
    mixed = training.mixture(labels, edits, told + alone, settings)
    assert len(mixed) == 2 * 4 + 2 + 6
    replayed = mixed[10:]
    assert {e.case for e in replayed} <= {e.case for e in told}
    assert sorted(e.target for e in replayed) == [0, 0, 0, 1, 1, 1]  # whole cases


REFERENCE = "The Alder Bridge was opened in May 1902. It is 134 metres long. Anna Berg designed it."


def write_data(folder: Path, *more: dict[str, Any]) -> None:
    """24 English rows of each label, ``more`` rows, pairs and a document."""
    said = "The bridge {} is 134 metres long.", "The bridge {} is 999 metres long.", "Its keeper {} bred dogs in Wales."
    rows = [  # each of another document, so that all folds occur
        {"id": f"{label}{i}", "source": "made", "lang": "en", "label": label, "question": None,
         "reference": f"{REFERENCE} It has {i} arches.", "sentence": sentence.format(i)}
        for label, sentence in zip(LABELS, (*said, "I like {} very much, do you?"), strict=True) for i in range(24)
    ]  # fmt: skip
    pairs = [
        {"id": str(i), "source": "fever", "evidence": f"The mill has {i} wheels.", "group": str(i),
         "claim": f"It has {i + i % 2} wheels.", "label": ("supported", "contradictory")[i % 2]}
        for i in range(40)
    ]  # fmt: skip
    towns = ("Alder lies on the river Moss", "Berg sells Moss cheese to Wales", "Corin Moss bred fifty brown dogs")
    pairs += [
        {"id": town, "source": "fever", "evidence": f"{town}.", "group": town, "claim": f"{town} today.",
         "label": "supported"} for town in (*towns, "Every Moss Prize since 1950 went abroad")
    ]  # fmt: skip
    documents = [{"text": "The old mill by the river was built in 1902 by Anna Berg."}]
    for name, lines in (("sentences/made", [*rows, *more]), ("pairs/fever", pairs), ("documents/made", documents)):
        write_rows(folder / f"{name}.jsonl", lines)


def test_any_language_is_learned_and_english_edited(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    german = [
        {"id": f"de{i}", "source": "made", "lang": "de", "label": "supported", "question": None,
         "reference": f"Die Erlenbrücke {i} ist 134 Meter lang.", "sentence": f"Die Brücke {i} ist 134 Meter lang."}
        for i in range(24)
    ]  # fmt: skip
    write_data(tmp_path / "data", *german)
    monkeypatch.setattr(training, "train_stage", lambda *_, **__: None)
    monkeypatch.setattr(training, "with_operating_point", lambda annotator, _: annotator)
    given: dict[str, Any] = {"data": tmp_path / "data", "sources": ["made"], "pair_sources": ["fever"], "base": base}
    for languages, labelled, english in ((None, True, True), (["en"], False, True), (["de"], True, False)):
        work = tmp_path / str(languages)
        annotator = train_annotator(Settings(**given, edited=900, languages=languages), work)
        assert annotator.languages == (languages and tuple(languages))
        labels, edits = ((work / name).read_text(encoding="utf-8") for name in ("labels.jsonl", "edits.jsonl"))
        assert ("Die Br" in labels) == labelled
        assert ("The bridge" in labels) == english
        assert ("Alder Bridge" in edits) == english
        assert "Erlenbr" not in edits
    with pytest.raises(ValueError, match=r"found none that are of the sources made and .* with languages \('zh',\)"):
        train_annotator(Settings(**given, languages=["zh"]), tmp_path)
    with pytest.raises(ValueError, match=r"sources: no row below .* is of maed"):
        train_annotator(Settings(**given | {"sources": ["made", "maed"]}), tmp_path)


def test_rows_are_learned_whatever_their_region() -> None:
    row = {"source": "wice", "sentence": "It opened in 1931.", "reference": "The bridge opened in 1931."}
    kinds = [{"lang": "en-US"}, {"language": "EN"}, {"lang": "de"}, {}]
    settings = Settings(data=Path(), sources=["wice"], pair_sources=[])
    assert [training.usable({**row, **kind}, settings) for kind in kinds] == [True, True, False, False]


@pytest.fixture
def settings(tmp_path: Path) -> Options:
    """A small run on the rows of ``write_data``."""
    write_data(tmp_path / "data")
    base = save_tiny_bert(tmp_path / "base", 16)
    return recipe(
        tmp_path / "data", sources=["made"], pair_sources=["fever"], base=base, edited=20, replayed=4, tokens=1024,
        evidence_tokens=128, further=None,
    )  # fmt: skip


def test_a_run_writes_an_annotator_and_goes_on(tmp_path: Path, settings: Options) -> None:
    settings = settings.model_copy(update={"evidence_tokens": 20})
    work = tmp_path / "work"
    annotator = train_annotator(settings, work)
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    assert {path.name for path in files} == {"pairs.jsonl", "labels.jsonl", "edits.jsonl", "state.safetensors"}
    tokenize = annotator.verifier.tokenize
    read = [sum(len(ids) for ids, _ in tokenize(e.passages)) for e in read_examples(work / "labels.jsonl")]
    assert max(read) <= 20 < len(tokenize([REFERENCE])[0][0])
    again = train_annotator(settings, work)  # everything is there already
    assert again.fingerprint == annotator.fingerprint
    assert {path: path.stat().st_mtime_ns for path in files} == files
    labels = work / "labels" / "state.safetensors"
    labels.unlink()  # as killed before the first checkpoint of the last stage
    assert train_annotator(settings, work).fingerprint == annotator.fingerprint
    run(settings, RunFolder(tmp_path))  # it only writes the annotator
    loaded = load_annotator(str(tmp_path / "annotator"))
    assert (loaded.fingerprint, loaded.evidence_tokens) == (annotator.fingerprint, 20)
    (judged,) = loaded.predict([{"reference": "The mill has 3 wheels.", "sentence": "The mill has 3 wheels."}])
    assert judged.status in ("checked", "unsure")


@pytest.mark.parametrize("name", ["embedded", "embedded-fast"])
def test_recipes_have_the_settings_of_shipped_weights(name: str, shipped: dict[str, Path]) -> None:
    options = Options.model_validate(read_yaml(recipes_folder() / "annotators" / f"{name}.yaml"))
    config = json.loads((shipped[name] / "annotator.json").read_text(encoding="utf-8"))
    settings = {key: config[key] for key in config.keys() - {"kind", "version", "labels"}}
    assert {key: getattr(options, key) for key in settings} == settings


def test_what_cannot_be_trained_is_named(tmp_path: Path) -> None:
    for found in ("none of them", "pairs", "binary"):
        (tmp_path / "lacking" / found / found).mkdir(parents=True)
        message = rf"sentences/ or binary/, and pairs/ for pair_sources; .* has {found}; give"
        with pytest.raises(UsageError, match=message):
            check(recipe(tmp_path / "lacking" / found))
    (tmp_path / "binary").mkdir()
    check(recipe(tmp_path, pair_sources=[], start="embedded-fast"))  # own labels are enough
    (tmp_path / "pairs").mkdir()
    for languages in (None, ["de", "zh"]):
        check(recipe(tmp_path, languages=languages))
    stage = {"rate": 0.1, "epochs": 0.5}
    for changes, message in (
        ({"pair_sources": []}, r"^pair_sources: expected at least one, or .* start=NAME, got none"),
        ({"languages": ["en", "xx"]}, r"languages: expected codes .*\bzh\b.*, or null for any language, got xx$"),
        ({"layers": 7}, r"layers: expected 1 to 6, which packaged:minilm has, got 7; null: all"),
        ({"labels": stage}, r"^labels.epochs: expected a whole number, got 0.5"),
        ({"base": str(tmp_path)}, f"^base {tmp_path}: "),
        ({"start": "nope"}, r"^start: annotator 'nope': expected embedded, "),
        ({"start": "embedded-fast", "further": None}, r"^further: expected the settings of the last stage"),
        *(({"further": {**stage, "teacher": teacher}}, rf"^further.teacher: annotator '{teacher}': expected embedded, ")
          for teacher in ("nli:x", str(tmp_path))),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            check(recipe(tmp_path, **changes))
    with pytest.raises(UsageError, match=r"expected labelled sentences to learn .* of the sources made up"):
        run(recipe(tmp_path, sources=["made up"]), RunFolder(tmp_path))
    with pytest.raises(UsageError, match="unknown key 'sead'; did you mean 'seed'"):
        load_recipe("annotators/embedded", ["sead=1"])


def test_taught_loss_by_hand() -> None:
    # P: 1/2, 1/4, 1/4 of what is stated, P(no fact) 1/4; the teacher says 0.6, 0.2, 0 and 0.2
    logits = torch.tensor([[math.log(2), 0.0, 0.0, math.log(1 / 3)]])
    says = torch.tensor([[0.6, 0.2, 0.0, 0.2], [0.0, 0.0, 0.0, 1.0]])  # the second one: nothing but "no fact"
    verdict = -(0.75 * math.log(1 / 2) + 0.25 * math.log(1 / 4))
    none = -(0.2 * math.log(1 / 4) + 0.8 * math.log(3 / 4))
    both = training.taught_loss(logits.expand(2, 4), says)
    assert both.tolist() == pytest.approx([verdict + none, math.log(4)], abs=1e-5)


def test_a_batch_counts_taught_and_own_labels_by_weight(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = Verifier(base, dtype="float32")
    logits = torch.tensor([[math.log(2), 0.0, 0.0, math.log(1 / 3)]] * 3)
    monkeypatch.setattr(verifier.network, "forward", lambda **_: (logits, torch.zeros(1)))
    own = Example("", "It is.", ("It is.",), 0, None, "texts", 3.0, "text a")
    taught = replace(own, target=1, weight=1.0, taught=(0.0, 0.0, 0.0, 1.0))  # its label neither counts nor ranks
    other = replace(own, target=1, weight=1.0)  # of the same case, equally likely: the margin is missed by log 2 less
    for batch, expected in (
        ([own, taught, own], (6 * -math.log(3 / 8) + math.log(4)) / 7),
        ([own, taught, other], (3 * -math.log(3 / 8) + math.log(4) - math.log(3 / 16)) / 5
         + training.RANK_WEIGHT * math.log1p(math.e)),
    ):  # fmt: skip
        inputs = verifier.inputs([(e.question, e.sentence, e.passages) for e in batch])
        loss = training.loss_of(verifier, [[read] for read in inputs], batch)
        assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_a_teacher_is_asked_of_all_kinds(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labelled, edited and paired sentences, a fair sample, with as much evidence as the teacher reads; not of those
    about written texts."""
    english = {"source": "l", "lang": "en", "label": "supported", "question": "", "sentence": "It is."}
    rows = [english | {"reference": REFERENCE}, english | {"reference": REFERENCE, "lang": "de"}] * 10
    pairs = [Example("", f"c{i}", ("e",), i % 2, None, "p", 1.0, f"claim {i // 2}") for i in range(20)]
    edited: list[Any] = []
    monkeypatch.setattr(training, "edited_examples", lambda *given: edited.append(given) or examples(20))
    teacher = DiscriminativeAnnotator(Verifier(base, dtype="float32"), evidence_tokens=9, narrow_tokens=5)
    written = [Example("", f"w{i}", ("e",), 1, None, "w", 1.0, "text a") for i in range(20)]
    monkeypatch.setattr(data, "text_examples", lambda _: written)
    settings = Settings(data=tmp_path, sources=["l"], pair_sources=[], edited=0, replayed=0)
    every = [{"l"}, {"made"}, {"p"}, {"w"}]
    for n, sources in ((99, every), (20, [{"l", "made", "p", "w"}])):  # every kind whole, or some of each
        further = Further(rate=1e-4, epochs=1, examples=n)
        folder = tmp_path / str(n)
        found = training.further_examples(teacher, teacher.verifier, settings, further, rows, pairs, folder)
        assert {e.source for e in found if e.taught is None} == {"w"}
        assert {e.source for e in found if e.taught is not None} == {"l", "made", "p"}
        assert [{e.source for e in found[at : at + 20]} for at in range(0, len(found), 20)] == sources
        tokens = [len(ids) for e in found if e.source == "l" for ids, _ in teacher.verifier.tokenize(e.passages)]
        assert max(tokens) <= 9 < len(teacher.verifier.tokenize([REFERENCE])[0][0])
    assert edited[0][1].edited == further.edits
    found = [e for e in found if e.source != "w"]
    for e in found:  # its verdict, with all that it reads
        (own,) = teacher.predict([{"question": e.question, "sentence": e.sentence, "reference": " ".join(e.passages)}])
        assert e.taught == pytest.approx([own.scores[label] for label in LABELS], abs=1e-5)
    inputs = [[read] for read in teacher.verifier.inputs([(e.question, e.sentence, e.passages) for e in found])]
    alone = [replace(example, case="") for example in found]  # cases count only where labels do
    losses = [training.loss_of(teacher.verifier, inputs, some).item() for some in (found, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_a_teacher_is_learned_and_asked_once(
    tmp_path: Path, settings: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels say one thing and the teacher the contrary: what is learned lies between; a second run asks nothing."""
    plain = train_annotator(settings, tmp_path / "plain")

    def contrary(verifier: Verifier, texts: Any) -> tuple[np.ndarray, list[Any]]:
        asked.extend([len(texts)] if texts else [])
        return np.tile([-4.0, 4.0, -4.0, -4.0], (len(texts), 1)), [()] * len(texts)

    asked: list[int] = []
    plain.save_pretrained(tmp_path / "teacher")
    monkeypatch.setattr(training, "PART", 16)
    further = Further(examples=40, rate=3e-2, epochs=8, teacher=str(tmp_path / "teacher"))
    taught = settings.model_copy(update={"further": further})
    row = {"reference": REFERENCE, "sentence": "It is 134 metres long."}
    with monkeypatch.context() as patch:
        patch.setattr(training, "with_operating_point", lambda annotator, _: annotator)  # which asks, too
        patch.setattr(Verifier, "__call__", contrary)
        annotator = train_annotator(taught, tmp_path / "work")
        assert asked == [16, 16, 8]
        (tmp_path / "work" / "further" / "state.safetensors").unlink()  # as killed before its first checkpoint
        again = train_annotator(taught, tmp_path / "work")
        assert asked == [16, 16, 8]
    assert again.fingerprint == annotator.fingerprint
    before, after = (one.calibrated(None).predict([row])[0].scores or {} for one in (plain, annotator))
    assert after["contradictory"] > before["contradictory"] + 0.2
    ends = load_file(tmp_path / "work" / "further" / "state.safetensors")["model.label.weight"]
    stored = plain.verifier.packed()["label.weight"].float(), annotator.verifier.packed()["label.weight"].float()
    assert torch.allclose(stored[1], (stored[0] + ends) / 2, atol=1e-3)


def test_training_goes_on_from_a_trained_annotator(tmp_path: Path, settings: Options) -> None:
    """The last stage alone, from given weights and without a teacher; half way between these and what it ends with."""
    train_annotator(settings, tmp_path / "plain").save_pretrained(tmp_path / "first")
    further = Further(examples=4000, edits=9, pairs=4, texts=2, rate=3e-2, epochs=3)
    more = settings.model_copy(update={"start": str(tmp_path / "first"), "further": further})
    annotator = train_annotator(more, tmp_path / "work")
    assert not (tmp_path / "work" / "labels").exists()
    learned = [e for path in (tmp_path / "work" / "further").glob("*.jsonl") for e in read_examples(path)]
    assert {e.taught for e in learned} == {None}
    assert len({e.target for e in learned}) > 2
    assert sum(e.source == "texts" for e in learned) > 20
    ends = load_file(tmp_path / "work" / "further" / "state.safetensors")["model.label.weight"]
    begun = load_file(tmp_path / "first" / "verifier.safetensors")["label.weight"].float()
    stored = annotator.verifier.packed()["label.weight"].float()
    assert not torch.allclose(begun, stored, atol=1e-2)
    assert torch.allclose(stored, (begun + ends) / 2, atol=1e-3)
    (tmp_path / "data" / "pairs" / "fever.jsonl").unlink()  # own labels are enough
    train_annotator(more.model_copy(update={"pair_sources": []}), tmp_path / "own")
    assert not {"fever"} & {e.source for e in read_examples(tmp_path / "own" / "further" / "000000.jsonl")}
    with pytest.raises(ValueError, match=r"^start: expected base, layers and lora as .*first has .* got .*None, 4"):
        train_annotator(more.model_copy(update={"lora": 4}), tmp_path / "other")


def test_another_annotator_does_not_teach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    fast = DiscriminativeAnnotator.from_pretrained("embedded-fast")  # comes where the base of `embedded` is not here
    monkeypatch.setattr(DiscriminativeAnnotator, "from_pretrained", lambda _: fast)
    options = recipe(tmp_path, sources=["made"], pair_sources=["fever"])
    for started in (False, True):
        with pytest.raises(UsageError, match=r"^teacher: expected embedded, got embedded-fast in its place"):
            run(options, RunFolder(tmp_path))
        assert (tmp_path / "work").exists() == started
        (tmp_path / "work").mkdir(exist_ok=True)
