"""Pages of `benchmarks/scale.py` and `benchmarks/faults.py`: conclusions follow from the numbers that are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import faults, scale, scale_page
from benchmarks.kept import Part, keep, parts


def runs(*peaks: float) -> dict[str, Part]:
    rows = [{"records": 100 * 2**i, "sentences": 0, "cpu": 1.0 + i, "mib": mib} for i, mib in enumerate(peaks)]
    return {"window": {"by": "Python", "found": rows}}


def test_memory_is_called_flat_where_it_is() -> None:
    assert "| flat: +1.0% for 2 times the records |" in scale_page.memory(runs(50, 200, 202))
    assert "| flat: -50.0% for 2 times the records |" in scale_page.memory(runs(50, 200, 100))
    assert "| **not flat**: +3.0% for 2 times the records |" in scale_page.memory(runs(206, 200, 206))
    # 2 CPU-seconds for 300 records more
    assert "| window | 6.67 | 1.85, extrapolated |" in scale_page.memory(runs(50, 200, 206))


def test_a_cluster_that_loses_rows_is_told() -> None:
    found = {
        "records": 9, "shards": 3, "killed_after_shards": [2], "nodes_left": 2, "ray": "2",
        "every_row_once": False, "same_bytes_as_one_process": True,
    }  # fmt: skip
    text = scale_page.cluster({"by": "", "found": found})
    assert "nodes killed: 1, after 2 finished shards; nodes left: 2." in text
    assert "Every row once and in order: **NO**; the same bytes as one process writes: **yes**" in text


def test_a_part_that_is_measured_again_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for name, found in (("one", [1]), ("two", [2]), ("one", [3])):
        keep(page, name, found)
    assert {name: part["found"] for name, part in parts(page).items()} == {"one": [3], "two": [2]}


@pytest.mark.parametrize(
    ("path", "written"),
    [(scale_page.PAGE, lambda kept: scale_page.page(scale.__doc__ or "", kept)), (faults.PAGE, faults.page)],
    ids=["scale", "faults"],
)
def test_the_page_is_what_was_kept(path: Path, written: Callable[[dict[str, Part]], str]) -> None:
    """Not edited by hand, and written anew after the last measurement."""
    assert path.read_text(encoding="utf-8") == written(parts(path))
