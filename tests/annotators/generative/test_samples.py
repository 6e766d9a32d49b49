"""Training samples of the generative annotator are what it is asked, and read back as gold."""

import json
from typing import Any

import pytest

from annotators.evaluation.anah import flatten, gold_edits
from annotators.generative.annotator import GenerativeAnnotator
from annotators.generative.prompts import names_of
from annotators.generative.protocols import Options, Windows
from annotators.generative.samples import annotation_samples, answer_samples, dialogue_samples, mix, question_samples
from annotators.generative.tagged import parse_tagged
from engines.types import ChatResult, Sample
from tests.helpers.anah_fixture import TOPICS, made_topics
from tests.helpers.engines_server import Scripted
from tests.helpers.generative_cases import Words

ROWS, _ = flatten(TOPICS)


def no_embedder() -> Any:
    raise AssertionError("short references are shown whole, without an embedder")


WINDOWS = Windows("sentence", None, no_embedder)


def user(sample: dict[str, Any]) -> str:
    return sample["prompt"][-1]["content"]


def reply(sample: dict[str, Any]) -> str:
    return sample["completion"][0]["content"]


def test_annotation_samples_read_back_as_gold() -> None:
    samples = annotation_samples(ROWS, ["plain"], WINDOWS)
    assert len(samples) == len(ROWS)
    for row, sample in zip(ROWS, samples, strict=True):
        assert row["sentence"] in user(sample)
        assert row["reference"] in user(sample)
        assert row["question"] in user(sample)
        found = parse_tagged(reply(sample))
        assert found.label == row["label"]
        assert [list(pair) for pair in found.corrections] == row["edits"]
        if row["label"] != "no_fact":
            assert list(found.fragments) == row["fragments"]
    zh = [s for row, s in zip(ROWS, samples, strict=True) if row["lang"] == "zh"]
    assert all("<幻觉>" in reply(s) or reply(s) == "<无事实>" for s in zh)
    bare = [{**ROWS[0], "fragments": []}, {**ROWS[0], "label": "unsupported"}]  # no verdict that would be taken
    assert annotation_samples(bare, ["plain"], WINDOWS) == []


def test_three_turns_are_what_the_annotator_asks() -> None:
    """Played back by the gold replies, the annotator's own conversation asks the samples' prompts, and finds gold."""
    asked: list[str] = []
    samples = annotation_samples(ROWS, ["steps"], WINDOWS, protocol="three-turn")
    gold = {json.dumps(sample["prompt"]): reply(sample) for sample in samples}

    class Played(Scripted):
        def chat(self, chats: Any, sampling: Any = None, *, on_result: Any = None) -> list[ChatResult]:
            asked.extend(map(json.dumps, chats))
            return [ChatResult((Sample(gold[json.dumps(chat)], "stop"),)) for chat in chats]

    engine = Played(lambda *_: None)
    judged = GenerativeAnnotator(engine, Options(protocol="three-turn", prompt="steps", window="whole")).predict(ROWS)
    assert [one.label for one in judged] == [row["label"] for row in ROWS]
    assert [[f.text for f in one.fragments] for one in judged] == [
        row["fragments"] if row["label"] != "no_fact" else [] for row in ROWS
    ]
    assert sorted(asked) == sorted(gold)  # nothing else was asked, and nothing twice
    bare = [{**ROWS[0], "label": label, "fragments": []} for label in ("supported", "contradictory", "unverifiable")]
    assert [reply(s) for s in annotation_samples(bare, ["steps"], WINDOWS, protocol="three-turn")] == [
        "<Facts Present>", "<No Reference Information>",
    ]  # fmt: skip


def test_several_wordings_are_all_used() -> None:
    names = names_of("tagged", "en")[:4]
    rows = [row for row in flatten(made_topics(20))[0] if row["lang"] == "en"]
    first = {user(s)[:60] for s in annotation_samples(rows, [names[0]], WINDOWS)}
    several = [user(s) for s in annotation_samples(rows, names, WINDOWS, seed=1)]
    assert len(first) == 1
    assert len({text[:60] for text in several}) == 4
    orders = {
        text.index(row["reference"]) < text.index(row["question"]) for text, row in zip(several, rows, strict=True)
    }
    assert orders == {True, False}
    assert several == [user(s) for s in annotation_samples(rows, names, WINDOWS, seed=1)]
    assert several != [user(s) for s in annotation_samples(rows, names, WINDOWS, seed=2)]
    with pytest.raises(ValueError, match="no such wording: nonsense"):
        annotation_samples(rows, ["plain", "nonsense"], WINDOWS)


def test_gold_fragment_outside_the_window_widens_it() -> None:
    lines = [f"The {word} mill ground corn for the town in its day." for word in
             "red blue green old new big small grey tall wide low high dry wet far near".split()]  # fmt: skip
    gold = "Its keeper was Hanna Vale."
    row = {"sentence": "The red mill ground corn for the town.", "reference": "\n".join([*lines, gold, *lines]),
           "question": "", "label": "unverifiable", "fragments": [gold], "lang": "en"}  # fmt: skip
    narrow = annotation_samples([{**row, "fragments": []}], ["plain"], Windows("sentence", 40, Words))
    wide = annotation_samples([row], ["plain"], Windows("sentence", 40, Words))
    assert gold not in user(narrow[0])
    assert len(user(wide[0])) > len(user(narrow[0]))


def test_edits_come_from_pairs_or_sentences() -> None:
    row = {"sentence": "It has 30 locks.", "label": "contradictory", "correction": "It has 17 locks."}
    assert gold_edits(row) == [("30", "17")]
    assert gold_edits({**row, "edits": [["30 locks", "17 locks"]]}) == [("30 locks", "17 locks")]
    assert gold_edits({**row, "label": "supported"}) == []
    assert gold_edits({**row, "correction": None}) == []


def test_other_tasks() -> None:
    topics = [{"reference": "D1", "questions": ["A?", "B?"], "lang": "en"},
              {"reference": "D2", "questions": ["C?", "D?"], "lang": "en"},
              {"reference": "文", "questions": ["甲？"], "lang": "zh"}]  # fmt: skip
    found = question_samples(topics, several=False)
    assert [reply(s) for s in found["question_generation"]] == ["A?\nB?", "C?\nD?", "甲？"]
    assert "2 questions" in user(found["question_generation"][0])
    assert len(found["question_selection"]) == 2  # no other Chinese topic to draw distractors from
    chosen = found["question_selection"][0]
    assert all(f"- {q}" in user(chosen) for q in ("A?", "B?", "C?", "D?"))
    assert sorted(reply(chosen).split("\n")) == ["A?", "B?"]

    answers = answer_samples(ROWS, several=False)
    labels: dict[str, set[str]] = {}
    for row in ROWS:
        labels.setdefault(row["answer"], set()).add(row["label"])
    assert {reply(s) for s in answers} == {
        a for a, found_ in labels.items() if found_ <= {"supported", "no_fact"} and "supported" in found_
    }
    assert not any("John Hale" in reply(s) for s in answers)


def test_dialogues_in_three_forms() -> None:
    rows: list[Any] = [
        {"instruction": "Name a colour.", "context": "", "response": "Red."},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"},
                           {"from": "human", "value": "Bye"}, {"from": "gpt", "value": "So long"}]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                      {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "unanswered"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                      {"role": "assistant", "content": [{"type": "text", "text": "Ho."}]},
                      {"role": "assistant", "content": None, "tool_calls": []}]},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]},
        {"other": 1}, {"messages": ["text"]}, {"messages": [{"content": "no role"}]}, {"conversations": [1]},
    ]  # fmt: skip
    found = list(dialogue_samples(rows))
    assert [(len(s["prompt"]), reply(s)) for s in found] == [(1, "Red."), (3, "So long"), (2, "Hi."), (1, "Ho.")]
    assert found[-1]["prompt"][0]["content"] == "Hi"


def test_shares_hold() -> None:
    def many(task: str, n: int) -> list[dict[str, Any]]:
        return [{"task": task, "n": i} for i in range(n)]

    samples = {"annotation": many("annotation", 60), "dialogue": many("dialogue", 500),
               "answer_generation": many("answer_generation", 5)}  # fmt: skip
    shares = {"annotation": 0.6, "dialogue": 0.3, "answer_generation": 0.1}
    found = mix(samples, shares, seed=2)  # type: ignore[arg-type]
    count = {task: sum(s["task"] == task for s in found) for task in samples}
    assert count == {"annotation": 60, "dialogue": 30, "answer_generation": 5}  # 10 wanted, 5 there
    assert found == mix(samples, shares, seed=2)  # type: ignore[arg-type]
    assert [s["task"] for s in found] != sorted(s["task"] for s in found)
