"""The finished data set as ANAH rows and as labelled sentences, and the page of its figures.

anah.jsonl        one row per topic and pair of models, keys as in opencompass/anah; `models` says whose
sentences.jsonl   one row per checked sentence, as `mitigate evaluate` and the training recipes read it
README.md         the types of the columns, for `datasets.load_dataset(FOLDER, "sentences")`

In anah.jsonl the columns `…_ann` hold all annotations, `human_…_ann` those that a person wrote and null for others. A
sentence that was not checked is null there; where none of an answer was checked, the whole list is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from annotators.generative.tagged import write_tagged
from annotators.records import LABELS
from mitigate.dataset.questions import SOURCES
from mitigate.io import Record, dump_line, write_bytes, write_lines
from mitigate.report.totals import NOT_CHECKED, UNSURE, WORDS, kind_of, table

WITH, WITHOUT = "GPT3.5_answers_D", "InternLM_answers"
ANSWERS = (WITH, WITHOUT)
"""Columns of opencompass/anah, whatever models were asked here."""
_TEXT, _TEXTS, _NOTES = {"dtype": "string"}, {"list": "string"}, {"list": {"list": "string"}}
FEATURES: dict[str, dict[str, Any]] = {
    "sentences": {
        **dict.fromkeys(("id", "source", "lang", "question", "answer", "sentence", "label"), _TEXT),
        "fragments": _TEXTS,
        **dict.fromkeys(("correction", "annotated_by", "topic", "category", "domain", "model", "reference"), _TEXT),
    },
    "anah": {
        **dict.fromkeys(("name", "language", "category", "domain"), _TEXT),
        **dict.fromkeys(("documents", "selected_questions", *ANSWERS), _TEXTS),
        **dict.fromkeys((form.format(column) for column in ANSWERS for form in ("{}_ann", "human_{}_ann")), _NOTES),
        "models": {"struct": [{"name": column, **_TEXT} for column in ANSWERS]},
        "annotated_by": {"struct": [{"name": column, **_NOTES} for column in ANSWERS]},
    },
}
"""The columns of each file. `datasets` would take the types from the first rows, where a column may be all null."""
_CARD = """\
Answers of language models to questions on documents, each sentence labelled supported, contradictory, unverifiable or
no_fact against its document, with evidence and correction. Made by `mitigate build-dataset`; the run's `config.yaml`
says with which models, `statistics.md` how much of everything there is.

- `sentences`: one row per checked sentence.
- `anah`: one row per topic, with the columns of opencompass/anah; `models` names the models behind its columns.
"""


def corrected(sentence: Mapping[str, Any]) -> str:
    """The text of an annotated sentence with its correction applied."""
    text, offset = sentence["text"], sentence["start"]
    for edit in sorted(sentence["correction"], key=lambda edit: edit["start"], reverse=True):
        text = text[: edit["start"] - offset] + edit["to"] + text[edit["end"] - offset :]
    return str(text)


def anah_rows(records: Iterable[Record]) -> list[Record]:
    """Annotated records as ANAH rows: the n-th model with reference beside the n-th without, or beside null."""
    topics: dict[str, list[Record]] = {}
    for record in records:
        topics.setdefault(record["topic"], []).append(record)
    rows = []
    for name, found in topics.items():
        questions = list(dict.fromkeys(record["question"] for record in found))
        given: dict[str, dict[tuple[str, str], dict[str, Record]]] = {column: {} for column in ANSWERS}
        for record in found:  # by model and pass, since a model may be asked in several ways, and by question
            column = WITH if record["source"] == SOURCES[True] else WITHOUT
            asked = record["model"], record["id"].rpartition("/")[2]
            given[column].setdefault(asked, {})[record["question"]] = record
        for pair in zip_longest(*(given[column].items() for column in ANSWERS), fillvalue=((None, ""), {})):
            row: Record = {
                "name": name,
                "documents": [found[0]["reference"]],
                "selected_questions": questions,
                **{key: found[0][key] for key in ("language", "category", "domain")},
                "models": {column: model for column, ((model, _), _) in zip(ANSWERS, pair, strict=True)},
                "annotated_by": {},
            }
            for column, (_, by_question) in zip(ANSWERS, pair, strict=True):
                answers = [by_question.get(question) for question in questions]
                row[column] = [answer and answer["answer"] for answer in answers]
                row[f"{column}_ann"] = [answer and _notes(answer) for answer in answers]
                row[f"human_{column}_ann"] = [answer and _notes(answer, ("reviewed", "human")) for answer in answers]
                by = [answer and list(map(annotated_by, answer["sentences"])) for answer in answers]
                row["annotated_by"][column] = by
            rows.append(row)
    return rows


def annotated_by(sentence: Mapping[str, Any]) -> str | None:
    """Whose judgement a sentence has: "machine", "reviewed" or "human"; None where it has none."""
    return sentence["label"] and sentence.get("annotated_by", "machine")


def _notes(record: Record, by: Sequence[str] = ("machine", "reviewed", "human")) -> list[str | None] | None:
    """Each sentence as ANAH's tagged text, null where none of ``by`` judged it; null where all would be."""
    notes = [
        write_tagged(
            s["label"], [f["text"] for f in s["fragments"]], [(e["from"], e["to"]) for e in s["correction"]],
            record["language"],
        ) if annotated_by(s) in by else None
        for s in record["sentences"]
    ]  # fmt: skip
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
            "annotated_by": annotated_by(sentence),
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
    front = {
        "configs": [{"config_name": name, "data_files": f"{name}.jsonl"} for name in FEATURES],
        "dataset_info": [
            {"config_name": name, "features": [{"name": column, **kind} for column, kind in kinds.items()]}
            for name, kinds in FEATURES.items()
        ],
    }
    head = dump_line(front).decode()  # JSON is YAML
    write_bytes(folder / "README.md", f"---\n{head}---\n\n{_CARD}".encode())
    return {"anah": len(anah), "sentences": len(sentences)}


def counted(records: Sequence[Record], count_tokens: Callable[[Sequence[str]], list[int]]) -> dict[str, dict[str, int]]:
    """Language → what there is of everything (ANAH's Table 2)."""
    texts = list(dict.fromkeys(r[key] for r in records for key in ("question", "answer", "reference")))
    tokens = dict(zip(texts, count_tokens(texts), strict=True))
    counts = {}
    for language in sorted({record["language"] for record in records}):
        found = [record for record in records if record["language"] == language]
        bare = sum(tokens[r["question"]] + tokens[r["answer"]] for r in found)
        counts[language] = {
            "topics": len({r["topic"] for r in found}),
            "questions": len({(r["topic"], r["question"]) for r in found}),
            "answers": len(found),
            "sentences": sum(len(r["sentences"]) for r in found),
            "tokens with references": bare + sum(tokens[r["reference"]] for r in found),
            "tokens without": bare,
        }
    return counts


def page(records: Sequence[Record], count_tokens: Callable[[Sequence[str]], list[int]], lost: Mapping[str, int]) -> str:
    """The statistics as Markdown; ``lost`` are the lines that each stage left out."""
    table2 = counted(records, count_tokens)
    table4: dict[tuple[str, str], Counter[str]] = {}
    for record in records:
        table4.setdefault((record["language"], record["source"]), Counter()).update(map(kind_of, record["sentences"]))
    lines = ["# Statistics of this data set", "", "## What there is", ""]
    counts = next(iter(table2.values()), {})
    lines += table(["language", *counts], [[name, *values.values()] for name, values in table2.items()])
    lines += ["", "## Labels, in percent of checked sentences", ""]
    rows: list[list[object]] = []
    for (language, source), counter in sorted(table4.items()):
        checked = sum(counter[label] for label in LABELS)
        shares = [f"{100 * counter[label] / checked:.2f}" if checked else "–" for label in LABELS]
        rows.append([language, source, checked, *shares, counter[UNSURE] + counter[NOT_CHECKED]])
    head = ["language", "answers", "checked", *(WORDS[label] for label in LABELS), "not checked (number)"]
    lines += table(head, rows)
    lines += ["", "## What was left out on the way", ""]
    lines += table(["stage", "lines in its .rejected.jsonl"], [[name, n] for name, n in lost.items() if n])
    return "\n".join(lines) + "\n"
