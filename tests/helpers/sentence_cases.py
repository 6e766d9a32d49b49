"""Labelled sentence boundaries: tricky texts, each with the cuts a careful editor would make.

Written for this project; all but the group "Found by reading" before looking at what any splitter does with them
(that group records what reading split answers of real models taught). ``¦`` marks every boundary; the text itself is
the same string without the marks, and the expected sentences are the pieces without outer white space.
"""

from pathlib import Path

from tests.helpers.jsonl import read_rows

MARK = "¦"


def unmark(marked: str) -> tuple[str, list[str]]:
    """The text and its sentences: "A.¦ B." → ("A. B.", ["A.", "B."])."""
    return marked.replace(MARK, ""), [piece.strip() for piece in marked.split(MARK)]


CASES: list[tuple[str, str, str, list[str]]] = [
    (row["lang"], row["name"], *unmark(row["text"])) for row in read_rows(Path(__file__).with_suffix(".jsonl"))
]
