"""Records of FEWL: what is wrong with one is named."""

import pytest

from fewl.records import RecordError, read_record


@pytest.mark.parametrize(("change", "message"), [
    ({"question": None}, "question: expected a string with text in it, got None"),
    ({"answers": "ab"}, r"answers: expected a list"),
    ({"answers": [{"text": 3}]}, r"answers\[0\].text: expected a string, got 3"),
    ({"answers": [{"text": "a", "label": 1}]}, r"answers\[0\].label: expected true, false or null, got 1"),
    ({"answers": [{"text": "a", "model": 1}]}, r"answers\[0\].model: expected a string or null"),
    ({"answers": ["a"]}, r"answers\[0\]: expected an object"),
    ({"reference_answers": ["a"]}, "reference_answers: expected an object"),
    ({"reference_answers": {"m": 3}}, r"reference_answers.m: expected a list of strings, got 3"),
    ({"iw": "a"}, "iw: expected a list of strings, got 'a'"),
])  # fmt: skip
def test_bad_records_are_named(change, message):
    with pytest.raises(RecordError, match=message):
        read_record({"question": "a", "answers": [{"text": "ab"}], "reference_answers": {"m": "ab"}, **change})
