"""The grammar of the command line: words, help texts, existing outputs, and wrong usage before a model loads."""

import argparse
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import annotators
import mitigate
from mitigate.cli.__main__ import main as start
from mitigate.cli.main import build_parser, main
from tests.helpers.engines_server import error, serving
from tests.helpers.evaluation_cases import FOUR_WAY
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.standin import ANSWERS, REFERENCE, ExactAnnotator

GOLDEN = Path(__file__).parents[2] / "golden" / "inputs"


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in inner:
        for word, child in action.choices.items():
            yield from commands(child, f"{name} {word}".strip())
    if not inner:
        yield name, parser


COMMANDS = dict(commands(build_parser()))


def test_interrupted_while_importing(monkeypatch) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "mitigate.cli.main", Interrupted())
    assert start() == 130


def test_a_reader_that_stops_is_no_error(tmp_path: Path) -> None:
    rows = [{"sentence": "It is.", "reference": "r", "label": "supported", "source": str(n)} for n in range(5000)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    command = [sys.executable, "-m", "mitigate.cli", "stats", "--input", str(data), "--resamples", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_terminals_show_what_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"sentence": "It is.", "reference": "r", "label": "supported", "source": "Büro \ud800"}
    (data := tmp_path / "rows.jsonl").write_text(json.dumps(row))
    for encoding, asked, shown in (("ascii", [], r"| B\xfcro &#91;U+D800]"), ("utf-8", ["--json"], r'"Büro \ud800 (')):
        terminal = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["stats", "--input", str(data), "--resamples", "0", *asked]) == 0
        terminal.seek(0)
        assert shown in terminal.read()


CONTINUED = {"annotate", "correct", "best-of", "run", "train", "build-dataset"}


def options(name: str) -> dict[str, argparse.Action]:
    return {option: action for action in COMMANDS[name]._actions for option in action.option_strings or [action.dest]}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_sentences_and_words_mean_the_same(name: str) -> None:
    assert (COMMANDS[name].description or "").endswith(".")
    assert "%%" not in COMMANDS[name].format_help()
    found = options(name)
    for option, action in found.items():
        text = str(action.help)
        assert text[0].isupper() or text.startswith(("KIND", "OUTPUT")), option
        assert text.endswith("."), option
    assert not {"--data", "--config", "--resume"} & found.keys()
    if "--output" in found:
        said = str(found["--output"].help)
        assert ("If it exists, the command continues it." in said) == (name in CONTINUED)
        assert ("the command refuses to replace it without --overwrite." in said) == (name not in CONTINUED)
        assert found["--overwrite"].help == "The command starts OUTPUT again if it exists."
        assert "--json" in found or name in ("run", "train", "build-dataset")
    if "--json" in found:
        assert isinstance(found["--json"], argparse._StoreTrueAction)
    if "--annotator" in found and name != "calibrate":  # which makes the file
        assert "--calibration" in found


def test_json_is_one_object_and_nothing_else(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(annotators, "load_annotator", lambda name: ExactAnnotator())
    answers, several, annotated, out = (str(tmp_path / name) for name in ("in", "several", "annotated", "out"))
    one: dict[str, object] = {"question": "q", "reference": REFERENCE}
    write_rows(Path(answers), [*({**one, "answer": answer} for answer in ANSWERS), {"reference": "r"}])
    write_rows(Path(several), [{**one, "answers": [{"text": "The sky is blue."}, {"text": "Nobody knows."}]}])
    found = []
    for argv, code in (
        (["annotate", "--input", answers, "--output", annotated], 3),  # the last line is rejected
        (["correct", "--input", answers, "--output", out + "c", "--delete"], 3),
        (["best-of", "--input", several, "--output", out + "b"], 0),
        (["build-preferences", "--input", annotated, "--output", out + "p"], 0),
        (["stats", "--input", annotated, "--resamples", "0"], 0),
        (["recipes"], 0),
    ):
        assert main([*argv, "--json"]) == code
        found.append(json.loads(capsys.readouterr().out))
    annotation, correction, best, pairs, figures, recipes = found
    # s | c n | u s: "3" becomes "2" in the second answer, and the first sentence of the third is deleted
    assert (annotation["records"], annotation["hallucination_rate"], annotation["rejected_lines"]) == (3, 0.5, 1)
    assert (correction["corrected"], correction["changes"]) == (2, {"annotator": 1, "deleted": 1})
    assert correction["before"] == {"hallucinated": 2, "factual": 4, "rate": 0.5}
    assert correction["after"] == {"hallucinated": 0, "factual": 3, "rate": 0.0}
    assert [json.loads(row)["answer"] for row in Path(out + "c").read_text().splitlines()][2] == "The sky is blue."
    assert (best["questions"], best["rate_of_all"], best["rate_of_chosen"]) == (1, 0.5, 0.0)
    assert (pairs["answers"], pairs["questions"], pairs["pairs"]) == (3, 1, 1)
    assert figures["annotated (unknown)"]["answers"] == 3
    assert recipes["rlhf/small_gpu"]["hardware"]


WRONG = [(row["argv"], row["message"]) for row in read_rows(Path(__file__).with_name("wrong_usage.jsonl"))]
SHORT = {
    "FILES": "--input in.jsonl --output o", "ONE": "--reference r.txt --answer a.txt",
    "LLM": "--annotator generative:openai:m", "LABELLED": f"{GOLDEN}/labelled.jsonl", "PAIRS": "pairs.jsonl",
    "QUESTIONS": "--input q.jsonl --output o",
}  # fmt: skip


@pytest.mark.parametrize(("argv", "message"), WRONG)
def test_wrong_usage_is_explained_before_loading(argv, message, tmp_path, monkeypatch, capsys):
    loading = annotators.load_annotator  # which refuses some names and options before a model loads

    def load(name, **more):
        return loading(name, **more) if "/none" in name or "calibration" in more else pytest.fail("a model was loaded")

    monkeypatch.setattr(annotators, "load_annotator", load)
    monkeypatch.delenv("MITIGATE_SERVE_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    rows = [{**row, "answer": ANSWERS[0], "question": "q", "answers": []} for row in FOUR_WAY[:2]]
    write_rows(Path("in.jsonl"), rows)
    asked = [{"id": i, "question": f"Question {i}", "answers": [{"text": "abc"}]} for i in range(2)]
    write_rows(Path("bare.jsonl"), asked)
    write_rows(Path("q.jsonl"), [{**row, "reference_answers": {"one": "abc", "two": "ab"}} for row in asked])
    pair = {"question": "q", "baseline": "It is.", "method": "It was."}
    write_rows(Path("pairs.jsonl"), [{**pair, "reference": reference} for reference in ("", *"rrr")])
    for name, text in (("r.txt", REFERENCE), ("a.txt", ANSWERS[0] + "\n"), ("empty.txt", " \n")):
        Path(name).write_text(text)
    Path("latin.txt").write_bytes(b"caf\xe9")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    try:
        code: object = main(" ".join(SHORT.get(word, word) for word in argv.split()).split())
    except SystemExit as stop:  # argparse's own
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name[:2] not in ("o", "o.")} == before


def test_overrides_may_follow_options(tmp_path, capsys):
    recipe = ["run", "fewl/paper", f"data={write_rows(tmp_path / 'rows.jsonl', [])}", "--check"]
    assert main([*recipe, "seeds=7", "--overwrite", "pairs=4"]) == 0
    resolved = capsys.readouterr().out
    assert "\nseeds: 7\n" in resolved
    assert "\npairs: 4\n" in resolved
    for wrong in ([*recipe, "seven"], [*recipe, "--seeds=7"], ["recipes", "seeds=7"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert f"unrecognized arguments: {wrong[-1]}" in capsys.readouterr().err


def test_costs_of_a_recipe_are_kept_or_refused(tmp_path, capsys):
    data = write_rows(tmp_path / "rows.jsonl", [{"question": "q", "reference": "r"}])
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    shared = {"about": "a", "hardware": "h"}
    costs = ["--price", "0.15,2.0", "--max-cost", "0.01"]
    row = {"responses": str(data), "annotator": "embedded-fast"}
    anah = {"documents": str(data), "figures": ["score"], "rows": {"a": row}}
    recipe.write_text(json.dumps({"task": "anah", **shared, **anah}))
    assert main(["run", str(recipe), "--output", str(out), *costs]) == 2
    assert "--price, --max-cost: only for servers" in capsys.readouterr().err
    assert not out.exists()
    with serving(lambda body: error(400)) as server:
        asked = {"engine": f"openai:m@{server.url}", "annotator": "embedded-fast", "data": str(data)}
        asked |= {"delete": True}  # else nothing would change
        recipe.write_text(json.dumps({"task": "inference", **shared, **asked}))
        assert main(["run", str(recipe), "--output", str(out), *costs]) == 1
    assert f"go on with: mitigate run {recipe} --output {out} {' '.join(costs)}\n" in capsys.readouterr().err


def test_threads_wait_without_spinning_unless_told() -> None:
    """Their library reads these as it is loaded, so torch must come after them."""
    say = "print(*map(os.environ.get, ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')), 'torch' in sys.modules)"
    program = f"import os, sys; import mitigate.cli.main as cli; {say}; cli.main(['recipes']); {say}"
    own = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | {"GOMP_SPINCOUNT": "7"}
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("None 7 False", "PASSIVE 7 False")


def test_public_names_are_there_and_listed() -> None:
    for name, module in mitigate._MODULES.items():
        assert name in dir(mitigate)
        if module.startswith("mitigate.rl."):  # its own tests import TRL, which takes long
            origin = Path(str(importlib.util.find_spec(module).origin))  # type: ignore[union-attr]
            assert re.search(rf"^(class |def )?{name}\b", origin.read_text("utf-8"), re.M)
        else:
            assert getattr(mitigate, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'reward'; it offers "):
        _ = mitigate.reward
