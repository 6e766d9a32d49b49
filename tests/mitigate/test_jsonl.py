"""Reading and writing JSON Lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mitigate.io import MAX_SHOWN, UsageError, check_annotation_input, dump_line, parse_line, read_lines, shown

GOOD = {"reference": "It is red.", "answer": "It is red."}


def no_check(record):
    return []


def problems_of(line):
    raw = line.encode() if isinstance(line, str) else line
    record, problems = parse_line(raw, check_annotation_input)
    assert (record is None) == bool(problems)
    return problems


@pytest.mark.parametrize(
    ("line", "field", "value", "expected"),
    [
        ('{"reference": "r", "answer": ', "", "answer", "one JSON object a line"),
        ("not json", "", '"not json"', "one JSON object a line (Expecting value, column 1)"),
        ('["a"]', "", '"[\\"a\\"]"', "a JSON object"),
        ("null", "", '"null"', "a JSON object"),
        ('{"reference": "r"}', "answer", None, "a string with text in it"),
        ('{"reference": "r", "answer": ""}', "answer", '""', "a string with text in it"),
        ('{"reference": "r", "answer": " \\n"}', "answer", '" \\n"', "a string with text in it"),
        ('{"reference": "r", "answer": ["a"]}', "answer", '["a"]', "a string with text in it"),
        ('{"reference": "r", "answer": null}', "answer", "null", "a string with text in it"),
        ('{"answer": "a"}', "reference", None, "a string"),
        ('{"reference": null, "answer": "a"}', "reference", "null", "a string"),
        ('{"reference": 3, "answer": "a"}', "reference", "3", "a string"),
        ('{"reference": "r", "answer": "a", "question": 1}', "question", "1", "a string"),
        ('{"reference": "r", "answer": "a", "language": ""}', "language", '""', "a string with text in it"),
        ('{"reference": "r", "answer": "a", "id": true}', "id", "true", "a string or a whole number"),
        ('{"reference": "r", "answer": "a", "id": [1]}', "id", "[1]", "a string or a whole number"),
        ('{"reference": "r", "answer": "a", "answer": "b"}', "answer", "the same key twice", "each key once"),
        ('{"reference": "r", "answer": "a", "x": {"k": 1, "k": 2}}', "k", "the same key twice", "each key once"),
        ('{"reference": "r", "answer": "a", "x": NaN}', "", "NaN", "finite numbers"),
        ('{"reference": "r", "answer": "a", "x": -Infinity}', "", "-Infinity", "finite numbers"),
        ('{"reference": "r", "answer": "a", "x": 1e999}', "", "1e999", "finite numbers"),
        ('{"a": ' * 101 + "1" + "}" * 101, "", '{\\"a\\": ', "at most 100 levels of lists and objects"),
        ("[" * 50_000, "", '"[[[[', "one JSON object a line (maximum recursion depth"),
        ('{"x": ' + "9" * 5000 + "}", "", '"{\\"x\\": 9', "one JSON object a line (Exceeds the limit"),
    ],
)
def test_bad_lines_say_field_value_and_what_was_expected(line, field, value, expected):
    (problem,) = problems_of(line)
    assert problem.field == field
    assert problem.expected.startswith(expected)
    if value is None:
        assert problem.value is None
    else:
        assert value in (problem.value or "")
    assert problem.value is None or len(problem.value) <= MAX_SHOWN


def test_every_bad_field_of_a_line_is_named():
    assert [p.field for p in problems_of('{"question": 1, "id": 2.5}')] == ["reference", "answer", "question", "id"]


def test_bad_utf8_names_the_byte():
    (problem,) = problems_of(b'{"answer": "caf\xe9"}')
    # {"answer": "caf is 15 bytes long, so the bad one is the 16th
    assert problem.expected == "UTF-8 (byte 16 of the line is not)"
    assert "caf" in (problem.value or "")


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"reference": ""},
        {"id": 7},
        {"id": "x", "question": "", "language": "zh"},
        {"question": None, "language": None, "id": None},
        {"sentences": [], "anything": {"goes": [1, 2.5, None, True]}},
        {"deep": json.loads("[" * 99 + "]" * 99)},
    ],
)
def test_good_lines_come_back_as_they_are(extra):
    record = {**GOOD, **extra}
    assert parse_line(dump_line(record), check_annotation_input) == (record, ())


def test_files_are_read_by_line_feeds_alone(tmp_path):
    path = tmp_path / "in.jsonl"
    # a byte order mark, Windows line ends, blank lines, U+2028 within a line, no line feed at the end
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\n  \n{"n": "\xe2\x80\xa8"}\nbad\n{"n": 4}')
    lines = list(read_lines(path, no_check))
    assert [line.number for line in lines] == [1, 4, 5, 6]
    assert [line.record for line in lines] == [{"n": 1}, {"n": "\u2028"}, None, {"n": 4}]


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*none\.jsonl: No such file"):
        list(read_lines(tmp_path / "none.jsonl", no_check))


def test_shown_is_short_and_cannot_steer_a_terminal():
    text = shown("\x1b[2J\u202e" + "x" * 1_000)
    assert len(text) == MAX_SHOWN
    assert text.endswith("…")
    assert text.isprintable()
    assert shown({"a": "\u202e"}) == '{"a": "\\u202e"}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=[])),
    lambda children: st.lists(children) | st.dictionaries(st.text(st.characters(exclude_categories=[])), children),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.text(st.characters(exclude_categories=[])), json_values))
def test_whatever_json_holds_survives_a_line(record):
    """Lone surrogates and line separators included; the line is always UTF-8 with one line feed, at its end."""
    line = dump_line(record)
    line.decode("utf-8")
    assert line.count(b"\n") == 1
    assert parse_line(line, no_check) == (record, ())


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reader_fail(raw):
    record, problems = parse_line(raw, check_annotation_input)
    assert (record is None) == bool(problems)
    dump_line({"problems": [problem.__dict__ for problem in problems]})


def test_nan_is_never_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_line({"score": float("nan")})
