"""Task `build-dataset`: topics and documents → questions → answers → an annotated data set (docs/dataset.md)."""

from __future__ import annotations

from importlib.util import find_spec

from engines.types import EngineError
from mitigate.dataset.stage import Options
from mitigate.io import UsageError
from mitigate.models import check_generative
from mitigate.recipes.folder import RunFolder


def check(options: Options) -> None:
    """Refuse missing files, engines and packages."""
    topics, corpus = options.files()
    if not topics.is_file():
        raise UsageError(f"topics: no such file {topics}")
    for path in corpus:
        if not path.exists():
            raise UsageError(f"corpus: no such file or folder {path}")
    asked = {
        "questions": options.questions,
        "filters": options.filters,
        "selection": options.selection,
        **({"matching": options.matching} if options.matching.judge else {}),
        **{f"answers.{place}": answer for place, answer in enumerate(options.answers)},
    }
    if options.engine is None and (without := [name for name, stage in asked.items() if stage.engine is None]):
        raise UsageError(f"{', '.join(without)}: no engine; give each one, or `engine:` for all")
    own = options.annotator_options
    if not check_generative(options.annotator, own, "annotator_options") and own:
        raise UsageError(f"annotator_options: for generative:KIND:MODEL[@BASE_URL] only, not {options.annotator}")
    if find_spec("datasets") is None:
        raise UsageError("build-dataset writes Parquet with datasets: pip install 'hallucination-toolkit[data]'")


def run(options: Options, folder: RunFolder) -> int:
    """Build the data set, or go on with it; 3 where input or replies could not all be used."""
    from mitigate.dataset.pipeline import build

    figures = build(options, folder.path)
    if figures is None:
        return 0
    if figures["failed"] > options.max_failed:
        raise EngineError(
            f"the judgement of {figures['failed']:.0%} of the sentences failed, more than max_failed "
            f"{options.max_failed:g}; delete {folder / '11_annotated.jsonl'} to have them judged again"
        )
    folder.finish(figures)
    print(f"{figures}\nstatistics: {folder / 'statistics.md'}")
    return 3 if figures["rejected"] else 0
