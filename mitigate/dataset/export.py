"""Stage 10: the finished data set, as ANAH rows, as labelled sentences, and as Parquet through `datasets`.

    anah.jsonl        one row per topic and pair of models, keys as in opencompass/anah; `models` says whose
    sentences.jsonl   one row per checked sentence, as `mitigate evaluate` and the training recipes read it
    anah.parquet, sentences.parquet and README.md, so that `datasets.load_dataset(FOLDER, "sentences")` reads them

A sentence that was not checked has a null annotation in anah.jsonl and no row in sentences.jsonl; where no sentence of
an answer was checked, the whole list is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from annotators.tagged import write_tagged
from mitigate.dataset.answers import SOURCES
from mitigate.dataset.stage import write_lines, write_whole
from mitigate.jsonl import Record
from mitigate.whole_file import whole_file

WITH, WITHOUT = "GPT3.5_answers_D", "InternLM_answers"
ANNOTATED = {WITH: "human_GPT3.5_answers_D_ann", WITHOUT: "human_InternLM_answers_ann"}
"""Columns of opencompass/anah, whatever models were asked here."""
ANAH_COLUMNS = (
    "name", "documents", "selected_questions", "language", "category", "domain", "models",
    *ANNOTATED, *ANNOTATED.values(),
)  # fmt: skip
SENTENCE_COLUMNS = (
    "id", "source", "lang", "question", "answer", "sentence", "label", "fragments", "correction", "topic", "category",
    "domain", "model", "reference",
)  # fmt: skip


def corrected(sentence: Mapping[str, Any]) -> str:
    """The text of an annotated sentence with its correction applied."""
    text, offset = sentence["text"], sentence["start"]
    for edit in sorted(sentence["correction"], key=lambda edit: edit["start"], reverse=True):
        text = text[: edit["start"] - offset] + edit["to"] + text[edit["end"] - offset :]
    return str(text)


def tagged(sentence: Mapping[str, Any], language: str) -> str | None:
    """An annotated sentence as ANAH's tagged text; None where it was not checked."""
    if sentence["label"] is None:
        return None
    fragments = [fragment["text"] for fragment in sentence["fragments"]]
    corrections = [(edit["from"], edit["to"]) for edit in sentence["correction"]]
    return write_tagged(sentence["label"], fragments, corrections, language)


def anah_rows(records: Iterable[Record]) -> list[Record]:
    """Annotated records as ANAH rows: the n-th model with reference beside the n-th without.

    Where one side has fewer models, its lists hold null.
    """
    topics: dict[str, list[Record]] = {}
    for record in records:
        topics.setdefault(record["topic"], []).append(record)
    rows = []
    for name, found in topics.items():
        questions = list(dict.fromkeys(record["question"] for record in found))
        models = {
            column: list(dict.fromkeys(r["model"] for r in found if r["source"] == SOURCES[column == WITH]))
            for column in ANNOTATED
        }
        for place in range(max(map(len, models.values()))):
            row: Record = {
                "name": name,
                "documents": [found[0]["reference"]],
                "selected_questions": questions,
                "language": found[0]["language"],
                "category": found[0]["category"],
                "domain": found[0]["domain"],
                "models": {column: (*held, None)[min(place, len(held))] for column, held in models.items()},
            }
            for column, notes in ANNOTATED.items():
                by_question = {
                    r["question"]: r
                    for r in found
                    if r["source"] == SOURCES[column == WITH] and r["model"] == row["models"][column]
                }
                answers = [by_question.get(question) for question in questions]
                row[column] = [answer and answer["answer"] for answer in answers]
                row[notes] = [answer and _notes(answer) for answer in answers]
            rows.append(row)
    return rows


def _notes(record: Record) -> list[str | None] | None:
    """One tagged text per sentence; null for an answer of which nothing was checked."""
    notes = [tagged(sentence, record["language"]) for sentence in record["sentences"]]
    return notes if any(notes) else None


def sentence_rows(records: Iterable[Record]) -> list[Record]:
    """The checked sentences of annotated records, one a row."""
    return [
        {
            "id": f"{record['id']}/s{number}",
            "source": record["source"],
            "lang": record["language"],
            "question": record["question"],
            "answer": record["answer"],
            "sentence": sentence["text"],
            "label": sentence["label"],
            "fragments": [fragment["text"] for fragment in sentence["fragments"]],
            "correction": corrected(sentence) if sentence["correction"] else None,
            **{key: record[key] for key in ("topic", "category", "domain", "model", "reference")},
        }
        for record in records
        for number, sentence in enumerate(record["sentences"])
        if sentence["label"] is not None
    ]


def export(records: Sequence[Record], folder: Path) -> dict[str, int]:
    """Write all forms of the data set; returns the number of rows of each file."""
    anah, sentences = anah_rows(records), sentence_rows(records)
    write_lines(folder / "anah.jsonl", anah)
    write_lines(folder / "sentences.jsonl", sentences)
    write_parquet(anah, folder / "anah.parquet", ANAH_COLUMNS)
    write_parquet(sentences, folder / "sentences.parquet", SENTENCE_COLUMNS)
    configs = "\n".join(
        f"- config_name: {name}\n  data_files: {name}.parquet" for name in ("sentences", "anah")
    )
    write_whole(folder / "README.md", f"---\nconfigs:\n{configs}\n---\n\n{_CARD}".encode())
    return {"anah": len(anah), "sentences": len(sentences)}


def write_parquet(rows: Sequence[Record], path: Path, columns: Sequence[str]) -> None:
    """Write rows as Parquet through `datasets`; columns are strings but for lists of strings and nested ones."""
    from datasets import Dataset, Features, List, Value
    from datasets.utils.logging import disable_progress_bar

    text = Value("string")
    kinds: dict[str, Any] = {
        **{name: List(List(text)) for name in ANNOTATED.values()},
        **{name: List(text) for name in ("documents", "selected_questions", "fragments", *ANNOTATED)},
        "models": {name: text for name in ANNOTATED},
    }
    disable_progress_bar()
    values = {name: [row[name] for row in rows] for name in columns}
    features = Features({name: kinds.get(name, text) for name in columns})
    with whole_file(path) as part:
        Dataset.from_dict(values, features=features).to_parquet(str(part))


_CARD = """\
Answers of language models to questions on documents, each sentence labelled supported, contradictory, unverifiable or
no_fact against its document, with evidence and correction. Made by `mitigate build-dataset`; the run's `config.yaml`
says with which models, `statistics.md` how much of everything there is.

- `sentences`: one row per checked sentence.
- `anah`: one row per topic, with the columns of opencompass/anah; `models` names the models behind its columns.
"""
