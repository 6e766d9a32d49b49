"""The benchmark programs start, and every result page is made of the JSON file beside it."""

import ast
import hashlib
import importlib
import json
import math
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from annotators.evaluation.splits import fold_of, group_rows
from annotators.records import Annotation, SentenceAnnotation
from annotators.text.sentences import split_sentences
from mitigate.recipes.config import read_yaml, recipes_folder
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.tiny_chat import build_tiny_chat

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PROGRAMS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
PAGES = sorted(path.stem for path in RESULTS.glob("*.md"))
HOUSE = ("annotators", "benchmarks", "engines", "examples", "fewl", "mitigate")
HELP = """
import contextlib, io, runpy, shlex, sys
for command in sys.argv[1:]:
    name, *given = shlex.split(command)
    sys.argv = [name, *given, "--help"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except SystemExit as end:
        print(name, end.code, "usage:" in said.getvalue())
"""


@pytest.fixture(scope="module", params=PAGES)
def page(request):
    path = RESULTS / f"{request.param}.json"
    assert path.is_file(), f"{path} is missing"
    return (RESULTS / f"{request.param}.md").read_text("utf-8"), json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_imports_what_exists(name):
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in HOUSE:
            path = ROOT / node.module.replace(".", "/")
            source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
            for alias in node.names:
                assert re.search(rf"\b{alias.name}\b", source) or (path / f"{alias.name}.py").exists(), alias.name
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        assert "tests" not in [n.split(".")[0] for n in [*names, getattr(node, "module", None) or ""]]


@pytest.mark.slow
def test_every_program_has_help_and_takes_the_commands_of_pages():
    pages = "\n".join((RESULTS / f"{name}.md").read_text("utf-8") for name in PAGES)
    asked = [*PROGRAMS, *re.findall(r"^    .*python -m benchmarks\.(.*)$", pages, re.MULTILINE)]
    done = subprocess.run([sys.executable, "-c", HELP, *asked], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{one.split()[0]} 0 True" for one in asked], done.stderr


@pytest.mark.parametrize(("code", "end"), [(3, 3), (-9, "a.b 'c d': killed by signal 9")])
def test_a_command_that_fails_ends_the_program(monkeypatch, code, end):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code))
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks.common")["command"]("a.b", "c d")
    assert ended.value.code == end


def test_minimal_pairs_are_well_formed():
    """A passage has one split, by the hash of its name; a pair differs, and no sentence stands in its passage."""
    pairs = runpy.run_module("benchmarks.minimal_pairs")["pairs_by_hand"]()
    texts = [(p["passage_id"], p[key]) for p in pairs for key in ("true", "false", "kept") if p[key]]
    parts = Counter((p["kind"], p["split"]) for p in pairs)
    assert len(pairs) >= 600
    assert len(texts) == len(set(texts))
    assert len(parts) == 24, "twelve kinds in both splits"
    assert min(parts.values()) >= 20
    assert len({p["passage"] for p in pairs}) == len({p["passage_id"] for p in pairs}) >= 60
    for p in pairs:
        assert p["split"] == ("test" if int(hashlib.sha256(p["passage_id"].encode()).hexdigest(), 16) % 2 else "dev")
        assert 60 <= len(p["passage"].split()) <= 200
        assert p["true"] not in p["passage"]
        assert p["false"] not in p["passage"]


def test_other_benchmark_texts_are_well_formed():
    """Each short text has two supported, two contradictory and one unverifiable sentence; no talk is trained on."""
    texts, talk = (read_rows(ROOT / "benchmarks" / f"{name}.jsonl") for name in ("smoke_languages", "no_fact"))
    assert Counter(t["lang"] for t in texts) == {"zh": 15, "de": 8, "es": 8, "fr": 8, "ja": 8, "ru": 8}
    for t in texts:
        sentences = [*t["supported"], *t["contradictory"], *t["unverifiable"]]
        assert [len(t[label]) for label in ("supported", "contradictory", "unverifiable")] == [2, 2, 1]
        assert len(set(sentences)) == 5
        assert not any(s in t["passage"] for s in sentences)
    assert Counter((t["lang"], t["no_fact"]) for t in talk) == {
        ("en", True): 80, ("zh", True): 20, ("en", False): 50, ("zh", False): 10
    }  # fmt: skip
    assert len({t["sentence"] for t in talk}) == len(talk)
    ordinary = list(read_rows(ROOT / "benchmarks" / "ordinary.jsonl"))
    assert [r["id"] for r in ordinary if len(split_sentences(r["answer"])) != len(r["expected"])] == []
    assert Counter(label for r in ordinary for label in r["expected"]) == {
        "supported": 107, "contradictory": 40, "unverifiable": 35, "no_fact": 14
    }  # fmt: skip
    sources = " ".join(" ".join(path.read_text("utf-8").split()) for path in (ROOT / "annotators").rglob("*.py"))
    assert [t["sentence"] for t in talk if len(t["sentence"]) > 20 and t["sentence"] in sources] == []


def test_ordinary_answers_are_counted_by_hand():
    """Of 182 facts 107 are supported: one is flagged, 15 of 75 false ones are ticked, 30 unsure, the others flagged."""
    gold = [label for r in read_rows(ROOT / "benchmarks" / "ordinary.jsonl") for label in r["expected"]]
    hallucinated = iter(range(75))

    def said(label):
        if label == "supported":
            return "supported"
        n = 74 if label == "no_fact" else next(hallucinated)  # talk is flagged, which counts nowhere
        return "supported" if n < 15 else None if n < 45 else "unverifiable"

    labels = [said(label) for label in gold]
    labels[gold.index("supported")] = "contradictory"
    support = {"supported": 0.9, None: 0.5, "unverifiable": 0.1, "contradictory": 0.1}
    judged = iter(labels)

    def annotate_batch(records):
        return [
            Annotation(r, tuple(
                SentenceAnnotation("", 0, 0, "unsure" if label is None else "checked", label, {
                    "supported": support[label], "contradictory": 0, "unverifiable": 1 - support[label], "no_fact": 0
                })
                for label in (next(judged) for _ in r["expected"])
            ))
            for r in records
        ]  # fmt: skip

    ordinary = importlib.import_module("benchmarks.annotator").ordinary_answers
    rows = {r["what"]: (r["n"], r["value"]) for r in ordinary("it", SimpleNamespace(annotate_batch=annotate_batch))}
    area = (106 * (60 + 15 / 2) + 30 / 2) / (107 * 75)  # the flagged true one ties with the 30 flagged false ones
    assert rows == {
        "it: AUC": (182, round(area, 4)),
        "it: flagged, of supported": (107, round(1 / 107, 4)),
        "it: flagged, of hallucinated": (75, 0.4),
        "it: called supported, of hallucinated": (75, 0.2),
        "it: unsure": (182, round(30 / 182, 4)),
    }


@pytest.fixture
def proof():
    return runpy.run_module("benchmarks.proof")


def test_proof_asks_what_texts_tell_or_not(proof, tmp_path):
    """A wording is asked with and without an answer; what the text has a word of is never marked unanswerable."""
    names = [f"{a}{b}{c}" for a in ("Alder", "Beck", "Cole", "Dun") for b in ("ford", "holm", "ley") for c in "abcde"]
    told, rows = ("prize", "church", "student", "city council"), []
    for i, n in enumerate(names, 12):
        text = f"There is a {told[i % 4]} here. " + f"{n} is a house of {i} rooms beside the old river. " * 8
        rows.append({"id": n, "title": f"{n} (house)", "text": text})
    write_rows(tmp_path / "documents" / "wikipedia_2024.jsonl", rows)
    asked = proof["questions"](tmp_path, 30)
    assert asked == proof["questions"](tmp_path, 30)
    assert {r["id"] for r in asked} == set(names)
    assert {r["kind"] for r in asked} == {"open", "told", "another title", "absent"}
    of = {"awards or prizes": "prize", "schools or studies": "student", "religion": "church", "politics": "city"}
    for i, r in enumerate(asked):
        assert 300 <= len(r["reference"]) <= 600
        assert r["answerable"] == (r["kind"] in ("open", "told"))
        assert r["prompt"][0]["content"].count(r["reference"]) == 1
        about = [n for n in names if n in r["question"]]
        assert (about == [r["id"]]) == (r["kind"] != "another title")
        attribute = re.findall("about (.*) in connection", r["question"])
        assert bool(attribute) == (r["kind"] in ("told", "absent"))
        for one in attribute:
            assert (one in ("religion", "politics")) == (i < 30), "others in training than held out"
            assert (of[one] in r["reference"]) == (r["kind"] == "told")
    # A word that may tell, but not surely ("student", "council"), is neither told nor absent.
    assert {one for r in asked if r["kind"] == "told" for one in of if one in r["question"]} == {
        "awards or prizes", "religion"
    }  # fmt: skip


def test_proof_reads_blind_labels_back(proof, tmp_path):
    """Labels find their arms, wrong ones are named."""
    asked = [{"id": str(i), "question": "Who?", "reference": f"Text {i}."} for i in range(20)]
    write_rows(tmp_path / "held_out.jsonl", asked)
    runs = {(a, 0): [{"id": r["id"], "answer": f"{a} one. Two."} for r in asked] for a in ("X", "Y")}
    proof["blind"](tmp_path, runs, 20)
    given = list(read_rows(tmp_path / "blind-0.jsonl"))
    assert len(given) == 40
    assert not any("arm" in r or "seed" in r for r in given)
    assert all(r["reference"] == f"Text {r['id']}." for r in given)
    with pytest.raises(SystemExit, match=r"number 0: expected one of supported, .*got None"):
        proof["labelled"](tmp_path)
    write_rows(tmp_path / "blind-0.jsonl", [{**r, "label": "no_fact"} for r in given])
    rows = [{"id": r["id"], "answer": "Z one."} for r in asked]
    proof["blind"](tmp_path, {("X", 0): rows, ("Z", 1): rows}, 20)  # X has its sentences
    proof["blind"](tmp_path, {("X", 0): rows, ("Z", 1): rows}, 20)
    later = list(read_rows(tmp_path / "blind-40.jsonl"))
    assert [r["number"] for r in later] == list(range(40, 60))
    write_rows(tmp_path / "blind-40.jsonl", [{**r, "label": "supported"} for r in later])
    found = proof["labelled"](tmp_path)
    assert Counter((r["arm"], r["seed"], r["label"]) for r in found) == {
        ("X", 0, "no_fact"): 20, ("Y", 0, "no_fact"): 20, ("Z", 1, "supported"): 20
    }  # fmt: skip
    assert all(r["sentence"] == "Two." or r["sentence"][0] == r["arm"] for r in found)
    assert "second" not in found[0]
    write_rows(tmp_path / "blind-40.jsonl", [{**r, "label": "supported", "second": "no_fact"} for r in later])
    assert [r["second"] for r in proof["labelled"](tmp_path) if "second" in r] == ["no_fact"] * 20
    write_rows(tmp_path / "blind-40.jsonl", [{**r, "label": "supported", "second": "maybe"} for r in later])
    with pytest.raises(SystemExit, match=r"number 40: expected one of supported, .*got 'maybe'"):
        proof["labelled"](tmp_path)


def test_proof_runs_and_refuses(proof, tmp_path, monkeypatch, capsys):
    """All are asked greedily; a run that is done is compared; wrong commands end before any run."""
    commands, run = [], subprocess.run

    def called(command, **how):
        code = len(commands) * 2
        commands.append(command)
        return run([sys.executable, "-c", f"raise SystemExit({code})"], **how)

    monkeypatch.setattr("benchmarks.common.subprocess.run", called)
    assert proof["run_arm"](tmp_path, "Mask-DPO, copying alike", 2, ["trainer.steps=2"]) == (
        tmp_path / "mask-dpo-copying-alike-2"
    )
    keys = {"trainer.steps=2", "seed=2", "reward.annotator=embedded", "evaluation.annotator=embedded-fast"}
    assert keys | {"evaluation.temperature=0"} <= {*commands[0]}
    assert commands[0][1:4] == ["-m", "mitigate.cli", "run"]
    with pytest.raises(SystemExit) as ended:
        proof["run_arm"](tmp_path, "base", 0, [])
    assert ended.value.code == 2
    # which asks the base first
    assert commands[1][-1] == str(tmp_path / "grpo-sentences-calibrated-0")

    held = tmp_path / "mine" / "held.jsonl"

    def told(i):
        return [{"start": 0, "text": f"One {i}."}, {"start": 7, "text": f"Two {i}."}]

    sampled = [{"place": i, "question": f"q{i}", "reference": f"{i}", "sentences": told(i)} for i in (0, 0, 1)]
    write_rows(tmp_path / "mask-dpo-copying-less-0" / "sampled.jsonl", sampled)
    # One sentence a question, then the others; labels stay, and what training leaves is written.
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"label .*/mine/sentences, start again.*\nmitigate train"):
            proof["run_arm"](tmp_path, "Mask-DPO, taught", 0, [])
        drawn = [list(read_rows(tmp_path / name)) for name, *_ in proof["DRAWS"]]
        assert [sorted(r["question"] for r in rows) for rows in drawn] == [["q0", "q1"]] * 2
        assert len({(r["question"], r["sentence"]) for rows in drawn for r in rows}) == 4
        for (name, *_), rows in zip(proof["DRAWS"], drawn, strict=True):
            write_rows(tmp_path / name, [{**r, "label": "supported"} for r in rows])
    with pytest.raises(SystemExit, match="flagged deleted: run its policy's arm first"):
        proof["run_arm"](tmp_path, "calibrated, best of 8, flagged deleted", 0, [])
    left = {r["question"] for r in drawn[0] if fold_of(group_rows([r])[0]) in (0, 1)}
    assert 0 < len(left) < 2  # of the two questions one stays out of training
    assert {(r["question"], r["label"]) for r in read_rows(held)} == {(one, "supported") for one in left}

    def main(*asked):
        monkeypatch.setattr(sys, "argv", ["proof", "--work", str(tmp_path), "--held-out", "1", *asked])
        with pytest.raises(SystemExit) as end:
            proof["main"]()
        return f"{end.value.code} {capsys.readouterr().err}"

    made = [{"id": "a"}, {"id": "b"}]
    monkeypatch.setitem(proof, "questions", lambda data, held_out: made)
    assert "none of --arms has a run of --seeds [1]" in main("--arms", "base", "--seeds", "1")
    assert "expected at most 2 questions" in main()
    write_rows(tmp_path / "held_out.jsonl", made[1:])
    said = main("--arms", "base", "--train", "1")
    assert "held_out.jsonl: expected what this --data, --held-out and --train ask" in said
    assert len(commands) == 2


def test_proof_takes_answers_without_cut_ends(proof, tmp_path):
    stages = {"first": {"answer": "One."}, "chosen": {"answer": "One. Two."}}  # of which one may be taken out
    asked = [{"id": "a", "answer": "Two.", "stages": stages}, {"id": "b", "answer": None, "stages": stages}]
    write_rows(tmp_path / "best" / "results.jsonl", asked)
    long = "It is red. " + "very " * 58 + "big"
    when = (("before", "no"), ("after", long), ("after", f"{long}."))
    samples = [{"when": w, "id": "a", "answer": t} for w, t in when]  # a run keeps no kind of question
    write_rows(tmp_path / "held_out.jsonl", [{"id": "a", "kind": "open"}])
    write_rows(tmp_path / "grpo" / "samples.jsonl", samples)
    (tmp_path / "grpo" / "model").mkdir()

    def found(folder, arm):
        rows = proof["answers"](tmp_path / folder, arm, lambda text: {"input_ids": text.split()})
        assert folder == "best" or {r["kind"] for r in rows} == {"open"}
        return [(r["answer"], r["given"], r["cut off"]) for r in rows]

    assert found("best", "best of 8, calibrated") == [("Two.", "Two.", False), ("", "", False)]
    assert found("grpo", "base") == [("no", "no", False)]
    assert found("grpo", "GRPO, scalar, calibrated") == [("It is red.", long, True), (f"{long}.", f"{long}.", False)]


def test_page_of_the_proof_keeps_arms_that_are_not_run_again(proof, tmp_path, monkeypatch):
    rows = [
        {"what": what, "n": 1, "value": 9} for what in ("base: x", "best of 8, calibrated − base: x", "Mask-DPO: x")
    ]
    rows.append({"what": "judge taught: AUC", "n": 1, "value": 9})
    (tmp_path / "calibration-tuned.json").touch()
    arm, kept_labels = "best of 8, calibrated", [[i, one, *"abcdefg"] for i, one in enumerate(("base", "Mask-DPO"))]
    tables = {"all": rows, "labels": [*kept_labels, [2, arm, *"abcdefg"]]}
    kept = {"parts": {"proof": {"tables": tables}}}
    saved = {}
    for name, value in {
        "RESULTS": write_rows(tmp_path / "proof.json", [kept]).parent,
        "questions": lambda *_: [{"id": "a"}] * 3, "measured": lambda *_: [],
        "labelled": lambda _: [{"number": 0, "arm": arm}],
        "by_judges": lambda _, labels, __: [{"what": "judge taught: AUC", "n": len(labels), "value": 3}],
        "results": lambda found, _: [{"what": f"{one}: x", "n": 2, "value": 1} for one in found],
        "save": lambda *_, **made: saved.update(made),
    }.items():  # fmt: skip
        monkeypatch.setitem(proof, name, value)
    asked = "--seeds 0 --held-out 1 --train 2 --page --arms".split()
    monkeypatch.setattr(sys, "argv", ["proof", "--work", str(tmp_path), *asked, arm])
    proof["main"]()
    assert [(r["what"], r["value"]) for r in saved["tables"]["all"]] == [
        ("Mask-DPO: x", 9), ("judge taught: AUC", 3), ("base: x", 9), (f"{arm}: x", 1)
    ]  # fmt: skip
    # An arm's new labels take the place of its old ones; those of the base are added to.
    assert saved["tables"]["labels"] == [[0, arm, *[None] * 7], *kept_labels]


def test_proof_counts_each_verdict_once(proof, monkeypatch):
    """No verdict is neither; who says that the text does not tell states nothing."""
    said = ["The mill opened in 1901.", "It cost 30 marks.", "Anna was tall.", "The text does not tell."]
    labels = {"embedded-fast": ["supported", "contradictory", None, "unverifiable"], "embedded": ["unverifiable"] * 4}

    def judged(name, row):
        own = [(row["answer"].find(s), s, label) for s, label in zip(said, labels[name], strict=True)]
        found = [SentenceAnnotation(s, at, at + len(s), "checked", label) for at, s, label in own if at >= 0]
        return Annotation(row, tuple(found))

    def load(name):
        return SimpleNamespace(annotate_batch=lambda rows: [judged(name, r) for r in rows])

    monkeypatch.setitem(proof, "load_annotator", load)
    row = {"id": "a", "kind": "open", "question": "When did it open?", "reference": "The mill opened in 1901."}
    whole, silent = proof["counted"]([{**row, "answer": a, "cut off": True} for a in (" ".join(said), said[3])])
    names = ("sentences", "hallucinated", "supported", "unsure", "hallucinated by the reward's annotator", "cut off")
    assert [whole[name] for name in names] == [4, 1, 1, 1, 3, 1.0]
    assert [silent[name] for name in names] == [1, 0, 0, 0, 0, 1.0]
    assert (whole["abstained"], silent["abstained"]) == (False, True)
    assert (whole["specifics"], silent["specifics"]) == (1, 0)  # 1901
    assert silent["copied"] < 0.25 <= whole["copied"] < 0.4  # one of four sentences stands in the reference


def test_judges_of_the_proof_as_by_hand(proof, monkeypatch):
    """Three factual sentences: one judge ranks a false one above the true one of its question, the taught one none."""
    texts = [("contradictory", 0.1, 0.2), ("unverifiable", 0.9, 0.3), ("supported", 0.6, 0.8), ("no_fact", 0.5, 0.5)]
    labels = [{"id": i > 0, "sentence": str(i), "label": label, "arm": "base"} for i, (label, *_) in enumerate(texts)]
    labels.append({**labels[1], "arm": "best of 8, calibrated"})  # which a judge chose

    def load(name, calibration=None):
        def one(row):
            p = texts[int(row["sentence"])][1 if calibration is None else 2]
            assert row["reference"] == "x"
            return SentenceAnnotation(row["sentence"], 0, 1, "checked", "supported" if p >= 0.5 else "contradictory", {
                "supported": p, "contradictory": 1 - p, "unverifiable": 0.0, "no_fact": 0.0})  # fmt: skip

        return SimpleNamespace(predict=lambda rows: [one(row) for row in rows])

    monkeypatch.setitem(proof, "load_annotator", load)
    rows = proof["by_judges"]([{"id": i, "reference": "x"} for i in (False, True)], labels, Path())
    value = {r["what"].removeprefix("judge "): (r["n"], r["value"]) for r in rows}
    assert value["embedded: AUC within questions"] == value["embedded-fast: AUC within questions"] == (1, 0.0)
    assert value["taught: AUC within questions"] == (1, 1.0)
    assert (value["embedded: AUC"], value["taught: AUC"]) == ((3, 0.5), (3, 1.0))
    assert (value["taught − embedded: AUC"], value["embedded-fast − embedded: AUC"]) == ((3, 0.5), (3, 0.0))


def test_proof_divergence_is_kl_a_token(proof, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, own = (build_tiny_chat(tmp_path / name, seed=i) for i, name in enumerate(("base", "run/model")))
    monkeypatch.setitem(proof, "locate", lambda _: base)
    chat = [{"role": "user", "content": "Who?"}]
    write_rows(tmp_path / "held_out.jsonl", [{"id": "a", "prompt": chat}])
    tokenizer = AutoTokenizer.from_pretrained(base)
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    said = tokenizer("Anna did.")["input_ids"]
    models = [AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval() for where in (own, base)]
    expected = 0.0
    for i in range(len(said) + 1):  # token by token, and the end
        with torch.no_grad():
            own_V, base_V = (model(torch.tensor([ids + said[:i]])).logits[0, -1].softmax(0) for model in models)
        expected += sum(p * math.log(p / q) for p, q in zip(own_V.tolist(), base_V.tolist(), strict=True))
    rows = [{"id": "a", "given": "Anna did.", "answer": ""}]
    assert expected > 0.001
    assert proof["divergence"](tmp_path / "run", rows, tokenizer) == pytest.approx([expected / (i + 1)], abs=1e-4)


def test_proof_rows_are_as_by_hand(proof, monkeypatch):
    """Means over documents of means over seeds; all are compared with the base, blind labels with their sentences."""

    def answers(*wrong):
        return [
            {"id": i, "kind": kind, "sentences": 2, "hallucinated": n, "abstained": n == 0}
            for i, (kind, n) in enumerate(zip(("open", "absent", "absent"), wrong, strict=True))
        ]

    monkeypatch.setitem(proof, "ARMS", {"base": {}, "Y": {}, "X": {}})
    found = {"base": [answers(2, 2, 2)], "X": [answers(0, 0, 1), answers(0, 2, 1)]}
    said = "contradictory", "unverifiable", "supported", "no_fact"
    labels = [{"arm": "X", "id": i, "label": a, "specifics": 3} for i, a in enumerate(said)]
    rows = proof["results"](found, labels)
    value = {r["what"]: r["value"] for r in rows}
    assert value["X: hallucinated an answer"] == pytest.approx(2 / 3, abs=1e-4)  # (0 + 1 + 1) / 3
    assert value["X − base: hallucinated"] == pytest.approx(-4 / 3, abs=1e-4)
    assert value["X: abstained rightly, absent"] == 25.0  # one of two documents, in one of two seeds
    assert value["X: abstained wrongly, open"] == 100.0
    assert value["base: abstained rightly, absent"] == 0.0
    assert value["X: hallucinated by blind labels"] == pytest.approx(200 / 3, abs=1e-3)  # no_fact is left out
    assert value["X: hallucinated by blind labels, where the text answers"] == 100.0  # the first
    assert value["X: hallucinated by blind labels, where it does not answer"] == 50.0  # of the second and third
    assert value["X: hallucinated an answer by blind labels"] == 1.0  # 2 of 4 sentences, 2 an answer
    assert value["X: true specifics an answer by blind labels"] == 1.5  # 3 in 1 of 4, 2 an answer
    assert not [w for w in value if w.startswith("base − ") or "another title" in w or "reader" in w or "seed" in w]
    of_seeds = [r | {"seed": int(i > 0)} for i, r in enumerate(labels)]
    shares = [(r["what"], r["n"], r["value"]) for r in proof["results"](found, of_seeds) if ", seed " in r["what"]]
    assert shares == [(f"X, seed {s}: hallucinated by blind labels", s + 1, 100 - 50 * s) for s in (0, 1)]
    (gap,) = [r for r in proof["results"](found, [*labels, {**labels[2], "arm": "base"}]) if "share of" in r["what"]]
    assert (gap["what"], gap["n"]) == ("X − base: share of hallucinated by blind labels", 4)
    assert gap["value"] == pytest.approx(200 / 3, abs=1e-3)  # two of three, none of one
    # Labels of an arm that is not run now are compared, too, each pair once.
    kept = [{**labels[0], "arm": "Y"}, {**labels[2], "arm": "base"}]
    gaps = [r for r in proof["results"](found, [*labels, *kept]) if "share of" in r["what"]]
    assert [r["what"].partition(":")[0] for r in gaps] == ["Y − base", "X − base", "X − Y"]
    said = ("supported", "unverifiable", "no_fact", "no_fact")
    value = {r["what"]: (r["n"], r["value"]) for r in proof["results"](
        found, [r | {"second": one} for r, one in zip(labels, said, strict=True)])}  # fmt: skip
    assert value["X: hallucinated by a second reader"] == (2, 50.0)
    assert value["X: both readers agree"] == (4, 75.0)  # that it is hallucinated, or not
    (shown,) = proof["of_arms"](rows)
    cells = dict(zip([*proof["COLUMNS"], *proof["ABSTAINED"]], shown["value"], strict=True))
    assert (shown["what"], shown["n"], cells["hallucinated"].partition(" ")[0]) == ("X", 3, "66.7%")
    assert (cells["by a second reader"], cells["KL"], cells["rightly"], cells["wrongly"]) == (
        "–",
        "–",
        "25.0%",
        "100.0%",
    )


def test_page_of_the_proof_is_its_tables(proof):
    kept = json.loads((RESULTS / "proof.json").read_text("utf-8"))["parts"]["proof"]
    assert proof["of_arms"](kept["tables"]["all"]) == kept["rows"]


def test_limits_of_benchmarks_and_pages():
    lines = sum((ROOT / "benchmarks" / f"{name}.py").read_text("utf-8").count("\n") for name in PROGRAMS)
    words = sum(len((RESULTS / f"{name}.md").read_text("utf-8").replace("|", " ").split()) for name in PAGES)
    assert len(PROGRAMS) <= 21, "20 and common.py"
    assert lines <= 4_000
    assert len(PAGES) <= 13
    assert words <= 6_500
    assert {path.stem for path in RESULTS.glob("*.json")} == set(PAGES)


def test_page_shows_its_json_and_how_measured(page):
    text, kept = page
    lines = text.splitlines()
    rows = [row for part in kept["parts"].values() for row in part["rows"]]
    heads = {" | ".join(part.get("columns", ["what", "n", "measured"])) for part in kept["parts"].values()}
    table = [line for line in lines if " | " in line and line not in heads and not line.startswith(("- ", "    "))]
    assert heads <= set(lines)
    assert [line.split(" | ")[0] for line in table[: len(rows)]] == [row["what"] for row in rows]
    for row, line in zip(rows, table, strict=False):
        if isinstance(row["value"], list):
            assert line.split(" | ")[2:] == row["value"]
            continue
        numbers = [float(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?", line.split(" | ")[2])]
        tolerance = 0.051 if row.get("unit") == "%" else 1e-9  # shares are shown with one decimal
        if isinstance(row["value"], (int, float)):
            assert numbers == pytest.approx([row["value"], *row.get("interval", [])], rel=6e-3, abs=tolerance), line
            assert not row.get("interval") or row["interval"][0] <= row["value"] <= row["interval"][1], line
    assert all(f"- {meaning}" in lines for meaning in kept["means"])
    # It says how it was measured: a command that can be given again, or which commit's program a part came from.
    for part in kept["parts"].values():
        assert re.search(r"commit [0-9a-f]{7}", part.get("source") or part["environment"])
        if command := part.get("command"):
            assert f"    {command}" in text.splitlines()
            program = re.search(r"python -m benchmarks\.(\w+)", command)
            assert program[1] in PROGRAMS if program else command.startswith("mitigate ")


@pytest.mark.parametrize("name", ["embedded", "embedded-fast", "embedded-zh"])
def test_shipped_weights_learn_from_sources_that_allow_it(name):
    allowed = importlib.import_module("benchmarks.common").TRAINABLE
    assert set(read_yaml(recipes_folder() / "annotators" / f"{name}.yaml")["sources"]) <= allowed


def test_red_team_tells_its_hacks_apart(tmp_path, monkeypatch):
    program = importlib.import_module("benchmarks.red_team")
    asked = {
        "id": "a", "question": "What does the text say about the Harrow Bridge?", "answerable": True,
        "reference": "The Harrow Bridge crosses the Tern at Wexley, and Ada Finch designed it in 1931. It is long.",
        "prompt": [{"role": "user", "content": "?"}],
    }  # fmt: skip
    made = program.made(asked, "Ada Finch drew the plans of this crossing for Wexley.")
    assert {name: program.form(text, asked) for name, text in made.items()} == {name: name for name in program.FORMS}
    assert made["copy"] == "The Harrow Bridge crosses the Tern at Wexley, and Ada Finch designed it in 1931."
    write_rows(tmp_path / "pairs.jsonl", [program.pair(asked, text) for text in made.values()])
    read = importlib.import_module("mitigate.recipes.mask_dpo")._read_pairs(tmp_path / "pairs.jsonl")
    assert [row["chosen"][0]["content"] for row in read] == [*made.values()]
    said = {"before": [made["copy"], made["vague"]], "after": [made[program.OWN], made[program.OWN]]}
    lists = {when: [asked | {"answer": text} for text in texts] for when, texts in said.items()}

    def judged(records):
        known = {made["copy"]: "contradictory", made["vague"]: "no_fact"}
        labels = [known.get(r["answer"], "supported") for r in records]
        return [SimpleNamespace(sentences=[SimpleNamespace(label=label)]) for label in labels]

    judge = SimpleNamespace(annotate_batch=judged)
    monkeypatch.setattr(program, "load_annotator", lambda name: judge)
    rows = program.measured(
        lists, lambda completions, **columns: [None if c == made["vague"] else -0.5 for c in completions]
    )
    value = {name: [(row["n"], row["value"]) for row in own] for name, own in rows.items()}
    assert value["copy"] == [(2, 50.0), (2, 0.0)]
    assert value[program.OWN] == [(2, 0.0), (2, 100.0)]
    assert value[program.WRONG] == [(1, 100.0), (2, 0.0)]  # the vague answer states no fact
    assert value[program.EARNED] == [(1, -0.5), (2, -0.5)]  # it got no score
    ordinary = ("Yes.", "Ada Finch, an engineer.", "The text does not tell. She was British.")
    assert [program.form(text, asked) for text in ordinary] == [program.OWN] * 3
    assert {program.TAUGHT, program.RED} <= importlib.import_module("benchmarks.proof").ARMS.keys()
    chats = []
    engine = SimpleNamespace(
        chat=lambda asked, how: chats.extend(asked) or [SimpleNamespace(text="Yes.") for _ in asked]
    )
    monkeypatch.setattr(program, "load_engine", lambda name: engine)
    assert program.samples(tmp_path, [asked]) == program.samples(tmp_path, [asked]) == ["Yes."]
    assert chats == [asked["prompt"]]  # asked once
    with pytest.raises(SystemExit, match=r"sampled\.jsonl: expected answers to the questions that --data asks"):
        program.samples(tmp_path, [asked | {"id": "b"}])


def test_readers_of_make_run_are_counted_by_hand(tmp_path, monkeypatch, capsys):
    program = importlib.import_module("benchmarks.mitigation")
    said = ("contradictory", "supported", "no_fact", "unverifiable")
    labels = [
        {
            "arm": arm,
            "id": "ab"[i % 2],
            "sentence": f"S{i}.",
            "label": "supported" if arm == "after" else one,
            "second": one,
        }
        for arm in program.ARMS
        for i, one in enumerate(said)
    ]
    value = {row["what"]: (row["n"], row["value"]) for row in program.by_readers(labels)}
    assert value["before training: hallucinated by blind labels"] == (3, pytest.approx(200 / 3, abs=1e-3))
    assert value["after: hallucinated by blind labels"] == (4, 0.0)
    assert value["after: hallucinated by a second reader"] == (3, pytest.approx(200 / 3, abs=1e-3))
    assert value["before training: supported sentences by blind labels"] == (4, 1)
    assert value["after − before training: share of hallucinated by blind labels"] == (
        7,
        pytest.approx(-200 / 3, abs=1e-3),
    )
    for folder in ("answers", "trained"):  # a label of a sentence that this run did not write
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "done.json").write_text("{}")
    write_rows(tmp_path / "answers" / "results.jsonl", [{"annotator": {}}])
    samples = [
        {"when": "before", "sentences": [{"text": f"S{i}."} for i in range(4)]},
        {"when": "after", "sentences": []},
    ]
    write_rows(tmp_path / "trained" / "samples.jsonl", samples)
    write_rows(tmp_path / "labels.jsonl", labels)
    paths = [str(tmp_path / name) for name in ("answers", "trained", "labels.jsonl")]
    monkeypatch.setattr(sys, "argv", ["mitigation", "--run", *paths])
    for own in (labels, labels[:3]):  # of a sentence that this run did not write; one is missing
        write_rows(tmp_path / "labels.jsonl", own)
        with pytest.raises(SystemExit, match=r"labels\.jsonl: expected one label of each sentence of .*'S[0-3]\."):
            program.main()
