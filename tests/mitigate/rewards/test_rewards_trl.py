"""The plugin in TRL's own trainers and command line, on a tiny chat model built here."""

import json
import logging
import os
import pickle
import subprocess
import sys
from dataclasses import asdict

import pytest

import mitigate.rewards.config as plugins
from benchmarks.tiny_chat import build_tiny_chat
from mitigate.io import UsageError
from mitigate.rewards.aspects import DEFAULT_WEIGHTS
from mitigate.rewards.config import RewardFile, read_config
from mitigate.rewards.inputs import Columns
from mitigate.rewards.reward import SentenceReward
from tests.helpers.standin import ExactAnnotator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]  # TRL and torch warn on a CPU

REFERENCE = "The river is longer. The fox is old."  # short, so that saying it is no copy
QUESTION = "Which one is longer, the river or the road?"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny_chat(tmp_path_factory.mktemp("model"))


def rows(conversational):
    prompt = [{"role": "user", "content": QUESTION}] if conversational else QUESTION
    return [{"prompt": prompt, "reference": REFERENCE, "question": QUESTION} for _ in range(4)]


def train(kind, model, folder, reward, *, conversational=True, **options):
    """Two steps of a stock trainer; returns it."""
    import trl
    from datasets import Dataset

    config = getattr(trl, f"{kind}Config")(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        max_steps=2,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **{"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 24, **options},
    )
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


def test_the_plugin_trains_in_stock_grpo(plugin, model, tmp_path):
    reward = plugin()
    assert reward._reward is None  # nothing is loaded yet
    trainer = train("GRPO", model, tmp_path, reward, beta=0.0)
    steps = [log for log in trainer.state.log_history if "rewards/factuality/mean" in log]
    assert len(steps) == 2
    for log in steps:
        assert -1.0 <= log["rewards/factuality/mean"] <= 1.0
        assert log["factuality/sentences"] > 0
        assert log["factuality/seconds"] > 0
        assert 0.0 <= log["factuality/judged_share"] <= 1.0
    assert trainer._logs["extra"]["factuality/labels"]


def test_the_plugin_trains_in_stock_rloo_on_plain_prompts(plugin, model, tmp_path):
    trainer = train("RLOO", model, tmp_path, plugin(), conversational=False, beta=0.0)
    steps = [log for log in trainer.state.log_history if "rewards/factuality/mean" in log]
    assert len(steps) == 2
    assert all(log["factuality/sentences"] > 0 for log in steps)


def test_the_trainer_gets_the_numbers_that_the_reward_gives(model, tmp_path):
    """Gibberish is turned into sentences, true ones where it holds an even number of "e"; sync and async agree."""
    reward = SentenceReward(ExactAnnotator(), aspects={"factuality": 1})
    seen = []

    def readable(completions):
        texts = [completion[0]["content"] for completion in completions]
        return [f"{'It is red.' if text.count('e') % 2 else REFERENCE}" for text in texts]

    def facts(completions, **arguments):
        scores = reward(completions=readable(completions), **arguments)
        seen.extend(scores)
        return scores

    async def later(completions, **arguments):
        return await reward.as_async()(completions=readable(completions), **arguments)

    options = {"num_generations": 8, "per_device_train_batch_size": 8, "beta": 0.0}
    trainer = train("GRPO", model, tmp_path, [facts, later], **options)
    rewards = trainer._logs["rewards"]
    assert len(seen) == 16
    assert set(seen) == {1.0, -1.0}
    assert list(rewards["facts"]) == list(rewards["later"]) == seen[-len(rewards["facts"]) :]
    assert {len(score.segments["factuality"]) for score in seen} == {1, 2}
    assert trainer.moved


def test_a_missing_column_stops_the_first_step(model, tmp_path, plugin, monkeypatch):
    bad = tmp_path / "reward.yaml"
    bad.write_text("columns: {reference: document}\n", encoding="utf-8")
    monkeypatch.setenv(plugins.CONFIG_VARIABLE, str(bad))
    with pytest.raises(ValueError, match="expected a column 'document' with the text to judge against"):
        train("GRPO", model, tmp_path, plugin(), beta=0.0)


def test_the_command_line_takes_the_plugin(model, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with (data / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(True))
    config = tmp_path / "reward.yaml"
    config.write_text("aspects: {factuality: 1.0, length: 0.2}\ndevice: cpu\n", encoding="utf-8")
    arguments = f"""
        --reward_funcs mitigate.factuality --model_name_or_path {model} --dataset_name {data}
        --output_dir {tmp_path / "out"} --use_cpu true --bf16 false --dtype float32 --max_steps 1 --logging_steps 1
        --num_generations 4 --per_device_train_batch_size 4 --max_completion_length 64 --report_to none
        --save_strategy no --beta 0
    """
    command = [sys.executable, "-m", "trl.scripts.grpo", *arguments.split()]
    environment = {**os.environ, plugins.CONFIG_VARIABLE: str(config), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                   "HF_HOME": str(tmp_path / "hf")}  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rewards/factuality/mean" in done.stdout
    assert "factuality/aspect_length" in done.stdout
    assert "factuality/aspect_relevance" not in done.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_the_plugin_is_light_and_named(plugin):
    found = plugin()
    assert found.__name__ == "factuality"
    assert found is plugins.factuality
    assert found.config == RewardFile()
    with pytest.raises(AttributeError, match="no plugin 'relevance'; there is 'factuality'"):
        _ = plugins.relevance
    code = "import sys; from mitigate.rewards.config import factuality; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_an_unbuilt_plugin_can_be_sent_to_another_process(plugin):
    assert pickle.loads(pickle.dumps(plugin())).config == RewardFile()  # noqa: S301


def test_a_wrong_configuration_is_found_at_the_look_up(plugin, tmp_path, monkeypatch, caplog):
    bad = tmp_path / "reward.yaml"
    monkeypatch.setenv(plugins.CONFIG_VARIABLE, str(bad))
    with pytest.raises(UsageError, match=r"cannot read .*reward\.yaml"):
        plugin()
    bad.write_text("label_reward: {supported: 1}\n", encoding="utf-8")
    with caplog.at_level(logging.INFO), pytest.raises(UsageError, match="did you mean 'label_rewards'\\?"):
        plugin()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("anotator: embedded", "unknown key 'anotator'; did you mean 'annotator'\\?"),
        ("aspects: {factualty: 1}", "aspects: unknown aspect 'factualty'; did you mean 'factuality'\\?"),
        (
            "label_rewards: {contradicted: 1}",
            "label_rewards: unknown label 'contradicted'; did you mean 'contradictory'\\?",
        ),
        ("columns: {zzz: a}", "unknown key 'columns.zzz'; known are reference, question, points, language"),
        ("columns: {reference: 3}", "columns.reference: input should be a valid string, got 3"),
        ("target_sentences: 2.5", "target_sentences: input should be a valid integer, got 2.5"),
        ("cache_size: true", "cache_size: input should be a valid integer, got True"),
        ("thinking: <think>", "thinking: input should be a valid tuple, got '<think>'"),
        ("eos_token_ids: [a]", "eos_token_ids.*: input should be a valid integer, got 'a'"),
        ("eos_token_ids: []", "eos_token_ids.*: list should have at least 1 item"),
        ("eos_token_ids: -5", "eos_token_ids.*: input should be greater than or equal to 0, got -5"),
        ("aspects: {factuality: true}", "aspects.factuality: input should be a valid number, got True"),
        ("aspects: {factuality: '2'}", "aspects.factuality: input should be a valid number, got '2'"),
        ("dtype: float16", "dtype: input should be 'auto', 'float32' or 'bfloat16', got 'float16'"),
        ("annotator: ''", "annotator: .* got ''"),
        ("aspects: {length: -1}", "expected a positive weight for 'length', got -1"),
        ("calibration: 3", "calibration: input should be a valid string, got 3"),
        (
            "{annotator: 'generative:openai:m', calibration: c.json}",
            "calibration: 'generative:openai:m' has no scores to calibrate",
        ),
        ("calibration: nowhere.json", "expected a file of `mitigate calibrate`; nowhere.json: No such file"),
        ("calibration: pyproject.toml", "calibration: pyproject.toml: expected JSON .*; fit it again"),
        ("- a\n- b", "expected keys and values .* got list"),
        ("a: [", "expected YAML"),
    ],
)
def test_configurations_that_cannot_be(text, words, tmp_path):
    file = tmp_path / "reward.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_config(file)


def test_a_configuration_keeps_the_defaults_of_what_it_leaves_out(tmp_path):
    file = tmp_path / "reward.yaml"
    file.write_text("columns: {reference: document}\nresponse: ['<a>', '</a>']\n", encoding="utf-8")
    found = read_config(file).model_dump()
    assert found == {
        **RewardFile().model_dump(),
        "columns": {"reference": "document", "question": "question", "points": "points", "language": "language"},
        "response": ("<a>", "</a>"),
    }
    file.write_text("# nothing\n", encoding="utf-8")
    assert read_config(file) == RewardFile()


def test_the_table_of_hacks_names_the_annotator_it_was_made_with(tmp_path, monkeypatch):
    from benchmarks import reward_redteam as program

    page = tmp_path / "page.md"
    page.write_text(f"before\n{program.BEGIN}old\n{program.END}\nafter\n")
    judge = ExactAnnotator("weights-7")
    monkeypatch.setattr(
        program, "SentenceReward", lambda name, **options: SentenceReward(judge, aspects={"factuality": 1.0})
    )
    monkeypatch.setattr(program, "ASPECTS", ("factuality",))
    monkeypatch.setattr(sys, "argv", ["reward_redteam", "--output", str(page)])
    program.main()
    text = page.read_text()
    assert "Embedded annotator `weights-7` in float32" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "honest: four sentences" in text


def test_every_key_is_an_argument_with_the_same_default():
    """The defaults that stand in the configuration are those of SentenceReward."""
    import inspect

    own = {n: p.default for n, p in inspect.signature(SentenceReward.__init__).parameters.items()}
    own |= {"aspects": DEFAULT_WEIGHTS, "label_rewards": {}, "columns": asdict(Columns())}
    for key, default in RewardFile().model_dump().items():
        assert default == own[key], key
