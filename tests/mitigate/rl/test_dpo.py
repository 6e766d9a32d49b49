"""Mask-DPO: pairs and masks by hand, a step that moves the margin, and the command."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("trl")

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from examples.pocket import lm
from mitigate.cli.main import main
from mitigate.rewards.inputs import copied
from mitigate.rl.credit import special_ids
from mitigate.rl.dpo import MASK_DPO, PAPER_MASK_DPO, MaskDPOCollator
from mitigate.rl.preferences import best_against_worst, build_pairs, published_item, sentences_of
from tests.helpers.jsonl import read_rows, write_rows

SHORT = {"s": "supported", "c": "contradictory", "u": "unverifiable", "n": "no_fact", "?": None}


def sample(labels, question="q", answer=None):
    """An annotated answer with a sentence "Xx." for each letter of ``labels``."""
    text = answer or " ".join("Xx." for _ in labels)
    sentences = [
        {"text": "Xx.", "start": 4 * i, "end": 4 * i + 3, "label": SHORT[letter]} for i, letter in enumerate(labels)
    ]
    return {"question": question, "reference": "r", "answer": text, "sentences": sentences}


def test_best_against_worst_by_hand():
    # rates: sc 1/2, sss 0, cu? 2/2, nn none; of the perfect ones the longer is chosen
    pair = best_against_worst([sample("sc"), sample("s"), sample("sss"), sample("cu?"), sample("nn")])
    assert pair is not None
    assert (pair["chosen_rate"], pair["rejected_rate"]) == (0.0, 1.0)
    assert (pair["chosen_cut_off"], pair["rejected_cut_off"]) == (False, False)
    cut = best_against_worst([sample("c"), {**sample("s"), "cut_off": True}])
    assert cut is not None
    assert (cut["chosen_cut_off"], cut["rejected_cut_off"]) == (True, False)
    assert [s["label"] for s in pair["chosen_sentences"]] == ["supported"] * 3
    assert pair["rejected_sentences"][1] == {"start": 4, "end": 7, "label": "unverifiable"}
    assert pair["prompt"] == [{"role": "user", "content": "q"}]
    assert pair["rejected"] == [{"role": "assistant", "content": "Xx. Xx. Xx."}]


def test_sentences_in_the_published_form_by_hand():
    """Slices without gaps, two words for types, any other for what is left in on both sides; and back."""
    answer = "Hm. Ab.\n\nCd. Ef. "
    spans = [(0, 3, "no_fact"), (4, 7, "supported"), (9, 12, "contradictory"), (13, 16, None)]
    ours = [dict(zip(("start", "end", "label"), span, strict=True)) for span in spans]
    item = published_item(answer, ours)
    assert item == {
        "sents": ["Hm. ", "Ab.\n\n", "Cd. ", "Ef. "],
        "type": ["no_fact", "no_hallucination", "hallucination", "unchecked"],
    }
    assert "".join(item["sents"]) == answer
    back = [None, "supported", "unsupported", None]
    assert sentences_of({"chosen_item": item}, "chosen", answer) == [
        {**one, "label": label} for one, label in zip(ours, back, strict=True)
    ]
    for wrong, message in (
        ({"sents": ["Ab.", "Hm."], "type": ["a", "b"]}, "sentences that stand in the answer, one after the other"),
        ({"sents": ["Ab."], "type": []}, "`sents` and `type`, lists of texts"),
        ({"sents": ["Ab."], "type": ["a", "b"]}, "a type for each of 1 sentences, got 2"),
        ("x", "`sents` and `type`, lists of texts, got x"),
    ):
        with pytest.raises(ValueError, match=message):
            sentences_of({"rejected_item": wrong}, "rejected", answer)
    good = {"start": 0, "end": len(answer), "label": None}
    assert sentences_of({"chosen_sentences": [good]}, "chosen", answer) == [good]
    for changed in (
        {"end": 99}, {"start": 5, "end": 2}, {"start": -1}, {"start": 3, "end": 3}, {"start": "0"}, {"label": "zzz"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="chosen_sentences: expected a list of"):
            sentences_of({"chosen_sentences": [good, {**good, **changed}]}, "chosen", answer)
    for none in ("abc", [{"begin": 0}], ["abc"], [{"start": 0, "end": 3}]):
        with pytest.raises(ValueError, match="chosen_sentences: expected a list of"):
            sentences_of({"chosen_sentences": none}, "chosen", answer)


def test_ties_singles_gaps_and_groups():
    # ties: at ½, at 0, at 1; only one with a factual sentence; one alone; none
    for labels in (["sc", "cs"], ["s", "ss"], ["cu", "u"], ["s", "nn"], ["s"], []):
        assert best_against_worst([sample(one) for one in labels]) is None, labels
    rows = [sample("sc", "a"), sample("s", "b"), sample("s", "a"), sample("c", "b")]
    assert [pair["prompt"][0]["content"] for pair in build_pairs(rows)] == ["a", "b"]  # gaps 0.5 and 1
    assert [pair["rejected_rate"] for pair in build_pairs(rows, min_gap=0.75)] == [1.0]
    for wrong in range(4):  # of five sentences: gaps of exactly 0.2, whatever floats make of 0.6 − 0.4
        two = [sample("c" * n + "s" * (5 - n)) for n in (wrong, wrong + 1)]
        assert best_against_worst(two, min_gap=0.2) is not None
        assert best_against_worst(two, min_gap=0.21) is None


def test_pairs_that_differ_in_truth_alone():
    """Density is 1 for the reference's own sentence and 0 for one without any of its words."""
    reference = "The stone bridge over the quiet river was built in 1804."
    texts = {"copy": reference, "own": "Masons finished that crossing early.", "false": "Nobody knows anything there."}
    texts["near"] = reference.replace("1804", "1904")

    def judged(name, label):
        one = {"start": 0, "end": len(texts[name]), "label": label}
        polite = {"start": len(texts[name]) + 1, "end": len(texts[name]) + 20, "label": "no_fact"}
        return {"question": "q", "reference": reference, "answer": f"{texts[name]} Does this help you?",
                "sentences": [one, polite]}  # fmt: skip

    copy, own = judged("copy", "supported"), judged("own", "supported")
    wrong, near = judged("false", "contradictory"), judged("near", "contradictory")
    assert (copied(copy), copied(own), copied(copy, {"supported"}), copied(copy, {None})) == (0.5, 0, 1, None)
    assert copied({**copy, "reference": [reference, "Ada."]}) == 0.5
    assert copied({**copy, "reference": " "}) is None

    def pair(*samples, gap):
        found = best_against_worst(samples, copy_gap=gap)
        return found and tuple(found[side][0]["content"][:-20] for side in ("chosen", "rejected"))

    assert pair(copy, own, wrong, gap=None) == (texts["copy"], texts["false"])
    assert pair(copy, own, wrong, gap=0.2) == (texts["own"], texts["false"])
    assert pair(copy, wrong, gap=0.6) is None  # with the polite sentences the difference would be 0.5
    assert pair(own, near, gap=-0.2) == (texts["own"], texts["near"])  # copies less: any bound above the difference
    assert pair(own, near, gap=-1) is None
    assert pair(copy, wrong, near, gap=0.2) == (texts["copy"], texts["near"])
    assert pair(copy, wrong, gap=1.0 - 1e-12) == (texts["copy"], texts["false"])


# --- the collator -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    """Every byte is a token: token positions can be counted by hand."""
    return lm.build_tokenizer(["x"], vocabulary=260)


def pair_of(tokenizer):
    """Chosen "Ab. Cé. D." supported, contradictory, supported; rejected "Ef. G." supported, unverifiable."""
    pair = {"prompt_ids": tokenizer("Q")["input_ids"]}
    for name, text, sentences in (
        ("chosen", "Ab. Cé. D.", [(0, 3, "supported"), (4, 7, "contradictory"), (8, 10, "supported")]),
        ("rejected", "Ef. G.", [(0, 3, "supported"), (4, 6, "unverifiable")]),
    ):
        pair[name] = [{"role": "assistant", "content": text}]
        pair[f"{name}_ids"] = tokenizer(text + "<|end|>")["input_ids"]
        pair[f"{name}_sentences"] = [dict(zip(("start", "end", "label"), row, strict=True)) for row in sentences]
    return pair


def settings(max_length=None, truncation_mode="keep_start"):
    """What the collator reads of a DPOConfig."""
    return SimpleNamespace(max_length=max_length, truncation_mode=truncation_mode, pad_to_multiple_of="auto")


# Tokens of the chosen side: Q | A b . _ C (2 bytes of é) . _ D . end; a space stands between sentences and is nobody's.
CHOSEN = [0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1]
REJECTED = [0, 0, 0, 0, 0, 1, 1, 0]  # Q | E f . _ G . end


def test_unknown_loss_is_refused(tokenizer):
    with pytest.raises(ValueError, match="loss: expected variant or paper, got 'papr'"):
        MaskDPOCollator(tokenizer, settings(), "papr")
    with pytest.raises(ValueError, match="precompute_ref_log_probs: expected False"):
        MaskDPOCollator(tokenizer, SimpleNamespace(precompute_ref_log_probs=True))


def masks(tokenizer, pair, loss="variant", **cut):
    """What is kept of the chosen and of the rejected side."""
    out = MaskDPOCollator(tokenizer, settings(**cut), loss)([pair])
    if not cut:
        assert out["attention_mask"].sum(1).tolist() == [13, 8]  # attention is as ever
    return out["completion_mask"].tolist()


def test_mask_by_hand(tokenizer):
    whole = [CHOSEN, REJECTED + [0] * 5]
    assert masks(tokenizer, pair_of(tokenizer)) == whole
    published = pair_of(tokenizer)
    for side in ("chosen", "rejected"):
        text = published[side][0]["content"]
        published[f"{side}_item"] = published_item(text, published.pop(f"{side}_sentences"))
    assert masks(tokenizer, published) == whole
    cut = pair_of(tokenizer) | {"chosen_cut_off": True, "rejected_cut_off": True}  # nothing says where to stop
    assert masks(tokenizer, cut)[0] == [*CHOSEN[:-1], 0]
    other = pair_of(tokenizer)
    turn = next(i for i in special_ids(tokenizer.backend_tokenizer) if i != tokenizer.eos_token_id)
    for side in ("chosen", "rejected"):  # as with Gemma and Phi, whose turns end with another token than eos
        other[f"{side}_ids"] = [*other[f"{side}_ids"][:-1], turn]
    assert masks(tokenizer, other) == whole
    # The paper leaves out the contradictory "Cé." (4 tokens) and the supported "Ef."; ends and spaces stay.
    chosen, rejected = [0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]
    assert masks(tokenizer, pair_of(tokenizer), "paper") == [[*chosen, 1], [*rejected, 1] + [0] * 5]
    assert masks(tokenizer, cut, "paper") == [[*chosen, 0], [*rejected, 0] + [0] * 5]


def test_mask_is_cut_as_trl_cuts_and_needs_sentences(tokenizer):
    pair = pair_of(tokenizer)
    assert masks(tokenizer, pair, max_length=6) == [CHOSEN[:6], REJECTED[:6]]
    assert masks(tokenizer, pair, max_length=6, truncation_mode="keep_end") == [CHOSEN[-6:], REJECTED[-6:]]
    with pytest.raises(ValueError, match="max_length=1 cuts off all that counts of the chosen answer"):
        masks(tokenizer, pair, max_length=1)
    assert masks(tokenizer, pair, max_length=2)[1] == REJECTED[:2]  # nothing, which only weighs nothing
    masks(tokenizer, pair, "paper", max_length=1)
    del pair["chosen_sentences"]
    message = r"expected a column chosen_sentences or chosen_item.*remove_unused_columns=False"
    with pytest.raises(ValueError, match=message):
        MaskDPOCollator(tokenizer, settings())([pair])


@pytest.mark.parametrize("loss", ["variant", "paper"])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
def test_steps_move_what_the_mask_keeps(tokenizer, tmp_path, loss):
    """A few DPO steps raise the kept chosen tokens above the kept rejected ones, and the loss is finite."""
    torch.set_num_threads(1)
    for part in (lm.build_model(tokenizer, width=32, layers=2, heads=2), tokenizer):
        part.save_pretrained(tmp_path / "lm")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "lm")  # TRL reads the reference model there
    pair = pair_of(tokenizer)
    rows = [{k: pair[k] for k in pair if not k.endswith("_ids")} | {"prompt": [{"role": "user", "content": "Q"}]}]
    batch = MaskDPOCollator(tokenizer, settings(), loss)([pair])

    def kept_logps():
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        logps = torch.log_softmax(logits[:, :-1], -1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
        sums = (logps * batch["completion_mask"][:, 1:]).sum(1)
        return float(sums[0]), float(sums[1])

    before = [p.detach().clone() for p in model.parameters()]
    chosen, rejected = kept_logps()
    config = DPOConfig(
        output_dir=str(tmp_path), max_steps=8, per_device_train_batch_size=2, learning_rate=3e-3,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False, logging_steps=1, max_length=None,
        **(PAPER_MASK_DPO if loss == "paper" else MASK_DPO | {"beta": 1.0}),
    )  # fmt: skip
    trainer = DPOTrainer(
        model, args=config, train_dataset=Dataset.from_list(rows * 4), processing_class=tokenizer,
        data_collator=MaskDPOCollator(tokenizer, config, loss),
    )  # fmt: skip
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0]
    after = kept_logps()
    if loss == "paper":  # at first nothing differs from the reference model: −log σ(0)
        assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    else:
        assert after[0] > chosen
    assert after[0] - after[1] > chosen - rejected
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


# --- the command --------------------------------------------------------------------------------------------------


def test_command_rejects_lines_and_options(tmp_path, capsys):
    outside = {**sample("s"), "sentences": [{"start": 0, "end": 99, "label": "supported"}]}
    rows = [sample("s", "a"), sample("c", "a"), sample("s", "b"), {**sample("s"), "sentences": 3}, outside]
    source, output = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "pairs.jsonl"
    args = ["build-preferences", "--input", str(source), "--output", str(output)]
    assert main([*args, "--min-gap", "2"]) == 2
    assert "--min-gap: expected a number from 0 to 1, got 2\n" in capsys.readouterr().err
    assert main([*args, "--copy-gap", "-2"]) == 2
    assert "--copy-gap: expected a number from -1 to 1, got -2\n" in capsys.readouterr().err
    assert main([*args, "--copy-gap", "-1"]) == 3
    assert read_rows(output) == []
    output.unlink()
    capsys.readouterr()
    assert main(args) == 3
    err = capsys.readouterr().err
    assert "in.jsonl:4: sentences: expected the list that `mitigate annotate` writes, got 3" in err
    assert "in.jsonl:5: sentences[0]: expected start and end inside the answer (3 characters)" in err
    assert read_rows(output) == build_pairs(rows[:2])
    assert len(read_rows(tmp_path / "pairs.jsonl.rejected.jsonl")) == 2
