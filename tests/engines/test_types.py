"""Sampling options, the shape of chats, seeds, results as dictionaries."""

import hashlib

import pytest

from engines import ChatResult, Sample, Sampling, Token
from engines.types import canonical, chat_seed, check_chats


@pytest.mark.parametrize(("options", "message"), [
    ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": -0.1}, "temperature must be a number from 0 to 2, got -0.1"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": "0"}, "temperature"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be"),
    ({"logprobs": True, "top_logprobs": True}, "top_logprobs must be"),
    ({"top_logprobs": 1}, "set logprobs, too"),
    ({"n": 2}, "greedy answers would be equal"),
    ({"n": 0, "temperature": 1}, "n must be"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**31}, "seed"),
    ({"choices": "end"}, "choices must be a list"),
    ({"choices": [1]}, "choices"),
    ({"choices": ["a"], "json_schema": {}}, "not both"),
])  # fmt: skip
def test_sampling_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.parametrize(("chats", "message"), [
    ("hello", "expected a list of chats, got str"),
    ([{"role": "user", "content": "x"}], "chat 0: expected a non-empty list of messages"),
    (["hello"], "chat 0: expected a non-empty"),
    ([[{"role": "user", "content": "x"}], [{"role": "user"}]], "chat 1, message 0: expected"),
    ([[{"role": "human", "content": "x"}]], "role must be one of"),
    ([[{"role": "user", "content": None}]], "content must be a string, got None"),
])  # fmt: skip
def test_chats_are_checked(chats, message):
    with pytest.raises(ValueError, match=message):
        check_chats(chats)


def test_seeds_by_hand_and_results_as_dictionaries():
    chat = [{"role": "user", "content": "é"}]
    text = '[7,[{"content":"\\u00e9","role":"user"}]]'  # sorted keys, no blanks, ASCII
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": float("nan")})
    digest = hashlib.sha256(text.encode()).digest()
    assert chat_seed(7, chat) == int.from_bytes(digest[:8], "big") % 2**31
    assert chat_seed(7, chat, 3) == (chat_seed(7, chat) + 3) % 2**31
    assert chat_seed(7, [dict(reversed(chat[0].items()))]) == chat_seed(7, chat)
    assert len({chat_seed(seed, [{"role": "user", "content": c}]) for seed in (0, 1) for c in "ab"}) == 4
    result = ChatResult((Sample("a", "stop", (Token("a", -0.5),)), Sample("b")), 3, 2, error="late")
    assert ChatResult.from_dict(result.to_dict()) == result
    assert (result.text, result.texts) == ("a", ("a", "b"))
    assert ChatResult(error="x").text is None


def test_thinking_is_not_said():
    thinks = ("<think>No.</think>\n\nYes.", "No.\n</think> Yes.", "<THINK>No</THINK><think>no</think>Yes.", "<think>No")
    thinks += ("<thinking>No.</thinking>Yes.", "No.</thinking>\nYes.", "\nanalysisNo.assistantfinalYes.")
    thinks += ("<thinking>No.</think>Yes.", "analysisWe need no", "analysisPro is old.")
    hides = "Yes. <think>No.</think> So."  # nothing hides in an answer: rewards judge it as well
    result = ChatResult(tuple(map(Sample, (*thinks, " Yes. ", hides))))
    assert result.texts == ("Yes.", "Yes.", "Yes.", "", "Yes.", "Yes.", "Yes.", "Yes.", "", thinks[-1], " Yes. ", hides)
    assert result.text == "Yes."
