"""Task `anah`: tables of the ANAH paper on the user's copy of its data, each figure beside the paper's.

The paper's split is not public: rows are split by seed, so a published checkpoint may have been trained on some of
them. A row without an annotator shows the paper's figures alone; without any, the run only writes the splits. Writes
unseen_topic.jsonl and unseen_question.jsonl, and table.jsonl, a line for each row that is finished.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.types import EngineError
from mitigate.io import UsageError
from mitigate.recipes.annotator_training import Data, load_splits
from mitigate.recipes.config import Recipe, Section
from mitigate.recipes.folder import RunFolder

FIGURES = {"accuracy": "ACC", "rouge_l": "RougeL", "bert_score": "BERT", "fragment_precision_4": "Pre4"}
TABLE = "table.jsonl"


class Row(Section):
    """Who judges, how, and the paper's percentages: of each figure in turn, for each part."""

    annotator: str | None = Field(default=None, min_length=1, description="as in `mitigate evaluate`; null: is not run")
    options: dict[str, Any] = Field(default={}, description="of a generative one: preset, templates, prompt, …")
    without_reference: bool = False
    paper: tuple[float | None, ...] = ()


class Options(Recipe):
    task: Literal["anah"]
    data: Data
    figures: list[Literal["accuracy", "rouge_l", "bert_score", "fragment_precision_4"]] = Field(min_length=1)
    by_split: bool = Field(default=True, description="unseen topics (T) and questions (Q) apart")
    bertscore: str = Field(default="paper", description="packaged, paper, a hub id or a folder")
    limit: int | None = Field(default=None, ge=1, description="sentences of each part; null: all")
    max_failed: float = Field(default=0.1, ge=0, le=1, description="share of failed sentences that stops the run")
    rows: dict[str, Row] = Field(min_length=1)


def check(options: Options) -> None:
    """Refuse options of annotators that are wrong."""
    from annotators.base import engine_in
    from annotators.generative.protocols import options_of
    from engines import parse_engine

    if "bert_score" in options.figures and find_spec("bert_score") is None:
        raise UsageError(
            "bert_score needs bert-score: pip install 'hallucination-toolkit[bertscore]', or other figures="
        )
    for name, row in options.rows.items():
        engine = None if row.annotator is None else engine_in(row.annotator)
        try:
            if engine is not None:
                parse_engine(engine)
                options_of({key: value for key, value in row.options.items() if key != "concurrency"})
        except (ValueError, TypeError) as error:
            raise UsageError(f"rows.{name}: {error}") from error


def run(options: Options, folder: RunFolder) -> int:
    """Judge the unseen parts by each annotator, and print the table."""
    splits = load_splits(options.data, folder)
    unseen = {name: part[: options.limit] for name, part in splits.items() if name not in ("train", "dev") and part}
    parts = ["unseen_topic", "unseen_question"] if options.by_split else ["overall"]
    if missing := {*parts} - {*unseen, "overall"}:
        raise UsageError(f"data: the table has {' and '.join(parts)}, and there are no rows of {' and '.join(missing)}")
    for name, row in options.rows.items():
        if row.annotator is not None and all(done["row"] != name for done in folder.rows(TABLE)):
            folder.append(TABLE, [{"row": name, **_measured(options, row, unseen, name, folder.path)}])
    known = {done["row"]: done for done in folder.rows(TABLE)}
    heads = [f"{FIGURES[figure]} {part.replace('unseen_', '')}" for figure in options.figures for part in parts]
    print(" | ".join(["row", *heads, "(the paper's figures in brackets)"]))
    for name, row in options.rows.items():
        cells = [name]
        for place, (figure, part) in enumerate((f, p) for f in options.figures for p in parts):
            value = known[name][part][figure] if name in known else None
            paper = dict(enumerate(row.paper)).get(place)
            cells.append(("–" if value is None else f"{value:.2f}") + ("" if paper is None else f" ({paper:.2f})"))
        print(" | ".join(cells))
    if not known:
        print("no row has an annotator: give one, as in 'rows.NAME.annotator=generative:openai:MODEL@URL'")
    folder.finish({"table": list(known.values())})
    return 0


def _measured(options: Options, row: Row, unseen: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """The percentages of an annotator, overall and of each part."""
    from contextlib import closing

    from annotators.base import engine_in
    from annotators.evaluation.evaluate import evaluate, labelled, predict
    from annotators.evaluation.splits import group_rows
    from annotators.evaluation.texts import bert_scores
    from annotators.records import failed_share
    from mitigate.models import open_annotator

    data = [{**one, "split": split} for split, part in unseen.items() for one in part]
    rows = labelled(data, [one["split"] for one in data], group_rows(data))
    assert row.annotator is not None
    more = {"cache": folder / "replies.sqlite"} if engine_in(row.annotator) else {}
    with closing(open_annotator(row.annotator, {**more, **row.options}, f"rows.{name}")) as annotator:
        print(f"# {name}: {annotator.name}, {len(rows)} sentences", flush=True)
        judged = predict(annotator, rows, parametric=row.without_reference)
    similarity = bert_scores(data, judged, options.bertscore)[0] if "bert_score" in options.figures else None
    found = evaluate(rows, judged, n_resamples=200, texts=True, similarity=similarity)
    if (failed := failed_share(found["statuses"])) > options.max_failed:
        raise EngineError(
            f"rows.{name}: {failed:.0%} of the sentences failed, more than max_failed {options.max_failed:g}"
        )
    out: dict[str, Any] = {"annotator": annotator.who, "n": len(rows)}
    for part, figures in {"overall": found["overall"], **found["splits"]}.items():
        values = {"accuracy": figures["accuracy"], **figures["texts"]}
        out[part] = {key: None if values[key] is None else 100 * values[key] for key in FIGURES}
    return out
