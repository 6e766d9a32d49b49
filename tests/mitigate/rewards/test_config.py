"""The reward's YAML, and the plug-in in TRL's own trainers and command line, on a tiny chat model."""

import json
import pickle
import subprocess
import sys

import pytest

import mitigate.rewards.reward as plugins
from mitigate.cli.main import main
from mitigate.io import UsageError
from mitigate.rewards.config import RewardFile, read_config
from mitigate.rewards.reward import SentenceReward
from mitigate.rl.credit import Credit
from mitigate.rl.grpo import SentenceGRPOTrainer
from tests.helpers.standin import ExactAnnotator
from tests.helpers.tiny_chat import build_tiny_chat

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]  # TRL and torch warn on a CPU

REFERENCE = "The river is longer. The fox is old."  # short, so that saying it is no copy
QUESTION = "Which one is longer, the river or the road?"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny_chat(tmp_path_factory.mktemp("model"))


def rows(conversational=True):
    prompt = [{"role": "user", "content": QUESTION}] if conversational else QUESTION
    return [{"prompt": prompt, "reference": REFERENCE, "question": QUESTION} for _ in range(4)]


def train(kind, model, folder, reward, *, conversational=True, **options):
    """Two steps of a stock trainer; returns it."""
    import trl
    from datasets import Dataset

    config = getattr(trl, f"{kind}Config")(
        output_dir=str(folder), use_cpu=True, bf16=False, max_steps=2, learning_rate=1e-3, logging_steps=1, beta=0.0,
        report_to=[], save_strategy="no", disable_tqdm=True,
        **{"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 24, **options},
    )  # fmt: skip
    trainer = getattr(trl, f"{kind}Trainer")(
        model=str(model), reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows(conversational))
    )
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    trainer.moved = any(not p.equal(q) for p, q in zip(before, trainer.model.parameters(), strict=True))
    return trainer


@pytest.fixture
def plugin(monkeypatch):
    """`mitigate.factuality` as the command line finds it, and anew for each test."""
    monkeypatch.delenv(plugins.CONFIG_VARIABLE, raising=False)
    plugins.__dict__.pop("factuality", None)
    yield lambda: plugins.factuality
    plugins.__dict__.pop("factuality", None)


def test_the_plugin_trains_in_stock_trainers(plugin, model, tmp_path):
    """RLOO on plain prompts; GRPO has the tests below."""
    reward = plugin()
    assert "reward" not in vars(reward)  # nothing is loaded yet
    trainer = train("RLOO", model, tmp_path, reward, conversational=False)
    steps = [log for log in trainer.state.log_history if "rewards/factuality/mean" in log]
    assert len(steps) == 2
    for log in steps:
        assert log["factuality/sentences"] > 0
        assert log["factuality/seconds"] > 0
        assert 0.0 <= log["factuality/judged_share"] <= 1.0
    assert trainer._logs["extra"]["factuality/labels"]


def test_the_trainer_gets_the_reward_s_numbers(model, tmp_path):
    """Gibberish is turned into sentences, true ones where it holds an even number of "e"; sync and async agree."""
    reward = SentenceReward(ExactAnnotator(), aspects={"factuality": 1}, copy_share=None)
    seen = []

    def readable(completions):
        texts = [completion[0]["content"] for completion in completions]
        return [f"{'It is red.' if text.count('e') % 2 else REFERENCE}" for text in texts]

    def facts(completions, **arguments):
        scores = reward(completions=readable(completions), **arguments)
        seen.extend(scores)
        return scores

    async def later(completions, **arguments):
        return reward(completions=readable(completions), **arguments)

    trainer = train("GRPO", model, tmp_path, [facts, later], num_generations=8, per_device_train_batch_size=8)
    rewards = trainer._logs["rewards"]
    assert len(seen) == 16
    assert set(seen) == {1.0, -1.0}
    assert list(rewards["facts"]) == list(rewards["later"]) == seen[-len(rewards["facts"]) :]
    assert {len(score.segments["factuality"]) for score in seen} == {1, 2}
    assert trainer.moved


def test_the_command_line_takes_the_plugin(plugin, model, tmp_path, monkeypatch, capsys):
    """`mitigate grpo`, which is TRL's script with our trainer, its options and those of `Credit`."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    config = tmp_path / "reward.yaml"
    config.write_text("aspects: {factuality: 1.0, length: 0.2}\ndevice: cpu\n", encoding="utf-8")
    arguments = f"""
        --reward_funcs mitigate.factuality --model_name_or_path {model} --dataset_name {data}
        --output_dir {tmp_path / "out"} --use_cpu true --bf16 false --dtype float32 --max_steps 1 --logging_steps 1
        --num_generations 4 --per_device_train_batch_size 4 --max_completion_length 64 --report_to none
        --save_strategy no --beta 0
    """
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setenv(plugins.CONFIG_VARIABLE, str(config))
    seen = []
    calculate = SentenceGRPOTrainer._calculate_rewards

    def watched(self, *args, **kwargs):
        seen.append(self.credit)
        return calculate(self, *args, **kwargs)

    monkeypatch.setattr(SentenceGRPOTrainer, "_calculate_rewards", watched)
    assert main(["grpo", *arguments.split(), "--gamma", "0.25", "--eos", "last", "--clip", "3"]) == 0
    assert seen == [Credit(gamma=0.25, eos="last", clip=3.0)]
    shown = capsys.readouterr().out
    assert "rewards/factuality/mean" in shown
    assert "factuality/aspect_length" in shown
    assert "factuality/aspect_relevance" not in shown
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_the_plugin_is_light_named_picklable_and_checked(plugin, monkeypatch):
    found = plugin()
    assert found.__name__ == "factuality"
    assert found is plugins.factuality
    assert found.config == RewardFile()
    assert pickle.loads(pickle.dumps(found)).config == RewardFile()  # noqa: S301
    with pytest.raises(AttributeError, match="no plugin 'relevance'; there is 'factuality'"):
        _ = plugins.relevance
    code = "import sys; from mitigate.rewards.reward import factuality; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    monkeypatch.setenv(plugins.CONFIG_VARIABLE, "nowhere/reward.yaml")
    del plugins.__dict__["factuality"]
    with pytest.raises(UsageError, match=r"cannot read .*reward\.yaml"):  # at the look-up, before a model is loaded
        plugin()


@pytest.mark.parametrize(("text", "words"), [
    ("anotator: embedded", "unknown key 'anotator'; did you mean 'annotator'\\?"),
    ("aspects: {factualty: 1}", "aspects: unknown aspect 'factualty'; did you mean 'factuality'\\?"),
    ("label_rewards: {contradicted: 1}", "label_rewards: unknown label .*; did you mean 'contradictory'\\?"),
    ("label_rewards: {no_fact: 2.0}", "'supported' to be worth the most"),
    ("label_rewards: {supported: null}", "'supported' to be worth the most"),
    ("label_rewards: {contradictory: null, unverifiable: null}", "both are None"),
    ("columns: {zzz: a}", "unknown key 'columns.zzz'; known are reference, question, points, language"),
    ("columns: {reference: 3}", "columns.reference: input should be a valid string, got 3"),
    ("copy_share: 1.5", "copy_share: .*less than or equal to 1, got 1.5"),
    ("target_sentences: 0", "target_sentences: .*greater than or equal to 1, got 0"),
    ("cache_size: -1", "cache_size: .*greater than or equal to 0, got -1"),
    ("thinking: [a]", "the key 'thinking.1' is missing"),
    ("cache_size: true", "cache_size: input should be a valid integer, got True"),
    ("thinking: <think>", "thinking: input should be a valid tuple, got '<think>'"),
    ("eos_token_ids: [a]", "eos_token_ids.*: input should be a valid integer, got 'a'"),
    ("eos_token_ids: []", "eos_token_ids.*: list should have at least 1 item"),
    ("aspects: {}", "aspects: .*at least 1 item"),
    ("aspects: {length: 0}", "aspects.length: .*greater than 0, got 0"),
    ("label_rewards: {contradictory: .nan}", "label_rewards.contradictory: .*finite number, got nan"),
    ("label_rewards: {contradictory: bad}", "label_rewards.contradictory: .*valid number, got 'bad'"),
    ("aspects: {factuality: true}", "aspects.factuality: input should be a valid number, got True"),
    ("annotator: ''", "annotator: .* got ''"),
    ("annotator: ./no/such", "reward.yaml: annotator: .*no/such"),
    ("{annotator: 'generative:openai:m', calibration: c.json}", "'generative:openai:m' has no scores to calibrate"),
    ("calibration: nowhere.json", "expected a file of `mitigate calibrate`; nowhere.json: No such file"),
    ("calibration: pyproject.toml", "calibration: pyproject.toml: expected JSON .*; fit it again"),
    ("a: [", "expected YAML"),
])  # fmt: skip
def test_wrong_configurations_name_the_key(text, words, tmp_path):
    file = tmp_path / "reward.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_config(file)
