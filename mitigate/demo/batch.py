"""An uploaded file annotated step by step, into files to download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from mitigate.demo.files import work_folder
from mitigate.demo.limits import Limits, Refusal
from mitigate.demo.records import problems_of, read_uploaded
from mitigate.demo.shelf import Shelf
from mitigate.demo.stream import STEP_SECONDS
from mitigate.jsonl import dump_line, rejected_row, without_results
from mitigate.report import Totals, kind_of, one_line, read_annotated
from mitigate.report_html import write_page

ROWS = 200
"""Records in the table; all are in the files."""


@dataclass
class Batch:
    """Where a file stands.

    Attributes:
        output: Annotated JSON Lines, as far as it is done.
        rejected: Bad lines, in words; ``rejected_file`` holds them whole.
        rows: Of the table: (record number, title, hallucination rate, kinds of its sentences).
    """

    output: Path
    total: int
    rejected: list[str]
    rejected_file: Path | None
    done: int = 0
    totals: Totals = field(default_factory=Totals)
    rows: list[tuple[int, str, float | None, list[str]]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.done == self.total

    def add(self, records: list[dict[str, Any]]) -> None:
        """Write annotated records behind those that are there."""
        with self.output.open("ab") as file:
            file.write(b"".join(map(dump_line, records)))
        for record in records:
            self.done += 1
            self.totals.add(record)
            if len(self.rows) < ROWS:
                title = one_line(str(record.get("question") or record.get("id") or record["answer"]), 90)
                kinds = [kind_of(sentence) for sentence in record["sentences"]]
                self.rows.append((self.done, title, record["hallucination_rate"], kinds))

    def report(self) -> Path:
        """Write the HTML report of what is done."""
        page = self.output.with_name("report.html")
        write_page(
            page,
            lambda: read_annotated(self.output),
            self.totals,
            rejected=len(self.rejected),
            full_output=self.output.name,
        )
        return page


def run_batch(shelf: Shelf, limits: Limits, path: Path, name: str | None) -> Iterator[Batch]:
    """Annotate a file; yields the same Batch after every step.

    Raises:
        Refusal: The file is not taken, or the annotator can't be had or fails.
    """
    records, bad = read_uploaded(path, limits, limits.check_record)
    folder = work_folder()
    rejected_file = folder / "rejected.jsonl" if bad else None
    if rejected_file is not None:
        rejected_file.write_bytes(b"".join(dump_line(rejected_row(Path(path.name), line)) for line in bad))
    batch = Batch(
        folder / "annotated.jsonl", len(records), [problems_of(line) for line in bad], rejected_file
    )
    yield batch
    annotator = shelf.annotator(name)
    inputs = [without_results(record) for record in records]
    size = 1
    while not batch.complete:
        start = perf_counter()
        try:
            with shelf.turn(annotator.name):
                judged = annotator.annotate_batch(inputs[batch.done : batch.done + size])
        except Exception as error:
            detail = " ".join(str(error).split())[:400] or type(error).__name__
            raise Refusal(f"The annotator {annotator.name!r} failed: {detail}") from error
        batch.add([annotation.to_dict() for annotation in judged])
        yield batch
        seconds = max(perf_counter() - start, 1e-3)
        size = max(1, min(64, 2 * size, int(size * STEP_SECONDS / seconds)))
