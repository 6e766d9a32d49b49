"""ANAH rows become labelled sentences, what can't be aligned is counted; splits are disjoint and do not leak."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from annotators.evaluation import anah
from annotators.evaluation.anah import SPLITS, Split, apply_edits, edits_of, flatten, load_rows, split_rows
from annotators.evaluation.splits import plain
from annotators.text.sentences import anah_units
from mitigate.labels import check_labelled
from tests.helpers.anah_fixture import TOPICS, made_topics, write_topics


def test_the_fixture_flattened() -> None:
    rows, report = flatten(TOPICS)
    # Answers: 4 + 4 + 4 + 6. Left out: one with 2 annotations for other sentences, one with crossed corrections, one
    # without annotations (empty answer).
    assert (report.topics, report.answers, report.sentences) == (4, 15, 27)
    assert sum(report.left_out.values()) == 3
    reasons = " ".join(report.left_out)
    assert "not as many" in reasons
    assert "not in its sentence" in reasons
    assert "without annotations" in reasons
    assert "left out 3 answers" in str(report)
    assert len({row["id"] for row in rows}) == len(rows) == 27
    assert Counter((row["lang"], row["label"]) for row in rows) == {
        ("en", "supported"): 8, ("en", "contradictory"): 2, ("en", "unverifiable"): 2, ("en", "no_fact"): 2,
        ("zh", "supported"): 8, ("zh", "contradictory"): 3, ("zh", "unverifiable"): 1, ("zh", "no_fact"): 1,
    }  # fmt: skip
    for row in rows:
        assert check_labelled(row) == []
        assert row["answer"][row["start"] : row["start"] + len(row["sentence"])] == row["sentence"]
        assert all(piece in row["reference"] for piece in row["fragments"])
        assert all(old in row["sentence"] for old, _ in row["edits"])
    by_id = {row["id"]: row for row in rows}
    corrected = by_id["anah-0-internlm-0-0"]
    assert corrected["edits"] == [["John Hale", "Ada Brook"], ["1890", "1871"]]
    assert corrected["correction"] == "The architect was Ada Brook, who finished it in 1871."
    assert by_id["anah-0-internlm-0-1"]["correction"] == ""
    assert by_id["anah-0-gpt3.5-0-1"]["fragments"] == ["It was finished in 1871 and is 42 metres tall."]
    assert by_id["anah-1-internlm-0-1"]["reference"].endswith("\n\nThe canal museum opened in 1984.")
    assert by_id["anah-2-internlm-1-0"]["edits"] == [["李明", "工匠陈远"]]
    assert [by_id[f"anah-2-internlm-0-{s}"]["sentence"] for s in range(3)] == [
        "云河石桥建于1720年。", "它有七个桥孔！", "希望对您有帮助。",
    ]  # fmt: skip


def one_answer(answer: str, annotations: list[str], language: str = "en") -> tuple[list[str], Any]:
    """The sentences that the annotations of one answer are aligned to, and the report."""
    own = {"GPT3.5_answers_D": [answer], "human_GPT3.5_answers_D_ann": [annotations], "InternLM_answers": []}
    rows, report = flatten([{**TOPICS[0], "selected_questions": ["?q"], "language": language, **own}])
    return [row["sentence"] for row in rows], report


def test_other_splits_are_tried_where_the_first_misfit() -> None:
    answer = 'It is old. He said "Go. Now. Run." and left.\nThe end.'
    ways = anah.splittings(answer, "en")
    for spans in ways.values():
        rows, report = one_answer(answer, ["<Hallucination> Unverifiable"] * len(spans))
        assert len(rows) == len(spans) == len(ways[next(iter(report.aligned))])


def test_units_are_those_that_were_annotated() -> None:
    for text, language in (
        ("It is old;| it opened in May. 1931 by J. K. Orm.| Why?|\n1. A:\nyes; \n| 2. B et al. say so", "en"),
        ("桥很旧；|建于1568年：\n由陈远设计。|“好！|”他说 a.b; c", "zh"),
    ):
        answer = text.replace("|", "")
        assert [answer[a:b] for a, b in anah_units(answer, language)] == [piece.strip() for piece in text.split("|")]
    rows, report = one_answer("It is old; it opened in 1931.", ["<Hallucination> Unverifiable"] * 2)
    assert (rows, report.aligned) == (["It is old;", "it opened in 1931."], {"ANAH's units": 1})


def test_named_sentences_go_before_any_split() -> None:
    answer = "你好。桥建于1568年，由陈远设计。他是北方人。"
    names = ["桥建于1568年", "由陈远设计", "他是北方人。"]
    rows, report = one_answer(answer, [f"‹要点>{name}\n‹幻觉>无" for name in names], "zh")
    assert (rows, report.aligned) == (names, {"the sentences that are named": 1})
    assert "(answers aligned by the sentences that are named: 1)" in str(report)
    # Named in part: ANAH's units and lines are two each; the name says which.
    answer = "他说：\n好。他走了。"
    rows, report = one_answer(answer, ["<要点>他说：\n<幻觉>无", "<幻觉>无"], "zh")
    assert (rows, report.aligned) == (["他说：", "好。他走了。"], {"lines": 1})


def test_sentences_that_nobody_judged_leave_the_others() -> None:
    notes = ["<Hallucination> Unverifiable", None, "<Hallucination> None"]
    rows, report = one_answer("It is old. It is red. It fell.", notes)
    assert (rows, report.left_out) == (["It is old.", "It fell."], {})


def test_rows_of_another_shape_are_counted() -> None:
    rows, report = flatten([
        {"name": "x"},
        {**TOPICS[1], "documents": None},
        {**TOPICS[1], "language": "fr"},
        {**TOPICS[1], "human_GPT3.5_answers_D_ann": [["no tags at all"], ["<Hallucination> Maybe", "<NoFact>"]]},
    ])  # fmt: skip
    assert report.left_out["without the columns of ANAH"] == 1
    assert report.left_out["without a reference or in a language that is neither en nor zh"] == 8
    assert sum(n for reason, n in report.left_out.items() if "can't be read" in reason) == 2
    assert {row["source"] for row in rows} == {"anah-internlm"}
    assert not anah.is_anah({"sentence": "x"})


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder"])
def test_read_through_datasets(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    path = write_topics(folder / "rows.jsonl", TOPICS)
    if kind == "parquet":
        from datasets import Dataset

        path = folder / "rows.parquet"
        Dataset.from_list(TOPICS).to_parquet(str(path))
    rows, report = flatten(load_rows([str(folder if kind == "folder" else path)]))
    assert (rows, report) == flatten(TOPICS)


def test_what_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no such file"):
        load_rows([str(tmp_path / "none.jsonl")])
    with pytest.raises(OSError, match=r"expected a \.parquet, \.json or \.jsonl file, a folder, or a hub id"):
        load_rows(["a b c"])


def test_edits_go_to_their_places() -> None:
    assert apply_edits("It is 30 and 30.", [("30", "17"), ("30", "18")]) == "It is 17 and 18."
    assert apply_edits("Drop this.", [("Drop this.", "")]) == ""
    assert apply_edits("Nothing.", [("", "x"), ("absent", "y")]) == "Nothing."


def leaks(rows: Sequence[Mapping[str, Any]], splits: Sequence[Split]) -> list[str]:
    """What of the unseen parts is in train as well, for rows without those ``split_rows`` dropped."""
    forbidden: dict[Split, tuple[str, ...]] = {
        "unseen_topic": ("topic", "reference", "question", "answer"),
        "unseen_question": ("question", "answer"),
    }

    def texts(name: str, part: Split) -> set[str]:
        return {plain(r.get(name)) for r, s in zip(rows, splits, strict=True) if s == part} - {""}

    of_part = ((name, part) for part, names in forbidden.items() for name in names)
    return [f"{name}s of {part} are in train" for name, part in of_part if texts(name, "train") & texts(name, part)]


def test_splits_are_disjoint_and_do_not_leak() -> None:
    rows, _ = flatten([*made_topics(30), *TOPICS])
    splits, dropped = split_rows(rows, share=0.15, seed=3)
    kept = [n for n in range(len(rows)) if n not in set(dropped)]
    assert leaks([rows[n] for n in kept], [splits[n] for n in kept]) == []
    size = Counter(splits)
    assert set(size) == set(SPLITS)
    assert all(0.12 < size[part] / len(rows) < 0.22 for part in SPLITS[1:])
    topics = {part: {r["topic"] for r, s in zip(rows, splits, strict=True) if s == part} for part in SPLITS}
    assert not topics["unseen_topic"] & topics["train"]
    assert topics["unseen_question"] <= topics["train"]
    wrong: list[Split] = ["train" if n % 2 else "unseen_topic" for n in range(len(rows))]
    told = " ".join(leaks(rows, wrong))
    assert all(f"{name}s of unseen_topic are in train" in told for name in ("topic", "reference", "question", "answer"))
    # by seed, whatever the order
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    again, _ = split_rows([rows[n] for n in order], share=0.15, seed=3)
    assert [splits[n] for n in order] == again
    assert split_rows(rows, share=0.15, seed=4)[0] != splits


def test_topics_that_share_texts_stay_together() -> None:
    topics = made_topics(12)
    topics[1]["documents"] = topics[0]["documents"]
    topics[3]["selected_questions"][0] = "  WHEN was tower 2   built?"
    rows, _ = flatten(topics)
    for seed in range(20):
        splits, _ = split_rows(rows, share=0.2, seed=seed)
        for a, b in ((0, 1), (2, 3)):
            unseen = {r["topic"] for r, s in zip(rows, splits, strict=True) if s == "unseen_topic"}
            assert (f"Tower {a}" in unseen) == (f"Tower {b}" in unseen)
        assert leaks(rows, splits) == []


def test_answers_in_train_leave_the_test_parts() -> None:
    topics = made_topics(10)
    for topic in topics:
        topic["InternLM_answers"] = ["I do not know."] * 2
        topic["human_InternLM_answers_ann"] = [["<No Fact>"]] * 2
    rows, _ = flatten(topics)
    splits, dropped = split_rows(rows, share=0.2)
    assert {(rows[n]["answer"], splits[n] != "train") for n in dropped} == {("I do not know.", True)}
    kept = [n for n in range(len(rows)) if n not in set(dropped)]
    assert leaks([rows[n] for n in kept], [splits[n] for n in kept]) == []


def test_too_little_to_split() -> None:
    rows, _ = flatten(made_topics(1))
    with pytest.raises(ValueError, match="expected at least two topics"):
        split_rows(rows)
    with pytest.raises(ValueError, match="share: expected a number above 0 and below"):
        split_rows(rows, share=0.7)


@given(st.lists(st.sampled_from("it was not in the 1871 1934 , . Orm 石 桥".split()), min_size=1, max_size=9),
       st.lists(st.sampled_from("it was not in the 1871 1934 , . Orm 石 桥".split()), max_size=9))  # fmt: skip
@example(["1871"], [",", "it", "it", "1871", "Orm"])
def test_edits_always_lead_to_the_correction(before: list[str], after: list[str]) -> None:
    old, new = " ".join(before), " ".join(after)
    for begin, end in (("", ""), ("A ", " end")):
        texts = f"{begin}{old}{end}", f"{begin}{new}{end}"
        edits = edits_of(*texts)
        assert apply_edits(texts[0], edits) == texts[1]
        assert all(source and source in texts[0] for source, _ in edits)
        assert not begin or edits != [texts]  # words beside it say the place of each
