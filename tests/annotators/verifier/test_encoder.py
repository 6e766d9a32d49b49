"""The pair encoder: what it reads, its scores, and its stored changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from annotators.text.words import words_of
from annotators.verifier.encoder import EVIDENCE, N_STATES, SENTENCE, PairEncoder, excerpt, states
from tests.helpers.tiny_bert import save_tiny_bert

DOCUMENT = (
    "The Alder Bridge was opened in May 1902 by Queen Maud of Norland.",
    "In 1950, Anna Berg painted the bridge, which was grey before, in green.",
    "It is 134 metres long and carries about 2,000 cars a day (most of them in summer).",
    "Robert Wilson began to repair the northern arch because of a flood in 1987.",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT with MiniLM's tokenizer."""
    return save_tiny_bert(tmp_path_factory.mktemp("tiny"), 32)


def test_excerpt_by_hand() -> None:
    # weights 3, 2, 1; passage 0 matches word 0, passage 1 words 0 and 1, passage 2 word 2
    matched = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    weight = np.array([3.0, 2.0, 1.0])
    # alone 3, 5, 1. First 1 (5 + 1.25). Then gains 0: 0 + 0.75; 2: 1 + 0.25. With 20 tokens left, 2 and then 0 fit.
    assert excerpt(matched, weight, [10, 10, 10], 30) == [0, 1, 2]
    assert excerpt(matched, weight, [10, 10, 10], 20) == [1, 2]
    assert excerpt(matched, weight, [5, 10, 30], 20) == [0, 1]  # passage 2 is too long for what is left
    assert excerpt(matched, weight, [10, 99, 10], 20) == [1]  # the best one always
    assert excerpt(np.zeros((0, 2)), np.zeros(0), [10, 10], 20) == [0, 1]
    # passage 2 adds 1.25 of 6, passage 0 adds 0.75 of 6: the first is enough for a share of 0.2, not of 0.22
    assert excerpt(matched, weight, [10, 10, 10], 30, 0.2) == [1, 2]
    assert excerpt(matched, weight, [10, 10, 10], 30, 0.22) == [1]


def test_states_by_hand() -> None:
    words = words_of("the Alder bridge of 1,902 opened in Paris in 1950")
    others = frozenset(words_of("Alder bridges open in 1902").stems)
    #        the Alder bridge of 1902 opened in Paris in 1950: content 1 found 2 not, number 3/4, name 5/6
    assert states(words, others).tolist() == [0, 5, 1, 0, 3, 1, 0, 6, 0, 4]


def test_inputs_hold_all_parts(base: str) -> None:
    encoder = PairEncoder(base)
    (pair,) = encoder.pairs([("Who opened it?", "Queen Maud opened it in 1903.", DOCUMENT[:2])])
    text = encoder.tokenizer.decode(pair.ids)
    assert text.startswith("[CLS] who opened it? [SEP] queen maud opened it in 1903. [SEP] the alder bridge")
    assert text.endswith("in green. [SEP]")
    own = pair.ids[pair.first : pair.first + len(pair.offsets)]
    assert encoder.tokenizer.decode(own) == "queen maud opened it in 1903."
    sentence = "Queen Maud opened it in 1903."
    kind = {sentence[a:b]: k for (a, b), k in zip(pair.offsets.tolist(), pair.kinds[pair.first :], strict=False)}
    assert kind["Queen"] == SENTENCE * N_STATES + 5  # a name that the evidence has
    assert kind["1903"] == SENTENCE * N_STATES + 4  # a number that it lacks
    assert (pair.kinds[-2], pair.kinds[-1]) == (EVIDENCE * N_STATES, 0)  # the full stop, and the end
    assert encoder.pairs([("", "a b", ["c " * 900])])[0].ids.shape == (512,)


def test_batch_equals_single_and_scores_tokens(base: str) -> None:
    torch.manual_seed(1)
    fresh = PairEncoder(base, dtype="float32")
    encoder = PairEncoder(base, fresh.packed(), dtype="float32")
    texts = [("", s, DOCUMENT) for s in ("Maud opened it.", "It is 134 metres long and green.", "Yes.")]
    together, tokens = encoder(texts)
    for i, text in enumerate(texts):
        alone, own = encoder([text])
        assert together[i] == pytest.approx(alone[0], abs=1e-5)
        assert [(a, b) for a, b, _ in tokens[i]] == [(a, b) for a, b, _ in own[0]]
        assert all(0 <= p <= 1 for _, _, p in tokens[i])
    assert "".join(texts[1][1][a:b] for a, b, _ in tokens[1]) == texts[1][1].replace(" ", "")
    assert encoder([])[0].shape == (0, 4)


def test_stored_change_is_close_and_of_one_base(base: str) -> None:
    encoder = PairEncoder(base, dtype="float32")
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in encoder.model.parameters():
            if parameter.requires_grad:
                parameter += 0.01 * torch.randn_like(parameter)
    stored = encoder.packed()
    again = PairEncoder(base, stored, dtype="float32")
    pairs = zip(encoder.model.named_parameters(), again.model.parameters(), strict=True)
    for (name, a), b in ((a, b) for a, b in pairs if a[1].requires_grad):
        # a change of at most 0.06 in 127 steps either way; the rest as bfloat16, at most 2 with 8 bits
        assert (a - b).abs().max() < (0.0004 if f"{name}.scale" in stored else 0.005), name
    assert again.fingerprint == PairEncoder(base, stored).fingerprint
    assert again.fingerprint != PairEncoder(base, PairEncoder(base).packed()).fingerprint
    with pytest.raises(ValueError, match="expected those of this base"):
        PairEncoder(None, stored)
