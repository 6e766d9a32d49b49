"""The verifier's network: what it reads, its probabilities, encoder and language model alike, its stored weights."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from annotators.verifier import model
from engines.checkpoint import content_digest
from tests.helpers.tiny_models import save_decoder, save_tiny_bert

DOCUMENT = (
    "The Alder Bridge was opened in May 1902 by Queen Maud of Norland.",
    "In 1950, Anna Berg painted the bridge, which was grey before, in green.",
    "It is 134 metres long and carries about 2,000 cars a day (most of them in summer).",
)


@pytest.fixture(scope="module", params=["encoder", "language model"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT with MiniLM's tokenizer, or a tiny Llama with a byte-level one."""
    folder = tmp_path_factory.mktemp("tiny")
    return save_tiny_bert(folder, 32) if request.param == "encoder" else str(save_decoder(folder))


def test_states_by_hand() -> None:
    own = model.cells("the Alder bridge of 1,902 opened in Paris in 1950")
    #          the Alder bridge of 1902 opened in Paris in 1950: content 1 found 2 not, number 3/4, name 5/6
    assert own.states(model.keys_of("Alder bridges open in 1902")).tolist() == [0, 5, 1, 0, 3, 1, 0, 6, 0, 4]
    assert model.cells("").states(frozenset()).tolist() == []
    own = model.cells("桥建于1902年")  # Chinese is matched by pairs of characters
    assert "".join("桥建于1902年"[a:b] for a, b in zip(own.starts, own.ends, strict=True)) == "桥建于1902年"
    # 桥 stands in the pair 桥建, which the other text lacks; 建 and 于 in 建于, which it has; 年 is alone in its run
    assert own.states(model.keys_of("大桥始建于1902年")).tolist() == [2, 1, 1, 3, 1]
    text, offsets = "Maud left", np.array([[0, 2], [2, 4], [4, 9]])  # a token is of the word in which it ends
    kinds = model.kinds_of(model.SENTENCE, text, offsets, model.keys_of("She left"))
    assert (kinds - model.SENTENCE * model.N_STATES).tolist() == [6, 6, 1]


def test_probabilities_by_hand() -> None:
    logits = np.array([[np.log(2.0), np.log(1.0), np.log(1.0), np.log(1 / 3)]], np.float32)
    # P(no fact) = (1/3) / (4/3) = 1/4; the rest is shared 2 : 1 : 1
    assert model.probabilities(logits)[0] == pytest.approx([0.375, 0.1875, 0.1875, 0.25], abs=1e-6)


def test_inputs_hold_all_parts_in_order(base: str) -> None:
    verifier = model.Verifier(base)
    sentence = "Queen Maud opened it in 1903."
    (read,) = verifier.inputs([("Who opened it?", sentence, DOCUMENT[:2])])
    text = verifier.tokenizer.decode(read.ids).lower()
    at = [text.index(piece) for piece in ("who opened it", "queen maud opened it in 1903", "the alder bridge")]
    assert at == sorted(at) if not verifier.network.causal else at[2] < at[0] < at[1]
    own = read.ids[read.first : read.first + len(read.offsets)]
    assert verifier.tokenizer.decode(own).lower() == "queen maud opened it in 1903."
    places = zip(read.offsets.tolist(), read.kinds[read.first :].tolist(), strict=False)
    kind = {sentence[a:b].strip(): k for (a, b), k in places}
    assert kind["."] == model.SENTENCE * model.N_STATES
    last = read.kinds[read.first + len(read.offsets) - 2]
    assert last == model.SENTENCE * model.N_STATES + 4  # 1903: a number that the evidence lacks
    parts = {k // model.N_STATES for k in read.kinds.tolist()}
    assert parts == {model.QUESTION, model.SENTENCE, model.EVIDENCE}


def test_long_evidence_is_cut_and_the_sentence_kept(base: str) -> None:
    verifier = model.Verifier(base)
    (read,) = verifier.inputs([("Why?", "It has 12 doors.", ["stone " * 700, "wood " * 100])])
    assert len(read.ids) <= verifier.limit == 512
    own = read.ids[read.first : read.first + len(read.offsets)]
    assert verifier.tokenizer.decode(own).lower() == "it has 12 doors."


def test_batch_equals_single(base: str) -> None:
    torch.manual_seed(1)
    verifier = model.Verifier(base, model.Verifier(base).packed(), dtype="float32")
    texts = [("", s, DOCUMENT) for s in ("Maud opened it.", "It is 134 metres long and green.", "Yes.")]
    texts.insert(1, ("Who opened it?", "Maud opened it.", DOCUMENT[:1]))
    packs = model.packs_of(verifier.inputs(texts))  # a language model reads evidence once for all
    assert packs == ([[0, 2, 3], [1]] if verifier.network.causal else [[0], [1], [2], [3]])
    together, tokens = verifier(texts)
    for i, text in enumerate(texts):
        alone, own = verifier([text])
        assert together[i] == pytest.approx(alone[0], abs=1e-5)
        assert [(a, b) for a, b, _ in tokens[i]] == [(a, b) for a, b, _ in own[0]]
        assert all(0 <= p <= 1 for _, _, p in tokens[i])
    assert "".join(texts[2][1][a:b].replace(" ", "") for a, b, _ in tokens[2]) == texts[2][1].replace(" ", "")
    assert verifier([])[0].shape == (0, 4)


def test_marks_reach_the_verdict(tmp_path: Path) -> None:
    verifier = model.Verifier(save_tiny_bert(tmp_path, 32), dtype="float32")
    number, none = ("", "It is 134 metres long.", DOCUMENT), ("", "It is very long.", DOCUMENT)
    before = verifier([number])[0], verifier([none])[0]
    with torch.no_grad():  # the mark of a number that the evidence has; no such word stands in the second sentence
        verifier.network.kind.weight[model.SENTENCE * model.N_STATES + 3] += torch.randn(32)
    assert np.abs(verifier([number])[0] - before[0]).max() > 1e-4
    assert verifier([none])[0] == pytest.approx(before[1], abs=1e-6)


def test_stored_weights_are_of_one_base(base: str, tmp_path: Path) -> None:
    verifier = model.Verifier(base)
    stored = verifier.packed()
    assert not [name for name in stored if "word_embeddings" in name or "embed_tokens" in name]
    assert model.Verifier(base, stored, dtype="float32").fingerprint == verifier.fingerprint
    with torch.no_grad():
        verifier.network.token.bias += 0.5
    changed = model.Verifier(base, verifier.packed(), dtype="float32")
    assert changed.network.token.bias.item() == pytest.approx(verifier.network.token.bias.item(), abs=1e-3)
    assert changed.fingerprint != verifier.fingerprint  # remembered from before the change
    with pytest.raises(ValueError, match="expected those of this base"):
        model.Verifier(save_tiny_bert(tmp_path / "other", 16), stored)


def test_an_adapter_is_stored_alone_and_merged(base: str) -> None:
    torch.manual_seed(4)
    verifier = model.Verifier(base, lora=2, dtype="float32")
    with torch.no_grad():
        for name, parameter in verifier.network.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    stored = verifier.packed()
    assert all("lora_" in name for name in stored if name.startswith("base."))
    merged = model.Verifier(base, stored, lora=2, dtype="float32")
    assert merged.fingerprint == verifier.fingerprint
    text = ("", "It is 134 metres long.", DOCUMENT)
    assert merged([text])[0] == pytest.approx(verifier([text])[0], abs=2e-3)  # stored as float16
    plain = model.Verifier(base, lora=2, dtype="float32")
    without = {name: value for name, value in verifier.network.state_dict().items() if "lora" not in name}
    plain.network.load_state_dict(without, strict=False)
    assert np.abs(plain([text])[0] - verifier([text])[0]).max() > 5e-3


def test_a_base_is_cut_to_its_first_layers(tmp_path: Path) -> None:
    folder = str(save_decoder(tmp_path))
    for layers, expected in ((1, {"0"}), (None, {"0", "1"})):
        names = model.Verifier(folder, layers=layers).packed()
        assert {name.split(".")[2] for name in names if name.startswith("base.layers")} == expected
    for layers in (0, 3):  # transformers would make a third one, of random weights
        with pytest.raises(ValueError, match=f"layers: expected 1 to 2, which {folder} has, got {layers}"):
            model.Verifier(folder, layers=layers)
    with pytest.raises(ValueError, match="dtype: expected 'auto', 'float32' or 'bfloat16', got 'half'"):
        model.Verifier(folder, dtype="half")  # type: ignore[arg-type]


def test_base_identity_is_of_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save_tiny_bert(tmp_path / "first", 16)
    shutil.copytree(first, tmp_path / "b")
    found = [model.Verifier(str(tmp_path / name)).base_identity for name in ("first", "b")]
    stored = load_file(tmp_path / "b" / "model.safetensors")
    stored["embeddings.word_embeddings.weight"][0, 0] += 1  # which training does not store
    save_file(stored, tmp_path / "b" / "model.safetensors", metadata={"format": "pt"})
    os.utime(tmp_path / "first" / "model.safetensors", (0, 0))
    found += [model.Verifier(str(tmp_path / name)).base_identity for name in ("b", "first")]
    for n, commit in enumerate(("aaa", "aaa", "bbb")):
        place = tmp_path / str(n) / "models--owner--name"
        shutil.copytree(first, place / "snapshots" / commit)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(commit)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / str(n)))
        found.append(model.Verifier("owner/name").base_identity)
    assert found[0] == found[1] == found[3] != found[2]
    assert found[4:] == [found[0]] * 3  # a commit may change a README only
    (tmp_path / "first" / "tokenizer.json").unlink()
    (tmp_path / "first" / "vocab.txt").write_text("a\nb\n")
    before = content_digest(tmp_path / "first")
    (tmp_path / "first" / "vocab.txt").write_text("b\na\n")
    assert content_digest(tmp_path / "first") != before
