"""The files of recipes/accelerate/: accelerate reads them, DeepSpeed takes them, processes really start with them.

What needs DeepSpeed is skipped where it is not installed; `.ci/run` runs it in an environment of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mitigate.recipes.config import read_yaml, recipes_folder
from mitigate.recipes.trainer import save_merged
from tests.helpers.grpo_common import config, tiny_model
from tests.helpers.jsonl import write_rows
from tests.helpers.tiny_models import decoder, save_decoder, tokenizer

ROOT = Path(__file__).parents[3]
FOLDER = recipes_folder() / "accelerate"
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed, which is not installed"
)
ONE_CPU = ["--num_processes", "1", "--mixed_precision", "no", "--main_process_port", "0"]


def run(
    command: list[str], directory: Path, *arguments: str, seconds: int = 280, **environment: str
) -> list[dict[str, Any]]:
    """What `tests.helpers.launched_step` kept, by rank; within so many seconds."""
    directory.mkdir()
    finish([*command, "-m", "tests.helpers.launched_step", str(directory), *arguments], seconds, environment)
    return [torch.load(path, weights_only=True) for path in sorted(directory.glob("rank*.pt"))]


def finish(command: list[str], seconds: int, environment: dict[str, str]) -> None:
    """Run a command that has to succeed within so many seconds."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT),
           "PYTHONWARNINGS": "ignore", **environment}  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            _, said = process.communicate(timeout=seconds)
        except BaseException:
            process.terminate()  # which a launcher passes on to what it started, and kill() is not
            raise
    assert process.returncode == 0, said[-3000:]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The steps of one process without a launcher."""
    (found,) = run([sys.executable], tmp_path_factory.mktemp("plain") / "one", "8")
    return found


KINDS = {"ddp": "multi_gpu", "fsdp": "use_fsdp", "zero2": "use_deepspeed", "zero3": "use_deepspeed"}


def launched(name: str) -> Any:
    """What accelerate reads; unknown keys, wrong types and settings that exclude each other stop it here."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    command = ["--config_file", str(FOLDER / f"{name}.yaml"), "--num_processes", "2", "-m", "mitigate.cli", "recipes"]
    return _validate_launch_command(launch_command_parser().parse_args(command))[0]


def test_launcher_reads_every_file():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(KINDS)
    for name, kind in KINDS.items():
        args = launched(name)
        assert (args.num_processes, args.mixed_precision, getattr(args, kind)) == (2, "bf16", True)


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path, plain):
    """DDP over gloo, half of the batch each: TRL's loss is a mean over the tokens of the whole batch."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    two = run(torchrun, tmp_path / "two", "4")
    assert [rank["world"] for rank in two] == [2, 2]
    assert plain["losses"][1] != 0
    size = max(float(g.abs().max()) for g in plain["gradients"].values())
    assert size > 1e-2
    for rank in two:
        assert rank["rewards"] == pytest.approx(plain["rewards"])
        assert rank["losses"] == pytest.approx(plain["losses"], abs=1e-6)
        assert rank["gradients"].keys() == plain["gradients"].keys()
        for name, gradient in plain["gradients"].items():
            assert torch.allclose(rank["gradients"][name], gradient, atol=1e-6 * size), name


@pytest.mark.parametrize("stage", [2, 3])
def test_json_file_agrees_with_the_yaml_file(stage):
    launcher = read_yaml(FOLDER / f"zero{stage}.yaml")["deepspeed_config"]
    found = json.loads((FOLDER / f"zero{stage}.json").read_text())
    assert found["zero_optimization"]["stage"] == launcher["zero_stage"] == stage
    # the trainer brings optimizer and schedule; in the file they would replace it
    assert not {"optimizer", "scheduler"} & found.keys()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A new folder for what DeepSpeed compiles, once a run of the tests.

    In the one that all programs share, a compilation that was killed leaves its lock behind, on which every later
    program waits without end (torch/utils/file_baton.py).
    """
    return str(tmp_path_factory.mktemp("compiled"))


@needs_deepspeed
@pytest.mark.timeout(1200)  # the first of them compiles: minutes on a busy machine
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_trains_as_plain_does(stage, tmp_path, plain, compiled):
    """One CPU process; at stage 3 the policy is divided and the judge, loaded while DeepSpeed is on, is not."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(FOLDER / f"zero{stage}.yaml")]
    command += ONE_CPU
    (zero,) = run(command, tmp_path / "zero", "8", seconds=900, TORCH_EXTENSIONS_DIR=compiled)
    assert zero["zero"] == stage
    for name in ("losses", "norms", "rewards"):
        assert zero[name] == pytest.approx(plain[name], rel=1e-4), name
    if stage == 3:
        assert zero["policy_divided"] > 0
        assert zero["judge_divided"] == 0
        assert zero["judge_label"] == "supported"


class Divided:
    """Stands in for a trainer under ZeRO-3 by its launcher: parameters above DeepSpeed's threshold are empty here."""

    def __init__(self, model: Any, plugins: dict[str, Any], gathers: bool = True) -> None:
        self.whole = {name: tensor.clone() for name, tensor in model.state_dict().items()} if gathers else {}
        for parameter in model.parameters():
            if parameter.numel() > 100_000:
                parameter.data = torch.empty(0)
        self.model = model
        plain = {"unwrap_model": lambda model: model, "wait_for_everyone": lambda: None}
        self.accelerator = SimpleNamespace(state=SimpleNamespace(**plugins), **plain)

    def is_world_process_zero(self) -> bool:
        return True

    def save_model(self, folder: str) -> None:
        if self.whole:
            self.model.save_pretrained(folder, state_dict=self.whole)


@pytest.mark.parametrize("plugins", [{"deepspeed_plugin": SimpleNamespace(zero_stage=3)}, {"fsdp_plugin": object()}])
def test_divided_weights_are_saved_whole(plugins, tmp_path):
    model = decoder("opt", vocab_size=4000)
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert save_merged(Divided(model, plugins), tokenizer(), tmp_path / "model") is None
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert saved["model.decoder.embed_tokens.weight"].shape == (4000, 32)
    assert all(tensor.equal(whole[name]) for name, tensor in saved.items())
    (tmp_path / "none").mkdir()
    with pytest.raises(RuntimeError, match="use zero3_save_16bit_model: true"):
        save_merged(Divided(model, plugins, gathers=False), tokenizer(), tmp_path / "none")


def test_fsdp_options_are_the_plugin_s(monkeypatch):
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    for name, value in prepare_multi_gpu_env(launched("fsdp")).items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is plugin.cpu_ram_efficient_loading is True


@needs_deepspeed
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_takes_the_json_file(stage, tmp_path):
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers.integrations import unset_hf_deepspeed_config
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    filled = HfTrainerDeepSpeedConfig(str(FOLDER / f"zero{stage}.json"))
    try:
        args = config(tmp_path)
        filled.trainer_config_process(args)
        filled.trainer_config_finalize(args, tiny_model(300), num_training_steps=10)
        assert "auto" not in json.dumps(filled.config)
        found = DeepSpeedConfig(filled.config)
        assert found.zero_optimization_stage == stage
        assert found.train_micro_batch_size_per_gpu == args.per_device_train_batch_size
        assert found.gradient_clipping == args.max_grad_norm
    finally:
        unset_hf_deepspeed_config()


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sft_under_zero3_saves_whole_weights(tmp_path, compiled):
    """As `accelerate launch … -m mitigate.cli run sft` with parameters above the threshold."""
    base = save_decoder(tmp_path / "base", "opt", vocab_size=4000)
    names = {"one": "otto", "two": "anna", "three": "anna"}
    rows = [{"id": str(i), "question": f"Who made {i}?", "answers": [{"text": "otto"}, {"text": "anna"}],
             "reference_answers": names} for i in range(30)]  # fmt: skip
    data, path = write_rows(tmp_path / "data.jsonl", rows), tmp_path / "sft.yaml"
    training = "{epochs: 1, batch_size: 8, learning_rate: 0.01, max_steps: 2, max_tokens: 64}"
    path.write_text(
        f"task: sft\nabout: a\nhardware: h\nmodel: {base}\ndata: {data}\nbaseline: one\nform: plain\n"
        "answer_tokens: 4\nscoring: {similarity: rouge-l, penalty: false, embedding: tfidf}\n"
        f"training: {training}\n"
    )
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(FOLDER / "zero3.yaml")]
    command += [*ONE_CPU, "-m", "mitigate.cli", "run", str(path), "--output", str(tmp_path / "run")]
    finish(command, 1000, {"TORCH_EXTENSIONS_DIR": compiled})
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in after.items()} == {k: v.shape for k, v in before.items()}
    assert max(float((after[k].float() - v).abs().max()) for k, v in before.items()) > 1e-3
