"""rlhf and mask-dpo: checked before a model loads, trained in a tiny world, resumed to the same; figures and page."""

import gc
import inspect
import json
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jinja2 import Template

pytest.importorskip("trl")

from annotators.base import EnsembleAnnotator, Sentence
from annotators.records import SentenceAnnotation
from engines.types import ChatResult, EngineError, Sample
from examples.pocket import Oracle, load_world
from examples.pocket.make import make
from mitigate.cli.main import main
from mitigate.io import UsageError, read_rows
from mitigate.recipes import mask_dpo, rlhf, runner
from mitigate.recipes.config import load_recipe
from mitigate.recipes.data import HELD_OUT, Questions, read_questions
from mitigate.recipes.folder import RunFolder, open_run
from mitigate.recipes.runner import HEADINGS, answer_and_judge, by_reward, cells, compare, figures
from mitigate.recipes.trainer import last_checkpoint, starting_point
from mitigate.report.html import marked, write_run_page
from mitigate.rewards.reward import SentenceReward
from mitigate.rl.control import JudgeLog
from mitigate.rl.preferences import build_pairs
from tests.helpers.jsonl import write_rows
from tests.helpers.report_cases import annotated, record_of
from tests.helpers.standin import ExactAnnotator

pytestmark = [pytest.mark.filterwarnings("ignore:.*_checkpointing.* is deprecated:FutureWarning")]

SETS = {"trained on": "world/trained_on.jsonl", "others": "world/held_out.jsonl"}
TINY = {
    "about": "a tiny pocket run", "hardware": "any", "model": "world/model", "data": "world/train.jsonl",
    "dtype": "float32",
    "reward": {"annotator": "oracle", "aspects": {"factuality": 1.0, "relevance": 1.0}, "copy_share": None},
    "evaluation": {"data": SETS, "annotator": "oracle", "same_judge": True, "questions": 4, "max_new_tokens": 24},
}  # fmt: skip
GRPO = {**TINY, "task": "rlhf", "trainer": {
    "steps": 4, "prompts": 2, "group": 4, "sequence_share": 0.5, "learning_rate": 1e-3, "max_new_tokens": 24,
    "judge_every": 1, "beta": 0.01, "kl_target": 0.1, "save_every": 2,
}, "extra_rewards": {"soft_overlong": 0.1, "repetition": 0.1}}  # fmt: skip
# Of 12 questions asked four times each, none at all had a pair for one seed of six; of these, four at least.
DPO = {**TINY, "task": "mask-dpo", "max_questions": 24, "sampling": {"per_question": 8, "max_new_tokens": 24},
       "trainer": {"batch": 2, "learning_rate": 1e-3, "beta": 1.0}}  # fmt: skip


def recipe(folder: Path, options: dict[str, Any], /, **changed: Any) -> Path:
    path = folder / f"recipe-{len(list(folder.glob('recipe-*')))}.yaml"
    path.write_text(json.dumps({**options, **changed}), encoding="utf-8")  # JSON is YAML
    return path


def load(path: Path, *assignments: str, **annotators: Any) -> Any:
    """The options of a recipe, with the oracle of the tiny world."""
    return load_recipe(path, assignments, {"oracle": Oracle(load_world("world")), **annotators})[0]


def weights(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")


@pytest.fixture(scope="module", autouse=True)
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder of all tests here; world/ in it is a tiny pocket world."""
    folder = tmp_path_factory.mktemp("runs")
    make(folder / "world", per_kind=4, trained_per_kind=2, rounds=20, width=64, layers=2, vocabulary=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def mitigate(*argv: str) -> int:
    """`mitigate` with the oracle of that world."""
    return main(argv, annotators={"oracle": Oracle(load_world("world"))})


@pytest.fixture(scope="module")
def whole(work: Path) -> Path:
    """A GRPO run that nobody disturbed."""
    out = work / "whole"
    assert mitigate("run", str(recipe(work, GRPO)), "--output", str(out)) == 0
    return out


def test_run_leaves_everything_that_it_promises(whole, work, capsys):
    assert [row["step"] for row in read_rows(whole / "metrics.jsonl")] == [1, 2, 3, 4]
    metrics = next(read_rows(whole / "metrics.jsonl"))
    read = {"reward", "judge/hallucination_rate", "factuality/hallucination_rate", "cpu_seconds", "beta"}
    assert read <= metrics.keys()
    assert {name for name in metrics if name.startswith("judge/")} == {f"judge/{name}" for name in JudgeLog.SHOWN}
    assert metrics["rewards/soft_overlong_punishment_reward/mean"] <= 0
    samples = list(read_rows(whole / "samples.jsonl"))
    asked = [(when, name) for when in ("before", "after") for name in SETS]
    assert sorted((row["when"], row["set"]) for row in samples) == sorted(asked * 4)
    assert all(row["answer"][s["start"] : s["end"]] == s["text"] for row in samples for s in row["sentences"])
    before, after = weights(work / "world" / "model"), weights(whole / "model")
    assert any(not before[name].equal(after[name]) for name in before)
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert page.count("<article") == 8
    assert "Before" in page
    assert page.count("<script") == 1  # its own, allowed by its hash
    done = json.loads((whole / "done.json").read_text())
    assert done["table"] == json.loads(json.dumps(compare(samples)))
    runner.print_rows("", HEADINGS[:1], [["[/x] \x1b[31mred"]])  # names may hold markup and terminal codes
    assert "[/x] \ufffd[31mred" in capsys.readouterr().out


def test_interrupted_run_resumes_to_the_same_weights(whole, work, capsys):
    out, path = work / "interrupted", str(recipe(work, GRPO))
    log = RunFolder.log

    def press(folder: RunFolder, step: int, **values: Any) -> None:  # Ctrl-C when the third step is done
        log(folder, step, **values)
        if step == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "log", press)
        assert mitigate("run", path, "--output", str(out)) == 130
    assert f"go on with: mitigate run {path}" in capsys.readouterr().err
    checkpoint = last_checkpoint(out / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-2"
    assert not (out / "model").exists()
    assert mitigate("run", path, "--output", str(out)) == 0
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == [1, 2, 3, 4]
    expected, found = weights(whole / "model"), weights(out / "model")
    assert all(expected[name].equal(found[name]) for name in expected)
    answers = [[row["answer"] for row in read_rows(f / "samples.jsonl")] for f in (whole, out)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("second", ["rlhf", "mask-dpo"])
def test_an_adapter_is_trained_further(work, second):
    """A run goes on from the adapter of another: its first answers are the other's last, and KL begins at none."""
    first, again = work / f"adapter-{second}", work / f"again-{second}"
    own, near_start = (GRPO, "kl") if second == "rlhf" else (DPO, "rewards/margins")
    lora = {"rank": 2, "alpha": 64}  # moves the policy far in few steps
    options = {**own, "lora": lora, "trainer": {**own["trainer"], "learning_rate": 0.05}}
    assert mitigate("run", str(recipe(work, options)), "--output", str(first)) == 0
    options |= {"lora": {"rank": 7}, "model": str(first / "model")}
    assert mitigate("run", str(recipe(work, options)), "--output", str(again)) == 0
    ended, began = (
        [row["answer"] for row in read_rows(folder / "samples.jsonl") if row["when"] == when]
        for folder, when in ((first, "after"), (again, "before"))
    )
    assert began == ended
    assert next(read_rows(again / "metrics.jsonl"))[near_start] == pytest.approx(0, abs=1e-6)
    adapter = json.loads((again / "model" / "adapter_config.json").read_text())
    assert adapter["r"] == 2  # of the adapter that was trained on, not of the recipe
    assert not [path for path in (again / "model").iterdir() if path.is_dir()]  # nor does the old one come along
    assert (first / "model" / "adapter_model.safetensors").read_bytes() != (
        again / "model" / "adapter_model.safetensors"
    ).read_bytes()
    args = SimpleNamespace(model_init_kwargs={"dtype": "bfloat16", "use_safetensors": True})
    loaded = starting_point(str(first / "model"), None, args)["model"]
    assert {p.dtype for n, p in loaded.named_parameters() if "lora" not in n} == {torch.bfloat16}
    path, weights_file = first / "model" / "adapter_config.json", first / "model" / "adapter_model.safetensors"
    whole, kept = json.loads(path.read_text()), weights_file.read_bytes()
    nowhere = {"base_model_name_or_path": "/none"}
    for wrong, data in ((nowhere, kept), ({"r": 3}, kept), ({"peft_type": "x"}, kept), ({}, b"cut off")):
        path.write_text(json.dumps({**whole, **wrong}))
        weights_file.write_bytes(data)
        with pytest.raises(UsageError, match=f"^model {first / 'model'}: "):
            starting_point(str(first / "model"), None, SimpleNamespace(model_init_kwargs={}))


@pytest.fixture(scope="module")
def dpo(work: Path) -> Path:
    """A Mask-DPO run that nobody disturbed."""
    out = work / "dpo"
    assert mitigate("run", str(recipe(work, DPO)), "--output", str(out)) == 0
    return out


def test_mask_dpo_samples_pairs_and_trains(dpo, work):
    places = [row["place"] for row in read_rows(dpo / "sampled.jsonl")]
    assert places == sorted(places)
    assert [*dict.fromkeys(places)] == [*range(24)]
    assert max(map(places.count, places)) == 8 > min(map(places.count, places))  # cut off in its first sentence
    pairs = list(read_rows(dpo / "pairs.jsonl"))
    assert pairs == [pair for pair in pairs if pair["chosen_rate"] < pair["rejected_rate"]] != []
    before, after = weights(work / "world" / "model"), weights(dpo / "model")
    assert any(not before[name].equal(after[name]) for name in before)


def test_mask_dpo_trains_on_published_pairs(dpo, work, capsys):
    """What is read of Mask-DPO's form masks as the pairs that it was made of; a bad line stops before any model."""
    names = ("prompt", "chosen", "rejected", "chosen_item", "rejected_item", "chosen_cut_off", "rejected_cut_off")
    pairs = [{name: pair[name] for name in names} for pair in read_rows(dpo / "pairs.jsonl")]
    file = write_rows(work / "published.jsonl", pairs)
    assert mitigate("run", str(recipe(work, DPO, pairs=str(file))), "--output", str(work / "published")) == 0
    assert not (work / "published" / "sampled.jsonl").exists()
    ours = weights(dpo / "model")
    assert all(value.equal(ours[name]) for name, value in weights(work / "published" / "model").items())
    pairs[1]["rejected_item"]["sents"][0] = "Not there."
    for changed, message in (
        (pairs, "published.jsonl:2: pair: expected prompt, chosen and rejected with their sentences: rejected_item"),
        ([{"prompt": pairs[0]["prompt"]}], "published.jsonl:1: chosen: expected a list of messages"),
        ([], "found none"),
    ):  # fmt: skip
        write_rows(file, changed)
        assert mitigate("run", str(recipe(work, DPO, pairs=str(file))), "--output", str(work / "wrong")) == 2
        assert message in capsys.readouterr().err
    assert not (work / "wrong").exists()


def test_given_pairs_leave_held_out_questions_out(tmp_path, capsys):
    def pair(question: str, **more: Any) -> dict[str, Any]:
        sides = {side: [{"role": "assistant", "content": "Ab."}] for side in ("chosen", "rejected")}
        items = {"chosen_item": {"sents": ["Ab."], "type": ["no_hallucination"]}}
        items["rejected_item"] = {"sents": ["Ab."], "type": ["hallucination"]}
        return {"prompt": [{"role": "user", "content": question}], **sides, **items, **more}

    held = {"question": "Who?", "reference": "It is old."}
    held["prompt"] = [{"role": "user", "content": "It is old.\n\nWho?"}]
    questions = Questions([], {HELD_OUT: [held], "others": [{**held, "question": "When?", "reference": "No."}]})
    answered = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Well,"}]
    leaks = [pair("who? "), pair("It is old.\n\nWho?"), pair("Why?", reference="it is  old.")]
    leaks += [pair("Document: It is old.\nQuestion: Who?"), {**pair("Why?"), "prompt": answered}]
    good = [pair("When?"), pair("Why?", reference="It is new.")]

    def prepare(name: str, pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        (tmp_path / name).mkdir()
        options: Any = SimpleNamespace(pairs=write_rows(tmp_path / f"{name}.jsonl", pairs))
        mask_dpo.prepare(options, questions, RunFolder(tmp_path / name))
        return list(read_rows(tmp_path / name / "pairs.jsonl"))

    assert [one["prompt"] for one in prepare("some", [*leaks, *good])] == [one["prompt"] for one in good]
    assert "# pairs: 2; 5 left out, of the held-out questions" in capsys.readouterr().out
    with pytest.raises(UsageError, match="all are of the held-out questions"):
        prepare("none", leaks)
    for side, label in (("chosen", "No Hallucination"), ("rejected", "Hallucination")):
        items = {f"{side}_item": {"sents": ["Ab."], "type": [label]}}
        with pytest.raises(UsageError, match=f"no sentence of {side} is "):
            prepare(side, [pair("When?", **items)])
    for name, changed, message in (
        ("list", {"reference": ["It is old."]}, r"reference: expected a string, got \[\"It is old.\"\]"),
        ("silent", {"chosen": []}, 'chat 1: expected a non-empty list of messages, got \\[\\], got {"prompt'),
        ("whole", {"prompt": [], "chosen": answered}, "chat 0: expected a non-empty list of messages"),
    ):
        with pytest.raises(UsageError, match=rf"{name}.jsonl:1: .*{message}"):
            prepare(name, [{**pair("When?"), **changed}])


def test_options_for_trl_have_its_types(work):
    load(recipe(work, DPO), "dpo={loss_type: [sft, ipo]}")
    with pytest.raises(UsageError, match=r"dpo.loss_type: expected some of sigmoid, .*; got \['sft', 'bogus'\]"):
        load(recipe(work, DPO), "dpo={loss_type: [sft, bogus]}")
    options = load(recipe(work, GRPO, grpo={"learning_rate": "1e-6", "top_p": 0.9}))  # how YAML reads 1e-6
    args = rlhf.arguments(options, work)
    assert (args.learning_rate, args.top_p, args.temperature) == (1e-6, 0.9, 1.0)
    inner = {"attn_implementation": "eager", "dtype": "bfloat16"}
    changed = {"scale_rewards": False, "tf32": True, "model_init_kwargs": inner}
    options = load(recipe(work, GRPO, grpo=changed))
    args = rlhf.arguments(options.model_copy(update={"grpo": changed | {"tf32": None}}), work)
    assert args.scale_rewards in (False, "none")
    assert args.model_init_kwargs == {**inner, "trust_remote_code": False, "use_safetensors": True}
    # Eight processes make batches of 8 × 4 answers, which hold the groups of 8 that 4 answers do not.
    eight = {"launch": {"config": "zero3", "processes": 8}, "uncalibrated": True, "reward": {}, "grpo": {"top_p": 0.9}}
    eight |= {"trainer": {"prompts": 4, "per_device_batch": 4}, "evaluation": {"same_judge": True}}
    assert load_recipe(recipe(work, {**GRPO, **eight}))[0]


class Failing(ExactAnnotator):
    """Fails on the first so many sentences of a batch."""

    failing = 0

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        judged = super().judge(sentences)
        failed = [replace(one, status="failed", label=None, scores=None) for one in judged[: self.failing]]
        return failed + judged[self.failing :]


def test_rewards_and_judge_are_what_the_recipe_says(work, monkeypatch):
    options = load(recipe(work, GRPO, extra_rewards={"think_format": 0.1, "soft_overlong": 0.2, "repetition": 0.3}))
    tokenizer: Any = SimpleNamespace(chat_template="")
    _, *form, _ = rlhf.rewards(options, tokenizer)
    assert [one.__name__.split("_")[0] for one in form] == ["think", "soft", "repetition"]
    assert form[1](completions=[""], completion_ids=[[1] * 22]) == [-0.5]  # of 24 tokens the last 4 cost more and more
    _, _, wide, *_ = rlhf.rewards(options.model_copy(update={"grpo": {"max_completion_length": 48}}), tokenizer)
    assert wide(completions=[""], completion_ids=[[1] * 22]) == [0.0]
    loaded: list[Any] = []
    monkeypatch.setattr("mitigate.recipes.options.load_annotator", lambda name, **how: loaded.append((name, how)))
    reward = options.reward.model_copy(update={"annotator": "a/b", "expected_rate": 0.2})
    for name in ("a/b", "c/d"):
        options.model_copy(update={"reward": reward}).load_annotator(name)
    assert ["expected_rate" in how for _, how in loaded] == [True, False]
    trained: list[Any] = []

    def trainer(**how: Any) -> None:
        trained.append(how)
        raise KeyboardInterrupt

    monkeypatch.setattr("mitigate.rl.grpo.SentenceGRPOTrainer", trainer)
    questions = read_questions(options, None)
    first, second = questions.train[0], {**questions.train[0], "answerable": False}
    with open_run(work / "made", options) as folder, pytest.raises(KeyboardInterrupt):
        rlhf.train(options, replace(questions, train=[first, second]), folder)
    assert trained[0]["credit"].sequence_share == 0.5
    assert trained[0]["train_dataset"]["answerable"][:2] == [first.get("answerable"), False]  # not of all rows
    assert "id" not in trained[0]["train_dataset"].column_names  # those of different files may have different types


def test_one_annotator_under_two_names_is_refused(work, monkeypatch):
    oracle = Oracle(load_world("world"))
    options = load(recipe(work, GRPO), "evaluation.annotator=other", "evaluation.same_judge=false", other=oracle)
    with open_run(work / "twice", options) as folder:
        monkeypatch.setattr("mitigate.recipes.runner.ask", lambda *_, **__: pytest.fail("answers were paid for"))
        questions = read_questions(options, None)
        with pytest.raises(UsageError, match="'other' and 'oracle' loaded the same one"):
            answer_and_judge("before", options.model, questions, options, folder)
        cascade: Any = SimpleNamespace(asks=(ExactAnnotator(), oracle))
        for several in (EnsembleAnnotator([ExactAnnotator(), oracle], "min"), cascade):
            options._annotators["other"] = several  # the whole has a fingerprint of its own
            with pytest.raises(UsageError, match="'other' and 'oracle' loaded the same one"):
                answer_and_judge("before", options.model, questions, options, folder)
        assert not folder.rows("samples.jsonl")


def test_questions_without_an_answer_are_counted(work, monkeypatch, capsys):
    options, how = load(recipe(work, GRPO)), SimpleNamespace(max_new_tokens=4, temperature=0.0)
    replies = [ChatResult((Sample("Yes."),)), ChatResult(error="too long"), ChatResult(error="too long")]
    engine = SimpleNamespace(chat=lambda chats, _: [replies[int(chat)] for chat in chats], close=lambda: None)
    loaded: list[Any] = []
    monkeypatch.setattr("mitigate.recipes.runner.load_engine", lambda *_, **more: loaded.append(more) or engine)
    rows = [{"id": n, "prompt": str(n)} for n in range(3)]
    found = list(runner.ask("m", rows, options, how, n=1, seed=0, chunk=2))
    assert found == [[{"id": 0, "answer": "Yes."}], []]
    assert "m: 2 of 3 questions have no answer (too long)" in capsys.readouterr().err
    replies[1] = ChatResult(tuple(Sample(text, "length") for text in ("It is old. It is", "It is")))
    (found,) = runner.ask("m", rows[:2], options, how, n=1, seed=0, whole=True)
    assert [(one["id"], one["answer"], one["cut_off"]) for one in found] == [
        (0, "Yes.", False), (1, "It is old.", True),
    ]  # fmt: skip
    assert "m: 1 answers are left out" in capsys.readouterr().err
    replies[1] = replies[2]
    with pytest.raises(EngineError, match=r"m: 2 of 2 questions have no answer \(too long\)"):
        list(runner.ask("m", rows[1:], options, how, n=1, seed=0, chunk=1))
    thinks = options.model_copy(update={"grpo": {"chat_template_kwargs": {"enable_thinking": False}}})
    list(runner.ask("m", rows[:1], thinks, how, n=1, seed=0))
    assert [one.get("chat_template_kwargs") for one in loaded] == [None, None, None, {"enable_thinking": False}]


def test_the_memory_of_training_is_free_before_the_answers_after(work, monkeypatch):
    options, held, alive = load(recipe(work, GRPO)), list[Any](), list[bool]()

    class Model:
        def __init__(self) -> None:
            self.itself = self  # as trainers are

    def train(_: Any, __: Any, folder: RunFolder) -> None:
        held.append(weakref.ref(Model()))
        (folder / "model").mkdir()

    monkeypatch.setattr(runner, "answer_and_judge", lambda *_: alive.append(bool(held and held[0]())))
    monkeypatch.setattr(runner, "write_run_page", lambda *_, **__: None)
    gc.disable()
    try:
        with open_run(work / "memory", options) as folder:
            runner.run(options, folder, train)
    finally:
        gc.enable()
    assert alive == [False, False]


def test_failed_judge_stops_the_run(work, monkeypatch):
    """One sentence in ten is borne, two are not; what was answered is kept, and asked once."""
    asked: list[Any] = []
    answer = " ".join(f"Fact {i}." for i in range(10))
    options = load(recipe(work, GRPO), oracle=Failing())
    answered = [[{"reference": "R", "answer": answer}]]
    monkeypatch.setattr("mitigate.recipes.runner.ask", lambda *_, **__: asked.append(1) or answered)
    questions = read_questions(options, None)
    with open_run(work / "failed", options) as folder:
        options._annotators["oracle"].failing = 2
        with pytest.raises(EngineError, match=r"annotator oracle: 20% of the sentences failed, more than 0.1"):
            answer_and_judge("before", options.model, questions, options, folder)
        assert not folder.rows("samples.jsonl")
        options._annotators["oracle"].failing = 1
        answer_and_judge("before", options.model, questions, options, folder)
        assert len(folder.rows("samples.jsonl")) == len(asked) == 1
        assert not (work / "failed" / "answers-before.jsonl").exists()


def test_each_chat_has_its_pair_and_failed_judging_stops(work, monkeypatch):
    """Two chats about one text end alike; what a failing judge did not judge is asked for again."""
    reference = "The bridge was built in 1931. The mill was built in 1950."
    good, bad = "The bridge was built in 1931.", "The mill was built in 1950."
    rows = [
        {"question": "When?", "reference": reference, "prompt": [{"role": "user", "content": f"{what}: when?"}]}
        for what in ("bridge", "mill")
    ]
    asked: list[int] = []

    def ask(_: str, rows: Any, *__: Any, **how: Any) -> Iterator[Any]:
        assert how["whole"]
        for row in rows:
            asked.append(row["place"])
            own = {k: v for k, v in row.items() if k != "prompt"}
            yield [
                {**own, "answer": text} for text in (good, f"{bad} It is red.", f"{good} It is blue.")[row["place"] :]
            ]

    monkeypatch.setattr("mitigate.recipes.runner.ask", ask)
    options, judge = load(recipe(work, DPO), oracle=Failing()), Failing()
    options._annotators["oracle"] = judge
    with open_run(work / "chats", options) as folder:
        judge.failing = 2
        with pytest.raises(EngineError, match="of the sentences failed"):
            mask_dpo.prepare(options, Questions(rows, {}), folder)
        assert folder.rows("sampled.jsonl") == []
        judge.failing = 0
        mask_dpo.prepare(options, Questions(rows, {}), folder)
        assert asked == [0, 0, 1]
        pairs = [[pair["prompt"][0]["content"], pair["rejected"][0]["content"]] for pair in folder.rows("pairs.jsonl")]
    assert pairs == [["bridge: when?", f"{bad} It is red."]]


def test_killed_sampling_goes_on(dpo, work, monkeypatch):
    monkeypatch.setattr(mask_dpo, "CHUNK", 5)
    options = load(recipe(work, DPO))
    questions = read_questions(options, None)
    with open_run(work / "killed", options) as folder:
        first = [row for row in read_rows(dpo / "sampled.jsonl") if row["place"] < 5]
        folder.append("sampled.jsonl", first[:-3])  # as a kill within a write leaves it
        mask_dpo.prepare(options, questions, folder)
    rows = [[(r["place"], r["answer"]) for r in read_rows(f / "sampled.jsonl")] for f in (dpo, work / "killed")]
    assert rows[0] == rows[1]


def test_pairs_are_bounded_in_copying(dpo, work):
    rows = list(read_rows(dpo / "sampled.jsonl"))

    def chosen(gap: float) -> list[Any]:
        options = load(recipe(work, DPO, sampling={**DPO["sampling"], "copy_gap": gap}))
        with open_run(work / f"gap {gap}", options) as folder:
            folder.append("sampled.jsonl", rows)
            mask_dpo.prepare(options, read_questions(options, None), folder)
            return [pair["chosen"] for pair in folder.rows("pairs.jsonl")]

    free, bounded = ([pair["chosen"] for pair in build_pairs(rows, copy_gap=gap)] for gap in (None, 0.0))
    assert chosen(0.0) == bounded != free
    with pytest.raises(UsageError, match=r"no pairs: .*copies at most -1.0 more, found none"):
        chosen(-1.0)


@pytest.mark.parametrize(("changed", "message"), [
    ("data=nowhere.jsonl", "data: no such file 'nowhere.jsonl'"),
    ("evaluation={data: {dev: nowhere.jsonl}}", "evaluation.data: dev: no such file 'nowhere.jsonl'"),
    ("model=no where", "model: no such folder 'no where'"),
    ("reward={annotator: no where}", "reward.annotator: no such folder"),
    ("reward={aspects: {truth: 1}}", "reward.aspects: unknown aspect 'truth'"),
    ("reward={label_rewards: {no_fact: 2.0}}", "'supported' to be worth the most"),
    ("reward={annotator: oracle, calibration: c.json}", "reward.calibration: expected null, since 'oracle'"),
    ("reward={annotator: embedded, calibration: no.json}", "reward.calibration: .*; no.json: No such file"),
    ("reward={}", "reward.calibration: expected a file .* for 'embedded', got null.*uncalibrated=true"),
    ("evaluation={}", "evaluation.annotator: expected another judge than the reward's 'oracle'.*same_judge=true"),
    (
        "reward={annotator: 'cascade:embedded+ensemble:min:a/b+c/d'} uncalibrated=true evaluation={annotator: c/d}",
        r"another judge than the reward's 'cascade:embedded\+ensemble:min:a/b\+c/d'",
    ),
    ("trainer={share_prompts: true, gradient_checkpointing: true}", "trainer.share_prompts: expected gradient_check"),
    ("grpo={gradient_checkpointing: true} trainer={share_prompts: true}", "trainer.share_prompts: expected"),
    ("trainer={credit: sequence, rollouts: 2}", "trainer.rollouts: expected 0 with credit: sequence, got 2"),
    ("trainer={per_device_batch: 7}", "per_device_batch: expected a divisor of .* 64 / 1, got 7"),
    ("trainer={on_gap: stop}", "trainer.judge_every: expected a number of steps, since on_gap: stop acts on"),
    ("evaluation.annotator=embedded-fas", "no such folder 'embedded-fas', and it is no hub id"),
    ("trainer={kl_target: 0.1}", "trainer.beta: expected a number above 0 to start from"),
    ("trainer={lerning_rate: 1}", "did you mean 'trainer.learning_rate'"),
    ("launch={config: zero9, processes: 2} reward={} evaluation={}", "launch.config: no such"),
    ("launch={config: zero3, processes: 2}", "reward.annotator: 'oracle' exists in this process only"),
    ("extra_rewards={long: 1.0}", "extra_rewards.long.*: input should be 'think_format'"),
    ("grpo={importance_sampling_level: sequence}", "importance_sampling_level: expected token with credit: sentence"),
    ("grpo={reward_weights: [1.0, 2.0]}", "grpo.reward_weights: expected 3 numbers, .* got \\[1.0, 2.0\\]"),
    ("grpo={remove_unused_columns: true}", "grpo.remove_unused_columns: GRPOConfig of trl .* has no such option"),
    ("lora={targets: []}", "lora.targets"),
    ("template=About {question} reference_in_prompt=true", "template: expected {reference} in it"),
    ("seed=2147483647", "seed: .*less than 2147483647"),
    ("template=Answer!", "template: string should match pattern"),
    ("grpo={use_vllm: true}", "grpo.use_vllm: vllm is not installed"),
    ("grpo={topp: 0.9}", "grpo.topp: GRPOConfig of trl .* has no such option; did you mean 'top_p'"),
    ("grpo={output_dir: x}", "grpo.output_dir: GRPOConfig of trl .* has no such option(?!.*'output_dir')"),
    ("grpo={model_init_kwargs: {trust_remote_code: true}}", "grpo: expected no trust_remote_code, .* no code"),
    ("grpo={model_init_kwargs: {use_safetensors: false}}", "grpo: expected no use_safetensors"),
    ("grpo={model_init_kwargs: '{\"trust_remote_code\": true}'}", "grpo.model_init_kwargs: expected keys, as in"),
    ("grpo={accelerator_config: {xx: 1}}", "grpo: .*unexpected keyword argument 'xx'"),
    ("grpo={fsdp: full_shard, fsdp_config: nofile.json}", "grpo: .*nofile.json"),
    ("grpo={temperature: [1.0]}", "grpo.temperature: input should be a valid number, .*got \\[1.0\\]"),
    ("grpo={learning_rate: 1e-6, eval_strategy: bogus}", "grpo: .?bogus.? is not a valid IntervalStrategy"),
    ("grpo={loss_type: bogus}", "grpo.loss_type: expected some of grpo, dr_grpo, .* vespo; got 'bogus'"),
    ("grpo={num_generations: 3}", "grpo: generation_batch_size .* must be divisible by num_generations"),
])  # fmt: skip
def test_mistakes_are_named_before_anything_loads(tmp_path, changed, message):
    assignments = re.split(r" (?=\w+=)", changed)
    with pytest.raises(UsageError, match=message):
        load(recipe(tmp_path, GRPO, trainer={}), *assignments)


def test_changed_data_and_dead_processes_are_told(tmp_path, monkeypatch, capsys):
    """A run that was interrupted in training does not go on with other data; a killed process is a failure."""

    def ask(model, rows, options, how, *, n, seed, chunk=64, whole=False):
        texts = (row["reference"] if k == 0 else "Nobody knows it." for row in rows for k in range(n))
        own = ({k: v for k, v in row.items() if k != "prompt"} for row in rows for _ in range(n))
        yield [{**row, "answer": text, "cut_off": False} for row, text in zip(own, texts, strict=True)]

    def killed(*_):
        raise KeyboardInterrupt

    def run(*more):
        argv = ["run", path, "--uncalibrated", "--output", out, *more]
        return main(argv, annotators={"oracle": ExactAnnotator()}), capsys.readouterr().err

    monkeypatch.setattr(runner, "ask", ask)
    monkeypatch.setattr(mask_dpo, "train", killed)
    monkeypatch.setattr(mask_dpo, "check", lambda options: None)
    data, out = tmp_path / "data.jsonl", str(tmp_path / "run")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    judge = {"annotator": "oracle", "same_judge": True, "questions": 2, "max_new_tokens": 8}
    own = {"model": str(tmp_path / "m"), "data": str(data), "evaluation": judge}
    path = str(recipe(tmp_path, DPO, max_questions=None, sampling={"per_question": 2}, **own))
    for tag, (code, said) in {"Old": (130, "interrupted"), "New": (2, "data.jsonl changed since then")}.items():
        write_rows(data, [{"question": f"{tag} {i}?", "reference": f"{tag} {i} is blue."} for i in range(8)])
        found = run()
        assert found[0] == code
        assert said in found[1]
    real, dead = runner.subprocess.run, SimpleNamespace(returncode=-9)
    monkeypatch.setattr(runner.subprocess, "run", lambda c, **k: dead if "launch" in " ".join(c) else real(c, **k))
    code, said = run("--overwrite", "launch={config: zero2, processes: 2}")
    assert code == 1
    assert "training ended with exit code -9, see above; what is done is kept, go on with" in said


def test_adapters_that_cannot_be_used_are_named(tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_text("")
    with pytest.raises(UsageError, match=r"model: expected adapter_model.safetensors beside .*adapter_config.json"):
        load(recipe(tmp_path, GRPO), f"model={tmp_path}")
    (tmp_path / "adapter_model.safetensors").write_text("")
    judged = "reward={} uncalibrated=true evaluation={same_judge: true}".split(" ", 2)
    for config in ("zero3", "fsdp"):
        with pytest.raises(UsageError, match=r"expected whole weights, got the adapter .*launch with ddp or zero2"):
            load(recipe(tmp_path, GRPO), f"model={tmp_path}", f"launch={{config: {config}, processes: 2}}", *judged)
    load(recipe(tmp_path, GRPO), f"model={tmp_path}", "launch={config: zero2, processes: 2}", *judged)
    monkeypatch.setattr("mitigate.recipes.options.find_spec", lambda _: True)
    for changed in (f"model={tmp_path}", "lora={rank: 2, alpha: 4}"):
        with pytest.raises(UsageError, match=r"evaluation\.engine: expected transformers for an adapter"):
            load(recipe(tmp_path, GRPO), changed, "evaluation.engine=vllm")


def test_a_recipe_starts_its_processes_itself(work, monkeypatch):
    options = load(recipe(work, GRPO))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"give launch=\{config: zero2"):
        rlhf.run(options, RunFolder(work))


@pytest.mark.parametrize(("template", "found"), [
    ("{% for m in messages %}{{ m.content }}{% endfor %}<think></think>\n<think>\n", True),
    ("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{% if fast %}</think>{% endif %}", True),
    ("{% for m in messages %}{{ m.content }}{% endfor %}<think></think>", False),
])  # fmt: skip
def test_rewards_know_whether_the_prompt_opens_thinking(work, template, found):
    def prompt(messages: Any, tokenize: bool, **how: Any) -> str:
        return Template(template).render(messages=messages, **how)

    tokenizer: Any = SimpleNamespace(chat_template=template, apply_chat_template=prompt)
    options = load(recipe(work, GRPO))
    assert rlhf.rewards(options, tokenizer)[0].config.thinking_opened is found
    options = options.model_copy(update={"grpo": {"chat_template_kwargs": {"fast": True}}})
    assert rlhf.rewards(options, tokenizer)[0].config.thinking_opened is (found and "fast" not in template)
    tokenizer.response_template = {}  # TRL parses: the thinking does not stand in the text
    assert not rlhf.rewards(options, tokenizer)[0].config.thinking_opened


def test_dpo_pairs_keep_their_text_and_have_the_template_of_the_samples(work, monkeypatch, capsys):
    from tokenizers.normalizers import NFC
    from transformers import AutoTokenizer

    options, made = load(recipe(work, DPO), "sampling.chat_template_kwargs={enable_thinking: false}"), []
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model)
    tokenizer.backend_tokenizer.normalizer = NFC()
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)
    monkeypatch.setattr("trl.DPOTrainer", lambda **arguments: made.append(arguments["train_dataset"].to_list()))
    for name in ("starting_point", "fit_and_save"):
        monkeypatch.setattr(mask_dpo, name, lambda *_: {})
    bad, good = ([{"role": "assistant", "content": f"A caf{e} is old."}] for e in ("e\u0301", "\u00e9"))
    pairs = [{"prompt": bad, "chosen": good, "rejected": side} for side in (bad, good)]
    write_rows(work / "accents" / "pairs.jsonl", pairs)
    mask_dpo.train(options, Questions([], {}, 0), RunFolder(work / "accents"))
    assert made == [[pairs[1] | {"chat_template_kwargs": {"enable_thinking": False}}]]
    assert "pairs: 1 of 2 left out, whose text the tokenizer changes" in capsys.readouterr().err


def test_answers_without_a_score_print_no_rows(caplog):
    from trl.trainer import grpo_trainer

    runner.quiet()
    said = "All reward functions returned None"
    assert said in inspect.getsource(grpo_trainer)  # else the filter knows another message
    for text in (said + " for the following", "other"):
        grpo_trainer.logger.logger.warning(text)
    assert [record.getMessage() for record in caplog.records] == ["other"]


FIRST: dict[str, Any] = {"when": "before", "set": HELD_OUT, "question": "Q?"}


def test_figures_by_hand() -> None:
    rows = [
        record_of("ssc", **FIRST, by_reward={"labels": ["supported"] * 3}),
        record_of("nn", **FIRST, by_reward={"labels": ["unverifiable", "no_fact"]}),
    ]
    found = figures(rows)
    assert found["rate"] == pytest.approx(1 / 3)  # 1 of 3 factual sentences
    assert found["supported"] == 0.5  # "A." counts once, in 2 answers
    assert found["sentences"] == 2.5
    assert found["silent"] == 0.5
    assert found["by_reward"] == 0.25  # 1 of 4
    assert (found["hallucinated"], found["unsure"], found["copied"]) == (1, 0, 0.0)
    assert (figures([])["rate"], figures([])["copied"]) == (None, None)
    quotes = annotated("A tall grey stone tower. C.", "C. D.", **FIRST)  # one of two sentences is the document's
    assert figures([quotes])["copied"] == 0.5
    assert cells(compare([quotes])[0])[HEADINGS.index("copied")] == "50 %"
    assert "held-out, before: 25 %" in by_reward(compare(rows))
    assert by_reward(compare([record_of("s", **FIRST)])).startswith("The judge is the reward's own annotator")
    found = figures([record_of("s~", **FIRST)])
    assert (found["unsure"], found["silent"], found["rate"]) == (1, 0, 0)
    doubtful = record_of("-~", **FIRST, by_reward={"labels": [None, None]})
    found = compare([doubtful])[0]
    assert (found["unsure"], found["not_checked"], found["silent"]) == (1, 1, 0)
    assert cells(found)[HEADINGS.index("no verdict")] == "2"
    assert "by the annotator of the reward: held-out, before: not" in by_reward(compare([doubtful]))


def test_judge_reads_the_first_batch_of_every_so_many_steps() -> None:
    logged: list[tuple[str, float]] = []
    log = JudgeLog(SentenceReward(ExactAnnotator(), aspects={"factuality": 1}, name="judge"), every=2)
    asked: dict[str, Any] = {"question": ["Q?"], "reference": ["It is old. It is big."]}
    asked["log_metric"] = lambda *pair: logged.append(pair)
    for step in (0, 0, 1, 2, 2):  # continuations of answers come second; no number, or unscored ones would count as 0
        assert log(["It is old. It is new."], trainer_state=SimpleNamespace(global_step=step), **asked) == [None]
    figures = {"judged_share": 1.0, "share_unsure": 0.0, "hallucination_rate": 0.5, "share_supported": 0.5}
    assert logged == [(f"judge/{name}", value) for name, value in figures.items()] * 2
    resumed, read = JudgeLog(lambda **_: read.append(step), every=20), list[int]()
    for step in range(50, 100, 4):  # gone on with at 50, answers every four steps
        resumed([""], trainer_state=SimpleNamespace(global_step=step), **asked)
    assert read == [50, 70, 90]


def test_page_shows_answers_side_by_side_escaped(tmp_path: Path) -> None:
    source, wrong, right = "<b>One</b> is 1. Two.", "<b>One</b> is 2.", "Two."
    before, metrics = annotated(source, wrong, **FIRST), [{"step": n, "reward<b>": n - 0.5} for n in (1, 2)]

    def page_of(after: dict[str, Any]) -> str:
        rows, table = [before, after], compare([before, after])
        shown: dict[str, Any] = {"head": HEADINGS, "rows": map(cells, table), "comparison": table, "note": ""}
        write_run_page(tmp_path / "p.html", about=["x < y"], metrics=metrics, samples=rows, pairs=5, **shown)
        return (tmp_path / "p.html").read_text(encoding="utf-8")

    page = page_of(annotated(source, right, **FIRST | {"when": "after"}))
    first, second = (
        page.index(marked(text, [(0, len(text), f'<span class="s {label}" title="{label}">')]))
        for text, label in ((wrong, "contradictory"), (right, "supported"))
    )
    assert first < second
    assert "x &lt; y" in page
    assert "<b>One" not in page
    assert "100 % → 0 %" in page
    doubtful = page_of(record_of("-~", **FIRST | {"when": "after"}))
    assert "not sure: 0 → 1<br>not checked: 0 → 1<br>" in doubtful
    assert 'aria-label="reward&lt;b&gt;: from 0.5 at step 1 to 1.5 at step 2"' in page
