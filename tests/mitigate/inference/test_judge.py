"""Judging pairs: both orders, strict verdicts, shares and win rate, metrics without an LLM."""

import json
import math
from itertools import product
from pathlib import Path

import pytest

from mitigate.cli.main import main
from mitigate.inference.judge import by_annotator, by_engine, chats, estimate, prompt, read_verdict, tally, with_silence
from mitigate.io import UsageError, alone
from tests.helpers.engines_server import Scripted, completion, error, serving
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.rule_annotator import LOST, REFERENCE, RIGHT, WRONG, RuleAnnotator

PAIRS = [
    {"question": "q0", "baseline": LOST, "method": RIGHT, "reference": REFERENCE},
    {"question": "q1", "baseline": RIGHT, "method": f"{RIGHT} {WRONG}", "reference": REFERENCE},
    {"question": "q2", "baseline": WRONG, "method": LOST, "reference": REFERENCE},
    {"question": "q3", "baseline": "so it goes", "method": RIGHT, "reference": REFERENCE},
]


def test_both_orders_must_agree():
    """The method was shown second, then first."""
    agreed = {("second", "first"): "method", ("first", "second"): "baseline", ("none", "none"): "tie"}
    orders = [*product(("first", "second", "none", None), repeat=2)]
    replies = [f"Better: {said}" if said else "Who knows" for order in orders for said in order]
    judged = by_engine(PAIRS[:1] * len(orders), Scripted(lambda _, call: replies[call - 1]))
    assert [(tuple(found["verdicts"]), outcome) for outcome, found in judged] == [
        (order, agreed.get(order, "unsure")) for order in orders
    ]


@pytest.mark.parametrize(("reply", "verdict"), [
    ("It is right.\nBetter: second", "second"),
    ("**Better: First**", "first"),
    ("better: 2.", "second"),
    ("Better: none\n", "none"),
    ("Better: first\nBetter: second", None),
    ("Better: first\nBetter: first", "first"),
    ("The better answer is first", None),
    ("I think Better: first is what I should write", None),
    (None, None),
])  # fmt: skip
def test_verdicts_are_read_strictly(reply, verdict):
    assert read_verdict(reply) == verdict


def test_tally_by_hand():
    result = tally(["method"] * 6 + ["baseline"] * 2 + ["tie"] + ["unsure"])
    assert (result["shares"], result["win_rate"]) == ({"method": 0.6, "baseline": 0.2, "tie": 0.2}, 6 / 8)
    # Wilson: p = 0.75, n = 8, z = 1.959964: centre (p + z²/2n) / (1 + z²/n), half z √(p(1−p)/n + z²/4n²) / (1 + z²/n)
    z, p, n = 1.959964, 0.75, 8
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert (result["low"], result["high"]) == pytest.approx((centre - half, centre + half), abs=1e-6)
    nothing = tally(["tie", "unsure"])
    assert (nothing["win_rate"], nothing["low"], nothing["shares"]["tie"]) == (None, None, 1.0)
    assert tally([])["n"] == 0


def test_prompts_hold_both_orders_and_fence_texts():
    pair = {"question": "q</data>x", "baseline": "BASE", "method": "METH <data>", "reference": "known"}
    forward, backward = (chat[0]["content"] for chat in chats([pair]))
    assert forward.index("BASE") < forward.index("METH")
    assert backward.index("METH") < backward.index("BASE")
    assert (forward.count("<data>"), forward.count("</data>")) == (5, 4)  # four texts and the one in the instruction
    assert "What is known" not in prompt({**pair, "reference": ""}, "baseline", "method")[0]["content"]
    # The estimate counts both orders.
    short, long, chinese = (estimate([{**pair, "question": q}]) for q in ("q" * 400, "q" * 800, "问" * 4000))
    assert short["requests"] == 2
    assert long["prompt_tokens"] - short["prompt_tokens"] == 200  # 400 more characters, twice, 4 a token
    assert chinese["prompt_tokens"] > 2 * 4000 / 1.5


def test_the_annotator_judges_by_rates():
    found = by_annotator(PAIRS, RuleAnnotator())
    assert [outcome for outcome, _ in found] == ["method", "baseline", "tie", "unsure"]
    assert found[1][1]["rates"] == {"baseline": 0.0, "method": 0.5}
    assert found[3][1]["rates"] == {"baseline": None, "method": 0.0}
    assert all(set(more["statuses"]) == {"checked"} for _, more in found)


def test_silence_loses_without_being_asked():
    texts = [("", RIGHT), (RIGHT, " "), ("", ""), (LOST, RIGHT)]
    pairs = [{"question": "q", "baseline": b, "method": m, "reference": REFERENCE} for b, m in texts]
    found = with_silence(pairs, lambda some: by_annotator(some, RuleAnnotator()))
    assert [outcome for outcome, _ in found] == ["method", "baseline", "tie", "method"]
    assert (found[2][1], "rates" in found[3][1]) == ({"silent": True}, True)
    assert estimate(pairs)["requests"] == 2


def test_the_command_with_an_engine(tmp_path, capsys):
    """A judge that prefers the answer with RIGHT, likes the first place for q2, and is down for q3."""

    def script(body):
        text = body["messages"][0]["content"]
        if "q3" in text:
            return error(400, "too long")
        first = text.split("First answer:")[1].split("Second answer:")[0]
        good = "q2" in text or (RIGHT in first and WRONG not in first)
        return completion(f"Because.\nBetter: {'first' if good else 'second'}")

    source, out = write_rows(tmp_path / "in.jsonl", [*PAIRS, {"question": "only"}]), tmp_path / "out.jsonl"
    with serving(script) as server:
        args = ["judge", "--input", str(source), "--output", str(out), "--engine", f"openai:m@{server.url}"]
        (broken := tmp_path / "broken").write_text("no database " * 100)
        assert main([*args, "--cache", str(broken)]) == 1
        assert "expected a response cache" in capsys.readouterr().err
        assert main([*args, "--cache", str(tmp_path / "cache")]) == 1  # not 3: first what failed
    rows = read_rows(out)
    assert [row["outcome"] for row in rows] == ["method", "baseline", "unsure", "unsure"]
    assert (rows[2]["verdicts"], rows[3]["replies"]) == (["first", "first"], [None, None])
    shown, errors = capsys.readouterr()
    again = "the same command with --overwrite asks only these again"
    for part in ("8 requests to openai:m@", "in.jsonl:5: baseline", "2 requests failed", again):
        assert part in errors
    assert "method 25 %, baseline 25 %, tie 50 % (2 of the ties unsure" in shown
    assert "win rate of the method over decided pairs: 50 % [9 %, 91 %], n = 2" in shown


def test_an_equal_run_beside_it_asks_nothing(tmp_path, capsys):
    source, out, refused = write_rows(tmp_path / "in.jsonl", PAIRS[:1]), tmp_path / "out.jsonl", []

    def script(_):
        try:
            with alone(out):
                refused.append("")
        except UsageError as error:
            refused.append(str(error))
        return completion("Better: first")

    (tmp_path / "out.jsonl.lock").touch()  # of a run that was killed
    with serving(script) as server:
        args = ["judge", "--input", str(source), "--output", str(out), "--engine", f"openai:m@{server.url}"]
        with alone(out):
            assert main(args) == 2
        assert (refused, out.exists()) == ([], False)
        assert "out.jsonl is being written by another run: wait for it" in capsys.readouterr().err
        assert main(args) == 0
    assert len(refused) == 2
    assert all("is being written by another run" in text for text in refused)
    assert not list(tmp_path.glob("*.lock"))


def test_the_command_without_an_llm(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("mitigate.cli.judge.open_annotator", lambda *given: asked.append(given) or RuleAnnotator())
    source, out = write_rows(tmp_path / "in.jsonl", PAIRS), tmp_path / "out.jsonl"
    args = ["judge", "--input", str(source), "--output", str(out), "--annotator", "embedded"]
    assert main([*args, "--expected-rate", "0.3", "--json"]) == 0
    assert asked == [("embedded", {"expected_rate": 0.3})]
    llm = ["--annotator", "generative:openai:m@http://127.0.0.1:9/v1", "--overwrite"]
    assert main([*args[:-2], *llm, "--cache", str(tmp_path / "kept")]) == 0
    assert main([*args[:-2], *llm]) == 0
    assert [options for _, options in asked[1:]] == [
        {"cache": tmp_path / "kept"}, {"cache": Path(f"{out}.cache.sqlite")},
    ]  # fmt: skip
    assert main([*args, "--overwrite", "--cache", str(tmp_path / "kept")]) == 2
    capsys.readouterr()
    del asked[1:]
    assert main([*args, "--overwrite", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[name] for name in ("n", "method", "baseline", "tie", "unsure")] == [4, 1, 1, 1, 1]
