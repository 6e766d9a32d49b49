"""Which part of a completion is judged, which sentences repeat or copy, and which completions were cut off."""

from dataclasses import replace

import pytest

from annotators.text.words import is_chinese
from mitigate.inference.correct import ABSTENTION
from mitigate.rewards.inputs import (
    Answer,
    Reference,
    cannot_tell,
    claims,
    completion_text,
    cut_offs,
    judged_sentences,
    open_question,
    question_of,
    reference_text,
    repeats,
    sentence_spans,
    specifics,
    words,
)

THINK = ("<think>", "</think>")


def judged(text, thinking=THINK, response=None, opened=False):
    return [text[a:b] for a, b in sentence_spans(text, thinking, response, opened)]


def answer_of(text, reference, question):
    """An answer of one sentence."""
    return Answer(text, ((0, len(text)),), False, reference, question, None, None)


@pytest.mark.parametrize(("completion", "text"), [
    ("It is red.", "It is red."),
    ([{"role": "assistant", "content": "It is red."}], "It is red."),
    ([{"role": "assistant", "content": "First."}, {"role": "tool", "content": "x"},
      {"role": "assistant", "content": "Last."}], "Last."),
    ([{"role": "assistant", "content": "I look it up."}, {"role": "tool", "content": "x"}], ""),
    ([{"role": "assistant", "content": [{"type": "text", "text": "A."}, {"type": "text", "text": " B."}]}],
     "A. B."),
    ([{"role": "assistant", "content": [{"type": "text", "text": None}, {"text": 3}, {"text": "A."}]}], "A."),
    ([{"role": "assistant", "content": 5}], ""),
    ([{"role": "assistant", "content": None, "tool_calls": []}], ""),
    ([], ""),
])  # fmt: skip
def test_text_of_a_completion(completion, text):
    assert completion_text(completion) == text


def test_other_kinds_of_completions_and_prompts():
    with pytest.raises(TypeError, match="strings or lists of messages with role and content, got int"):
        completion_text(3)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When?"}]
    assert (question_of(chat), question_of("When?"), question_of([])) == ("When?", "When?", "")
    assert reference_text(["It is red.", None, " ", "It is old."]) == "It is red.\n\nIt is old."
    assert [reference_text(value) for value in ("a", None, 3, [])] == ["a", "", "", ""]


@pytest.mark.parametrize(("text", "sentences"), [
    ("<think>No.</think> Yes.", ["Yes."]),
    ("No.</think> Yes.", ["Yes."]),  # the prompt opened the block
    ("<think>No, no", []),  # never closed
    ("<think>no</think> <think>no</think> Yes.", ["Yes."]),
    ("Yes. <think>No.</think> So.", ["Yes. <think>No.</think>", "So."]),  # said, not thought: nothing hides there
    ("<think>all</think>", []),
    ("plain", ["plain"]),
    ("", []),
    ("<think>A. B.</think>\nIt opened in 1931. 它很长。Done 🎉.", ["It opened in 1931.", "它很长。", "Done 🎉."]),
])  # fmt: skip
def test_thinking_is_left_out(text, sentences):
    assert judged(text) == sentences


def test_prompts_open_thinking_and_other_tags_can_be_named():
    assert judged("I wonder. It may be red", opened=True) == []  # the completion ran into its limit
    assert judged("I wonder.</think> It is red.", opened=True) == ["It is red."]
    tags = ("<answer>", "</answer>")
    assert judged("<think>x</think>so <answer>Yes.</answer> done", response=tags) == ["Yes."]
    assert judged("<answer>Yes. And", response=tags) == ["Yes.", "And"]
    assert judged("no tags", response=tags) == []
    assert judged("<think>kept</think>", thinking=None) == ["<think>kept</think>"]
    assert judged("##not this## but this", thinking=("##", "##")) == ["but this"]


def test_words_and_repeats():
    assert words("It's 1,200 km²: 北京 is No. 1") == ["it", "s", "1,200", "km²", "北", "京", "is", "no", "1"]
    sentences = [
        "The bridge was opened in 1931.",
        "In 1931, the bridge opened was.",  # the same words
        "The bridge was opened in 1932.",  # another number
        "The bridge was opened in 1931 by the queen.",  # says more
        "The bridge opened.",  # says less
        "它在1931年开放。",
        "它在1931年开放！",
        "...",
        "The old stone bridge over the river Tern at Wexley opened in 1931.",
        "The old stone bridge over the river Tern at Wexley opened in 1932.",  # 7 of 8, but for the number
    ]
    assert repeats(sentences) == [False, True, False, False, True, False, True, False, False, False]
    assert repeats([]) == []


@pytest.mark.parametrize(("text", "found"), [
    ("What is known about the Harrow Bridge?", True),
    ("Read this. The bridge is old. In which year, and how, was it built?", True),
    ("who built it?", True),
    ("哈罗桥是谁设计的？", True),
    ("Is the place where it stands in Wexley?", False),
    ("What is larger, the Sun or the Moon?", False),
    ("太阳和月亮，哪个大，太阳还是月亮？", False),
    ("When the bridge opened in 1931, was it the longest in Wexley?", False),
    ("How many people live there, and did the Harrow Bridge open in spring?", False),
    ("他是否获得任何奖项？", False),
    ("这座桥几乎全是木头的吗？", False),
    ("It is old. Tell me about the bridge.", True),
    ("Could you please describe the bridge?", True),
    ("请介绍一下哈罗桥。", True),
    ("Tell me whether the bridge opened in 1931.", False),
    ("Can you tell me: did the bridge open in spring?", False),
    ("Please tell me, was the bridge opened in 1931?", False),
    ("请告诉我它是否获得奖项。", False),
    ("请告诉我这座桥是1931年建成的吗？", False),
    ("说明书是中文的。", False),
    ("The bridge.", False),
    ("What is it? Answer in one sentence.", False),
    ("", False),
])  # fmt: skip
def test_open_questions(text, found):
    assert bool(open_question(text)) == found
    assert open_question(text) in text


def test_restated_question_counts_as_a_repeat():
    question = "What is known about the Harrow Bridge and its history?"
    text = "What is known about the Harrow Bridge and its history. The Harrow Bridge opened in 1931."
    cut = text.index("The Harrow Bridge opened")
    answer = Answer(text, ((0, cut - 1), (cut, len(text))), False, "", question, None, None)
    flags = [s.repeat for s in judged_sentences(answer, ["supported", "supported"])[0]]
    assert flags == [True, False]
    long = "Who wrote the plays Hamlet, Macbeth, Othello and King Lear?"
    text = "Shakespeare wrote the plays Hamlet, Macbeth, Othello and King Lear."  # one new word is the answer
    assert [s.repeat for s in judged_sentences(answer_of(text, "", long), ["supported"])[0]] == [False]
    closed = replace(answer, question="Did the Harrow Bridge open in 1931?")
    assert [s.repeat for s in judged_sentences(closed, ["supported"] * 2)[0]] == [False] * 2


FACTS = "The old bridge crosses the river Tern at Wexley. Ada Finch designed it. It opened to traffic in May 1931."


@pytest.mark.parametrize(("sentence", "density"), [
    ("The old bridge crosses the river Tern at Wexley.", 1.0),
    ("An old bridge crossed this river, Tern, in Wexley.", 1.0),  # other function words and endings
    ("The old bridge indeed crosses the river Tern indeed at Wexley.", 1.0),  # its 6 content words stand here in order
    ("Clearly the old famous bridge surely crosses the broad river by Tern near Wexley.", 1.0),
    ("Old bridge. Ada Finch designed it.", 1.0),  # left out: 5 of 5, across two sentences of the reference
    ("Crossing the river Tern at Wexley is the old bridge.", 1.0),  # its beginning behind its end: 6 of 6
    ("Crossing the river Tern at Wexley is the old bridge, which Ada Finch designed.", 1.0),  # and 6 of its 9
    ("Traffic has used it since May 1931.", (3 / 5 + 3 / 7) / 2),  # traffic, may, 1931 of 5 and of 7 words
    ("At Wexley the Tern is crossed by a bridge.", (1 / 4 + 2 / 9) / 2),  # "at Wexley" are two words, one with content
    ("At Wexley the river Tern, in May 1931, the old bridge crosses, designed by Ada Finch.", 10 / 16),  # runs: 3, 3, 4
    ("Its opening was in May.", 2 / 5),  # of all words: two content words are too few to tell
    ("Penguins live down south.", 0.0),
    ("", 0.0),
])  # fmt: skip
def test_density_by_hand(sentence, density):
    assert Reference(FACTS).density(sentence) == pytest.approx(density)
    assert Reference("").density(sentence) == 0.0


@pytest.mark.parametrize(("sentence", "copying"), [
    ("At Wexley the Tern is crossed by a bridge.", (1 / 4 + 2 / 8) / 2),  # without "at"
    ("As is known, the old bridge crosses the river, people say.", 1.0),  # "old bridge crosses the river"
    ("Of this bridge people know that the old bridge crosses the river, as who loves a bridge says.", 1.0),
    ("People know that Ada designed it.", (2 / 4 + 3 / 6) / 2),  # "Ada designed" is too short
    # Between "Ada" and "Wexley": of "other" and four more content words Ada, Finch, design; of ten words it, in, too.
    ("As people tell, Ada Finch designed it here, as do others in Wexley.", (3 / 5 + 5 / 10) / 2),
    # Neither "one" nor "may" tells of May: what is left begins with "cross", 6 content words and 10 in all.
    ("Everybody knows that one may cross at Wexley, which lies on the long river Tern.", (3 / 6 + 3 / 10) / 2),
    ("The old bridge crosses the river Tern at Wexley.", 1.0),
    ("Penguins live down south.", 0.0),
    ("", 0.0),
])  # fmt: skip
def test_copying_by_hand(sentence, copying):
    assert Reference(FACTS).copying(sentence) == pytest.approx(copying)
    assert Reference("").copying(sentence) == 0.0


def test_one_is_no_number_of_the_reference():
    sentence = "One may well say that the bridge crosses the river Tern."
    assert Reference("The bridge crosses the river Tern. It has 1 pier.").copying(sentence) == 1.0


@pytest.mark.parametrize("sentence", ["Drivers use this since 12 May 1931.", "Its plans came from Ada Mary Finch."])
def test_names_and_dates_alone_are_no_copies(sentence):
    reference = Reference("The bridge opened on 12 May 1931. Ada Mary Finch designed it for the town of Wexley.")
    assert reference.copying(sentence) == reference.density(sentence) < 0.6


def test_copying_in_chinese_is_density():
    """Names are runs of characters that nobody can leave out."""
    reference, said = Reference("哈罗大桥于1931年由艾达·芬奇设计。大桥全长412米。"), "大家都说哈罗大桥建于1931年。"
    assert reference.copying(said) == reference.density(said) > 0


def test_words_of_the_reference_in_an_order_of_ones_own_are_no_copy():
    reference = Reference("Ada Finch was a Scottish engineer. The old bridge crosses the river Tern at Wexley.")
    own = "The Scottish engineer Ada Finch designed the bridge across the river Tern, which carried its first traffic."
    assert reference.density(own) < 0.6  # four words of it are the first sentence, turned
    assert reference.density("Bridge of a river, Wexley: an old crossing, the Tern.") < 0.85  # two runs, interleaved
    chinese = Reference("他是医生。他出生在伦敦。")  # characters count
    assert chinese.density("他在伦敦出生。") == pytest.approx(4 / 6)  # 他, 在, 伦, 敦 of six stand in order
    assert chinese.density("作为医生，他是伦敦一家大医院最早的三位创始人之一，后来在巴黎去世。") < 0.3


def test_specifics_and_points_by_hand():
    """Numbers and names weigh 2, others ½; a capital that only opens a sentence makes no name; "eighteen" is 18."""
    assert specifics("Adults of Wexley weigh eighteen kg.") == {
        "adult": 0.5, "wexley": 2.0, "weigh": 0.5, "#18": 2.0, "kg": 0.5
    }  # fmt: skip
    assert specifics("大桥1931年开放。") == {"大桥": 0.5, "1931": 2.0, "开放": 0.5}
    first = Reference(FACTS + " " + "It is grey and has one arch of steel. " * 5).points("Who designed the bridge?")[0]
    assert first == specifics("Ada Finch designed it.")
    assert len(Reference("It is grey and it has one arch. " * 9).points("?")) == 5
    assert Reference("").points("Who?") == []


def test_capital_letters_make_no_word_a_name():
    text = "Ada Brenn built the bridge in 1931. The bridge carries a road, and ships pass near it."

    def value(said, text):
        return judged_sentences(answer_of(said, text, "What is there?"), ["supported"], None)[0][0].value

    plain = value("There is a bridge, a road and ships.", text)
    assert plain == value("There is a Bridge, a ROAD and SHIPS.", text) < value("Ada Brenn built it.", text)
    said = "It was written by Finch and edited by Brenn."  # a name that only opens a sentence is one
    assert value(said, "Finch wrote it in Paris. Brenn edited it.") == 1.0
    assert value(said, "Brenn edited it. Finch wrote it in Paris, so said Finch.") == 1.0
    for text in ("May came. It may rain in May.", "It may rain in May. May came."):
        assert Reference(text).all["may"] == 2.0  # the highest of its weights, wherever it stands


@pytest.mark.parametrize(("sentence", "abstains"), [
    ("The document does not say who paid for the bridge.", True),
    ("The document about Ada Brenn does not say who paid.", True),
    ("Who paid for the bridge is not mentioned.", True),
    ("Ada Brenn paid for the bridge the document does not mention.", False),
    ("Ada Brenn opened the bridge which is not mentioned.", False),
    ("I cannot tell from the text who paid for it.", True),
    ("The opening by the mayor is not mentioned.", True),  # a topic
    ("The mayor opened what is not mentioned.", False),
    ("In the text about the opening there is no information.", True),
    ("Based on the document, the passage does not say who paid.", True),
    ("The text says Ada Brenn built the bridge in 1931 which nobody could not know.", False),
    ("The document that the mayor Ada Brenn opened in 1931 does not say who paid.", False),
    ("I cannot tell more than that the bridge was opened by the mayor Tom Ross.", False),
    ("I'm sorry, but the document does not say who paid.", True),
    ("I do not have enough information to answer.", True),
    ("I don’t have enough information to answer.", True),
    ("根据提供的文档，无法确定。", True),
    (ABSTENTION["zh"], True),
    ("根据文档，大桥由市长开放，但文中没有提到费用。", False),
    ("关于开放时间文中没有说明。", True),
    ("大桥由市长开放了文中没有说明。", False),
])  # fmt: skip
def test_no_claim_rides_on_an_abstention(sentence, abstains):
    text = "Ada Brenn built the bridge in 1931. It was opened by the mayor. The opening is in a document."
    if is_chinese(sentence):
        text = "大桥由市长在1931年开放。开放时间很短。"
    assert cannot_tell(answer_of(sentence, text, "Who paid for the bridge?"), sentence) == abstains


def test_cut_off_by_the_end_token_where_known_else_by_length_and_full_stop():
    ids = [[5, 6, 2], [5, 6, 7], []]
    for ends in (2, [2, 9]):
        assert cut_offs(["a.", "b.", ""], ids, ends, 0) == ([False, True, True], 3)
    ends = {"It is red and": True, "a,": True, "": True}  # whether they are cut off
    ends |= {"It is red and long.": False, 'He said "yes."': False, "完了。": False}
    assert cut_offs(list(ends), [[1] * 4] * 6, None, 0) == (list(ends.values()), 4)
    assert cut_offs(["Red", "Red"], [[1] * 2, [1] * 4], None, 0) == ([False, True], 4)  # the short one ended by itself
    assert cut_offs(["Red"], [[1] * 2], None, 4) == ([False], 4)  # longer ones were seen before
    assert cut_offs(["Red"], None, None, 0) == ([False], 0)


SUBJECT = "It speaks of Ada Finch, the writer, with authority."


@pytest.mark.parametrize(("sentences", "expected"), [
    (["The text discusses her career, a part of history."], [" part of history."]),
    (["The text is about a bridge that opened in 1931."], [" opened in 1931."]),
    (["Overall, this short passage provides details, including her role."], [""]),
    (["The text's author describes the bird.", "It also highlights its song.", "It is red.", "It covers 2 km."],
     ["", "", None, None]),
    (["It describes a bird.", "The novel explores grief.", "The text says that X is old."], [None] * 3),
    (["This document gives the tenant 30 days.", "The text provides a brief overview of it."], [None, ""]),
    (["The text briefly describes cities, such as Rome, as well as Ada."], [""]),
    (["This text speaks of Ada as old."], [" old."]),
    (["The text does not tell."], [None]),
    (["The text discusses the museum.", "It includes 12 rooms.", "It has a park."], ["", None, None]),
    (["The text is about 12 km long."], [None]),
    (["The text discusses the following: Ada, Rome.", "1. It also covers the topics as follows: a, b."], ["", None]),
    (["1. The text discusses Ada.", "2) It does mention Rome.", "The text does mention: Rome fell."],
     ["", "", " Rome fell."]),
    (["The author also discusses Rome.", "It mentions Ada.", "The authors explore it."], ["", "", ""]),
    (["The author described Rome in 1931.", "The author speaks Greek.", "The author told Ada."], [None] * 3),
    (["The text names its topics as follows: Ada and Rome.", "The text outlines these points: Ada."], [None, ""]),
    (["本文介绍了一座桥。", "文章还介绍了这座桥，它于1931年开放。"], ["", "它于1931年开放。"]),
    # She is a writer of whom SUBJECT tells, so this is a claim; the text itself stays a text.
    (["The Writer explores grief.", "It mentions Rome.", "The writers discuss it."], [None] * 3),
    (["The author explores grief.", "The text's writer discusses it.", "It mentions Rome."], ["", "", ""]),
])  # fmt: skip
def test_what_a_sentence_about_the_text_claims(sentences, expected):
    wanted = [own if said is None else said for own, said in zip(sentences, expected, strict=True)]
    assert claims(sentences, SUBJECT) == wanted


def test_an_author_stands_for_the_text_where_it_tells_of_none():
    said = "The author explores grief."
    assert claims([said], "She wrote of grief with authority.") == [""]
    assert claims([said], "Its AUTHORS wrote of grief.") == [said]
