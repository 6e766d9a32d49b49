"""Training samples of the generative annotator: annotation, and the tasks that are trained beside it.

Source: ANAH (ACL 2024), §3.1. Annotation is asked for as the annotator does it (``prompts.py``, ``protocols.py``); the
wordings of the other tasks are in ``samples.yaml``. Everything is drawn by seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from annotators.evaluation.anah import gold_edits
from annotators.generative.prompts import MARKS, Chooser, Protocol, built_in
from annotators.generative.protocols import CHOICES, Item, Shown, Windows
from annotators.generative.tagged import neutral, write_tagged
from annotators.records import LABELS
from annotators.text.language import language_of_row
from annotators.text.words import tables

Task = Literal["annotation", "question_generation", "question_selection", "answer_generation", "dialogue"]
Message = dict[str, str]
Sample = dict[str, Any]
NO_POINTS = {"en": "<No Reference Information>", "zh": "<无参考信息>"}  # the reply without fragments, of three turns
DISTRACTORS = 3  # questions about other documents among which the right ones are to be found
WORDINGS: dict[str, dict[str, list[str]]] = tables(__file__)


def annotation_samples(
    rows: Sequence[Mapping[str, Any]], prompts: Sequence[str], windows: Windows, seed: int = 0,
    protocol: Protocol = "tagged",
) -> list[Sample]:  # fmt: skip
    """One sample for each turn about a labelled sentence: what the annotator would ask, the gold reply, ``label`` and
    ``number`` of the row.

    Where the window lacks a gold fragment, six times as much is shown, as in the annotator's second pass. Rows whose
    label is not one of the four are left out, and those whose verdict the annotator would not take without a fragment:
    supported ones, in three turns also contradictory ones. Of several ``prompts`` one is drawn for each sentence, in
    either order; one alone has the document first. ValueError where there is no such wording.
    """
    of_protocol = [t for t in built_in() if t.protocol == protocol]
    templates, known = [t for t in of_protocol if t.name in prompts], {t.name for t in of_protocol}
    if unknown := sorted(set(prompts) - known):
        raise ValueError(f"no such wording: {', '.join(unknown)}; expected some of {', '.join(sorted(known))}")
    proved = {"supported"} if protocol == "tagged" else {"supported", "contradictory"}
    rows = [row for row in rows if row["label"] in LABELS and (row["label"] not in proved or row.get("fragments"))]
    items = [
        Item(row["sentence"], row["reference"], row.get("question") or "", language_of_row(row), (row["sentence"],))
        for row in rows
    ]
    shown = windows.first(items)
    short = [n for n, (row, one) in enumerate(zip(rows, shown, strict=True)) if _lacks(one, row)]
    for n, wider in zip(short, windows.second([items[n] for n in short]), strict=True):
        shown[n] = wider
    several = len(prompts) > 1
    draw = Chooser(protocol, "random" if several else prompts[0], templates, seed)
    samples = []
    for n, (row, item, one) in enumerate(zip(rows, items, shown, strict=True)):
        template, order = draw(item.language, item.reference, f"{n} {item.question}" if several else item.question)
        inputs = {"reference": one.text, "question": item.question, "sentence": item.sentence}
        chat: list[Message] = []
        for turn, gold in enumerate(_replies(row, protocol, item.language)):
            chat.append(_user(template.fill(turn, order, inputs)))
            samples.append(_sample("annotation", list(chat), gold) | {"number": n, "label": row["label"]})
            chat += samples[-1]["completion"]
    return samples


def _replies(row: Mapping[str, Any], protocol: Protocol, language: str) -> list[str]:
    """The gold reply of each turn about a labelled sentence."""
    label, fragments = row["label"], row.get("fragments") or ()
    if protocol == "tagged":
        return [write_tagged(label, fragments, gold_edits(row), language)]
    (present, absent), kinds = CHOICES[language]
    if label == "no_fact":
        return [absent]
    if not fragments:
        return [present, NO_POINTS[language]]
    return [present, "<SEP>".join(map(neutral, fragments)), kinds[LABELS.index(label)]]


def _lacks(shown: Shown, row: Mapping[str, Any]) -> bool:
    """Whether a gold fragment of the reference is not in what is shown of it."""
    pieces = row.get("fragments") or ()
    return not shown.whole and any(piece in row["reference"] and piece not in shown.text for piece in pieces)


def question_samples(topics: Sequence[Mapping[str, Any]], *, several: bool, seed: int = 0) -> dict[Task, list[Sample]]:
    """Question tasks from {"reference", "questions", "lang"} of topics; ``several`` draws wordings."""
    draw = random.Random(seed)
    out: dict[Task, list[Sample]] = {"question_generation": [], "question_selection": []}
    for topic in topics:
        language = language_of_row(topic)
        questions = list(dict.fromkeys(topic["questions"]))
        document = _document(topic["reference"], language)
        text = _wording("question_generation", language, several, draw).format(document=document, n=str(len(questions)))
        out["question_generation"].append(_sample("question_generation", [_user(text)], "\n".join(questions)))
        asked = {q for other in topics if language_of_row(other) == language for q in other["questions"]}
        others = sorted(asked - set(questions))
        if not others:
            continue
        mixed = [*questions, *draw.sample(others, min(DISTRACTORS, len(others)))]
        draw.shuffle(mixed)
        text = _wording("question_selection", language, several, draw).format(
            document=document, questions="\n".join(f"- {neutral(q)}" for q in mixed)
        )
        kept = "\n".join(neutral(q) for q in mixed if q in questions)
        out["question_selection"].append(_sample("question_selection", [_user(text)], kept))
    return out


def answer_samples(rows: Sequence[Mapping[str, Any]], *, several: bool, seed: int = 0) -> list[Sample]:
    """Samples of answer generation from answers in which no sentence is hallucinated, so that none is taught."""
    draw = random.Random(seed)
    answers: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("answer") and row.get("question"):
            answers.setdefault((row["reference"], row["question"], row["answer"]), []).append(row)
    samples = []
    for (reference, question, answer), own in answers.items():
        labels = {row["label"] for row in own}
        if labels <= {"supported", "no_fact"} and "supported" in labels:
            language = language_of_row(own[-1])
            text = _wording("answer_generation", language, several, draw).format(
                document=_document(reference, language), question=neutral(question)
            )
            samples.append(_sample("answer_generation", [_user(text)], answer))
    return samples


def dialogue_samples(rows: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    """General dialogue (see ``_messages``): the last assistant's message, given all before."""
    for messages in map(_messages, rows):
        said = (n for n, m in enumerate(messages) if m["role"] == "assistant" and m["content"].strip())
        last = max(said, default=0)
        if last > 0:
            yield _sample("dialogue", messages[:last], messages[last]["content"])


def mix(samples: Mapping[Task, Sequence[Sample]], shares: Mapping[Task, float], seed: int = 0) -> list[Sample]:
    """All annotation samples, and of each other task, as far as there are any, what its share is to that of annotation,
    which is above 0.
    """
    draw = random.Random(seed)
    chosen = list(samples["annotation"])
    whole = len(chosen) / shares["annotation"]
    for task in sorted(shares.keys() - {"annotation"}):
        there = list(samples.get(task, ()))
        chosen += draw.sample(there, min(len(there), round(whole * shares[task])))
    draw.shuffle(chosen)
    return chosen


def _messages(row: Mapping[str, Any]) -> list[Message]:
    """The dialogue of a row in the form of messages, ShareGPT or Dolly; empty where it has none of these."""
    name, given = next(((k, row[k]) for k in ("messages", "conversations") if isinstance(row.get(k), list)), ("", []))
    if not all(isinstance(m, Mapping) for m in given):
        return []
    if name == "messages":
        whole = all(isinstance(m.get("role"), str) for m in given)
        return [{"role": m["role"], "content": _text_of(m.get("content"))} for m in given] if whole else []
    if name:
        roles = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
        turns = [(roles.get(str(m.get("from"))), str(m.get("value") or "")) for m in given]
        return [{"role": role, "content": text} for role, text in turns if role]
    if row.get("instruction") and row.get("response"):
        asked = "\n\n".join(str(row[k]) for k in ("instruction", "context") if row.get(k))
        return [_user(asked), {"role": "assistant", "content": str(row["response"])}]
    return []


def _text_of(content: object) -> str:
    """A message's text, or that of its parts; "" where it only calls tools."""
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def _wording(task: str, language: str, several: bool, draw: random.Random) -> str:
    wordings = WORDINGS[task][language]
    return draw.choice(wordings) if several else wordings[0]


def _document(reference: str, language: str) -> str:
    mark = MARKS[language]["reference"]
    return f"<{mark}>\n{neutral(reference)}\n</{mark}>"


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _sample(task: Task, messages: list[Message], answer: str) -> Sample:
    return {"task": task, "prompt": messages, "completion": [{"role": "assistant", "content": answer}]}
