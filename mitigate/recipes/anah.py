"""Task `anah`: tables of the ANAH papers on the user's copy of the data, each figure beside the paper's.

The figures that a table has make it one of four KINDS. The paper's split is not public: rows are split by seed, so a
published checkpoint may have been trained on some of them. A row without an annotator shows the paper's figures alone.
Agreement is of the sentences that the annotator gave a verdict on; how many these are is the last column. Writes the
splits, table.jsonl with a line for each row that is finished, and judged.ROW.jsonl: what was said of each sentence, for
`mitigate stats --agreement`, or in the form of ANAH-v2's program, whose sentences without a verdict count as right;
here they are left out. An answer of HaluEval or HalluQA without a verdict counts as wrong. A run that was stopped goes
on from what was judged, or a language model's replies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from annotators.base import engine_in
from annotators.evaluation.metrics import detection, fact_score
from annotators.generative.tagged import neutral
from annotators.records import HALLUCINATED, LABELS
from engines.types import Sampling, check_asked
from mitigate.io import Problem, Record, UsageError, check_texts, counted, progress, shown
from mitigate.models import EngineName, Judgements, check_generative, open_annotator, open_engine, refuse_failures
from mitigate.recipes.annotator_training import Data, load_sentences, load_splits
from mitigate.recipes.config import Recipe, Section
from mitigate.recipes.data import read_good
from mitigate.recipes.folder import RunFolder

JUDGED = {"accuracy": "ACC", "rouge_l": "RougeL", "bert_score": "BERT", "fragment_precision_4": "Pre4"}
AGREED = {**{f"type:{label}": label for label in LABELS}, "reference": "Ref", "correction": "Corr"}
COUNTED = {
    **{name: name for name in ("topics", "answers", "sentences")}, "tokens with references": "tokens",
    "tokens without": "tokens without references", **{f"share:{label}": label for label in LABELS},
    "after_some": "P(H, some before)", "after_none": "P(H, none before)",
}  # fmt: skip
SCORED = {name: name for name in ("ok", "nofact", "contradictory", "unverifiable", "score")}
FACTS = {"factscore": "FActScore", "fact_precision": "without penalty", "answered": "answered"}
DETECTED = {
    "answer_accuracy": "ACC", "answer_f1": "F1", "answer_auc": "AUC", "length_accuracy": "ACC by length",
    "length_auc": "AUC by length",
}  # fmt: skip
ASKED = {"annotator", "options", "without_reference"}
RESPONSES = {"annotator", "options", "responses"}
KINDS: tuple[tuple[Mapping[str, str], set[str]], ...] = (
    (JUDGED, ASKED),  # what annotators are worth: Tables 5 to 8
    (AGREED, ASKED),  # agreement with people: Table 3
    (COUNTED, {"language", "source"}),  # what the data hold: Tables 2 and 4, §2.5
    (SCORED, RESPONSES),  # how much models make up: ANAH-v2's evaluation of responses
    (FACTS, RESPONSES),  # the same by atomic facts: Mask-DPO's evaluation
    (DETECTED, RESPONSES),  # which of two given answers is made up: ANAH-v2's HaluEval and HalluQA
)
"""The figures of each kind, and the keys that its rows may have beside ``paper``."""
UNSEEN = ("unseen_topic", "unseen_question")
WORDS = {"supported": "ok", "no_fact": "nofact"}  # of ANAH-v2's program; its other two are ours
TABLE = "table.jsonl"
KEPT = "judged.{}.jsonl.part"  # what was said, until the figures of its row are there
CHUNK = 32  # responses judged at once
HALUEVAL = ("answer knowledge question", "response knowledge dialogue_history", "summary document -")  # its keys
SPLIT = """Write down every fact that the text states, one a line, each as a short sentence that says a single thing \
and can be understood by itself: names in place of pronouns, in the language of the text. Leave nothing out and add \
nothing. If the text declines to answer, write only NONE.

<question>
{question}
</question>
<text>
{answer}
</text>"""
BULLET = re.compile(r"^\s*(?:[-*•]\s+|\d{1,2}[.)]\s+|\d{1,2}、)")
NO_FACT = re.compile(r"|NONE\W*|.*[:：]", re.IGNORECASE)  # lines: nothing, the word for no facts, a heading


class Row(Section):
    """Who judges what, how, and the paper's figures by their names."""

    annotator: str | None = Field(default=None, min_length=1, description="as in `mitigate evaluate`; null: is not run")
    options: dict[str, Any] = Field(default={}, description="of a generative one: preset, templates, prompt, …")
    without_reference: bool = False
    language: Literal["en", "zh"] | None = Field(default=None, description="of the answers that are counted; null: all")
    # Answers with (gpt3.5) or without the reference (internlm); null: all.
    source: Literal["anah-gpt3.5", "anah-internlm"] | None = None
    responses: Path | None = Field(default=None, description="question, response; or HaluEval's or HalluQA's file")
    paper: dict[str, int | float | tuple[float, float]] = Field(
        default={}, description="of all rows, or of unseen [topics, questions]"
    )


class Options(Recipe):
    task: Literal["anah"]
    data: Data | None = Field(default=None, description="ANAH's rows; null: responses are judged")
    documents: Path | None = Field(default=None, description="of responses, JSON Lines: question, document, language")
    splitter: EngineName | None = Field(default=None, description="writes down the facts of responses, for factscore")
    figures: list[str] = Field(min_length=1)
    by_split: bool = Field(default=True, description="unseen topics (T) and questions (Q) apart; of Tables 5 to 8")
    bertscore: Literal["paper", "packaged"] = "paper"
    limit: int | None = Field(default=None, ge=1, description="sentences of each part, or answers, to judge")
    max_failed: float = Field(default=0.1, ge=0, le=1, description="share of failed sentences that stops the run")
    rows: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], Row] = Field(min_length=1)

    @property
    def kind(self) -> Mapping[str, str]:
        kind = next((kind for kind, _ in KINDS if kind.keys() >= {*self.figures}), None)
        if kind is None:
            known = "; ".join(", ".join(kind) for kind, _ in KINDS)
            raise UsageError(f"figures: expected some of one of {known}; got {', '.join(self.figures)}")
        return kind


def check(options: Options) -> None:
    kind = options.kind
    if "bert_score" in options.figures and find_spec("bert_score") is None:
        raise UsageError(
            "bert_score needs bert-score: pip install 'hallucination-toolkit[bertscore]', or other figures="
        )
    if not (kind not in (SCORED, FACTS) if options.documents is None else options.documents.is_file()):
        raise UsageError(f"documents: expected the file of questions and documents, got {options.documents}")
    if (kind is FACTS) != (options.splitter is not None):
        raise UsageError(f"splitter: expected a language model for factscore, null without; got {options.splitter}")
    if kind in (JUDGED, AGREED, COUNTED) and options.data is None:
        raise UsageError("data: expected `sources: [opencompass/anah]`, or your copy of it; got null")
    if options.limit is not None and kind in (COUNTED, SCORED, FACTS):
        raise UsageError(f"limit: expected null, since all is counted for {', '.join(options.figures)}")
    if options.data is not None and options.data.limit is not None and kind is COUNTED:
        raise UsageError(f"data.limit: expected null, since all is counted for {', '.join(options.figures)}")
    known = next(keys for figures, keys in KINDS if figures is kind)
    for name, row in options.rows.items():
        if wrong := sorted(key for key in row.model_dump(exclude_defaults=True) if key not in {*known, "paper"}):
            said = f"expected {', '.join(sorted(known))} for figures such as {options.figures[0]}"
            raise UsageError(f"rows.{name}: {said}, got {', '.join(wrong)}")
        if unknown := row.paper.keys() - kind.keys():
            raise UsageError(f"rows.{name}.paper: expected {', '.join(kind)}, got {', '.join(sorted(unknown))}")
        if known is RESPONSES and (row.responses is None) != (row.annotator is None):
            raise UsageError(f"rows.{name}: expected responses and an annotator, got one of them")
        if row.responses is not None and not row.responses.is_file():
            raise UsageError(f"rows.{name}.responses: no such file {row.responses}")
        if row.annotator is not None:
            asked = check_generative(row.annotator, row.options, f"rows.{name}")
            if not asked and row.options.keys() - {"labels"}:
                raise UsageError(f"rows.{name}.options: for generative:KIND:MODEL[@BASE_URL] only, not {row.annotator}")


def run(options: Options, folder: RunFolder) -> int:
    """Fill the rows of the table and print it; 3 where lines of responses were rejected."""
    kind = options.kind
    parts = UNSEEN if kind is JUDGED and options.by_split else ("overall",)
    documents, bad = _documents(options, folder) if options.documents is not None else ({}, 0)
    of_responses = kind in (SCORED, FACTS, DETECTED)
    unseen, answers = ({}, []) if of_responses else _inputs(options, folder, parts)
    for name, row in options.rows.items():
        if any(done["row"] == name for done in folder.rows(TABLE)):
            continue
        if kind is COUNTED:
            found = {"overall": _counted(answers, row, options.figures)}
        elif row.annotator is None:
            continue
        elif of_responses:
            found = _scored(options, row, documents, name, folder)
        else:
            found = _measured(options, row, unseen, name, folder)
        folder.append(TABLE, [{"row": name, **found}])
        (folder / KEPT.format(name)).unlink(missing_ok=True)
    known = {done["row"]: done for done in folder.rows(TABLE)}
    heads = [f"{kind[figure]} {part.replace('unseen_', '')}" for figure in options.figures for part in parts]
    heads += ["checked"] * (of_responses or kind is AGREED)
    print(" | ".join(["row", *heads, "(the paper's figures in brackets)"]))
    for name, row in options.rows.items():
        cells, done = [name], known.get(name)
        for figure, part in ((f, p) for f in options.figures for p in parts):
            said = row.paper.get(figure)  # not shown where it is of other rows than the table's
            paper = (dict(zip(UNSEEN, said, strict=True)) if isinstance(said, tuple) else {"overall": said}).get(part)
            own = _shown(done[part][figure] if done else None)
            cells.append(own if paper is None else f"{own} ({_shown(paper)})")
        if "checked" in heads:
            cells.append(f"{done['checked']:,} of {done['n']:,}" if done else "–")
        print(" | ".join(cells))
    if not known:
        print("no row has an annotator: give one, as in 'rows.NAME.annotator=generative:openai:MODEL@URL'")
    folder.finish({"table": list(known.values())})
    return 3 if bad or any(row.get("rejected") for row in known.values()) else 0


def _documents(options: Options, folder: RunFolder) -> tuple[dict[str, Record], int]:
    """The line of each question, and the number of bad lines."""
    assert options.documents is not None  # as ``check`` says
    expected = "lines with question and document"
    good, bad = read_good(
        options.documents, lambda line: check_texts(line, question="text", document="text", language="text?"), folder,
        expected, "rejected.documents.jsonl",
    )  # fmt: skip
    documents = {line["question"]: line for line in good}  # the last of equals, as theirs
    if twice := len(good) - len(documents):
        print(f"# documents: {counted(twice, 'line')} replaced by a later one of the same question")
    return documents, bad


def _inputs(options: Options, folder: RunFolder, parts: Sequence[str]) -> tuple[dict[str, list[Record]], list[Record]]:
    """What the rows are made of, by kind: unseen sentences of each part, or answers that are counted."""
    assert options.data is not None  # as ``check`` says
    if options.kind is COUNTED:
        rows, from_anah = load_sentences(options.data)
        if not from_anah:
            raise UsageError("data.sources: expected rows of ANAH (opencompass/anah), got others")
        return {}, [one for one in _answers(rows) if one["language"] in options.data.languages]
    splits = load_splits(options.data, folder)
    unseen = {name: part[: options.limit] for name, part in splits.items() if name not in ("train", "dev") and part}
    if missing := {*parts} - {*unseen, "overall"}:
        raise UsageError(f"data: the table has {' and '.join(parts)}, and there are no rows of {' and '.join(missing)}")
    return unseen, []


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


# --- what the data hold -------------------------------------------------------------------------------------------


def _answers(rows: list[Record]) -> Iterator[Record]:
    """The answers of flattened rows, as records with their sentences."""
    for _, group in groupby(rows, lambda row: row["id"].rpartition("-")[0]):
        own = list(group)
        sentences = [{"label": row["label"], "status": "checked"} for row in own]
        yield {**own[0], "language": own[0]["lang"], "sentences": sentences}


def _counted(answers: list[Record], row: Row, figures: list[str]) -> dict[str, float | None]:
    """The figures of the answers of a row; tokens are counted by the packaged MiniLM."""
    from annotators.evaluation.agreement import accumulation
    from mitigate.dataset.export import counted as sizes_of
    from mitigate.dataset.stage import embedder

    chosen = [one for one in answers if row.language in (None, one["language"]) and row.source in (None, one["source"])]
    labels = Counter(sentence["label"] for one in chosen for sentence in one["sentences"])
    total = labels.total()
    found: dict[str, float | None] = {f"share:{x}": 100 * labels[x] / total if total else None for x in LABELS}
    counting = any("tokens" in figure for figure in figures)
    tokens = embedder(None).count_tokens if counting else lambda texts: [0] * len(texts)
    for counts in sizes_of(chosen, tokens).values():
        for name, n in counts.items():
            found[name] = (found.get(name) or 0) + n
    marks = [[s["label"] in HALLUCINATED for s in one["sentences"]] for one in chosen]
    wanted = {"after_some", "after_none"} & {*figures}
    later = accumulation([mark for mark in marks if len(mark) > 1], n_resamples=0) if wanted else {}
    found |= {name: _percent(one.value) for name, one in later.items()}
    return {figure: found.get(figure) for figure in figures}


# --- what annotators are worth, and how far they agree with people ------------------------------------------------


def _open(row: Row, name: str, folder: RunFolder) -> Any:
    assert row.annotator is not None
    more = {"cache": folder / "replies.sqlite"} if engine_in(row.annotator) else {}
    return open_annotator(row.annotator, {**more, **row.options}, f"rows.{name}")


def _measured(
    options: Options, row: Row, unseen: dict[str, list[Record]], name: str, folder: RunFolder
) -> dict[str, Any]:
    """The figures of an annotator in percent, overall and of each part; of agreement only overall."""
    from annotators.evaluation.agreement import agreement
    from annotators.evaluation.evaluate import evaluate, judgement_lines, labelled, predict
    from annotators.evaluation.splits import group_rows
    from annotators.evaluation.texts import bert_scores
    from mitigate.labels import paired, read_answers

    data = [{**one, "split": split} for split, part in unseen.items() for one in part]
    rows = labelled(data, [one["split"] for one in data], group_rows(data))
    with closing(_open(row, name, folder)) as annotator:
        print(f"# {name}: {annotator.name}, {len(rows)} sentences", flush=True)
        with progress("judging", len(rows)) as tell:
            ask = Judgements(folder / KEPT.format(name)).asking(name, annotator)
            judged = predict(annotator, rows, tell, parametric=row.without_reference, ask=ask)
    file = f"judged.{name}.jsonl"
    folder.write_rows(file, judgement_lines(rows, judged, annotator.name, row.without_reference))
    refuse_failures(f"rows.{name}", (one.status for one in judged), options.max_failed, "max_failed ")
    out: dict[str, Any] = {"annotator": annotator.who, "n": len(rows)}
    if options.kind is AGREED:
        gold, _ = read_answers([folder / f"{split}.jsonl" for split in unseen])
        pairs, groups, _ = paired(read_answers([folder / file])[0], gold)
        agreed = agreement(pairs, groups, n_resamples=0)
        figures = {key: _percent(agreed[key].value) if key in agreed else None for key in AGREED}
        return {**out, "checked": len(pairs), "overall": figures}
    similarity = bert_scores(data, judged, options.bertscore)[0] if "bert_score" in options.figures else None
    found = evaluate(rows, judged, n_resamples=200, texts=True, similarity=similarity)
    for part, figures in {"overall": found["overall"], **found["splits"]}.items():
        values = {"accuracy": figures["accuracy"], **figures["texts"]}
        out[part] = {key: _percent(values[key]) for key in JUDGED}
    return out


# --- how much models make up, and whether annotators see it --------------------------------------------------------


def _scored(options: Options, row: Row, documents: dict[str, Record], name: str, folder: RunFolder) -> dict[str, Any]:
    """The figures of a file of responses: by their sentences, by their facts, or of the answers of a data set."""
    kind = options.kind
    trained = engine_in(row.annotator or "") is None
    facts: list[list[str] | None] = []
    if kind is DETECTED:
        records, bad = _given(options, row, documents, name)
    else:
        records, bad = _responses(options, row, documents, name, folder)
    if kind is FACTS:
        if trained:
            _open(row, name, folder).close()  # a wrong name is told before the splitter is paid
        facts = _facts(options, records, name, folder)
        records = [{**records[n], "answer": fact, "of": n} for n, found in enumerate(facts) for fact in found or ()]
    kept = f"annotated.{name}.jsonl"  # by a trained annotator; a language model's replies are in the cache
    judged = folder.rows(kept) if trained else []
    with closing(_open(row, name, folder)) as annotator:
        wanted = ({**one, "annotator": annotator.who}.items() for one in records)
        same = all(one <= found.items() for one, found in zip(wanted, judged, strict=False))
        if len(judged) > len(records) or not same:
            expected = f"expected the texts of {row.responses}, judged by {annotator.name} as it is"
            raise UsageError(f"{folder / kept}: {expected}; choose another --output")
        print(f"# {name}: {len(records)} texts, judged by {annotator.name}", flush=True)
        with progress("judging", len(records)) as tell:
            for at in range(len(judged), len(records), CHUNK):
                found = [one.to_dict() for one in annotator.annotate_batch(records[at : at + CHUNK])]
                if trained:
                    folder.append(kept, found)
                judged += found
                tell(len(judged))
    folder.write_rows(
        f"judged.{name}.jsonl",
        (
            {
                "question": one["question"], "response": one["answer"], "sentence": s["text"],
                "annotation": WORDS.get(s["label"], s["label"]), "language": one["language"],
            } for one in judged for s in one["sentences"]
        ),
    )  # fmt: skip
    sentences = [sentence for one in judged for sentence in one["sentences"]]
    refuse_failures(f"rows.{name}", (s["status"] for s in sentences), options.max_failed, "max_failed ")
    out: dict[str, Any] = {"annotator": annotator.who, "rejected": bad}
    if kind is SCORED:  # ``score`` is the share of those that are not hallucinated (ANAH-v2)
        labels = Counter(WORDS.get(s["label"], s["label"]) for s in sentences if s["label"] is not None)
        total, hallucinated = labels.total(), labels["contradictory"] + labels["unverifiable"]
        shares = {word: 100 * labels[word] / total if total else None for word in SCORED if word != "score"}
        shares["score"] = 100 * (1 - hallucinated / total) if total else None
        return {**out, "n": len(sentences), "checked": total, "hallucinated": hallucinated, "overall": shares}
    verdicts = [_verdict(one) for one in judged]  # a response that was not split is one fact that was not checked
    out |= {"n": len(verdicts) + facts.count(None), "checked": len(verdicts) - verdicts.count(None)}
    if kind is DETECTED:
        scores = [[s["scores"] or dict.fromkeys(LABELS, np.nan) for s in one["sentences"]] for one in judged]
        support = [float(np.min([s["supported"] + s["no_fact"] for s in own], initial=1)) for own in scores]
        gold, sizes = [one["made_up"] for one in judged], [len(one["answer"]) for one in judged]
        figures = detection(gold, [None if v is None else v == "hallucinated" for v in verdicts], support, sizes)
    else:
        answers: list[list[bool | None]] = [[] for _ in facts]
        for one, verdict in zip(judged, verdicts, strict=True):
            if verdict != "no_fact":
                answers[one["of"]].append(None if verdict is None else verdict == "supported")
        stated = [bool(own) for own, split in zip(answers, facts, strict=True) if split is not None]
        figures = {
            "factscore": fact_score(answers), "fact_precision": fact_score(answers, gamma=0),
            "answered": sum(stated) / len(stated) if stated else None,
        }  # fmt: skip
    return {**out, "overall": {key: _percent(value) for key, value in figures.items()}}


def _responses(
    options: Options, row: Row, documents: dict[str, Record], name: str, folder: RunFolder
) -> tuple[list[Record], int]:
    def check_response(record: Record) -> list[Problem]:
        problems = check_texts(record, question="text", response="text")
        if not problems and record["question"] not in documents:
            problems.append(Problem("question", shown(record["question"]), f"a question of {options.documents}"))
        return problems

    assert row.responses is not None  # as ``check`` says
    rejected = f"rejected.{name}.jsonl"
    found, bad = read_good(row.responses, check_response, folder, "lines with question and response", rejected)
    records = []
    for one in found:
        known = documents[one["question"]]
        texts = {"question": known["question"], "reference": known["document"], "answer": one["response"]}
        records.append({**texts, "language": known.get("language")})
    return records, bad


def _verdict(judged: Record) -> str | None:
    """What a whole text is: hallucinated where a sentence is, else None where one has no verdict."""
    labels = {sentence["label"] for sentence in judged["sentences"]}
    if labels & HALLUCINATED:
        return "hallucinated"
    return None if None in labels else "supported" if "supported" in labels else "no_fact"


def _facts(options: Options, records: list[Record], name: str, folder: RunFolder) -> list[list[str] | None]:
    """The atomic facts of each response as the splitter writes them; None where it wrote none, or no end."""
    assert options.splitter is not None  # as ``check`` says
    kept, answers = f"facts.{name}.jsonl", [one["answer"] for one in records]
    found = folder.rows(kept)
    if found and [one["answer"] for one in found] == answers:
        return [one["facts"] for one in found]  # a run that goes on judges what it judged: no failed one is split anew
    asked = ({key: neutral(one[key]) for key in ("question", "answer")} for one in records)
    chats = [[{"role": "user", "content": SPLIT.format(**texts)}] for texts in asked]
    with closing(open_engine(options.splitter, "splitter", folder / "replies.sqlite")) as engine:
        results = engine.chat(chats, Sampling(2048))
    check_asked(results)
    texts = [one.text if one.text and one.samples[0].finish_reason != "length" else None for one in results]
    statuses = ("failed" if text is None else "checked" for text in texts)
    refuse_failures(f"rows.{name}: the splitter", statuses, options.max_failed, "max_failed ")
    facts = [
        None if text is None
        else [fact for line in text.splitlines() if not NO_FACT.fullmatch(fact := BULLET.sub("", line).strip())]
        for text in texts
    ]  # fmt: skip
    folder.write_rows(kept, ({"answer": a, "facts": own} for a, own in zip(answers, facts, strict=True)))
    return facts


def _given(options: Options, row: Row, documents: dict[str, Record], name: str) -> tuple[list[Record], int]:
    """The true and made-up answers of a file of HaluEval or HalluQA, and how many of its lines lack them."""
    found = [_pairs(line, documents) for line in load_sentences(Data(sources=[str(row.responses)]))[0]]
    records, bad = [one for pairs in found for one in pairs], found.count([])
    expected = "answers of HaluEval or HalluQA, and a text to judge them by"
    if not records:
        raise UsageError(f"{row.responses}: expected {expected}; found none")
    if bad:
        print(f"# {name}: {counted(bad, 'line')} without {expected}; left out")
    return records[: options.limit], bad


def _pairs(line: Record, documents: Mapping[str, Record]) -> list[Record]:
    """A true answer and a made-up one after the other; HalluQA, which brings no texts, has up to four of each.

    There the reference is the question's document; without one the source and the other true answers.
    """
    found: list[tuple[Any, ...]] = []
    for what, document, question in map(str.split, HALUEVAL):
        if line.get(f"hallucinated_{what}"):
            both = (line.get(f"right_{what}"), line[f"hallucinated_{what}"])
            found.append(("en", line.get(question), line.get(document), *both))
    best, wrong = ([t for key, t in line.items() if t and key.startswith(k)] for k in ("Best Answer", "Wrong_Answer"))
    asked, source = str(line.get("Question")), re.sub(r"https?://[!-~]+", "", str(line.get("Source") or ""))
    for n, both in enumerate(zip(best, wrong, strict=False)):
        known = documents.get(asked, {"document": "\n".join([source, *best[:n], *best[n + 1 :]]).strip()})
        found.append(("zh", asked, known["document"], *both))
    return [
        {"language": language, "question": str(asked or ""), "reference": text, "answer": one, "made_up": bool(n)}
        for language, asked, text, *two in found if all(isinstance(t, str) and t.strip() for t in (text, *two))
        for n, one in enumerate(two)
    ]  # fmt: skip
