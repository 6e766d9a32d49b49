"""The pair encoder: what it reads, its stored changes, its training, and the synthetic rows it learns from."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from annotators.verifier.combiner import SHARE, UNSUPPORTED, Combiner, votes_of
from annotators.verifier.encoder import EVIDENCE, N_STATES, SENTENCE, PairEncoder, excerpt, states
from annotators.verifier.features import words_of
from annotators.verifier.synthetic import KEEPING, Company, Example, Maker, changed, chatty, rewrite, with_addition
from annotators.verifier.training import (
    batch_order,
    labelled_examples,
    read_examples,
    token_targets,
    train_stage,
    write_examples,
)
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
    # weights 3, 2, 1; passage 0 meets word 0, passage 1 words 0 and 1, passage 2 word 2
    met = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    weight = np.array([3.0, 2.0, 1.0])
    # alone 3, 5, 1. First 1 (5 + 1.25). Then gains 0: 0 + 0.75; 2: 1 + 0.25. With 20 tokens left, 2 and then 0 fit.
    assert excerpt(met, weight, [10, 10, 10], 30) == [0, 1, 2]
    assert excerpt(met, weight, [10, 10, 10], 20) == [1, 2]
    assert excerpt(met, weight, [5, 10, 30], 20) == [0, 1]  # passage 2 is too long for what is left
    assert excerpt(met, weight, [10, 99, 10], 20) == [1]  # the best one always
    assert excerpt(np.zeros((0, 2)), np.zeros(0), [10, 10], 20) == [0, 1]
    # passage 2 adds 1.25 of 6, passage 0 adds 0.75 of 6: the first is enough for a share of 0.2, not of 0.22
    assert excerpt(met, weight, [10, 10, 10], 30, 0.2) == [1, 2]
    assert excerpt(met, weight, [10, 10, 10], 30, 0.22) == [1]


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
    assert kind["Maud"] if "Maud" in kind else kind["Queen"] == SENTENCE * N_STATES + 5
    assert kind["1903"] if "1903" in kind else kind["190"] == SENTENCE * N_STATES + 4
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
    def trained(folder: Path, steps: tuple[float, ...]) -> PairEncoder:
        for epochs in steps:
            torch.manual_seed(3)
            encoder = PairEncoder(base, dtype="float32")
            train_stage(encoder, rows, folder, epochs=epochs, rate=3e-3, batch=8)
        return encoder

    rows = examples(64)
    encoder = trained(tmp_path / "a", (12,))
    logits, tokens = encoder([(e.question, e.sentence, e.passages) for e in examples(40)])
    chance = torch.tensor(logits).softmax(-1)[:, 0].numpy()
    assert chance[0::2].min() > 0.5 > chance[1::2].max()
    wrong = [max(p for a, b, p in t if a < 10 and b > 7) for t in tokens]
    assert np.mean(wrong[1::2]) > np.mean(wrong[0::2]) + 0.3
    state = tmp_path / "a" / "state.safetensors"
    before = state.stat().st_mtime_ns
    again = trained(tmp_path / "a", (12,))  # complete: nothing is trained
    assert state.stat().st_mtime_ns == before
    for a, b in zip(encoder.model.parameters(), again.model.parameters(), strict=True):
        assert not a.requires_grad or torch.equal(a, b)


def test_interrupted_training_ends_the_same(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import annotators.verifier.training as training

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
    wanted = token_targets(pair, example)
    hit = [a < 10 and b > 7 for a, b in pair.offsets.tolist()]
    assert wanted.tolist() == [float(h) for h in hit]
    unknown = Example("", example.sentence, example.passages, 2, None, "made")
    assert set(token_targets(pair, unknown).tolist()) == {-1.0}
    order = batch_order([5] * 10, 4, seed=0)
    assert sorted(i for numbers in order for i in numbers) == list(range(10))


def test_combiner_adds_the_encoder() -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, 4, 400)
    x = rng.normal(size=(400, 3))  # says nothing
    beside = 2.0 * np.eye(4)[target] + rng.normal(size=(400, 4)) * 0.3
    combiner = Combiner.fit(x, target, np.ones(400), members=1, epochs=1, hidden=8)
    votes = votes_of(beside)
    calibrated = combiner.calibrated(x, target, np.ones(400), votes)
    assert (calibrated.predict_proba(x, votes).argmax(1) == target).mean() > 0.95
    t = calibrated.tensors
    z = (calibrated.logits(x) + SHARE * votes) / t["temperature"] + t["bias"]
    expected = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert calibrated.predict_proba(x, votes) == pytest.approx(expected, abs=1e-5)


def test_changed_words_by_hand() -> None:
    before, after = "It was opened in 1902 by Maud.", "It was closed in 1903 by Maud."
    assert [after[a:b] for a, b in changed(before, after)] == ["closed", "1903"]
    assert changed(before, before) == ()
    cut = "It was opened by Maud."  # "in 1902" is gone: the words around it
    assert [cut[a:b] for a, b in changed(before, cut)] == ["opened by"]


def test_additions() -> None:
    made = with_addition("It is long.", "Fish swim, birds fly south in winter.", Random(0))
    assert made is not None
    text, (a, b) = made
    assert text[a:b] == "birds fly south in winter"
    assert text.startswith("It is long")


def test_rewordings_only_leave_out_move_or_exchange() -> None:
    assert KEEPING[0]("It is old (very old) and big.", Random(0)) == "It is old and big."
    assert KEEPING[3]("In 1950, Anna Berg painted the bridge in green.", Random(0)) == (
        "Anna Berg painted the bridge in green in 1950."
    )
    assert KEEPING[6]("It opened on May 5, 1902 here.", Random(0)) == "It opened on 5 May 1902 here."
    for sentence in DOCUMENT:
        for seed in range(20):
            text = rewrite(sentence, Random(seed))
            digits = {w for w in words_of(text).stems if w[0] == "#"}
            assert digits <= {w for w in words_of(sentence).stems if w[0] == "#"}
    assert (chatty("It is long.", Random(3)) or "").lower().rstrip(".").endswith("it is long")


def test_made_examples_say_what_is_wrong() -> None:
    maker = Maker(Company(DOCUMENT), ["Fish swim in the deep lake, birds fly south."])
    seen = set()
    for seed in range(60):
        for example in maker.of_document(DOCUMENT, "What is it?", "made", Random(seed)):
            seen.add(example.target)
            if example.target == 0:
                assert example.spans == ()
            elif example.spans is not None:
                assert example.spans
                assert all(0 <= a < b <= len(example.sentence) for a, b in example.spans)
            else:  # its own passage was taken out
                assert example.target == 2
                assert len(example.passages) < len(DOCUMENT)
    assert {0, 1, 2} <= seen


def test_examples_of_labels_and_files(tmp_path: Path) -> None:
    rows = [
        {"label": "supported", "source": "summedits", "sentence": "It is long.", "question": None},
        {"label": "unsupported", "source": "summedits", "sentence": "It is short.", "question": "How long?",
         "correction": "It is long."},
        {"label": "unsupported", "source": "begin", "sentence": "It is red.", "question": None},
    ]  # fmt: skip
    made = labelled_examples(rows, [("a",), ("b", "c"), ()], np.array([1.0, 2.0, 3.0]))
    assert [e.spans for e in made] == [(), ((6, 11),), None]
    assert [e.target for e in made] == [0, UNSUPPORTED, UNSUPPORTED]
    assert made[1] == Example("How long?", "It is short.", ("b", "c"), UNSUPPORTED, ((6, 11),), "summedits", 2.0)
    write_examples(made, tmp_path / "e.jsonl")
    assert read_examples(tmp_path / "e.jsonl") == made
