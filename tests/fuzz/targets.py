"""What is fuzzed: the reader of records and the parser of tagged replies, each as a function of bytes.

A target raises where something is wrong: an exception that is no named failure, an offset that does not fit, a good
record that does not survive being written. Used by `tests/fuzz/run.py` and, on the corpus, by `tests/test_fuzz.py`.
"""

import json
from collections.abc import Callable
from pathlib import Path

from annotators.generative import tagged as tags
from mitigate.cli.fewl import check_record
from mitigate.io import Line, check_annotation_input, dump_line, parse_line, rejected_row
from mitigate.labels import check_labelled

CHECKS = (check_annotation_input, check_record, check_labelled, lambda _: [])


def records(data: bytes) -> None:
    """One line of a file: a record that can be written and read again, or problems that can be written."""
    for check in CHECKS:
        record, problems = parse_line(data, check)
        if record is None:
            assert problems, "refused without a reason"
            row = rejected_row(Path("x"), Line(1, data, None, problems))
            assert parse_line(dump_line(row).rstrip(b"\n"), lambda _: [])[0] == row, "a rejected row can't be read"
            "".join(map(str, problems)).encode("utf-8", "surrogatepass")
        else:
            assert not problems, "taken with problems"
            written = dump_line(record)
            assert written.count(b"\n") == 1
            assert parse_line(written.rstrip(b"\n"), check)[0] == record, "not the same when written and read again"
            json.loads(written)


def tagged(data: bytes) -> None:
    """A reply, a reference and a sentence, divided by a zero byte: read and placed, or failed by name."""
    reply, reference, sentence, *_ = [*data.decode("utf-8", "replace").split("\x00"), "", ""]
    for parse in (tags.parse_tagged, tags.parse_facts, tags.parse_points, tags.parse_type):
        for sources in ((), (reference, sentence)):
            try:
                found = parse(reply) if parse is tags.parse_points else parse(reply, sources)  # type: ignore[operator]
            except tags.ParseFailure as failure:
                if failure.name not in tags.FAILURES:
                    raise
                continue
            if isinstance(found, tags.Tagged):
                check_places(found, reference, sentence)
                check_span(found.type_span, reply)
                read_back(found)


def check_span(span: tuple[int, int], text: str) -> None:
    assert 0 <= span[0] <= span[1] <= len(text), f"span {span} outside of {len(text)} characters"


def check_places(found: tags.Tagged, reference: str, sentence: str) -> None:
    pieces, _ = tags.locate_fragments(found.fragments, reference, [(0, len(reference))])
    for piece in pieces:
        check_span((piece.start, piece.end), reference)
        assert reference[piece.start : piece.end] == piece.text, "a fragment is not what stands at its offsets"
    for wanted, _ in found.corrections:
        place = tags.locate_words(wanted, sentence)
        if place is not None:
            check_span(place, sentence)
            assert place[0] < place[1], "a correction of nothing"


def read_back(found: tags.Tagged) -> None:
    if found.label == "no_fact":
        return
    again = tags.parse_tagged(tags.write_tagged(found.label, [tags.neutral(f) for f in found.fragments], (), "en"))
    assert again.label == found.label, "another label when written and read again"


TARGETS: dict[str, Callable[[bytes], None]] = {"records": records, "tagged": tagged}
