"""Scoring whole records: against a loop over strings, by hand, and in every degenerate case."""

import math

import numpy as np
import pytest

from fewl.score import FewlOptions, score_records
from fewl.similarity import cosine, from_function
from tests.helpers.fewl_loop import loop_score


def encode(texts):
    """A toy encoder: counts of the letters a to h, length 1 (a text without them points along the first)."""
    counts = np.array([[text.count(c) for c in "abcdefgh"] for text in texts], dtype=np.float32).reshape(-1, 8)
    counts[~counts.any(axis=1), 0] = 1
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def score(records, **options):
    return score_records(
        records, similarity=cosine(encode), encode=encode, options=FewlOptions(**options) if options else None
    )


def one(**changes):
    return {"question": "a", "answers": [{"text": "ab"}], "reference_answers": {"m": "ab"}, **changes}


def dot(a, b):
    x, y = encode([a, b]).astype(float)
    return sum(p * q for p, q in zip(x.tolist(), y.tolist(), strict=True))


def random_records(seed, questions=14):
    """Records with gaps of every kind."""
    generator = np.random.default_rng(seed)

    def text():
        return "".join(generator.choice(list("abcdefgh"), size=generator.integers(2, 9)))

    records = []
    for _ in range(questions):
        references = {name: text() for name in ("one", "two", "three") if generator.random() < 0.8}
        if generator.random() < 0.5:
            references["many"] = [text() for _ in range(generator.integers(1, 4))]
        answers = [{"text": text(), "model": generator.choice(["one", "x"])} for _ in range(3)]
        iw, co = ([text() for _ in range(generator.integers(low, 4))] for low in (0, 1))
        records.append(one(question=text(), answers=answers, reference_answers=references, iw=iw, co=co))
    records[5]["question"] = records[2]["question"]  # a duplicate
    records[7]["answers"][0]["text"] = " "
    records[8]["reference_answers"] = {}
    return records


def loop_scores(records, aggregation, expertise, scope, k):
    """Independent: plain loops over strings and dictionaries, total variation."""

    def references(record):
        return {
            (name, sample): text
            for name, value in record["reference_answers"].items()
            for sample, text in enumerate([value] if isinstance(value, str) else value)
        }

    first = {}
    for record in records:
        first[record["question"]] = {**references(record), **first.get(record["question"], {})}

    def neighbours(question):
        others = [other for other in first if other != question]
        return sorted(others, key=lambda other: -round(dot(question, other), 9))[:k]

    r = []
    for record in records:
        row = {}
        for slot, text in references(record).items():
            if expertise == "uniform":
                row[slot] = 0.0
            elif record["iw"] and record["co"]:
                row[slot] = max(dot(text, c) for c in record["co"]) - max(dot(text, w) for w in record["iw"])
        r.append(row)
    if scope == "dataset":
        slots = {slot for row in r for slot in row}
        mean = {slot: np.mean([row[slot] for row in r if slot in row]) for slot in slots}
        r = [{slot: mean[slot] for slot in references(record)} for record in records]

    scores = []
    for record, row in zip(records, r, strict=True):
        near = neighbours(record["question"])
        for answer in record["answers"]:
            text = answer["text"]
            there = {s: t for s, t in references(record).items() if s[0] != answer["model"] and text.strip()}
            similar = [dot(text, own) for own in there.values()]
            beside = [[dot(text, first[q][slot]) for q in near if slot in first[q]] for slot in there]
            scores.append(loop_score(similar, [row.get(slot, 0.0) for slot in there], beside, aggregation, "tv"))
    return scores


@pytest.mark.parametrize("scope", ["question", "dataset"])
@pytest.mark.parametrize("expertise", ["uniform", "similarity"])
@pytest.mark.parametrize("aggregation", ["paper", "eq6"])
def test_scores_equal_the_loop(aggregation, expertise, scope):
    for seed in range(2):
        records = random_records(seed)
        how = {"aggregation": aggregation, "expertise": expertise, "expertise_scope": scope}
        scored, _ = score(records, neighbours=3, **how)
        got = [answer["score"] for row in scored for answer in row["answers"]]
        want = loop_scores(records, aggregation, expertise, scope, 3)
        assert [g is None for g in got] == [w is None for w in want]
        np.testing.assert_allclose([g for g in got if g is not None], [w for w in want if w is not None], atol=1e-6)


def test_score_with_pairs_and_neighbour_by_hand():
    # s("ab", "a") = 1/√2, s("ab", "b") = 1/√2; IW "b", CO "a": r_one = 1 − 0 = 1, r_two = 0 − 1 = −1
    # λ_one = e/(e + 1/e) = 0.880797; the neighbour's answers: one "ab" (s = 1), two "c" (s = 0)
    # paper: ½[½tanh(0.880797·0.707107) − ½tanh 1 + ½tanh(0.119203·0.707107) − ½tanh 0]
    #      = ½[0.5·0.553087 − 0.5·0.761594 + 0.5·0.084090] = ½[0.276544 − 0.380797 + 0.042045] = −0.031104
    records = [
        one(question="d", reference_answers={"one": "a", "two": "b"}, iw=["b"], co=["a"]),
        one(question="e", reference_answers={"one": "ab", "two": "c"}),
    ]
    scored, _ = score(records, expertise="similarity", aggregation="paper")
    assert scored[0]["lambda"]["one"] == pytest.approx(0.880797, abs=1e-6)
    found = [scored[0]["answers"][0][name] for name in ("score", "truthfulness", "laziness")]
    assert found == pytest.approx([-0.031104, math.sqrt(0.5), 0.5], abs=2e-6)


def test_single_question_has_no_penalty():
    assert score([])[0] == []
    scored, _ = score([one(id=7, answers=[{"text": "a", "extra": True}])])  # extra keys pass through
    assert (scored[0]["id"], scored[0]["answers"][0]["extra"]) == (7, True)
    scored, report = score([one()], penalty=True)
    found = {"score": pytest.approx(0.5 * math.tanh(1), abs=1e-6), "truthfulness": pytest.approx(1, abs=1e-6)}
    assert scored[0]["answers"] == [{"text": "ab", **found, "laziness": None}]
    assert scored[0]["lambda"] == {"m": 1.0}
    assert report.questions_without_neighbours == 1
    _, report = score([one(), one(question=" a ")], penalty=True)  # equal questions are no neighbours
    assert (report.questions_without_neighbours, report.distinct_questions) == (2, 1)


def test_unusable_answers_get_null_and_are_counted():
    records = [
        one(reference_answers={"m": " ", "other": None}),
        one(question="b", answers=[{"text": " \n"}, {"text": "ab"}]),
        one(question="c", answers=[{"text": "ab", "model": "m"}]),
        one(question="d", reference_answers={"other": "abc"}),
    ]
    scored, report = score(records)
    assert [[a["score"] is None for a in row["answers"]] for row in scored] == [[True], [True, False], [True], [False]]
    assert scored[0]["lambda"] == {}
    assert (report.scored, report.empty_answers, report.answers_without_reference) == (2, 1, 2)
    assert (report.questions_without_reference, report.own_references_left_out) == (1, 1)
    assert report.missing_references == {"m": 2, "other": 3}


def test_similarity_gets_its_texts_and_may_lack_values():
    seen = []

    def judge(*columns):
        seen.extend(zip(*columns, strict=True))
        return [None if reference == "x" else 0.5 for reference in columns[1]]

    records = [one(reference_answers={"m": "x", "n": "y"}), one(reference_answers={"m": "x"})]
    scored, report = score_records(
        records, similarity=from_function(judge), options=FewlOptions(penalty=False, aggregation="eq6")
    )
    assert set(seen) == {("ab", "x", "a"), ("ab", "y", "a")}  # answer, reference, question
    assert scored[0]["answers"][0]["score"] == pytest.approx(0.5 * math.tanh(0.5))
    assert scored[1]["answers"][0]["score"] is None
    assert report.pairs_not_compared == 2


def test_ideal_takes_labelled_answers_for_pairs():
    labelled = [{"text": "a", "label": True}, {"text": "b", "label": False}, {"text": "c", "label": None}]
    records = [one(answers=labelled, reference_answers={"m": "a", "n": "b"})]
    scored, _ = score(records, expertise="ideal", penalty=False)
    # r_m = 1 − 0, r_n = 0 − 1 → λ_m = e/(e + 1/e)
    assert scored[0]["lambda"]["m"] == pytest.approx(0.880797, abs=1e-6)


def test_lambda_of_prompted_expertise_and_of_samples():
    how = {"similarity": cosine(encode), "options": FewlOptions(expertise="prompted", penalty=False)}
    records = [one(reference_answers={"m": "ab", "n": "b"})]
    prompted, _ = score_records(records, prompted=[{"m": math.log(3), "n": 0.0}], **how)
    sampled, _ = score([one(reference_answers={"m": ["ab", "b", "c"], "n": "b"})])  # three of four equal weights
    for scored in (prompted, sampled):
        assert scored[0]["lambda"] == {"m": pytest.approx(0.75), "n": pytest.approx(0.25)}
    with pytest.raises(ValueError, match="one mapping of LLM name to r per record"):
        score_records(records, **how)


def test_single_reference_leaves_the_others_out():
    records = [one(reference_answers={"m": "ab", "n": "b"}), one(question="b", reference_answers={"n": "a"})]
    alone = [{**r, "reference_answers": {k: v for k, v in r["reference_answers"].items() if k == "n"}} for r in records]
    assert [r["answers"] for r in score(records, references="single:n")[0]] == [r["answers"] for r in score(alone)[0]]
    with pytest.raises(ValueError, match=r"NAME one of m, n, got 'single:x'"):
        score(records, references="single:x")


def test_llms_that_agree_are_discovered():
    """Two of three say the same; the third repeats itself, also over its samples, and misses one question."""
    asked = [("a", "ab", "cd"), ("b", "bc", "de"), ("c", "cd", "ef")]
    rows = [one(question=q, reference_answers={"m": own, "n": own, "o": [other] * 2}) for q, own, other in asked]
    del rows[1]["reference_answers"]["o"]
    scored, report = score(rows, expertise="discovered")
    assert report.mean_lambda["m"] == pytest.approx(report.mean_lambda["n"])
    assert scored[0]["lambda"]["m"] > 0.49 > 0.02 > scored[0]["lambda"]["o"]
    assert scored[1]["lambda"] == {"m": pytest.approx(0.5), "n": pytest.approx(0.5)}
    for row in rows:
        del row["reference_answers"]["n"]
    assert score(rows, expertise="discovered")[0][0]["lambda"]["m"] == pytest.approx(1 / 3)  # one of three equal texts


@pytest.mark.parametrize("how", [{"expertise": "discovered"}, {"same_from": 0.5}, {"penalty": True}])
def test_records_without_references_have_no_score(how):
    assert score([], **how)[0] == []
    scored, report = score([one(reference_answers={"m": None})], **how)
    assert (scored[0]["answers"][0]["score"], scored[0].get("entropy")) == (None, None)
    again, _ = score([{**scored[0], "entropy": 0.5}])
    assert "entropy" not in again[0]  # that of an earlier scoring
    assert report.questions_without_reference == 1


def test_random_neighbours_are_seeded():
    records = random_records(3, questions=60)
    first = score(records, neighbour_choice="random", neighbours=3, seed=1)[0]
    assert first == score(records, neighbour_choice="random", neighbours=3, seed=1)[0]
    assert first != score(records, neighbour_choice="random", neighbours=3, seed=2)[0]


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="aggregation: expected one of paper, eq6, got 'eq4'"):
        FewlOptions(aggregation="eq4")
    with pytest.raises(ValueError, match="expected an encoder"):
        score_records([one()], similarity=cosine(encode), options=FewlOptions(penalty=True))
    with pytest.raises(ValueError, match="encode: expected an encoder"):  # the paper has a penalty
        score_records([one()], similarity=cosine(encode), options=FewlOptions(aggregation="paper"))
    assert (FewlOptions().penalty, FewlOptions(neighbours=3).penalty) == (False, True)
    with pytest.raises(ValueError, match="expertise similarity: no record has iw and co"):
        score([one(), one(iw=["a"]), one(co=["b"])], expertise="similarity")
    with pytest.raises(ValueError, match="expertise ideal: expected answers labelled true and false"):
        score([one(answers=[{"text": "a", "label": True}])], expertise="ideal")
