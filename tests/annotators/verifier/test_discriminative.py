"""The embedded annotator end to end: batches equal single calls, offsets, evidence, saving, errors."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from annotators import LABELS, load_annotator
from annotators.retrieval.passages import index_references
from annotators.retrieval.window import second_pass, select
from annotators.text.words import words_of
from annotators.verifier.annotator import EMBEDDED, DiscriminativeAnnotator
from annotators.verifier.combiner import Combiner, votes_of
from annotators.verifier.features import FEATURES
from annotators.verifier.judging import Item, Judge, Memory, as_judged, capped, foregone

EXAMPLES = Path(__file__).parents[3] / "examples" / "records.jsonl"
REFERENCE = (
    "The lighthouse at Cape Farewell was built in 1870. It stands 27 metres high and its lamp could be seen for 17 "
    "miles. Its first keeper was Robert Wilson, who lived there with his wife Mary for eleven years."
)


@pytest.fixture(scope="module")
def records() -> list[dict[str, object]]:
    """The shorter of the examples, and the one with the longest reference, which has windows and a second pass."""
    rows = sorted(map(json.loads, EXAMPLES.read_text(encoding="utf-8").splitlines()), key=lambda r: len(r["reference"]))
    return [*rows[:7], rows[-1]]


@pytest.fixture(scope="module")
def float32() -> DiscriminativeAnnotator:
    return DiscriminativeAnnotator.from_pretrained("embedded", dtype="float32")


def all_scores(annotations: list) -> np.ndarray:
    return np.array([[s.scores[x] for x in LABELS] for a in annotations for s in a.sentences if s.scores])


def test_shuffled_batch_equals_single_in_float32(float32: DiscriminativeAnnotator, records: list) -> None:
    records = records[:]
    random.Random(1).shuffle(records)
    batch = float32.annotate_batch(records)
    single = [float32.annotate(**{k: record[k] for k in ("reference", "answer", "question") if k in record})
              for record in records]  # fmt: skip
    assert np.abs(all_scores(batch) - all_scores(single)).max() < 1e-5
    for a, b, record in zip(batch, single, records, strict=True):
        assert a.record == record
        assert [(s.label, s.fragments) for s in a.sentences] == [(s.label, s.fragments) for s in b.sentences]
        for s in a.sentences:
            assert record["answer"][s.start : s.end] == s.text
            assert all(record["reference"][f.start : f.end] == f.text for f in s.fragments)
            assert s.correction == ()  # it marks, and proposes nothing


def test_batch_equals_single_in_bfloat16(records: list) -> None:
    records = records[3:6]  # English and short: a CPU without bfloat16 is slow at it
    annotator = DiscriminativeAnnotator.from_pretrained("embedded", dtype="bfloat16")
    batch = annotator.annotate_batch(records)
    single = [annotator.annotate_batch([record])[0] for record in records]
    first, second = all_scores(batch), all_scores(single)
    assert len(first) > 5
    assert np.abs(first - second).max() < 1e-2
    labels = [[s.label for a in each for s in a.sentences if s.scores] for each in (batch, single)]
    margin = np.abs(first[:, 0] / np.maximum(1 - first[:, 3], 1e-9) - float(annotator.combiner.tensors["threshold"]))
    assert all(a == b for a, b, m in zip(*labels, margin, strict=True) if m > 2e-2)


def test_predict_judges_the_sentence_as_given(float32: DiscriminativeAnnotator) -> None:
    text = "It was built in 1870. It stands 27 metres high."  # two sentences, judged as one
    (judged,) = float32.predict([{"reference": REFERENCE, "sentence": text, "lang": "en"}])
    assert (judged.text, judged.start, judged.end, judged.correction) == (text, 0, len(text), ())
    assert float32.predict([]) == []
    assert float32.annotate_batch([]) == []


def test_verdicts_and_evidence(float32: DiscriminativeAnnotator) -> None:
    answer = "The lighthouse at Cape Farewell was built in 1890. Its first keeper was Robert Wilson. Is that fine?"
    false, true, talk = float32.annotate(reference=REFERENCE, answer=answer).sentences
    assert false.label == "contradictory"
    assert [f.text for f in false.fragments] == ["The lighthouse at Cape Farewell was built in 1870."]
    assert true.label == "supported"
    assert true.fragments[0].text.startswith("Its first keeper was Robert Wilson")
    assert (talk.label, talk.fragments) == ("no_fact", ())


def test_unverifiable_sentences_get_the_best_window(float32: DiscriminativeAnnotator) -> None:
    """A combiner that calls everything unverifiable sends every sentence into the second pass."""
    tensors = dict(float32.combiner.tensors)
    tensors["bias"] = np.array([0.0, 0.0, 20.0, 0.0], np.float32)
    judge = Judge(Combiner(tensors), float32.idf, float32.embedder, window_tokens=30)
    reference = "\n\n".join(f"Ship {n} left the port of Lisbon in {1500 + n} with {n} sailors." for n in range(40))
    items = [Item("Ship 7 left the port of Lisbon in 1507.", reference)]
    with judge.memory():
        memory = Memory(float32.embedder)
        (index,) = index_references([reference], memory.tokenize, (memory,), 30)
        first = judge.judge_in(items, select([(index, items[0].sentence)]))[0]
        (further,) = second_pass([(index, items[0].sentence)])
        others = judge.judge_in(items * len(further), further)
        (verdict,) = judge(items)
    assert first.label == 2
    assert verdict.support == pytest.approx(max(v.support for v in [first, *others]))


def test_another_number_caps_support() -> None:
    features = np.zeros((3, len(FEATURES)))
    near, cover = FEATURES.index("swap_number_near"), FEATURES.index("cover_best")
    features[:, near], features[:, cover] = [1, 1, 0], [0.6, 0.59, 1.0]
    p = np.array([[0.7, 0.1, 0.15, 0.05]] * 3)
    out = capped(features, p)
    assert out[0] == pytest.approx([0.1, 0.7, 0.15, 0.05])  # 0.6 moved
    assert out[1:] == pytest.approx(p[1:])
    assert capped(features, p * 0 + 0.05)[0] == pytest.approx([0.05] * 4)


def test_skipped_encoder_calls_could_change_nothing(float32: DiscriminativeAnnotator) -> None:
    rng = np.random.default_rng(0)
    t = float32.combiner.tensors
    features = t["mean"] + 4 * rng.normal(size=(3000, len(FEATURES))) * np.where(np.isinf(t["scale"]), 1, t["scale"])
    votes = foregone(float32.combiner, features)
    asked = np.isnan(votes[:, 0])
    assert 0.5 < asked.mean() < 0.97  # else this would say nothing
    settled = float32.combiner.decide(
        capped(features, float32.combiner.predict_proba(features, np.where(asked[:, None], 0.0, votes)))
    )[~asked]
    assert set(settled.tolist()) <= {0, 3}
    for scale in (0.5, 3.0, 30.0):
        said = votes_of(rng.normal(size=(len(features), 4)) * scale)
        labels = float32.combiner.decide(capped(features, float32.combiner.predict_proba(features, said)))
        assert np.array_equal(labels[~asked], settled)
        mixed = as_judged(float32.combiner, features, said)
        assert np.array_equal(mixed[asked], said[asked])
        assert np.array_equal(mixed[~asked], votes[~asked])


def test_judge_is_called_inside_its_memory(float32: DiscriminativeAnnotator) -> None:
    judge = Judge(float32.combiner, float32.idf, float32.embedder)
    with pytest.raises(RuntimeError, match="memory"):
        judge([Item("a b", REFERENCE)])


def test_save_and_load(tmp_path: Path, float32: DiscriminativeAnnotator) -> None:
    float32.save_pretrained(tmp_path / "mine")
    again = load_annotator(str(tmp_path / "mine"), dtype="float32")
    assert isinstance(again, DiscriminativeAnnotator)
    assert again.fingerprint == float32.fingerprint
    sentence = {"reference": REFERENCE, "sentence": "It stands 27 metres high."}
    assert again.predict([sentence]) == float32.predict([sentence])
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == [
        "annotator.json", "combiner.safetensors", "encoder.safetensors", "idf.safetensors",
    ]  # fmt: skip


def test_fingerprint_tells_weights_and_window_apart(float32: DiscriminativeAnnotator) -> None:
    other = DiscriminativeAnnotator(float32.combiner.with_threshold(0.6), float32.idf, float32.embedder)
    wide = DiscriminativeAnnotator(float32.combiner, float32.idf, float32.embedder, window_tokens=800)
    assert len({float32.fingerprint, other.fingerprint, wide.fingerprint}) == 3


def test_wrong_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty name"):
        load_annotator(" ")
    with pytest.raises(OSError, match=r"no annotator\.json|expected a folder with annotator\.json"):
        load_annotator(str(tmp_path))
    with pytest.raises(OSError, match="no such folder"):
        load_annotator("nobody/nothing-here")
    config = json.loads((EMBEDDED / "annotator.json").read_text(encoding="utf-8"))
    (tmp_path / "annotator.json").write_text(json.dumps({**config, "version": 0}), encoding="utf-8")
    with pytest.raises(ValueError, match="expected version to be 3"):
        load_annotator(str(tmp_path))
    with pytest.raises(ValueError, match="window: for annotators named generative:"):
        load_annotator("embedded", window="whole")
    with pytest.raises(OSError, match="there is no such folder"):
        load_annotator("no such thing")


def test_damaged_files_are_refused(tmp_path: Path, float32: DiscriminativeAnnotator) -> None:
    float32.save_pretrained(tmp_path)
    whole = (tmp_path / "combiner.safetensors").read_bytes()
    (tmp_path / "combiner.safetensors").write_bytes(whole[:1000])
    with pytest.raises(ValueError, match=r"expected whole combiner\.safetensors"):
        load_annotator(str(tmp_path))
    for text in ("[]", "{", '{"kind": "generative"}'):
        (tmp_path / "annotator.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"annotator\.json: expected"):
            load_annotator(str(tmp_path))


def test_results_page_is_of_these_weights(float32: DiscriminativeAnnotator) -> None:
    page = Path(__file__).parents[3] / "docs" / "results" / "annotator.md"
    assert f"annotator fingerprint {float32.fingerprint}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"answer": "x"}, "record 0: expected 'reference' to be a string, got NoneType"),
        ({"reference": "x", "answer": 3}, "expected 'answer' to be a string, got int"),
        ({"reference": "x", "answer": "y", "question": 3}, "expected 'question' to be a string or absent, got int"),
    ],
)
def test_wrong_records(float32: DiscriminativeAnnotator, record: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        float32.annotate_batch([record])


def test_shipped_weights_are_small_and_named() -> None:
    config = json.loads((EMBEDDED / "annotator.json").read_text(encoding="utf-8"))
    assert config["features"] == list(FEATURES)
    assert config["embedder"] is None
    assert sum(p.stat().st_size for p in EMBEDDED.iterdir()) < 25_000_000
    assert {p.suffix for p in EMBEDDED.iterdir()} == {".json", ".md", ".safetensors"}


def test_verdict_words_align_with_evidence(float32: DiscriminativeAnnotator) -> None:
    judge = Judge(float32.combiner, float32.idf, float32.embedder, encoder=float32.encoder)
    sentence = "Mary Wilson lived at the lighthouse."
    with judge.memory():
        (verdict,) = judge([Item(sentence, REFERENCE)])
    words = words_of(sentence)
    assert verdict.matched.shape == (len(words), 3)
    assert verdict.matched[words.lower.index("wilson")].tolist()[2] == 1.0  # literally in the third passage
    assert verdict.weight[words.lower.index("at")] == 0.0
    assert verdict.probabilities.sum() == pytest.approx(1.0)
    pieces = [sentence[a:b] for a, b, _ in verdict.token_scores]
    assert "".join(pieces) == sentence.replace(" ", "")
    assert all(0 <= p <= 1 for *_, p in verdict.token_scores)
