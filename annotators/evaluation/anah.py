"""The public ANAH rows (`opencompass/anah`), flattened to labelled sentences.

    rows, report = flatten(load_rows(["opencompass/anah"]))  # a hub id, Parquet or JSON Lines files, a folder of these

A row is a topic with questions, answers of two models and, for each answer, tagged strings, one a sentence. A string
may name its sentence itself (<要点>). Where one does not, the answer is split again: as ANAH's units were made, then in
other ways until the counts fit. Where none fits, or most corrections name text that is not in their sentence, the whole
answer is left out and counted.

Splits are train, unseen topics and unseen questions (ANAH, §4.1). Topics that share documents or a question are one.
"""

from __future__ import annotations

import difflib
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rapidfuzz import fuzz

from annotators.evaluation.splits import joined, plain
from annotators.generative.tagged import LEAST, ParseFailure, Tagged, folded, parse_tagged
from annotators.records import HALLUCINATED
from annotators.text.language import stated
from annotators.text.sentences import anah_units, split_sentences, trimmed

Split = Literal["train", "unseen_topic", "unseen_question"]
SPLITS: tuple[Split, ...] = ("train", "unseen_topic", "unseen_question")


def split_rows(
    rows: Sequence[Mapping[str, Any]], *, share: float = 0.1, seed: int = 0
) -> tuple[list[Split], list[int]]:
    """The split of each labelled sentence, and the numbers of test rows whose answer is also in train: drop these.

    ``share`` of the rows, above 0 and below 0.5, goes to each of the two unseen parts; the order of the rows does not
    matter. ValueError where the share is out of range, or there are too few topics or questions to split.
    """
    if not 0 < share < 0.5:
        raise ValueError(f"share: expected a number above 0 and below 0.5, got {share}")
    names = ("topic", "reference", "question")  # rows with an equal one of these are of one topic, transitively
    topics = joined([f"{name} {plain(row.get(name))}" for name in names if row.get(name)] for row in rows)
    asked = [(topic, plain(row["question"])) for row, topic in zip(rows, topics, strict=True)]
    wanted = share * len(rows)
    size = Counter(("", topic) for topic in topics)
    unseen_topics = {topic for _, topic in _drawn(size, wanted, seed)}
    questions = Counter(one for one in asked if one[0] not in unseen_topics)
    unseen_questions = _drawn(questions, wanted, seed + 1)
    if not unseen_topics or not unseen_questions:
        raise ValueError(
            f"expected at least two topics, one of them with two questions, got {len(size)} topics with "
            f"{len(questions)} questions among those trained on"
        )
    splits: list[Split] = [
        "unseen_topic" if one[0] in unseen_topics else "unseen_question" if one in unseen_questions else "train"
        for one in asked
    ]
    answers = [plain(row["answer"]) for row in rows]
    trained = {answer for answer, split in zip(answers, splits, strict=True) if split == "train"}
    return splits, [n for n, answer in enumerate(answers) if splits[n] != "train" and answer in trained]


def _drawn(size: Mapping[tuple[str, str], int], wanted: float, seed: int) -> set[tuple[str, str]]:
    """Some of (family, name), drawn till their rows are as many as wanted; one of every family is left."""
    left = Counter(family for family, _ in size)
    shuffled = sorted(size)
    random.Random(seed).shuffle(shuffled)
    drawn: set[tuple[str, str]] = set()
    count = 0
    for key in shuffled:
        if count < wanted and left[key[0]] > 1:
            drawn.add(key)
            left[key[0]] -= 1
            count += size[key]
    return drawn


MODELS = {"gpt3.5": "GPT3.5_answers_D", "internlm": "InternLM_answers"}
"""Columns of answers. Annotations are in ``human_…_ann``, those of `mitigate build-dataset` all in ``…_ann``."""
COLUMNS = ("name", "documents", "selected_questions", "language")
MIN_FOUND = 0.5  # least share of an answer's corrections that must stand in the sentence they are given for
_BRACKET = re.compile(r"‹(?=\w{2,14}>)")  # as some rows have it for that of a tag
_STOP = re.compile(r"[.!?]+(?=[\"”’)\]]*\s)|[。！？]+[”’」』）]*|\n+")
_CLAUSE = re.compile(r"[.!?]+(?=[\"”’)\]]*\s)|[。！？；]+[”’」』）]*|\n+")
_LINE = re.compile(r"\n+")


@dataclass
class Report:
    """What was read and left out."""

    topics: int = 0
    answers: int = 0
    sentences: int = 0
    lost_edits: int = 0  # corrections that are not in their sentence, or can't be read
    aligned: Counter[str] = field(default_factory=Counter)  # how sentences were found → answers
    left_out: Counter[str] = field(default_factory=Counter)  # reason → answers
    examples: dict[str, str] = field(default_factory=dict)  # reason → the first place

    def skip(self, reason: str, where: str) -> None:
        self.left_out[reason] += 1
        self.examples.setdefault(reason, where)

    def __str__(self) -> str:
        lost = sum(self.left_out.values())
        text = f"{self.topics} topics, {self.answers} answers, {self.sentences} annotated sentences"
        if self.aligned:
            text += f" (answers aligned by {', '.join(f'{how}: {n}' for how, n in self.aligned.most_common())})"
        if self.lost_edits:
            text += f", {self.lost_edits} corrections not found in their sentence"
        parts = (f"{n} {reason} (first: {self.examples[reason]})" for reason, n in self.left_out.most_common())
        return f"{text}; left out {lost} answers: {'; '.join(parts)}" if lost else text


def load_rows(sources: Sequence[str]) -> list[dict[str, Any]]:
    """All rows of hub ids, Parquet, JSON or JSON Lines files, or folders of these, through ``datasets.load_dataset``.

    ImportError where `datasets` is missing, OSError where there is no such data set.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError("reading data sets needs `datasets`: pip install 'hallucination-toolkit[data]'") from error
    rows: list[dict[str, Any]] = []
    kinds = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}
    for source in sources:
        path = Path(source).expanduser()
        if kind := kinds.get(path.suffix):
            if not path.is_file():
                raise OSError(f"{source}: no such file")
            found = load_dataset(kind, data_files=str(path))
        elif path.exists() or re.fullmatch(r"[\w.-]+/[\w.-]+", source):
            found = load_dataset(str(path) if path.exists() else source)
        else:
            raise OSError(f"{source}: expected a .parquet, .json or .jsonl file, a folder, or a hub id (OWNER/NAME)")
        for part in found.values():
            rows += [dict(row) for row in part]
    return rows


def is_anah(row: Mapping[str, Any]) -> bool:
    """Whether a row has the columns of the public ANAH data."""
    return all(name in row for name in COLUMNS)


def flatten(topics: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], Report]:
    """Annotated sentences of ANAH rows, and what was left out.

    One is {"id", "source", "lang", "topic", "question", "reference", "answer", "sentence", "start", "label",
    "fragments", "edits" (pairs from, to), "correction" (the sentence with them), "annotation" (the string as it came)}.
    """
    report = Report()
    rows: list[dict[str, Any]] = []
    for number, topic in enumerate(topics):
        report.topics += 1
        for found in _answers(number, topic, report):
            report.answers += 1
            rows += found
    report.sentences = len(rows)
    return rows, report


def _answers(number: int, topic: Mapping[str, Any], report: Report) -> Iterator[list[dict[str, Any]]]:
    name = str(topic.get("name") or "")
    if not is_anah(topic):
        report.skip("without the columns of ANAH", f"row {number}")
        return
    language = stated(topic)
    reference = "\n\n".join(str(text) for text in topic["documents"] or [] if text and str(text).strip())
    questions = list(topic["selected_questions"] or [])
    for model, column in MODELS.items():
        answers = topic.get(column) or []
        annotated = topic.get(f"{column}_ann") or topic.get(f"human_{column}_ann") or []
        for q, answer in enumerate(answers):
            where = f"row {number} ({name[:40]}), {model}, question {q}"
            if q >= len(annotated) or not annotated[q]:
                report.skip("without annotations", where)
            elif q >= len(questions) or not str(questions[q]).strip() or not str(answer or "").strip():
                report.skip("without a question or an answer", where)
            elif language not in ("en", "zh") or not reference:
                report.skip("without a reference or in a language that is neither en nor zh", where)
            else:
                sentences = _sentences(str(answer), list(annotated[q]), language, report, where)
                record = {
                    "source": f"anah-{model}", "lang": language, "topic": name, "question": str(questions[q]),
                    "reference": reference, "answer": str(answer),
                }  # fmt: skip
                if sentences:
                    name_of = f"anah-{number}-{model}-{q}"
                    yield [{"id": f"{name_of}-{s}", **record, **own} for s, own in enumerate(sentences)]


def _sentences(
    answer: str, texts: Sequence[str | None], language: str, report: Report, where: str
) -> list[dict[str, Any]]:  # fmt: skip
    """The annotated sentences of one answer; none where it must be left out. A text is null for a sentence that nobody
    could judge."""
    found: list[Tagged | None] = []
    for text in texts:
        try:
            found.append(None if text is None else parse_tagged(_BRACKET.sub("<", str(text))))
        except ParseFailure as error:
            report.skip(f"with an annotation that can't be read ({error})", where)
            return []
    names = [tagged.points[0] if tagged and tagged.points else "" for tagged in found]
    named = named_spans(answer, names)
    ways = {"the sentences that are named": named} if named else splittings(answer, language)
    best: tuple[float, str, list[tuple[int, int]]] = (-1.0, "", [])
    for how, spans in ways.items():
        if len(spans) == len(found):
            edits_there = (t.corrections if t else () for t in found)
            there = [old in answer[a:b] for (a, b), own in zip(spans, edits_there, strict=True) for old, _ in own]
            named_there = ((name, answer[a:b]) for (a, b), name in zip(spans, names, strict=True) if name)
            there += [fuzz.ratio(folded(name)[0], folded(text)[0]) >= 100 * LEAST for name, text in named_there]
            share = sum(there) / len(there) if there else 1.0
            best = max(best, (share, how, spans), key=lambda way: way[0])  # the first of equals
    share, how, spans = best
    if not spans:
        report.skip("whose sentences are not as many as their annotations", where)
        return []
    if share < MIN_FOUND:
        report.skip("with corrections or names of text that is not in its sentence", where)
        return []
    report.aligned[how] += 1
    rows = []
    for (start, end), tagged, text in zip(spans, found, texts, strict=True):
        if tagged is None:
            continue
        piece = answer[start:end]
        edits = [pair for pair in tagged.corrections if pair[0] and pair[0] in piece]
        report.lost_edits += len(tagged.corrections) - len(edits) + len(tagged.problems)
        correction = apply_edits(piece, edits) if edits else None
        row = {"sentence": piece, "start": start, "label": tagged.label, "fragments": list(tagged.fragments)}
        rows.append({**row, "edits": list(map(list, edits)), "correction": correction, "annotation": str(text)})
    return rows


def named_spans(answer: str, names: Sequence[str]) -> list[tuple[int, int]]:
    """Where the sentences stand that annotations name, one after the other; none unless all are named and there."""
    text, origin = folded(answer)
    spans: list[tuple[int, int]] = []
    at = 0
    for name in names:
        wanted = folded(name)[0]
        place = text.find(wanted, at) if wanted else -1
        if place < 0:
            return []
        at = place + len(wanted)
        spans.append((origin[place], origin[at - 1] + 1))
    return spans


def splittings(answer: str, language: str) -> dict[str, list[tuple[int, int]]]:
    """Ways to cut an answer into sentences, the likeliest first: as ANAH's units, ours, stops and line ends, lines."""
    ways = {"ANAH's units": anah_units(answer, language), "our sentences": split_sentences(answer)}
    for how, pattern in (("stops", _STOP), ("clauses", _CLAUSE), ("lines", _LINE)):
        ways[how] = trimmed(answer, [0, *(match.end() for match in pattern.finditer(answer)), len(answer)])
    return ways


def apply_edits(sentence: str, edits: Iterable[tuple[str, str]]) -> str:
    """The sentence with each (from, to) put in at its first place after the edit before it, else at its first."""
    at = 0
    for old, new in edits:
        if not old:
            continue
        place = sentence.find(old, at)
        place = sentence.find(old) if place < 0 else place
        if place >= 0:
            sentence = sentence[:place] + new + sentence[place + len(old) :]
            at = place + len(new)
    return sentence


def edits_of(sentence: str, corrected: str) -> list[tuple[str, str]]:
    """Pairs (from, to) of whole words with which ``apply_edits`` turns a sentence into its correction.

    Where a changed piece is empty or also stands further left, words beside it are taken along until it says its place.
    """
    pattern = r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+|\s+|[^\w\s]"
    old, new = (re.findall(pattern, text) for text in (sentence, corrected))
    starts = [0]
    for token in old:
        starts.append(starts[-1] + len(token))
    edits: list[tuple[str, str]] = []
    done = 0  # tokens of the sentence that the edits so far have passed
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        while a > done and sentence.find("".join(old[a:b]).strip() and "".join(old[a:b]), starts[done]) != starts[a]:
            a, c = a - 1, c - 1
        while not "".join(old[a:b]).strip() and b < len(old) and d < len(new):  # at the start: take what follows
            b, d = b + 1, d + 1
        edits.append(("".join(old[a:b]), "".join(new[c:d])))
        done = b
    edits = [(source, target) for source, target in edits if source]
    # In a few words there may be no place left that is one.
    return edits if apply_edits(sentence, edits) == corrected or not sentence else [(sentence, corrected)]


def gold_edits(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Corrections of a labelled sentence as pairs; of a correction that is a whole sentence, what differs."""
    if row["label"] not in HALLUCINATED:
        return []
    if row.get("edits"):
        return [(old, new) for old, new in row["edits"]]
    corrected = row.get("correction")
    return edits_of(row["sentence"], corrected) if isinstance(corrected, str) else []
