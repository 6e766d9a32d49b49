"""The discriminative annotator end to end: batches equal single calls, windows, offsets, evidence, spans, errors."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from annotators import HALLUCINATED, LABELS, load_annotator
from annotators.base import Sentence
from annotators.operating import FILE, Calibration, OperatingPoint
from annotators.retrieval import Window, index_references, second_pass, select
from annotators.verifier.annotator import (
    RELEVANT,
    SHIPPED,
    DiscriminativeAnnotator,
    Verdict,
    fingerprint_of,
    fragments_of,
    pooled,
    unjudgeable,
    unsupported_spans,
)
from annotators.verifier.model import SENTENCE_TOKENS, Verifier, digest_of, probabilities
from engines.packaged import on_disk
from tests.helpers.tiny_models import save_tiny_bert

EXAMPLES = Path(__file__).parents[3] / "examples" / "records.jsonl"
REFERENCE = (
    "The lighthouse at Cape Farewell was built in 1870. It stands 27 metres high and its lamp could be seen for 17 "
    "miles. Its first keeper was Robert Wilson, who lived there with his wife Mary for eleven years."
)


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """The shorter of the examples, and the one with the longest reference, which has windows and a second pass."""
    rows = sorted(map(json.loads, EXAMPLES.read_text(encoding="utf-8").splitlines()), key=lambda r: len(r["reference"]))
    return [*rows[:7], rows[-1]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_bert(tmp_path_factory.mktemp("tiny"), 32)


@pytest.fixture(scope="module")
def tiny(base: str) -> DiscriminativeAnnotator:
    """Random weights, so that verdicts of all kinds occur; windows of 60 tokens, so that there is a second look."""
    torch.manual_seed(5)
    verifier = Verifier(base, dtype="float32")
    with torch.no_grad():
        verifier.network.label.weight.mul_(40)
        verifier.network.label.bias[3] -= 2
    return DiscriminativeAnnotator(Verifier(base, verifier.packed(), dtype="float32"), evidence_tokens=60)


def all_scores(annotations: list) -> np.ndarray:
    return np.array([[s.scores[x] for x in LABELS] for a in annotations for s in a.sentences if s.scores])


def test_shuffled_batch_equals_single(tiny: DiscriminativeAnnotator, records: list) -> None:
    records = records[:]
    random.Random(1).shuffle(records)
    batch = tiny.annotate_batch(records)
    keys = ("reference", "answer", "question")
    single = [tiny.annotate(**{key: record[key] for key in keys if key in record}) for record in records]
    assert np.abs(all_scores(batch) - all_scores(single)).max() < 1e-4
    assert len({s.label for a in batch for s in a.sentences}) >= 3
    for a, b, record in zip(batch, single, records, strict=True):
        assert a.record == record
        ours, theirs = ([(s.label, s.fragments, s.spans) for s in one.sentences] for one in (a, b))
        assert ours == theirs
        for s in a.sentences:
            assert record["answer"][s.start : s.end] == s.text
            assert all(record["reference"][f.start : f.end] == f.text for f in s.fragments)
            assert s.correction == ()  # it marks, and proposes nothing
            assert (s.spans is not None) == (s.label in HALLUCINATED)
            assert all(s.start <= m.start < m.end <= s.end for m in s.spans or ())


def test_unverifiable_sentences_get_the_best_window(base: str) -> None:
    torch.manual_seed(5)
    verifier = Verifier(base, dtype="float32")
    with torch.no_grad():
        verifier.network.label.bias.copy_(torch.tensor([0.0, 0.0, 5.0, -9.0]))
    annotator = DiscriminativeAnnotator(verifier, evidence_tokens=30)
    text = "Ship 7 left the port of Lisbon in 1507."
    reference = "\n\n".join(f"Ship {n} left the port of Lisbon in {1500 + n % 9} with {n} sailors." for n in range(40))
    (index,) = index_references([reference], verifier.tokenize, None, 30, RELEVANT)
    (further,) = second_pass([(index, text)], annotator.further)
    windows = [*select([(index, text)]), *further]
    assert len(windows) > 2
    logits, _ = verifier([("", text, [p.text for p in window.passages]) for window in windows])
    shares = np.exp(logits[:, :3]) / np.exp(logits[:, :3]).sum(1, keepdims=True)
    (verdict,) = annotator.verdicts([Sentence(text, 0, text, {"reference": reference})])
    assert verdict.support == pytest.approx(shares[:, 0].max(), abs=1e-5)
    assert verdict.window.places == windows[int(shares[:, 0].argmax())].places


def test_two_windows_are_pooled_by_hand() -> None:
    (index,) = index_references([REFERENCE], lambda texts: [(t.split(), []) for t in texts], None, 60)
    window = Window(index, (0,))
    wide = Verdict(window, np.array([0.6, 0.1, 0.1, 0.2]), ((0, 2, 0.3),))  # of a fact: 3/4, 1/8, 1/8
    narrow = Verdict(Window(index, (1,)), np.array([0.1, 0.35, 0.05, 0.5]), ((0, 2, 0.9),))  # 1/5, 7/10, 1/10
    supported, contradictory, unverifiable = 0.75, (0.125 + 0.7) / 2, 0.1
    total = (supported + contradictory + unverifiable) / 0.65  # P(no fact): 0.35
    for found in (pooled(wide, narrow), pooled(narrow, replace(wide, window=narrow.window))):
        assert found.probabilities.tolist() == pytest.approx(
            [supported / total, contradictory / total, unverifiable / total, 0.35], abs=1e-6
        )
        assert found.tokens == wide.tokens  # it supports better
    assert pooled(wide, narrow).window is window
    nothing = replace(wide, probabilities=np.array([0.0, 0.0, 0.0, 1.0]))
    assert pooled(nothing, nothing).probabilities.tolist() == [0.0, 0.0, 0.0, 1.0]


def test_a_narrow_window_is_read_beside_the_wide_one(base: str, tiny: DiscriminativeAnnotator) -> None:
    verifier = tiny.verifier
    both = DiscriminativeAnnotator(verifier, evidence_tokens=60, narrow_tokens=20)
    said = "Its lamp was made in France. Robert Wilson kept it. It is 27 metres high. Mary was a cook. The sea is cold."
    short = "Its first keeper was Robert Wilson."  # fits the narrow window, and is read once
    asked = [
        Sentence(text, 0, text, {"reference": reference})
        for text in re.split(r"(?<=\.) ", said)
        for reference in (short, REFERENCE, REFERENCE.replace("miles", "leagues"), REFERENCE.lower())
    ]
    decided = set()
    for sentence, wide, verdict in zip(asked, tiny.verdicts(asked), both.verdicts(asked), strict=True):
        (index,) = index_references([sentence.reference], verifier.tokenize, None, 20)
        (window,) = select([(index, sentence.text)])
        assert 0 < sum(passage.tokens for passage in window.passages) <= 20
        logits, _ = verifier([("", sentence.text, [passage.text for passage in window.passages])])
        narrow = replace(wide, probabilities=probabilities(logits)[0])
        decided.add(narrow.support > wide.support and sentence.reference != short)
        expected = pooled(wide, wide if sentence.reference == short else narrow).probabilities
        assert verdict.probabilities.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
        assert verdict.window.places == wide.window.places
    assert decided == {True, False}


def test_a_narrow_window_has_only_what_bears_on_the_sentence(tiny: DiscriminativeAnnotator, monkeypatch: Any) -> None:
    both, read = DiscriminativeAnnotator(tiny.verifier, evidence_tokens=60, narrow_tokens=20), []
    real, text = both._read, "Robert Wilson kept it."
    monkeypatch.setattr(both, "_read", lambda s, windows: read.extend(w for _, w in windows) or real(s, windows))
    both.verdicts(
        [Sentence(text, 0, text, {"reference": f"{text}\nCats sleep.\nDogs bark.\n" + "Fish swim far.\n" * 9})]
    )
    assert (read[-1].index.budget, read[-1].text) == (20, text)


def test_what_cannot_be_judged() -> None:
    french = "Le pont est très vieux et il a été construit par la ville. It is old."
    german = "Der Dichter wurde in Frankfurt geboren und er ist in der Stadt Weimar gestorben."
    for sentence, reference, options, status in (
        ("It is old.", " \u200b", {}, "no_reference"),
        ("It is old.", "It is old.", {"language": "de"}, "language_unsupported"),
        ("这座桥很旧。", "It is old.", {}, "language_unsupported"),
        ("这座桥很旧。", "It is old.", {"languages": None}, None),
        ("这座桥很旧。", "It is old.", {"languages": ("en", "zh")}, None),
        ("这座桥很旧。", "这座桥很旧。", {"languages": ("zh",)}, None),
        ("It is old.", "这座桥很旧。", {"languages": ("zh",)}, "language_unsupported"),
        ("Elle est vieille.", french[:68], {"languages": ("fr",)}, None),
        ("Goethe starb in Weimar.", german, {"languages": ("de",)}, None),  # looks English
        ("Goethe starb in Weimar.", german, {"languages": ("en",)}, "language_unsupported"),
        ("It is old.", french[:68], {"languages": ("en", "zh")}, "language_unsupported"),
        (french[:68], "这座桥很旧。", {"languages": ("en", "zh")}, "language_unsupported"),
        ("这座桥很旧。", "这座桥很旧。", {"languages": ("en", "zh"), "language": "ja"}, "language_unsupported"),
        ("It is old.", "It is old.", {"answer": french}, "language_unsupported"),
        ("It is old.", "It is old.", {"language": "en-GB"}, None),
        ("The old bridge is very long, and " * 22, "It is old.", {}, "too_long"),
    ):
        assert unjudgeable(sentence, reference, **options) == status, (sentence, options)


def test_a_sentence_whose_end_would_not_be_read_is_too_long(tiny: DiscriminativeAnnotator) -> None:
    text = "The lists name " + ", ".join(str(n) for n in range(90)) + " and Vienna."
    short, long = tiny.predict([{"sentence": s, "reference": REFERENCE} for s in ("It has 9 lists.", text)])
    assert len(tiny.verifier.tokenize([text])[0][0]) > SENTENCE_TOKENS
    assert len(text.split()) < 150
    assert (short.status == "too_long", long.status) == (False, "too_long")


def test_spans_by_hand() -> None:
    text = "red lamp, zebra."
    pieces = [(0, 2, ""), (2, 3, "red"), (3, 8, "lamp"), (8, 9, ""), (9, 15, "zebra"), (15, 16, "")]
    for doubts, marked in (
        ({}, ["red lamp", "zebra"]),  # no doubt about any: all are as doubtful
        ({"lamp": 0.9}, ["lamp"]),
        ({"zebra": 0.2}, ["zebra"]),  # the most doubtful word, though below MARKED
        ({"red": 0.8, "lamp": 0.6, "zebra": 0.1}, ["red lamp"]),  # only spaces join
        ({"lamp": 0.8, "zebra": 0.7}, ["lamp", "zebra"]),
    ):
        tokens = [(a, b, doubts.get(word, 0.0)) for a, b, word in pieces]
        found = unsupported_spans(text, tokens, ["A lamp", "red zebra"])
        assert [text[a:b] for a, b in found] == marked
    assert unsupported_spans("…", [(0, 1, 0.9)], []) == []


def test_words_that_the_evidence_lacks_are_doubted_more() -> None:
    """P(unsupported) 0.12 has log-odds of −1.99, 0.1 of −2.2: of words that the evidence lacks, the first is marked."""
    text = "the red lamp, zebra."
    tokens = [(0, 3, 0.12), (3, 7, 0.12), (7, 12, 0.1), (12, 13, 0.0), (13, 19, 0.12), (19, 20, 0.0)]
    for passages, marked in ((["zebras"], ["red"]), ([], ["red", "zebra"]), (["red", "Zebra"], ["lamp"])):
        assert [text[a:b] for a, b in unsupported_spans(text, tokens, passages)] == marked
    text = "桥长五百米"
    found = unsupported_spans(text, [(i, i + 1, 0.12) for i in range(5)], ["这座桥长六百米。"])
    assert [text[a:b] for a, b in found] == ["五"]  # its neighbours are found in a pair


def test_fragments_match_most_of_the_sentence(tiny: DiscriminativeAnnotator) -> None:
    (index,) = index_references([REFERENCE], tiny.verifier.tokenize, None, 400)
    (window,) = select([(index, "x")])
    (first,) = fragments_of("The keeper was Robert Wilson.", window)
    assert first.text.startswith("Its first keeper")
    both = fragments_of("Robert Wilson kept the lighthouse of 1870 at Cape Farewell.", window)
    assert [f.text[:8] for f in both] == ["The ligh", "Its firs"]
    assert fragments_of("Bananas are yellow.", window) == ()
    assert fragments_of("It was.", window) == ()


def test_save_and_load(tmp_path: Path, tiny: DiscriminativeAnnotator) -> None:
    tiny.save_pretrained(tmp_path / "mine")
    again = load_annotator(str(tmp_path / "mine"), dtype="float32")
    assert again.fingerprint == tiny.fingerprint
    text = "It was built in 1870. It stands 27 metres high."  # two sentences, judged as one
    sentence = {"reference": REFERENCE, "sentence": text, "lang": "en"}
    (judged,) = again.predict([sentence])
    assert (judged.text, judged.start, judged.end) == (text, 0, len(text))
    assert [judged] == tiny.predict([sentence])
    assert again.predict([]) == again.annotate_batch([]) == []
    both = DiscriminativeAnnotator(tiny.verifier, evidence_tokens=60, narrow_tokens=20)
    both.save_pretrained(tmp_path / "both")
    assert load_annotator(str(tmp_path / "both"), dtype="float32").predict([sentence]) == both.predict([sentence])
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == ["annotator.json", "verifier.safetensors"]


def test_fingerprint_tells_settings_apart(tiny: DiscriminativeAnnotator, base: str, tmp_path: Path) -> None:
    settings = {"evidence_tokens": 60}
    changes = ({"evidence_tokens": 61}, {"languages": None}, {"narrow_tokens": 9})
    others = [DiscriminativeAnnotator(tiny.verifier, **settings | change) for change in changes]
    others.append(DiscriminativeAnnotator(Verifier(base, dtype="float32"), evidence_tokens=60))
    elsewhere = shutil.copytree(base, tmp_path / "base")
    (elsewhere / "config.json").write_text((elsewhere / "config.json").read_text() + " ")
    changed = Verifier(str(elsewhere), tiny.verifier.packed(), dtype="float32")  # another base below the same weights
    others.append(DiscriminativeAnnotator(changed, evidence_tokens=60))
    assert len({a.fingerprint for a in (tiny, *others)}) == 6


def test_wrong_names_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
        with pytest.raises(OSError, match="'embeded': expected embedded, embedded-fast"):
            load_annotator("embeded")
    with pytest.raises(ValueError, match="empty name"):
        load_annotator(" ")
    with pytest.raises(OSError, match=r"expected embedded, .* with annotator\.json, found none there"):
        load_annotator(str(tmp_path))
    for name, message in (("nobody/nothing-here", "no such folder, and the hub says"), ("no such thing", "OWNER/NAME")):
        with pytest.raises(OSError, match=message):
            load_annotator(name)
    with pytest.raises(ValueError, match=r"window: expected device, dtype, .* named generative:"):
        load_annotator("embedded", window="whole")


def test_damaged_files_are_refused(tmp_path: Path, tiny: DiscriminativeAnnotator) -> None:
    tiny.save_pretrained(tmp_path)
    path, weights = tmp_path / "annotator.json", tmp_path / "verifier.safetensors"
    config = json.loads(path.read_text(encoding="utf-8"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"expected a whole verifier\.safetensors"):
        load_annotator(str(tmp_path))
    wrong = [json.dumps({name: value for name, value in config.items() if name != "lora"}), "[]", "{", "\udcff"]
    refused = [(text, r"lora \(Field required\), got none" if "base" in text else "JSON settings") for text in wrong]
    for key, value in (
        ("kind", "generative"), ("version", 0), ("labels", "supported"), ("base", None), ("layers", "1"), ("layers", 0),
        ("lora", "x"), ("languages", 3), ("languages", "en"), ("languages", []), ("evidence_tokens", "60"),
        ("evidence_tokens", 0), ("evidence_tokens", 769), ("evidence_tokens", True), ("narrow_tokens", 0),
    ):  # fmt: skip
        said = rf"{key} \(.*\), got {re.escape(repr(value))}; copy or train it again"
        refused.append((json.dumps({**config, key: value}), said))
    for text, message in refused:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(ValueError, match=rf"annotator\.json: expected {message}"):
            load_annotator(str(tmp_path))


def test_failures_of_the_base_are_its_own(tmp_path: Path, tiny: DiscriminativeAnnotator) -> None:
    tiny.save_pretrained(tmp_path)
    path = tmp_path / "annotator.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    other = save_tiny_bert(tmp_path / "other", 16)
    for change, error, message in (
        ({"base": str(tmp_path / "gone")}, FileNotFoundError, f"no checkpoint folder at {tmp_path}/gone"),
        ({"base": "packaged:nope"}, ValueError, "^packaged:nope: expected one of"),
        ({"layers": 2}, ValueError, "^layers: expected 1 to 1"),
        ({"base": other}, ValueError, r"expected a whole verifier\.safetensors: .*differs; copy or train it again"),
    ):
        path.write_text(json.dumps({**config, **change}), encoding="utf-8")
        with pytest.raises(error, match=message):
            load_annotator(str(tmp_path))


def test_thresholds_of_other_weights_are_refused(tmp_path: Path, tiny: DiscriminativeAnnotator) -> None:
    tiny.save_pretrained(tmp_path)
    point = Calibration(tiny.fingerprint, 1.0, 0.0, OperatingPoint("x", 0.5, 0.5))
    point.save(tmp_path / "operating.json")
    assert load_annotator(str(tmp_path), dtype="bfloat16").calibration == point
    replace(point, annotator="f" * 16).save(tmp_path / "operating.json")
    with pytest.raises(ValueError, match=f"of the weights beside it .{tiny.fingerprint}.*, got one of ffff"):
        load_annotator(str(tmp_path))


def test_small_one_judges_where_model_is_missing(
    tmp_path: Path, tiny: DiscriminativeAnnotator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.save_pretrained(tmp_path)
    path = tmp_path / "annotator.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "base": "packaged:smollm2"}), encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(SHIPPED, "embedded", tmp_path)
    assert load_annotator("embedded").name == "embedded-fast"
    assert "run `mitigate models get smollm2` once. Until then embedded-fast judges" in caplog.text
    with pytest.raises(OSError, match="is not on this machine"):  # who names other weights gets no others
        load_annotator(str(tmp_path))
    with pytest.raises(ValueError, match="expected two annotators, got 'embedded-fast' twice"):
        load_annotator("cascade:embedded-fast+embedded")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # nothing can be made below a file
    assert load_annotator("embedded").name == "embedded-fast"


@pytest.mark.parametrize("name", ["embedded", "embedded-fast", "embedded-zh"])
def test_shipped_files_belong_together(name: str, shipped: dict[str, Path]) -> None:
    """The fingerprint that thresholds and pages name is that of the weights, read here without their base."""
    config = json.loads((shipped[name] / "annotator.json").read_text(encoding="utf-8"))
    weights = digest_of(load_file(shipped[name] / "verifier.safetensors"))
    bases = {"embedded": "smollm2", "embedded-fast": "minilm", "embedded-zh": "e5-small"}
    assert config["base"] == f"packaged:{bases[name]}"
    fingerprint = fingerprint_of(config, config["base"], weights)
    assert fingerprint == Calibration.load(shipped[name] / FILE).annotator
    page = Path(__file__).parents[3] / "docs" / "results" / "annotator.md"
    assert f"fingerprint {fingerprint}" in page.read_text(encoding="utf-8")
    files = [path for folder in shipped.values() for path in folder.iterdir()]
    assert {path.suffix for path in files} == {".json", ".md", ".safetensors"}
    assert sum(path.stat().st_size for path in files) < 50_000_000


AS_SHIPPED = (
    ("embedded", "smollm2", "267aeb3d4f89f43b", REFERENCE, (
        ("Its light can be seen for 27 miles.", "supported", [0.959, 0.041, 0.0, 0.0]),  # wrongly
        ("Robert Wilson was its second keeper.", "contradictory", [0.548, 0.408, 0.044, 0.0]),
        ("Its lamp was made in France.", "unverifiable", [0.331, 0.247, 0.422, 0.0]),
    )),
    ("embedded-zh", "e5-small", "374859484d97eda8",
     "柳溪灯塔于1903年建成，高27米。第一任守塔人是安娜·罗。灯光在20海里外可见。", (
        ("灯塔高27米。", "supported", [0.988, 0.012, 0.0, 0.0]),
        ("灯塔建于1920年。", "contradictory", [0.662, 0.321, 0.016, 0.0]),
        ("第一任守塔人是王明。", "contradictory", [0.427, 0.556, 0.017, 0.0]),
    )),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "base", "fingerprint", "reference", "cases"), AS_SHIPPED)
def test_shipped_weights_judge_as_before(shipped, monkeypatch, name, base, fingerprint, reference, cases):
    """The scores are those that the weights gave when they were shipped."""
    if on_disk(base) is None:
        pytest.skip(f"skipped: packaged:{base} is not on disk; run `mitigate models get {base}`")
    monkeypatch.setitem(SHIPPED, name, shipped[name])
    annotator = load_annotator(name, dtype="float32")
    assert (annotator.name, annotator.fingerprint) == (name, fingerprint)
    for text, label, scores in cases:
        (judged,) = annotator.predict([{"reference": reference, "sentence": text}])
        assert judged.label == label
        assert [judged.scores[name] for name in LABELS] == pytest.approx(scores, abs=0.01)
