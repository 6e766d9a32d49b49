"""SentenceGRPOTrainer on a tiny model: the equations' advantages, training in every mode, clear errors."""

import functools
import itertools
import statistics
from dataclasses import replace

import pytest
import torch

from mitigate.rewards.config import RewardFile
from mitigate.rewards.reward import LazyReward, SentenceReward
from mitigate.rewards.segments import Segment, SentenceScore
from mitigate.rl.control import JudgeLog
from mitigate.rl.credit import Credit
from mitigate.rl.grpo import SentenceGRPOTrainer, SharedPromptTrainer
from tests.helpers.credit_suite import Kind
from tests.helpers.grpo_common import (
    OWN,
    PROMPTS,
    config,
    dataset,
    pieces,
    rule,
    score,
    tiny_model,
    tiny_tokenizer,
    vowel_reward,
)
from tests.helpers.standin import ExactAnnotator

pytestmark = [pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")]
TOKENIZER = tiny_tokenizer()
KIND = Kind("byte-level BPE", TOKENIZER.backend_tokenizer, TOKENIZER.eos_token_id)


class Watched(SentenceGRPOTrainer):
    """Keeps what reached the loss and what was generated."""

    def __init__(self, *args, **kwargs):
        self.generated = []
        self.losses = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        self.generated.append(super()._generate_and_score_completions(inputs))
        return self.generated[-1]

    def _compute_loss(self, model, inputs):
        self.losses.append(inputs)
        return super()._compute_loss(model, inputs)


def trainer(tmp_path, rewards=vowel_reward, credit=OWN, kind=Watched, **options):
    extra = {k: options.pop(k) for k in ("peft_config", "eval_dataset") if k in options}
    data, tokenizer = dataset(options.pop("prompts", None)), options.pop("tokenizer", TOKENIZER)
    model = tiny_model(len(TOKENIZER))
    if options.get("beta"):  # TRL loads the reference model anew from where the model came from
        model.save_pretrained(tmp_path / "model")
        model = type(model).from_pretrained(tmp_path / "model")
    args = config(tmp_path, **options)
    if kind is Watched:
        extra["credit"] = credit
    return kind(model, rewards, args, train_dataset=data, processing_class=tokenizer, **extra)


def group_normalised(rewards, size):
    """r̃ by the standard library, group by group."""
    out = []
    for first in range(0, len(rewards), size):
        group = rewards[first : first + size]
        judged = [r for row in group for r in row if r is not None]
        mean = statistics.fmean(judged) if judged else 0.0
        std = statistics.stdev(judged) if len(judged) > 1 else 0.0
        out += [[0.0 if r is None or std < 1e-6 else (r - mean) / std for r in row] for row in group]
    return out


def whole(rewards, b, size=4):
    """TRL's advantage of completion b."""
    group = rewards[b // size * size : b // size * size + size]
    return (rewards[b] - statistics.fmean(group)) / (statistics.stdev(group) + 1e-4)


def ids_of(out, part="completion"):
    """Token ids of each row, without padding."""
    both = zip(out[f"{part}_ids"], out[f"{part}_mask"], strict=True)
    return [row[mask.bool()].tolist() for row, mask in both]


def expected(out, gamma=0.0, size=4):
    """A_t of the vowel reward, from the ids alone: owners read from the vocabulary, sums written out."""
    rows = ids_of(out)
    texts = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in rows]
    cuts = [pieces(text) for text in texts]
    rewards = [[rule(t[s:e]) for s, e in c] for t, c in zip(texts, cuts, strict=True)]
    rewards = [r if any(x is not None for x in r) else [None] * len(r) for r in rewards]
    tilde = group_normalised(rewards, size)
    result = []
    for ids, text, cut, row in zip(rows, texts, cuts, tilde, strict=True):
        sums = [sum(gamma ** (k - j) * row[k] for k in range(j, len(row))) for j in range(len(row))]
        result.append([0.0 if j < 0 else sums[j] for j in KIND.true_owners(ids, text, cut)])
    return result


def check_rows(advantages, want):
    for got, row in zip(advantages, want, strict=True):
        assert got[: len(row)].tolist() == pytest.approx(row, abs=2e-5)
        assert not got[len(row) :].any(), "padding has no advantage"


def test_what_is_not_scored_is_no_zero_beside_other_rewards(tmp_path):
    """A reward that is the same for all changes no credit, though one answer of each group has none from sentences."""

    def some(completions, **kwargs):
        scores = [SentenceScore(-1.0 - len(c), {"a": [Segment(0, len(c), None, -float(len(c)))]}) for c in completions]
        return [None if i % 4 == 1 else score for i, score in enumerate(scores)]

    def other(completions, **_):  # that differs from answer to answer, and weighs nothing
        return [SentenceScore(i % 3, {"b": [Segment(0, len(c), None, i % 3)]}) for i, c in enumerate(completions)]

    found = []
    same = lambda completions, **_: [1.0] * len(completions)  # noqa: E731
    for rewards, weights in (([some], None), ([some, same], None), ([some, other], [1.0, 0.0])):
        t = trainer(tmp_path, rewards, Credit(), max_steps=1, reward_weights=weights)
        t.train()
        found.append(t.generated[0]["advantages"])
    assert found[0].abs().max() > 0.5
    assert torch.allclose(*found[:2], atol=1e-3)
    assert torch.allclose(*found[1:], atol=1e-3)


def test_reward_learns_what_ends_an_answer(tmp_path):
    def cut_off(reward, end):
        return reward._read(["It is."], None, [[7, end]], {"reference": ["It is."], "question": ["Q?"]})[0].cut_off

    given, told = SentenceReward(ExactAnnotator(), eos_token_ids=3), SentenceReward(ExactAnnotator())
    own = TOKENIZER.eos_token_id
    for made in (Watched, SharedPromptTrainer):
        told.ended_by([5])  # by another trainer
        assert (cut_off(told, 5), cut_off(told, own)) == (False, True)
        lazy = LazyReward("lazy", RewardFile(annotator="embedded-fast"))
        trainer(tmp_path, [given, JudgeLog(told, 1), lazy], kind=made)
        for reward in (told, lazy.reward):
            assert (cut_off(reward, 5), cut_off(reward, own)) == (True, False)
        assert (cut_off(given, 3), cut_off(given, own)) == (False, True)


def test_clip_bounds_what_has_no_sentences_too(tmp_path):
    """A reward without segments credits whole answers: by 1.5 for the one of four that has a point."""
    t = trainer(tmp_path, lambda completions, **_: [float(i % 4 == 1) for i in range(len(completions))],
                replace(OWN, clip=0.5), max_steps=1)  # fmt: skip
    t.train()
    assert t.generated[0]["advantages"].abs().max() == 0.5


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_advantages_are_the_equations(tmp_path, gamma):
    t = trainer(tmp_path, credit=replace(OWN, gamma=gamma), log_completions=True)
    before = [p.detach().clone() for p in t.model.parameters()]
    t.train()
    assert len(t.generated) == 2
    for out in t.generated:
        assert out["advantages"].shape == out["completion_ids"].shape
        check_rows(out["advantages"], expected(out, gamma))
        assert len(set(out["advantages"].flatten().tolist())) > 4
    assert any(not torch.equal(a, b) for a, b in zip(before, t.model.parameters(), strict=True))
    first = t._logs["extra"]["sentences"][0].splitlines()  # the completions table: sentences with their advantages
    rows = [[f"{a:+.2f}" for a in dict.fromkeys(row) if a] for row in expected(t.generated[-1], gamma)]
    assert {line.split()[0] for line in first} - {"+0.00", "-0.00"} <= set(rows[0]), (first, rows[0])
    log = t.state.log_history[0]
    assert 0.5 < log["sentences/credited_tokens"] <= 1
    assert -1 <= log["sentences/vowel_reward/vowels/reward"] <= 1
    assert log["sentences/vowel_reward/vowels/judged"] > 1


def test_several_functions_aspects_and_weights_add_up(tmp_path):
    """Two sentence rewards (one async, one of two aspects and a callable object) beside a plain one."""
    asked = []

    class Halves:
        def __call__(self, completions, **kwargs):
            asked.append(completions)
            scores = []
            for n in map(len, completions):
                parts = {"whole": [Segment(0, n, None, n / 10)], "start": [Segment(0, min(2, n), None, 1.0)]}
                scores.append(SentenceScore(n / 100, parts, {"whole": 3.0}))
            return scores

    async def later(completions, **kwargs):
        return vowel_reward(completions)

    def plain(completions, **kwargs):
        return [float(len(c)) for c in completions]

    credit = replace(OWN, sequence_share=0.5)
    t = trainer(tmp_path, [later, Halves(), plain], credit, reward_weights=[2.0, 0.5, 1.0], max_steps=1)
    t.train()
    (out,) = t.generated
    # As TRL defines it: weighted sum, group mean and sample deviation + 1e-4; here of the functions with segments,
    # which share it with their sentences half and half, and of the plain one, which all tokens get.
    total = [(0.0 if (s := score(c)) is None else 2.0 * s) + 0.5 * len(c) / 100 for c in asked[0]]
    lengths = group_normalised([[len(c) / 10] for c in asked[0]], 4)
    for b, (row, ids) in enumerate(zip(expected(out), ids_of(out), strict=True)):
        alike = 0.5 * whole(total, b) + whole([len(c) for c in asked[0]], b)
        inside = KIND.true_owners(ids, asked[0][b], [(0, len(asked[0][b]))])
        # "start" rewards are all 1: no spread, no advantage. "whole" covers every token with text: 0.5 · 3 · r̃.
        parts = [2.0 * a + (1.5 * lengths[b][0] if j == 0 else 0.0) for a, j in zip(row, inside, strict=True)]
        got = out["advantages"][b][: len(ids)].tolist()
        assert got == pytest.approx([alike + 0.5 * part for part in parts], abs=1e-3)
    assert "sentences/Halves/whole/reward" in t.state.log_history[0]


@pytest.mark.parametrize(
    "options",
    [
        dict(num_iterations=2, steps_per_generation=2, per_device_train_batch_size=4, max_steps=4),
        dict(gradient_accumulation_steps=2, per_device_train_batch_size=4),
        dict(num_iterations=3, max_steps=4, beta=0.04, loss_type="grpo"),
    ],
    ids=["iterations", "accumulation", "kl"],
)
def test_rows_stay_with_their_completions(tmp_path, options):
    """TRL shuffles and splits the generation batch: each row of each loss still has its own advantages."""
    t = trainer(tmp_path, **options)
    t.train()
    known = {}
    for out in t.generated:
        known |= zip(map(tuple, ids_of(out)), expected(out), strict=True)
    assert len(t.losses) > len(t.generated)
    for inputs in t.losses:
        assert inputs["advantages"].shape == inputs["completion_ids"].shape
        check_rows(inputs["advantages"], [known[tuple(ids)] for ids in ids_of(inputs)])


def test_it_learns(tmp_path):
    t = trainer(tmp_path, max_steps=25, learning_rate=3e-2, max_completion_length=12)
    t.train()
    curve = [row["rewards/vowel_reward/mean"] for row in t.state.log_history if "rewards/vowel_reward/mean" in row]
    assert statistics.fmean(curve[-5:]) > statistics.fmean(curve[:5]) + 0.2, curve


@pytest.mark.parametrize("mode", ["lora", "bf16", "conversations"])
def test_other_modes_have_the_same_advantages(tmp_path, mode):
    """LoRA and bfloat16 with gradient checkpointing; prompts that are conversations, with a chat template."""
    options = {"gradient_checkpointing": mode != "conversations", "bf16": mode == "bf16"}
    if mode == "lora":
        from peft import LoraConfig

        options["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    if mode == "conversations":
        options["prompts"] = [[{"role": "user", "content": p}] for p in PROMPTS]
        options["tokenizer"] = tiny_tokenizer()
        options["tokenizer"].chat_template = (
            "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}"
        )
    t = trainer(tmp_path, **options)
    before = {n: p.detach().clone() for n, p in t.model.named_parameters()}
    t.train()
    moved = {n for n, p in t.model.named_parameters() if not torch.equal(before[n], p)}
    assert moved
    assert mode != "lora" or all("lora" in n for n in moved)
    for out in t.generated:
        assert out["advantages"].dtype == torch.float32
        check_rows(out["advantages"], expected(out))


def test_evaluation(tmp_path):
    data = dataset(PROMPTS[:2])
    t = trainer(tmp_path, eval_dataset=data, per_device_eval_batch_size=4, num_generations_eval=2, max_steps=1)
    t.train()
    t.generated.clear()
    result = t.evaluate()
    assert torch.isfinite(torch.tensor(result["eval_loss"]))
    assert result["eval_sentences/credited_tokens"] > 0
    assert t.generated
    for out in t.generated:
        check_rows(out["advantages"], expected(out, size=2))


def test_nothing_judged_moves_nothing(tmp_path):
    def none(completions, **kwargs):
        return [None] * len(completions)

    t = trainer(tmp_path, none, max_steps=1)
    before = [p.detach().clone() for p in t.model.parameters()]
    t.train()
    assert not t.generated[0]["advantages"].any()
    assert all(torch.equal(a, b) for a, b in zip(before, t.model.parameters(), strict=True))


@pytest.mark.parametrize("talks", [False, True])
def test_continuations_say_what_a_step_is_worth(tmp_path, monkeypatch, talks):
    """Continuations are written here: the k-th one of a prefix of n tokens is n % 3 + k times "a"."""
    options, logged = {}, []
    if talks:
        options = {"prompts": [[{"role": "user", "content": p}] for p in PROMPTS], "tokenizer": tiny_tokenizer()}
        options["tokenizer"].chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"

    def plain(completions, log_metric, log_extra, **kwargs):
        log_metric("asked", 1.0)
        log_extra("text", list(map(str, completions)))
        logged.append(len(completions))
        return [None if len(word(c)) % 5 == 0 else float(len(word(c))) for c in completions]

    def word(completion):
        return completion if isinstance(completion, str) else completion[0]["content"]

    credit = replace(OWN, rollouts=3, clip=2.0)
    t = trainer(tmp_path, [vowel_reward, plain], credit, reward_weights=[2.0, 0.5], max_steps=1,
                log_completions=True, **options)  # fmt: skip
    own, (a,) = t._generate_single_turn, TOKENIZER("a")["input_ids"]
    jobs = []

    def generate(prompts, images, fields, n):
        if n == 4:
            return own(prompts, images, fields, n)
        jobs.extend(prompts)
        return [[a] * (len(p) % 3 + k % 3) + [TOKENIZER.eos_token_id] for k, p in enumerate(prompts)], None

    monkeypatch.setattr(t, "_generate_single_turn", generate)
    t.train()
    (out,) = t.generated

    def total(text):
        parts = [2.0 * s if (s := score(text)) is not None else None, None if len(text) % 5 == 0 else 0.5 * len(text)]
        return sum(p for p in parts if p is not None) if any(p is not None for p in parts) else None

    rows, prompts = ids_of(out), ids_of(out, "prompt")
    texts = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in rows]
    totals = [total(text) for text in texts]
    assert all(x is not None for x in totals)
    cut_at, found = 0, []  # of each row its cuts and what is known of its worth there and at its end
    for b, (ids, text) in enumerate(zip(rows, texts, strict=True)):
        owned = KIND.true_owners(ids, text, pieces(text))
        cuts = sorted({max(k for k, o in enumerate(owned) if o == j) + 1 for j in set(owned) - {-1}} - {len(ids)})
        known = []
        for cut in cuts:
            assert jobs[cut_at : cut_at + 3] == [prompts[b] + ids[:cut]] * 3
            cut_at += 3
            ends = [[*ids[:cut], *[a] * ((len(prompts[b]) + cut) % 3 + k), TOKENIZER.eos_token_id] for k in range(3)]
            worth = [total(TOKENIZER.decode(end[:16], skip_special_tokens=True)) for end in ends]
            judged = [w for w in worth if w is not None]
            known.append(statistics.fmean(judged) if judged else None)
        found.append((cuts, [*known, totals[b]]))
    for b, (cuts, known) in enumerate(found):
        group = slice(b // 4 * 4, b // 4 * 4 + 4)
        std = statistics.stdev(v for _, values in found[group] for v in values if v is not None) + 1e-4
        want, before = [], statistics.fmean(totals[group])
        for (start, end), value in zip(itertools.pairwise([0, *cuts, len(rows[b])]), known, strict=True):
            after = before if value is None else value
            want += [max(-2.0, min(2.0, (after - before) / std))] * (end - start)
            before = after
        assert out["advantages"][b][: len(want)].tolist() == pytest.approx(want, abs=1e-4)
        assert not out["advantages"][b][len(want) :].any()
    shown = [line.split(" ", 1)[0] for cell in t._logs["extra"]["sentences"] for line in cell.splitlines()]
    owned = [KIND.true_owners(ids, text, pieces(text)) for ids, text in zip(rows, texts, strict=True)]
    by = [(own, b, j) for b, own in enumerate(owned) for j in sorted(set(own) - {-1})]
    means = [statistics.fmean(float(out["advantages"][b][k]) for k, o in enumerate(own) if o == j) for own, b, j in by]
    assert [float(number) for number in shown] == pytest.approx(means, abs=0.006)
    assert cut_at > 30
    log = t.state.log_history[0]
    assert log["sentences/rollouts"] == pytest.approx(cut_at / 8)
    assert logged[0] == 8
    assert sum(logged[1:]) >= cut_at
    assert len(t._logs["extra"]["text"]) == 8
    with pytest.raises(ValueError, match="rollouts continue text only"):
        t._generate_and_score_completions([{"prompt": "x", "images": []}])


def test_rewards_and_settings_that_would_be_wrong(tmp_path):
    def mixed(completions, **kwargs):
        return [1.0, *vowel_reward(completions[1:])]

    with pytest.raises(ValueError, match="'mixed' returns plain numbers beside SentenceScore"):
        trainer(tmp_path, mixed).train()
    with pytest.raises(ValueError, match=r"importance_sampling_level='sequence'.*set it to \"token\""):
        trainer(tmp_path, importance_sampling_level="sequence", loss_type="grpo")


def test_shared_prompts_change_neither_loss_nor_gradient(tmp_path, monkeypatch):
    """Two prompts, one padded at the left, with two answers each in mixed order, one padded at the right."""
    made = trainer(tmp_path)
    ids = torch.randint(3, len(TOKENIZER), (2, 5), generator=torch.Generator().manual_seed(0))
    ends = torch.randint(3, len(TOKENIZER), (4, 3), generator=torch.Generator().manual_seed(1))
    ids_BT = torch.cat([ids[[0, 1, 0, 1]], ends], dim=1)
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1::2, :2] = 0
    mask_BT[0, -1] = 0
    found = []
    for made.share_prompts, size in ((False, None), (True, None), (True, 3)):
        made.model.zero_grad()
        logps, entropies, _ = made._get_per_token_logps_and_entropies(
            made.model, ids_BT, mask_BT, 3, batch_size=size, compute_entropy=True
        )
        kept = mask_BT[:, -3:].bool()
        (logps[kept] * torch.arange(1.0, 12.0)).sum().backward()
        gradients = torch.cat([p.grad.flatten() for p in made.model.parameters()])
        found.append((logps[kept].detach(), entropies[kept].detach(), gradients))
    for stock, *shared in zip(*found, strict=True):
        assert stock.abs().max() > 0.1
        for other in shared:
            torch.testing.assert_close(other, stock, rtol=1e-4, atol=1e-5)
    read = made._get_per_token_logps_and_entropies
    monkeypatch.setattr(made, "_sharing", None)  # what it can't read goes to TRL: one token, images, other layers
    assert read(made.model, ids_BT[:, -4:], mask_BT[:, -4:], 3)[0].shape == (4, 3)
    assert read(made.model, ids_BT, mask_BT, 3, token_type_ids=torch.zeros(4, 8))[0].shape == (4, 3)
    for place, name, value in (
        (made.model.config, "layer_types", ["linear_attention"]),
        (made.model.config, "layer_types", ["chunked_attention"]),
        (made.args, "gradient_checkpointing", True),
        (made.model, "_is_stateful", True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value, raising=False)
            assert read(made.model, ids_BT, mask_BT, 3)[0].shape == (4, 3)


def sampled(made, prompts):
    """Three answers to each prompt, drawn with one seed by TRL and with prompts read once."""
    for p in made.model.parameters():
        p.data *= 3  # so that a token hangs on where the others stand
    said = []
    for made.share_prompts in (False, True):
        torch.manual_seed(0)
        said.append(made._generate_single_turn([p for p in prompts for _ in range(3)], None, {}, 3)[0])
    return said


def test_shared_prompts_change_no_sample(tmp_path):
    made, read = trainer(tmp_path, max_completion_length=6, temperature=0.5), []
    made.model.register_forward_pre_hook(
        lambda _, args, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    prompts = [TOKENIZER(text)["input_ids"] for text in ("who sang", "where does the river end")]  # of two lengths
    said = sampled(made, prompts)
    width = max(map(len, prompts))
    assert said[0] == said[1]
    assert len(set(map(tuple, said[0]))) > 2
    assert read.count((6, width)) == read.count((2, width - 1)) == 1
    assert "generate" not in vars(made.model)
    made.model.generate = wrapped = functools.partial(made.model.generate)  # as some libraries do
    one, other = sampled(made, prompts)
    assert one == other
    assert vars(made.model)["generate"] is wrapped


@pytest.mark.parametrize("settings", [{"cache_implementation": "static"}, {"generation_kwargs": {"use_cache": False}}])
def test_sampling_with_another_cache_or_none_is_not_shared(tmp_path, settings):
    """Keys that were read before can be handed to a dynamic cache only."""
    made = trainer(tmp_path, max_completion_length=6, temperature=0.5, **settings)
    one, other = sampled(made, [TOKENIZER("who sang")["input_ids"]])
    assert one == other
