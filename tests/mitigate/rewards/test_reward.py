"""SentenceReward with a rule-based annotator (exact words) and with the embedded one."""

import copy
import math

import pytest
import torch

from annotators.operating import Calibration, OperatingPoint
from annotators.records import SentenceAnnotation
from mitigate.rewards.config import Abstention, Columns
from mitigate.rewards.reward import SentenceReward, own_device
from mitigate.rewards.segments import Segment
from tests.helpers.standin import ExactAnnotator

REFERENCE = "The bridge opened in 1931. It is 412 metres long. Ada Finch designed it."
GOOD, WRONG, OPEN = "The bridge opened in 1931.", "The bridge opened in 1955.", "It is blue."


class Counting(ExactAnnotator):
    """Keeps the rows that it was asked for."""

    def __init__(self, **options):
        super().__init__(**options)
        self.rows = []

    def predict(self, rows):
        rows = list(rows)
        self.rows.append(rows)
        return super().predict(rows)


class Yes(Counting):
    def label(self, *_):
        return "supported", -1, ()


def lexical(annotator=None, **options):
    """Labels only; the stand-in supports nothing but copies."""
    return SentenceReward(annotator or Counting(), **{"aspects": {"factuality": 1}, "copy_share": None} | options)


def labels(score, aspect="factuality"):
    return [(s.label, s.reward) for s in score.segments[aspect]]


def test_scores_carry_their_sentences():
    reward = lexical()
    text = f"<think>{WRONG}</think> {GOOD} {WRONG}\nWell!"
    plain, chat = reward(
        completions=[text, [{"role": "assistant", "content": f"{GOOD} {OPEN}"}]], reference=[REFERENCE] * 2
    )
    assert isinstance(plain, float)
    assert (float(plain), float(chat)) == (0.0, 0.0)  # (1 − 1) / 2 each
    parts = [text[s.start : s.end] for s in plain.segments["factuality"]]
    assert parts == [GOOD, WRONG, "Well!"]
    assert labels(plain) == [("supported", 1.0), ("contradictory", -1.0), ("no_fact", None)]
    assert labels(chat) == [("supported", 1.0), ("unverifiable", -1.0)]
    assert plain.weights == {"factuality": 1.0}
    assert copy.deepcopy(plain).segments == plain.segments


def test_verdicts_are_asked_for_once_and_kept_by_what_is_read():
    annotator = Counting()
    reward = lexical(annotator)
    reward(completions=[f"{GOOD} {WRONG}", GOOD, ""], reference=[REFERENCE] * 3)
    assert annotator.rows == [[{"sentence": text, "reference": REFERENCE} for text in (GOOD, WRONG)]]
    assert reward(completions=[], reference=[]) == []
    call = {"completions": [GOOD], "reference": [REFERENCE], "question": ["When?"], "language": ["en"]}
    first = reward(**call)
    assert reward(**call) == first
    assert len(annotator.rows) == 2  # nothing was asked again
    for other in ({"reference": [REFERENCE + " "]}, {"question": ["Who?"]}, {"language": [None]},
                  {"completions": [WRONG]}):  # fmt: skip
        reward(**call | other)
    assert len(annotator.rows) == 6
    annotator.fingerprint = "exact-2"
    reward(**call)
    assert len(annotator.rows) == 7
    annotator.reads = ("reference", "sentence", "answer")  # an annotator that reads the answer says so
    both = f"{GOOD} {WRONG}"
    reward(completions=[GOOD, both], reference=[REFERENCE] * 2, question=["a", "b"])
    assert [(r["sentence"], r["answer"]) for r in annotator.rows[7]] == [(GOOD, GOOD), (GOOD, both), (WRONG, both)]
    assert "question" not in annotator.rows[7][0]


def test_the_cache_has_a_size_and_no_failed_verdicts():
    for size, asked in ((0, 2), (1, 2), (2, 1)):
        reward = lexical(annotator := Counting(), cache_size=size)
        for _ in range(2):
            reward(completions=[f"{GOOD} {WRONG}"], reference=[REFERENCE])
        assert len(annotator.rows) == asked

    class Failing(Counting):
        def predict(self, rows):
            super().predict(rows)
            return [SentenceAnnotation(r["sentence"], 0, len(r["sentence"]), "failed") for r in rows]

    annotator = Failing()
    reward = lexical(annotator)
    for _ in range(2):
        assert reward(completions=[GOOD], reference=[REFERENCE]) == [None]
    assert len(annotator.rows) == 2
    abstaining = lexical(annotator, abstention=Abstention(answerable=-0.25, unanswerable=0.75))
    asked = {"reference": [REFERENCE], "question": ["Who painted it?"], "answerable": [False]}
    assert abstaining(completions=["The document does not say who painted it."], **asked) == [None]


def test_unjudged_is_none_and_silence_is_not():
    reward = lexical(eos_token_ids=0)
    completions = [GOOD, f"{GOOD} It is", "It is", "<think>still", "", "Well!", "<think>all</think>"]
    ids = [[1, 0], [1, 1], [1], [1], [0], [1, 0], [1, 0]]
    scores = reward(completions=completions, completion_ids=ids, reference=[REFERENCE] * 7)
    assert scores == [1.0, 1.0, None, None, -1.0, -1.0, -1.0]
    assert labels(scores[1]) == [("supported", 1.0), (None, None)]  # the part at the end
    assert scores[5].segments["factuality"] == (Segment(0, 5, None, -1.0),)  # silence costs tokens


@pytest.mark.parametrize(("call", "words"), [
    ({"document": [REFERENCE]}, "expected a column 'reference' .* got the columns \\['document'\\]"),
    ({"reference": [REFERENCE, REFERENCE]}, "expected 1 values in column 'reference', got 2"),
    ({"reference": REFERENCE}, "expected 1 values in column 'reference', got one string"),
    ({"reference": [REFERENCE], "prompts": []}, "expected 1 prompts, one per completion, got 0"),
    ({"reference": [REFERENCE], "completion_ids": [[1], [2]]}, "expected 1 completion_ids, .* got 2"),
    ({"reference": [REFERENCE], "completions": "x"}, "expected a list of completions, got one string"),
])  # fmt: skip
def test_wrong_inputs_are_named_before_judging(call, words):
    annotator = Counting()
    with pytest.raises(ValueError, match=words):
        lexical(annotator)(**{"completions": [GOOD]} | call)
    assert annotator.rows == []


def test_columns_are_renamed_and_checked_before_training():
    renamed = lexical(columns=Columns(reference="document", question="query"))
    assert renamed(completions=[GOOD], document=[REFERENCE], query=["When?"]) == [1.0]
    lexical().check({"prompt": ["q"] * 3, "reference": [REFERENCE, [REFERENCE], (REFERENCE, "")]})
    one = {"prompt": ["q"], "reference": [REFERENCE]}
    for reward, data, message in (
        (lexical(), {"reference": [None]}, "expected a text or a list of texts in column 'reference', row 0, got Non"),
        (lexical(), {"reference": [[3]]}, "expected a text or a list of texts in column 'reference', row 0, got \\[3"),
        (lexical(), one | {"question": [3]}, "expected a text in column 'question', row 0, got int"),
        (lexical(), one | {"points": ["a"]}, "expected a list of texts in column 'points', row 0, got str"),
        (lexical(), one | {"points": [[1]]}, "expected a list of texts in column 'points', row 0"),
        (lexical(), {"reference": [REFERENCE, "", ""]}, "empty in 2 of 3 rows \\(row 1 first\\)"),
        (lexical(), {"prompt": ["q"]}, "expected a column 'reference'"),
        (renamed, {"document": [REFERENCE]}, "expected a column 'query', got the columns \\['document'\\]"),
        (SentenceReward(Counting()), {"reference": [REFERENCE]}, "need a column 'question' or the prompts"),
    ):
        with pytest.raises(ValueError, match=message):
            reward.check(data)


def test_wrong_options_and_lost_sentences_are_refused():
    class Losing(Counting):
        def predict(self, rows):
            return super().predict(rows)[1:]

    with pytest.raises(ValueError, match="calibration: expected an annotator named by a string, got 'exact'"):
        SentenceReward(Counting(), calibration="c.json")
    with pytest.raises(ValueError, match="SentenceReward: unknown key 'copyshare'; did you mean 'copy_share'"):
        SentenceReward(Counting(), copyshare=0.5)
    with pytest.raises(ValueError, match="annotator 'exact': expected 2 judgements, got 1"):
        lexical(Losing())(completions=[f"{GOOD} {WRONG}"], reference=[REFERENCE])


def test_what_is_logged():
    metrics, extra = {}, {}
    reward = lexical()
    call = {"reference": [REFERENCE] * 2, "log_metric": metrics.__setitem__, "log_extra": extra.__setitem__}
    reward(completions=[f"{GOOD} {WRONG} {OPEN} Well!", GOOD], **call)
    seconds = metrics.pop("factuality/seconds")
    assert 0 < seconds < 60
    assert metrics == {
        "factuality/sentences": 2.5,  # 5 sentences in 2 completions
        "factuality/judged_share": 1.0,
        "factuality/share_unsure": 0.0,
        "factuality/cache_hit_share": 0.0,
        "factuality/unscored_share": 0.0,
        **{f"factuality/unscored_{why}": 0.0 for why in ("no_reference", "no_question", "other_language")},
        "factuality/value": 1.0,
        "factuality/hallucination_rate": 0.5,  # 2 of 4 with facts
        "factuality/share_supported": 0.4,
        "factuality/share_contradictory": 0.2,
        "factuality/share_unverifiable": 0.2,
        "factuality/share_no_fact": 0.2,
        "factuality/share_repeated": 0.0,
        "factuality/share_copied": 0.0,
        "factuality/share_off_question": 0.4,  # "It is blue." and "Well!" share no word with the reference
        "factuality/aspect_factuality": pytest.approx((-1 / 3 + 1) / 2),
    }
    assert extra == {
        "factuality/labels": ["supported contradictory unverifiable no_fact", "supported"],
        "factuality/aspects": ["factuality=-0.33", "factuality=1.00"],
    }
    metrics.clear()
    reward(completions=["", ""], **call)  # nothing to take shares of
    assert not any(math.isnan(value) for value in metrics.values())
    assert "factuality/hallucination_rate" not in metrics


BRIDGE = (
    "The Harrow Bridge crosses the river Tern at Wexley. It was designed by the engineer Ada Finch and opened to "
    "traffic in 1931. The bridge is 412 metres long and carries two lanes of road. From 1987 to 1989 it was closed "
    "for repairs. The steel of its arch came from a works in Corby."
)
QUESTION = "What is known about the Harrow Bridge, its history and its size?"


@pytest.fixture(scope="module")
def embedded():
    return SentenceReward("embedded", device="cpu", dtype="float32")


def test_all_aspects_with_the_embedded_annotator(embedded):
    honest = "Ada Finch was the designer of the bridge. Its opening was in 1931. It has a length of 412 metres."
    aside = "Corby had a steel works. Penguins live in the southern hemisphere and eat fish."
    a, b = embedded(completions=[honest, aside], reference=[BRIDGE] * 2, prompts=[QUESTION] * 2)
    assert set(a.segments) == {"factuality", "relevance", "completeness", "length"}
    facts = [s.reward for s in a.segments["factuality"]]
    assert all(s.label in ("supported", None) for s in a.segments["factuality"])  # None: unsure, at its probability
    assert min(facts) > 0.2
    assert [s.reward for s in a.segments["relevance"]] == [1.0] * 3
    assert [s.reward for s in b.segments["relevance"]][1] == -1.0  # penguins
    whole = a.segments["completeness"][0]
    assert (whole.start, whole.end) == (0, len(honest))
    assert 0.1 < whole.reward < 1.0
    long = a.segments["length"][0].reward
    assert 0.3 < long < 0.6  # 3 of 4 sentences, less for what they do not say
    assert sum(a.weights.values()) == pytest.approx(1.0)
    assert a > 0.4 > 0.2 > b


def test_a_calibration_moves_the_threshold(embedded, tmp_path):
    sentence, rows = "The bridge opened in 1931.", {"reference": [BRIDGE], "prompts": [QUESTION]}
    file = tmp_path / "calibration.json"
    own = embedded.annotator.own_fingerprint
    found = {}
    for flag_at in (0.5, 1 - 1e-12):  # log-odds of supported, twenty less: it is flagged, or unsure and worth as little
        Calibration(own, 1.0, -20.0, OperatingPoint("p", flag_at, 0.5)).save(file)
        strict = SentenceReward(
            calibration=file, aspects={"factuality": 1}, copy_share=None, device="cpu", dtype="float32"
        )
        (score,) = strict(completions=[sentence], **rows)
        found[flag_at] = labels(score)[0]
        assert strict.annotator.fingerprint != embedded.annotator.fingerprint
    flagged, unsure = found.values()
    assert flagged[0] in ("contradictory", "unverifiable")
    assert (flagged[1], unsure[0]) == (-1.0, None)
    assert unsure[1] == pytest.approx(-1.0, abs=1e-3)


def test_gold_points_take_the_place_of_the_references():
    points = [None, [GOOD], ["Ada Finch designed it."]]
    asked = {"reference": [REFERENCE] * 3, "question": ["When?"] * 3, "points": points}
    scores = lexical(aspects={"completeness": 1})(completions=[GOOD] * 3, **asked)
    assert scores == [pytest.approx(1 / 3), 1.0, 0.0]  # the first: one of three sentences


def test_near_copies_and_vague_answers_earn_little():
    """One sentence said in own words; the same with a word put between; true, but without specifics."""

    texts = ["In 1931 it was that the bridge opened.", "The bridge indeed opened, in 1931.", "A bridge opened once."]
    own, near, vague = lexical(Yes(), copy_share=0.8)(completions=texts, reference=[REFERENCE] * 3)
    assert float(own) == 1.0
    assert float(near) < -0.9  # 3 of 4 content words and 5 of 6 words, mean 0.79: hardly below 0.8
    assert float(vague) == pytest.approx(-1 / 3)  # bridge and open, 1 of 3: a third of a sentence, the rest the floor
    assert labels(vague) == [("supported", pytest.approx(1 / 3))]
    # Names and numbers without a clause: no function word, then one of eleven words, 1/11 of 1/5. Fewer than six words
    # are worth half a sentence in all, so that a short answer lies between silence and a sentence: (½ − ½) / 1.
    texts = [
        "1931: Ada Finch. Long 412 metres.", "Long, 1931, metres, Ada, bridge, 412, Finch, designed, opened, 1931, in.",
        "- Designer: Ada Finch\n- Opened: 1931", "Ada Finch.",
    ]  # fmt: skip
    bare, glued, two, one = lexical(Yes(), copy_share=0.8)(completions=texts, reference=[REFERENCE] * 4)
    (cut,) = lexical(Yes())(completions=["Opened 1931. Metres. 412. Ada Finch."], reference=[REFERENCE])
    assert float(bare) == -1.0
    assert labels(glued) == [("supported", pytest.approx(5 / 11))]
    assert float(two) == float(one) == float(cut) == 0.0
    assert [reward for _, reward in labels(two)] == [0.5, None]
    assert [reward for _, reward in labels(cut)] == [0.5, None, None]
    complete = SentenceReward(Yes(), aspects={"completeness": 1.0}, copy_share=0.8)
    few, whole = complete(
        completions=["Ada Finch.", "It was Ada Finch."], reference=[REFERENCE] * 2, question=["Who?"] * 2
    )
    assert float(few) == 0.0 < float(whole)


@pytest.mark.parametrize("around", [
    "The text tells that {}.", "According to the text, {}.", "From this passage, we clearly learn that {}.",
    "The text says {}.", "To someone who has never heard of it one could say {}.", "The answer here is {}.",
    "{}, as the text tells us.", "{}, which is an important thing to know.", "In short, {}, among other things.",
])  # fmt: skip
def test_words_around_a_copy_make_it_no_less_of_one(around):
    """What GRPO learned against the red team: copied words behind the same opening."""
    reference = "It is a parish church in Vigevano, province of Pavia, and was built in 1712 by Ada Finch for its duke."
    copy, own = "it is a parish church in Vigevano, of Pavia", "Ada Finch built this for the duke of Vigevano"
    texts = [around.format(said) for said in (copy, own, "it was built in 1712", "Ada Finch built it")]
    near, true, short, own_short = lexical(Yes(), copy_share=0.8)(completions=texts, reference=[reference] * 4)
    assert labels(near) == labels(short) == [(None, -1.0)]  # nothing counts: as silence
    assert float(true) == 1.0
    assert float(own_short) > 0
    lead = "The text discusses music, instruments, visitors, albums and manuscripts, and the church, which"
    (behind,) = lexical(Yes(), copy_share=0.8)(
        completions=[f"{lead} is a parish church in Vigevano and was built by Ada Finch in 1712."],
        reference=[reference],
    )
    assert labels(behind) == [(None, -1.0)]  # what names the topic earns nothing, so it does not count as one's own


def test_naming_what_the_text_is_about_earns_nothing():
    topics = "The text discusses Ada Finch, the bridge and 1931. It also mentions 412 metres."
    texts = [topics, "The text discusses a bridge, which Ada Finch designed and which opened in 1931.", ""]
    about, told, silent = lexical(Yes())(completions=texts, reference=[REFERENCE] * 3)
    assert labels(about) == [(None, -1.0)]  # no sentence counts, so the answer does as a whole
    assert float(about) == float(silent) == -1.0
    assert float(told) == 1.0
    (other,) = SentenceReward(Yes(), aspects={"relevance": 1.0})(
        completions=[topics], reference=[REFERENCE], question=["When did it open?"]
    )
    assert float(other) == 0.0  # on the question, and not counted
    asked, text = "Why did the bridge open in 1931?", "The bridge opened in 1931."  # all that it has, asked
    (known,) = lexical(Yes())(completions=["The text discusses a bridge."], reference=[text], question=[asked])
    assert float(known) == -1.0


def test_thinking_is_not_what_is_judged():
    """In another language it changes neither the guard against lists nor who can judge; no annotator is shown it."""

    class Polyglot(Yes):
        languages, reads = ("en", "zh"), (*Yes.reads, "answer")

    class English(Counting):
        languages = ("en",)

    listed = "Ada Finch 1931. River Tamsin 412 metres. Two lanes road. Three arches stone."
    for said, annotator in ((listed, Polyglot()), (GOOD, English())):
        reward = SentenceReward(annotator, copy_share=None)
        texts = [said, f"<think>桥是一九三一年开放的，我们必须这样说。</think>{said}"]
        alone, thought = reward(completions=texts, reference=[REFERENCE] * 2, question=["What of the bridge?"] * 2)
        assert float(alone) == float(thought)
        assert annotator.rows[0]
        assert "think" not in str(annotator.rows)


def test_thinking_that_a_parser_took_out_is_not_missed():
    """As TRL's for templates that it knows: then no tag in the text says where a thinking that was opened ends."""
    reward = lexical(thinking_opened=True)
    whole, apart, cut = reward(
        completions=[
            [{"role": "assistant", "content": f"Is it long?</think>{GOOD}"}],
            [{"role": "assistant", "reasoning_content": "Is it long?", "content": GOOD}],
            [{"role": "assistant", "content": GOOD}],
        ],
        reference=[REFERENCE] * 3, question=["What of the bridge?"] * 3,
    )  # fmt: skip
    assert float(whole) == float(apart) > 0 > float(cut)


def test_unusable_rows_have_no_score_and_are_counted():
    class Polyglot(Counting):
        languages = None

    metrics = {}
    reward = SentenceReward(Polyglot(), copy_share=None)
    scores = reward(
        completions=[*[GOOD] * 4, "这座桥于1931年开放。", [{"role": "assistant", "content": [{"text": None}]}], GOOD],
        reference=[None, " ", [], REFERENCE, REFERENCE, REFERENCE, ["It is old.", REFERENCE]],
        question=["When?"] * 3 + [" "] + ["When did it open?"] * 3,
        points=[None, 3, "x", None, None, [4], [None]],
        log_metric=metrics.__setitem__,
    )  # fmt: skip
    assert [score is None for score in scores] == [True] * 5 + [False] * 2
    assert scores[5] < 0 < scores[6]
    assert metrics["factuality/unscored_share"] == 5 / 7
    assert [metrics[f"factuality/unscored_{why}"] for why in ("no_reference", "no_question", "other_language")] == [
        3 / 7, 1 / 7, 1 / 7
    ]  # fmt: skip
    with pytest.raises(ValueError, match="need a column 'question' or the prompts"):
        reward(completions=[GOOD], reference=[REFERENCE])
    # Where the row itself says which language it wants, drifting is no way out of being judged.
    (drifted,) = reward(completions=["好的。"], reference=[REFERENCE], question=["When?"], language=["en"])
    names = {"reference": ["桥由 Ada Finch 设计。"], "question": ["谁设计了桥？"], "language": ["zh"]}
    (named,) = reward(completions=["Ada Finch"], **names)  # in Latin letters, as the reference has them
    assert float(named) > -1.0
    for other in (
        "It was designed by a man of the town.",
        "IT WAS DESIGNED BY ADA FINCH.",
        "It Is By Ada Finch.",
        "Yes.",
    ):
        assert float(reward(completions=[other], **names)[0]) == -1.0
    assert float(drifted) == -1.0
    assert [[s.reward for s in parts] for parts in drifted.segments.values()] == [[-1.0]] * 4


def test_drifting_is_the_worst_with_mild_label_rewards_too():
    """One false sentence, the same eight times, and a Chinese answer, where hallucinations cost 0.2 only."""
    reward = SentenceReward(ExactAnnotator(), label_rewards={"contradictory": -0.2, "unverifiable": -0.2}, max_words=20)
    texts = ["The bridge opened in 1955.", "The bridge opened in 1955. " * 8, "这座桥于1955年通车。"]
    columns = {"reference": [REFERENCE] * 3, "question": ["When did it open?"] * 3, "language": ["en"] * 3}
    one, eight, drifted = reward(completions=texts, **columns)
    assert drifted < eight < one
    assert float(drifted) == pytest.approx((-0.2 - 3 * 0.3) / 1.9)  # factuality −0.2, the three others −1


def test_an_unread_language_is_none():
    """A German sentence of few words reads as English; the column says what it is."""
    judge = ExactAnnotator()
    judge.languages = ("en",)
    text = "这座桥于1931年开放。"
    assert lexical(judge)(completions=[text], reference=[text], question=["桥什么时候开放？"]) == [None]
    text = "Turm von 1931."
    judge.languages = ("de",)
    call = {"completions": [text] * 4, "reference": [text] * 4}
    assert lexical(judge)(**call) == [None] * 4
    assert lexical(judge)(**call, language=["de", "de-AT", "en", None]) == [1.0, 1.0, None, None]


def test_abstention_is_worth_what_the_question_says():
    """Pure abstention only; a claim beside it, or a name that nobody asked about within it, is judged as ever."""
    metrics = {}
    reward = lexical(abstention=Abstention(answerable=-0.25, unanswerable=0.75))
    cant = "I can't tell from this document who painted the bridge."
    texts = [
        *[cant] * 3,
        f"{cant} {GOOD}",
        "The document does not say that Marlow painted it.",
        "文中没有提到。",
        "",
        "The bridge was painted by prisoners of war, although the document does not mention it.",
        "The crew had no information and painted the whole bridge blue with stolen paint.",
        "The document does not mention the mayor who was jailed for fraud.",
        "文中没有提到偷走画作的市长后来逃到了国外。",
        f"{cant} It was painted in 1999 by Karl Huber of Vienna and his forty sons who",
    ]
    scores = reward(
        completions=texts, reference=[REFERENCE] * 12, log_metric=metrics.__setitem__,
        question=[*["Who painted the bridge?"] * 5, "谁画的？", *["Who painted the bridge?"] * 4, "谁画的？", "Who?"],
        answerable=[False, True, None, *[False] * 9], completion_ids=[*[[1, 2]] * 11, [1] * 99],
    )  # fmt: skip
    assert [float(score) for score in scores] == [0.75, -0.25, -0.25, pytest.approx(2 / 3), -1, 0.75, *[-1] * 6]
    assert labels(scores[0]) == [("no_fact", 0.75)]
    assert metrics["factuality/abstained_share"] == 4 / 12
    assert metrics["factuality/answering"] == pytest.approx((2 / 3 - 7) / 8)  # the eight others
    assert metrics["factuality/abstaining_always"] == pytest.approx((10 * 0.75 - 2 * 0.25) / 12)
    assert float(lexical()(completions=[cant], reference=[REFERENCE], question=["Who?"])[0]) == -1.0
    mild = lexical(abstention=Abstention(), label_rewards={"contradictory": -0.5, "unverifiable": -0.5})
    asked = {"reference": [REFERENCE] * 2, "question": ["Who?"] * 2, "answerable": [True, False]}
    assert [float(score) for score in mild(completions=[cant] * 2, **asked)] == [-0.5, 0.5]
    with pytest.raises(ValueError, match=r"expected -1 <= answerable <= unanswerable <= 1, .* got 0\.5 and 0"):
        lexical(abstention=Abstention(answerable=0.5, unanswerable=0.0))


def test_every_process_has_its_own_device(monkeypatch):
    for rank, gpus, device in (("3", 8, "cuda:3"), ("3", 0, None), (None, 8, None)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if rank:
            monkeypatch.setenv("LOCAL_RANK", rank)
        assert own_device() == device
