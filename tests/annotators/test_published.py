"""Published detectors by name: each equals its authors' documented call, computed here by hand on tiny checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as tk
import torch
import transformers as tf
from safetensors.torch import save_file

from annotators import LABELS, load_annotator
from annotators.operating import Calibration, OperatingPoint
from annotators.published import HHEM_PROMPT, class_order, over_windows

REFERENCE = "The bridge was opened in May 1902 by Queen Maud. It is 134 metres long."
ANSWER = "The bridge was opened in 1902. It is 999 metres long! Anna Berg drew it."
LONG = " ".join(f"Bridge {n} was drawn by Anna Berg in {1900 + n}." for n in range(60))
RECORD = {"question": "When was the bridge opened?", "reference": REFERENCE, "answer": ANSWER}
TEXTS = [REFERENCE, ANSWER, LONG, HHEM_PROMPT, "Briefly answer the following question passages output 北京 是 首都"]
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
NLI = {0: "contradiction", 1: "entailment", 2: "neutral"}


def build_tokenizer(kind: str) -> Any:
    """Pieces after "▁" for T5, pieces of bytes for the others."""
    t5 = kind == "t5"
    start, end, pad, unk = ("<s> </s> <pad> <unk>" if t5 or kind == "roberta" else "[CLS] [SEP] [PAD] [UNK]").split()
    specials = [pad, end, unk, start]
    if t5:
        said = {f"▁{word}" for text in TEXTS for word in text.split()} | set("".join(TEXTS)) - {" ", "\n"}
        pieces = [*specials, "▁", "▁1", *sorted(said - {"▁0", "▁1"})]  # T5 has no "▁0"
        made = tk.Tokenizer(tk.models.Unigram([(p, -5.0 * (p not in specials)) for p in pieces], 2))
        made.pre_tokenizer = tk.pre_tokenizers.Metaspace()
        made.add_special_tokens([pad, end, unk])
    else:
        made = tk.Tokenizer(tk.models.BPE())
        made.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
        letters = {"initial_alphabet": tk.pre_tokenizers.ByteLevel.alphabet(), "special_tokens": specials}
        made.train_from_iterator(TEXTS, tk.trainers.BpeTrainer(vocab_size=400, **letters))
    ids = [(token, made.token_to_id(token)) for token in (start, end)]
    first = "" if t5 else f"{start} "
    single, pair = f"{first}$A {end}", f"{first}$A {end} $B:1 {end}:1"
    made.post_processor = tk.processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    names = ["input_ids", *(["token_type_ids"] if kind in ("bert", "deberta-v2") else []), "attention_mask"]
    more = {} if t5 else {"cls_token": start, "sep_token": end}
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=pad, eos_token=end, unk_token=unk, model_input_names=names, **more
    )


def save(
    folder: Path, kind: str, head: str, *, positions: int = 512, scale: float = 1.0, bias: float = 0.0, **more: Any
) -> tuple[Any, Any]:
    """A tiny checkpoint in a folder, and its model and tokenizer, whose weights are large enough to say something."""
    tokenizer = build_tokenizer(kind)
    torch.manual_seed(3)
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": 0, **more}
    if kind == "t5":
        config: Any = tf.T5Config(
            d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0, **sizes
        )
    else:
        name = {"bert": "Bert", "deberta-v2": "DebertaV2", "roberta": "Roberta", "modernbert": "ModernBert"}[kind]
        config = getattr(tf, f"{name}Config")(max_position_embeddings=positions, **SMALL, **sizes)
        if kind == "modernbert":
            config.bos_token_id = config.eos_token_id = config.cls_token_id = config.sep_token_id = 1
    model = getattr(tf, f"AutoModelFor{head}").from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.25 * scale)
        if bias:
            model.classifier.bias[0] = bias
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@torch.no_grad()
def chances(model: Any, **batch: Any) -> np.ndarray:
    return model(**batch).logits[0].softmax(-1).numpy()


CLAIM = "Bridge 37 was drawn by Anna Berg."
SENTENCES = ["The bridge was opened in 1902.", "It is 999 metres long!", "Anna Berg drew it."]


def judged(name: str) -> Any:
    return zip(load_annotator(name).annotate(**RECORD).sentences, SENTENCES, strict=True)


@pytest.mark.parametrize("kind", ["bert", "deberta-v2", "roberta", "modernbert"])
def test_encoders_read_pairs_or_joined_texts(kind: str, tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path / "nli", kind, "SequenceClassification", id2label=NLI)
    for sentence, own in judged(f"nli:{tmp_path / 'nli'}"):
        p = chances(model, **tokenizer(REFERENCE, own, return_tensors="pt"))
        assert sentence.text == own
        assert sentence.label == ("contradictory", "supported", "unverifiable")[int(p.argmax())]
        assert [sentence.scores[label] for label in LABELS] == pytest.approx([p[1], p[0], p[2], 0.0], abs=1e-5)
    model, tokenizer = save(tmp_path / "two", kind, "SequenceClassification", num_labels=2)
    for sentence, own in judged(f"minicheck:{tmp_path / 'two'}"):
        p = chances(model, **tokenizer(f"{REFERENCE}{tokenizer.eos_token}{own}", return_tensors="pt"))[1]
        assert [sentence.scores[x] for x in ("supported", "unverifiable")] == pytest.approx([p, 1 - p], abs=1e-5)
        assert sentence.label == ("supported" if p > 0.5 else "unverifiable")


def test_minicheck_t5_reads_first_answer_token(tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path, "t5", "Seq2SeqLM")
    no, yes = (tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in ("0", "1"))
    assert (no, yes) == (4, 5)  # here; 3 and 209 in T5's own vocabulary
    for sentence, own in judged(f"minicheck:{tmp_path}"):
        batch = tokenizer(f"predict: {REFERENCE}</s>{own}", return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch, decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, 0]
        assert sentence.scores["supported"] == pytest.approx(float(logits[[no, yes]].softmax(0)[1]), abs=1e-5)


def test_hhem_needs_no_remote_code(tmp_path: Path) -> None:
    foundation, own_place = tmp_path / "flan-t5-base", tmp_path / "hhem"
    model, tokenizer = save(foundation, "t5", "TokenClassification", num_labels=2)
    own_place.mkdir()  # as on the hub: weights under "t5.", configuration and tokenizer in another place
    weights = {f"t5.{name}": value for name, value in model.state_dict().items() if "encoder.embed_tokens" not in name}
    save_file(weights, own_place / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "HHEMv2Config", "auto_map": {"AutoConfig": "x.Y"}, "foundation": str(foundation)}
    (own_place / "config.json").write_text(json.dumps(config))
    for sentence, own in judged(f"hhem:{own_place}"):
        asked = "<pad> Determine if the hypothesis is true given the premise?"
        batch = tokenizer(f"{asked}\n\nPremise: {REFERENCE}\n\nHypothesis: {own}", return_tensors="pt")
        assert batch["input_ids"][0, 0] == tokenizer.pad_token_id
        assert sentence.scores["supported"] == pytest.approx(chances(model, **batch)[0, 1], abs=1e-5)
    fingerprint = load_annotator(f"hhem:{own_place}").fingerprint  # not of the foundation alone
    (own_place / "config.json").write_text(json.dumps({**config, "note": "changed"}))
    assert load_annotator(f"hhem:{own_place}").fingerprint != fingerprint


def lettuce(folder: Path) -> tuple[Any, Any]:
    return save(folder, "modernbert", "TokenClassification", num_labels=2, positions=1024, scale=2.0, bias=4.0)


PROMPT = """Briefly answer the following question:
{}
Bear in mind that your response should be strictly based on the following 1 passages:
passage 1: {}
In case the passages do not contain the necessary information to answer the question, please reply with: \
"Unable to answer based on given passages."
output:"""


def painted(spans: Any) -> np.ndarray:
    """The visible characters of the answer that lie in the spans, as a mask over all its visible ones."""
    mask = np.zeros(len(ANSWER), bool)
    for start, end in spans:
        mask[start:end] = True
    return mask[[not c.isspace() for c in ANSWER]]


@pytest.mark.parametrize("question", [RECORD["question"], None])
def test_lettucedetect_marks_hallucinated_tokens(question: str | None, tmp_path: Path) -> None:
    model, tokenizer = lettuce(tmp_path)
    found = load_annotator(f"lettucedetect:{tmp_path}").annotate(reference=REFERENCE, answer=ANSWER, question=question)
    prompt = f"Summarize the following text:\npassage 1: {REFERENCE}\noutput:"
    if question:
        prompt = PROMPT.format(question, REFERENCE)
    batch = tokenizer(prompt, ANSWER, return_tensors="pt", return_offsets_mapping=True)
    offsets = batch.pop("offset_mapping")[0].tolist()
    p = chances(model, **batch)[:, 1]
    n = len(tokenizer(ANSWER, add_special_tokens=False)["input_ids"])
    tokens = range(len(p) - n - 1, len(p) - 1)  # as the package finds the answer
    assert ANSWER[offsets[tokens[0]][0] :].startswith("The bridge")
    spans = [(span.start, span.end) for s in found.sentences for span in s.spans or ()]
    assert all(ANSWER[a:b] and ANSWER[a:b] == ANSWER[a:b].strip() for a, b in spans)
    assert (painted(spans) == painted(offsets[t] for t in tokens if p[t] > 0.5)).all()
    for s in found.sentences:
        worst = max(p[t] for t in tokens if offsets[t][0] < s.end and offsets[t][1] > s.start)
        assert s.scores["unverifiable"] == pytest.approx(worst, abs=1e-5)
        assert s.label == ("unverifiable" if worst >= 0.5 else "supported")
        assert all(s.start <= span.start and span.end <= s.end for span in s.spans or ())
        assert (s.spans is None) == (s.label == "supported")
    assert {s.label for s in found.sentences} == {"supported", "unverifiable"} or question is None


def test_windows_keep_best_support_by_hand() -> None:
    chances = np.array([[0.2, 0.1, 0.7], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]])
    found, supporting, contradicting = over_windows(chances)
    assert (supporting, contradicting) == (1, 2)
    assert found == pytest.approx([0.6, 0.4 * 8 / 9, 0.4 / 9])  # the rest is shared as 0.8 to 0.1
    assert over_windows(chances[:1])[0] == pytest.approx(chances[0])
    assert over_windows(np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]]))[0] == pytest.approx([1, 0, 0])


def test_long_reference_reads_several_windows(tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path, "bert", "SequenceClassification", id2label=NLI, positions=66)
    annotator = load_annotator(f"nli:{tmp_path}")
    seen: list[str] = []
    whole = annotator._form
    annotator._form = lambda d, c, q: (seen.append(d) if d else None) or whole(d, c, q)
    one = annotator.predict([{"reference": LONG, "sentence": CLAIM}])[0]
    assert 2 <= len(seen) <= 6
    assert all(len(tokenizer(d, CLAIM)["input_ids"]) <= 64 for d in seen)
    assert all(part in LONG for d in seen for part in d.split("\n"))
    p = np.stack([chances(model, **tokenizer(d, CLAIM, return_tensors="pt")) for d in seen])
    assert one.scores["supported"] == pytest.approx(p[:, 1].max(), abs=1e-5)
    assert one.fragments[0].text in seen[int(p[:, 0 if one.label == "contradictory" else 1].argmax())]
    assert LONG[one.fragments[0].start : one.fragments[0].end] == one.fragments[0].text


def test_line_breaks_never_exceed_the_limit(tmp_path: Path) -> None:
    save(tmp_path, "roberta", "SequenceClassification", id2label=NLI, positions=66)
    annotator = load_annotator(f"nli:{tmp_path}")  # in whose tokenizer a line break is a token
    lines = "\n".join(f"{n} metres." for n in range(100))
    readings = annotator._read([(lines, "It is 99 metres long.", "")])[0]
    assert 48 < max(len(r.encoding["input_ids"]) for r in readings) <= annotator.limit == 64
    claim = annotator.tokenizer("It is 99 metres long.", add_special_tokens=False)["input_ids"]
    assert all(r.encoding["input_ids"][-len(claim) - 1 : -1] == claim for r in readings)  # never cut


def test_lettucedetect_takes_each_tokens_best_window(tmp_path: Path) -> None:
    save(tmp_path, "modernbert", "TokenClassification", num_labels=2, positions=514, scale=2.0)
    annotator = load_annotator(f"lettucedetect:{tmp_path}")
    readings = annotator._read([(LONG, CLAIM, "")])[0]
    assert len(readings) > 1
    places = [[t for t, part in enumerate(r.encoding.sequence_ids(0)) if part == 1] for r in readings]
    by_window = np.stack([r.chances[own, 1] for r, own in zip(readings, places, strict=True)])
    one = annotator.predict([{"reference": LONG, "sentence": CLAIM}])[0]
    assert one.scores["unverifiable"] == pytest.approx(by_window.min(0).max(), abs=1e-5)
    assert by_window.max() > by_window.min(0).max() + 1e-3


@pytest.mark.parametrize(("kind", "made"), [
    ("nli", lambda folder: save(folder, "bert", "SequenceClassification", id2label=NLI)),
    ("minicheck", lambda folder: save(folder, "t5", "Seq2SeqLM")), ("lettucedetect", lettuce),
])  # fmt: skip
def test_batches_equal_one_by_one(kind: str, made: Any, tmp_path: Path) -> None:
    made(tmp_path)
    annotator = load_annotator(f"{kind}:{tmp_path}")
    records = [RECORD, {**RECORD, "reference": LONG}, {"reference": REFERENCE, "answer": "Anna Berg drew it."}, RECORD]
    together = annotator.annotate_batch(records)
    for record, found in zip(records, together, strict=True):
        alone = annotator.annotate_batch([record])[0]
        for one, other in zip(found.sentences, alone.sentences, strict=True):
            assert (one.text, one.label, one.spans) == (other.text, other.label, other.spans)
            assert one.scores == pytest.approx(other.scores, abs=1e-5)


def test_what_no_model_need_read(tmp_path: Path) -> None:
    save(tmp_path, "bert", "SequenceClassification", id2label=NLI, positions=66)
    annotator = load_annotator(f"nli:{tmp_path}")
    texts = ["It is long.", "—", "🎉🎉", "long " * 40, "北京 是 首都"]
    rows = [("" if n == 0 else REFERENCE, text) for n, text in enumerate(texts)]
    *found, foreign = annotator.predict([{"reference": r, "sentence": s} for r, s in rows])
    assert [s.status for s in found] == ["no_reference", "checked", "checked", "too_long"]
    assert [s.label for s in found] == [None, "no_fact", "no_fact", None]
    assert foreign.status == "checked"  # any language is the model's business
    assert annotator.languages is None


def test_control_tokens_in_texts_are_text(tmp_path: Path) -> None:
    save(tmp_path, "roberta", "SequenceClassification", num_labels=2)
    annotator = load_annotator(f"minicheck:{tmp_path}")
    ids = annotator._encode("It is </s> long. \ud800", "<s>Anna", "")["input_ids"]
    assert [ids.count(annotator.tokenizer.convert_tokens_to_ids(t)) for t in ("<s>", "</s>")] == [1, 2]


def test_class_names_in_any_order() -> None:
    assert class_order(["ENTAILMENT", "neutral", "Contradiction"], "nli:x") == [0, 2, 1]
    assert class_order(["not_entailment", "entailment"], "nli:x") == [1, None, 0]
    assert class_order(["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"], "nli:x") == [0, 1, 2]
    for names in (["LABEL_0", "LABEL_1"], ["entailment", "entails"], ["entailment"], ["neutral", "contradiction"]):
        with pytest.raises(ValueError, match=r"expected classes named entailment.*say labels="):
            class_order(names, "nli:x")


def test_labels_may_be_said(tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path, "bert", "SequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match="LABEL_0, LABEL_1, LABEL_2; say labels="):
        load_annotator(f"nli:{tmp_path}")
    with pytest.raises(ValueError, match="labels: expected 3, one a class, got 2"):
        load_annotator(f"nli:{tmp_path}", labels=["entailment", "neutral"])
    said = load_annotator(f"nli:{tmp_path}", labels=["neutral", "contradiction", "entailment"])
    one = said.predict([{"reference": REFERENCE, "sentence": SENTENCES[0]}])[0]
    p = chances(model, **tokenizer(REFERENCE, SENTENCES[0], return_tensors="pt"))
    assert [one.scores[label] for label in LABELS] == pytest.approx([p[2], p[1], p[0], 0], abs=1e-5)
    other = load_annotator(f"nli:{tmp_path}", labels="entailment, contradiction, neutral")
    assert said.fingerprint != other.fingerprint


def test_calibration_moves_labels_and_spans(tmp_path: Path) -> None:
    lettuce(tmp_path)
    annotator = load_annotator(f"lettucedetect:{tmp_path}")
    plain = annotator.annotate(**RECORD)
    trusting = Calibration(annotator.fingerprint, 1.0, 8.0, OperatingPoint("x", 0.5, 0.5, 0.5, 0.5))
    kind = annotator.calibrated(trusting).annotate(**RECORD)
    assert any(s.spans for s in plain.sentences)
    for before, after in zip(plain.sentences, kind.sentences, strict=True):
        odds = np.log(before.scores["supported"] / before.scores["unverifiable"])
        assert after.scores["supported"] == pytest.approx(1 / (1 + np.exp(-odds - 8)), abs=1e-4)
        assert (after.label, after.spans) == ("supported", None)


def test_fingerprint_is_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = save(tmp_path / "a", "bert", "SequenceClassification", id2label=NLI)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # keeps the files' times
    first, moved = (load_annotator(f"nli:{tmp_path / name}").fingerprint for name in "ab")
    assert first == moved
    model.config.update({"note": "changed"})
    model.config.save_pretrained(tmp_path / "b")
    assert load_annotator(f"nli:{tmp_path / 'b'}").fingerprint != first
    found = []  # a hub id is its commit, in any cache
    for n, commit in enumerate(("aaa", "aaa", "bbb")):
        place = tmp_path / str(n) / "models--owner--name"
        shutil.copytree(tmp_path / "a", place / "snapshots" / commit, copy_function=shutil.copyfile)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(commit)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / str(n)))
        found.append(load_annotator("nli:owner/name").fingerprint)
    assert found[0] == found[1] != found[2]


def test_wrong_models_are_refused(tmp_path: Path) -> None:
    for name in (f"nli:{tmp_path / 'none'}", "minicheck:no-such/model", f"hhem:{tmp_path}"):
        with pytest.raises(OSError, match=f"annotator '{name}': expected a folder or hub id"):
            load_annotator(name)
    save(tmp_path / "three", "bert", "SequenceClassification", num_labels=3)
    save(tmp_path / "base", "bert", "MaskedLM")
    save(tmp_path / "t5", "t5", "Seq2SeqLM")
    build_tokenizer("bert").save_pretrained(tmp_path / "t5")
    for name, options, message in (
        ("nli:", {}, "expected nli:ID, lettucedetect:ID"),
        (f"minicheck:{tmp_path}/three", {}, "expected a model of two classes, got 3"),
        (f"lettucedetect:{tmp_path}/three", {}, "trained BertForTokenClassification, as lettucedetect is, but config"),
        (f"nli:{tmp_path}/base", {}, r"weights are missing: bert\.pooler.*classifier\.bias"),
        (f"minicheck:{tmp_path}/three", {"labels": ["a", "b"]}, "labels: for nli:ID only"),
        (f"nli:{tmp_path}/three", {"cache": "x"}, "cache: expected device, dtype"),
        (f"minicheck:{tmp_path}/t5", {}, "expected a tokenizer with the pieces ▁ and ▁1"),
    ):
        with pytest.raises(ValueError, match=message):
            load_annotator(name, **options)
    (tmp_path / "three" / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"safetensors weights"):
        load_annotator(f"nli:{tmp_path / 'three'}")
