"""Task `self-training`: an annotator labels answers by itself, and is trained again on what it says alike.

    round 0   train on the labelled sentences
    round n   annotate every unlabelled answer `samples` times with the annotator of round n − 1, keep the sentences
              whose label enough samples share, and train the base anew on the labelled and the kept sentences

Source: ANAH-v2 (NeurIPS 2024), an EM loop. Theirs annotates in three turns (here `protocol: three-turn`), keeps a
sentence however the vote ends and adds answers, then topics, from round to round; ours asks for a share of the votes,
compares evidence by its place in the reference, and takes the same answers each round. Answers that stand in the parts
that evaluate or watch the loss, to their questions, or about their documents, are left out; a document with one word
changed is another.

The run folder gets the splits, labelled.N.jsonl (the votes on each sentence, and what was kept) and round-N/, a run
folder of `generative-annotator`. A killed run goes on with the answer or the step that it was at.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from annotators.records import failed_share
from engines.types import EngineError
from mitigate.icl import normalised
from mitigate.io import Record, UsageError, check_annotation_input, progress
from mitigate.recipes import generative_annotator as generative
from mitigate.recipes.annotator_training import ANNOTATOR, Rows, load_splits, watched
from mitigate.recipes.data import check_files, read_good
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.trainer import give_back

CHUNK = 8  # answers annotated between two writes
ANSWER = ("question", "reference", "answer", "language")


class Options(generative.Settings):
    task: Literal["self-training"]
    unlabelled: list[Path] = Field(min_length=1, description="answers as `mitigate annotate` takes them, JSON Lines")
    rounds: int = Field(default=2, ge=1, description="of annotating and training anew")
    samples: int = Field(default=5, ge=2, description="annotations of each sentence")
    temperature: float = Field(default=0.7, gt=0, le=2)
    agreement: float = Field(default=0.8, gt=0.5, le=1, description="share of samples that must have the same label")
    reply_tokens: int = Field(default=768, ge=1)
    engine: Literal["transformers", "vllm"] = Field(default="transformers", description="that annotates")


def check(options: Options) -> None:
    generative.check(options)
    check_files(*options.unlabelled, key="unlabelled: ")
    if options.engine == "vllm" and find_spec("vllm") is None:
        raise UsageError("engine: vllm is not installed: pip install 'hallucination-toolkit[vllm]'")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("self-training runs in one process, got WORLD_SIZE above 1; start it without a launcher")


def run(options: Options, folder: RunFolder) -> int:
    """Train, annotate and train anew; 3 where lines of answers or dialogues were rejected."""
    splits = load_splits(options.data, folder)
    gold, to_watch = watched(splits)
    answers, bad = _unlabelled(options, folder, {**splits, "watched": to_watch})
    table, kept = [], Rows()
    for n in range(options.rounds + 1):
        stage = RunFolder(folder / f"round-{n}")
        stage.path.mkdir(exist_ok=True)
        votes: dict[str, Any] = {}
        if n:
            _annotate(options, folder, answers, n)
            judged = folder.rows(f"labelled.{n}.jsonl")
            kept = list(_kept(judged, n))
            sentences = [sentence for one in judged for sentence in one["sentences"]]
            unread = failed_share(sum((Counter(one["votes"]) for one in sentences), Counter()))
            labels = dict(Counter(row["label"] for row in kept))
            votes = {"kept": len(kept), "of": len(sentences), "labels": labels, "unread": unread}
            if not kept:
                raise EngineError(
                    f"round {n}: none of {len(sentences)} sentences got one label in {options.agreement:.0%} of "
                    f"{options.samples} samples; take more labelled sentences or a stronger base"
                )
        print(f"# round {n}: {len(gold)} labelled and {len(kept)} kept sentences", flush=True)
        if stage.done is None:
            stage.finish(generative.train(options, stage, [*gold, *kept], to_watch))
            give_back()
        table.append({"round": n, "gold": len(gold), **votes, **(stage.done or {})})
    folder.finish({"rounds": table, "rejected": bad})
    print("\n".join(json.dumps(row) for row in table))
    files = " ".join(str(folder / f"{name}.jsonl") for name in splits if name not in ("train", "test"))
    first, last = (f"generative:transformers:{folder / f'round-{n}' / ANNOTATOR}" for n in (0, options.rounds))
    print(f"# what it gained: mitigate evaluate --compare {first} {last} --input {files}")
    print(f"# a server does not know how it was trained; give {generative.as_served(options)}")
    return 3 if bad or any(row.get("rejected_dialogues") for row in table) else 0


def _unlabelled(options: Options, folder: RunFolder, splits: Mapping[str, Rows]) -> tuple[list[Record], int]:
    """The answers to annotate, without those that would tell something about the parts that evaluate or are watched."""
    read = [
        read_good(path, check_annotation_input, folder, "answers (reference, answer)", f"rejected.{place}.jsonl")
        for place, path in enumerate(options.unlabelled)
    ]
    found = [one for good, _ in read for one in good]

    def held(key: str, *but: str) -> set[str]:
        parts = (part for name, part in splits.items() if name not in ("train", *but))
        return {normalised(row.get(key) or "") for part in parts for row in part} - {""}

    questions, said, references = held("question"), held("answer"), held("reference")
    documents = held("reference", "unseen_question")  # these are about documents that train: the question tells
    asked = [normalised(one.get("question") or "") for one in found]
    apart = [
        one for one, question in zip(found, asked, strict=True)
        if normalised(one["answer"]) not in said and question not in questions
        and normalised(one["reference"]) not in (documents if question else references)
    ]  # fmt: skip
    print(f"# unlabelled: {len(apart)} answers; {len(found) - len(apart)} left out, of the parts that evaluate")
    if not apart:
        raise UsageError("unlabelled: no answer is left that does not stand in, or ask about, the evaluating parts")
    return apart, sum(bad for _, bad in read)


def _annotate(options: Options, folder: RunFolder, answers: Sequence[Record], n: int) -> None:
    """Write the votes of round ``n`` on each answer, by the annotator of the round before; goes on where it stopped."""
    name = f"labelled.{n}.jsonl"
    written = folder.rows(name)
    if len(written) == len(answers):
        return
    done = len(written) - len(written) % CHUNK  # chunks are drawn alike only when they are whole
    folder.write_rows(name, written[:done])
    from annotators.generative.annotator import GenerativeAnnotator
    from annotators.generative.protocols import Options as Asking
    from engines.embedding import Embedder
    from mitigate.models import open_engine

    place = folder / f"round-{n - 1}" / ANNOTATOR
    trust_remote_code = options.training.trust_remote_code
    engine_name = f"{options.engine}:{place}"
    with closing(open_engine(engine_name, "engine", trust_remote_code=trust_remote_code)) as engine:
        embedder = Embedder()
        annotators = [
            GenerativeAnnotator(
                engine,
                Asking(
                    protocol=options.protocol, prompt=options.prompts[0], window=options.window,
                    window_tokens=options.window_tokens, max_retries=0, max_tokens=options.reply_tokens,
                    temperature=options.temperature, seed=options.training.seed + k, logprobs=False,
                ),
                embedder=embedder,
            ) for k in range(options.samples)
        ]  # fmt: skip
        with progress(f"round {n}: annotating", len(answers), done) as tell:
            for at in range(done, len(answers), CHUNK):
                chunk = answers[at : at + CHUNK]
                several = zip(*(annotator.annotate_batch(chunk) for annotator in annotators), strict=True)
                rows = (_voted(one, said, options.agreement) for one, said in zip(chunk, several, strict=True))
                folder.append(name, rows)
                tell(min(at + CHUNK, len(answers)))


def _voted(answer: Record, said: Sequence[Any], least: float) -> Record:
    """An answer with the votes on each of its sentences, and what the samples agree on."""
    from annotators.evaluation.agreement import consistent

    sentences = []
    for samples in zip(*(one.sentences for one in said), strict=True):
        row = {"text": samples[0].text, "start": samples[0].start}
        row["votes"] = dict(Counter(one.label or one.status for one in samples))
        chosen = consistent(samples, least)
        if chosen is not None:
            row |= {"label": chosen.label, "fragments": [f.text for f in chosen.fragments]}
            row["edits"] = [[edit.source, edit.target] for edit in chosen.correction]
        sentences.append(row)
    return {key: answer.get(key) for key in ANSWER} | {"sentences": sentences}


def _kept(judged: Sequence[Record], n: int) -> Iterator[Record]:
    """The sentences that the samples agree on, as labelled ones."""
    from annotators.evaluation.anah import apply_edits
    from annotators.text.language import declared_or_found

    for place, one in enumerate(judged):
        language = declared_or_found(one["language"], one["answer"])
        shared = {"lang": language, **{key: one[key] for key in ANSWER[:3]}, "annotated_by": "machine"}
        for number, s in enumerate(one["sentences"]):
            if "label" in s:
                correction = apply_edits(s["text"], s["edits"]) if s["edits"] else None
                found = {key: s[key] for key in ("start", "label", "fragments", "edits")}
                yield {"id": f"round-{n}/{place}/{number}", "sentence": s["text"], **shared, **found} | {
                    "correction": correction
                }
