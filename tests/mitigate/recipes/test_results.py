"""Figures and page of answers before and after training, and the log of the judge meanwhile."""

import re
from pathlib import Path
from typing import Any

import pytest

from mitigate.recipes.data import HELD_OUT
from mitigate.recipes.results import JudgeLog, by_reward, compare, figures, write_page
from mitigate.report.html import marked
from mitigate.rewards.reward import SentenceReward
from tests.helpers.standin import ExactAnnotator


def sample(answer: str, labels: list[str], when: str = "before", **more: Any) -> dict[str, Any]:
    sentences, start = [], 0
    for text, label in zip(re.findall(r"[^.]+\.", answer), labels, strict=True):
        start = answer.index(text.strip(), start)
        end = start + len(text.strip())
        sentences.append({"text": text.strip(), "start": start, "end": end, "status": "checked", "label": label})
    who = {"name": "judge", "fingerprint": "f"}
    return {"when": when, "set": HELD_OUT, "question": "Q?", "reference": "R", "answer": answer, "sentences": sentences,
            "annotator": who, **more}  # fmt: skip


def test_figures_by_hand() -> None:
    rows = [
        sample("A. A. B.", ["supported", "supported", "contradictory"], by_reward={"labels": ["supported"] * 3}),
        sample("C. D.", ["no_fact", "no_fact"], by_reward={"labels": ["unverifiable", "no_fact"]}),
    ]
    found = figures(rows)
    assert found["rate"] == pytest.approx(1 / 3)  # 1 of 3 factual sentences
    assert found["supported"] == 0.5  # "A." counts once, in 2 answers
    assert found["sentences"] == 2.5
    assert found["silent"] == 0.5
    assert found["by_reward"] == 0.25  # 1 of 4
    assert figures([])["rate"] is None
    assert "held-out, before: 25 %" in by_reward(compare(rows))
    assert by_reward(compare([sample("A.", ["supported"])])).startswith("The judge is the reward's own annotator")


def test_judge_reads_every_so_many_batches() -> None:
    logged: list[tuple[str, float]] = []
    log = JudgeLog(SentenceReward(ExactAnnotator(), aspects={"factuality": 1}, name="judge"), every=2)
    for _ in range(3):
        asked = {
            "question": ["Q?"],
            "reference": ["It is old. It is big."],
            "log_metric": lambda *pair: logged.append(pair),
        }
        assert log(["It is old. It is new."], **asked) == [None]  # no number, or unscored answers would count as 0
    assert logged == [("judge/hallucination_rate", 0.5), ("judge/share_supported", 0.5)] * 2


def test_page_shows_answers_side_by_side_escaped(tmp_path: Path) -> None:
    rows = [sample("<b>One</b>.", ["contradictory"]), sample("Two.", ["supported"], when="after")]
    metrics = [{"step": 1, "reward<b>": 0.5}, {"step": 2, "reward<b>": 1.5}]
    write_page(tmp_path / "p.html", "x < y", rows, compare(rows), metrics, 5)
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    wrong = marked("<b>One</b>.", [(0, 11, '<span class="s contradictory" title="contradictory">')])
    right = marked("Two.", [(0, 4, '<span class="s supported" title="supported">')])
    assert page.index(wrong) < page.index(right)
    assert "x &lt; y" in page
    assert "<b>One" not in page
    assert "100 % → 0 %" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert 'aria-label="reward&lt;b&gt;: from 0.5 at step 1 to 1.5 at step 2"' in page
