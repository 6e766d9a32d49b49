"""The CHALE-style builder: every answer is made of the parts that its record says."""

import numpy as np
import pytest

from fewl.chale import KINDS, build_benchmark


def encode(texts):
    """Question i of n stands at an angle of 4·i degrees: cosine 0.8 is passed between 9 and 10 steps."""
    angles = np.array([np.deg2rad(4.0 * int(text.split()[-1])) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rows(n=20):
    long = "First {0}. Second {0}. Third {0}. Fourth {0}. Last {0}."
    return [
        {"id": i, "question": f"question {i}", "short_answer": f"short {i}", "long_answer": long.format(i)}
        for i in range(n)
    ]


def test_answers_consist_of_the_parts_stated():
    built, statistics = build_benchmark(rows(), encode, answers=3, seed=1)
    assert len(built) == 20
    swapped = set()
    for row in built:
        i = row["id"]
        own = {f"{word} {i}." for word in ("Second", "Third", "Fourth")}  # never the first or the last sentence
        by_kind = {kind: [a for a in row["answers"] if a["kind"] == kind] for kind in KINDS}
        assert [len(answers) for answers in by_kind.values()] == [3, 3, 3]
        for answer in row["answers"]:
            short, detail = answer["text"].split(". ", 1)
            assert answer["label"] is (answer["kind"] == "non_hallucinated")
            other = answer["from"].split()[-1] if answer["from"] else None
            if other is not None:
                # cosine of 4° steps: 0.8 = cos 36.9°, so 10 steps or more; 0.2 = cos 78.5°, so 19 at most
                assert 10 <= abs(int(other) - i) <= 19
            if answer["kind"] == "non_hallucinated":
                assert short == f"short {i}"
                assert detail in own
            elif answer["kind"] == "hallucinated":
                assert short == f"short {other}"
                assert detail.split()[1] == f"{other}."
            else:
                swapped.add(answer["swapped"])
                assert (short == f"short {other}") == (answer["swapped"] == "short")
                assert (detail in own) == (answer["swapped"] == "short")
        assert len({a["text"] for a in by_kind["non_hallucinated"]}) == 3  # three sentences, each used once
    assert swapped == {"short", "detail"}
    assert statistics["questions"] == 20
    assert statistics["sentences_per_answer"] == 3
    assert statistics["table"]["non_hallucinated"]["words"] == 4  # short, i, Second, i
    assert sum(statistics["swapped"].values()) == 60


def test_seed_fixes_the_benchmark():
    assert build_benchmark(rows(), encode)[0] == build_benchmark(rows(), encode)[0]
    assert build_benchmark(rows(), encode)[0] != build_benchmark(rows(), encode, seed=1)[0]


@pytest.mark.parametrize(("change", "reason"), [
    ({"long_answer": "<Table> <Tr> <Td> a </Td> </Tr> </Table>"}, "markup"),
    ({"long_answer": "One. Two.\n- three\n- four"}, "markup"),
    ({"long_answer": "| a | b |\n| c | d |"}, "markup"),
    ({"long_answer": "One. Two."}, "too_few_sentences"),
    ({"short_answer": " "}, "no_answer"),
])  # fmt: skip
def test_unusable_rows_are_counted(change, reason):
    data = rows()
    data[3] |= change
    built, statistics = build_benchmark(data, encode)
    assert 3 not in [row["id"] for row in built]
    assert all(a["from"] != "question 3" for row in built for a in row["answers"])
    assert statistics["dropped"] == {reason: 1}


def test_paragraph_tags_are_removed():
    data = rows()
    data[3]["long_answer"] = f"<P> {data[3]['long_answer']} </P>"
    assert len(build_benchmark(data, encode)[0]) == 20


def test_no_true_part_is_lent_between_questions_on_one_text():
    data = rows()
    for row in data:  # the questions that may lend to each other share a text
        row["long_answer"] = "First. Its own. Its other. Last."
    assert build_benchmark(data, encode)[0] == []
    for row in data:
        row["long_answer"] = f"First. Its own. Its other {row['id']}. Last."
    for row in build_benchmark(data, encode)[0]:
        lent = [a["text"].split(". ")[1] for a in row["answers"] if not a["label"] and a["swapped"] != "short"]
        assert lent
        assert "Its own." not in lent


def test_chinese_answers_have_chinese_stops():
    data = rows()
    for row in data:
        row["short_answer"] = f"约{row['id']}公里。"
        row["long_answer"] = "".join(f"句{row['id']}第{k}。" for k in "一二三四五")
    for row in build_benchmark(data, encode)[0]:
        for answer in row["answers"]:
            short, detail, end = answer["text"].split("。")
            assert (short[0], detail[0], end) == ("约", "句", "")


def test_questions_without_neighbours_are_dropped():
    data = rows(12)  # only questions 0 and 1 with 10 and 11 are 10 steps or more apart
    built, statistics = build_benchmark(data, encode)
    assert [row["id"] for row in built] == [0, 1, 10, 11]
    assert statistics["dropped"] == {"no_neighbour": 8}
    data[10]["short_answer"] = "Short 0!"  # the same answer would be no hallucination
    built, _ = build_benchmark(data, encode)
    assert {a["from"] for a in built[0]["answers"] if a["from"]} == {"question 11"}
    assert build_benchmark([], encode)[0] == []
