"""What `mitigate fewl score --distributed` does between its two rounds of shards: looks at the corpus as a whole.

    OUTPUT/filled/part-00007.jsonl         records with what they lacked: {"record": …, "prompted": {LLM: r}}
    OUTPUT/filled/part-00007.npy           vectors of their questions, (n, D) float32
    OUTPUT/filled/part-00007.around.json   their neighbour questions and these questions' reference answers
    OUTPUT/filled/frequencies.json         how common words or character n-grams are, where the similarity weighs them

Memory holds the distinct questions with their vectors and reference answers, and nothing of the answers. Knows
nothing of Ray.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace

import fsspec
import numpy as np
from numpy.typing import NDArray

from fewl.records import read_record
from fewl.score import Expertise, FewlOptions, FewlReport, chosen_llms, neighbours_of
from fewl.similarity import char_tfidf, character_grams, words
from fewl.surroundings import Whole
from mitigate.errors import UsageError
from mitigate.jsonl import Record, dump_line
from mitigate.shard_results import Format, write_whole
from mitigate.shards import Shard, read_shard


@dataclass(frozen=True)
class Task:
    """What is to be done; fields as the options of `mitigate fewl score`.

    Attributes:
        options: How to score.
        expertise: None takes similarity where records have IW/CO pairs, else uniform.
        cache: File of replies for all shards, on this machine; None keeps one beside each shard, where the output is
            a local folder.
    """

    input: str
    output: str
    shard_rows: int = 1000
    options: FewlOptions = field(default_factory=FewlOptions)
    expertise: Expertise | None = None
    similarity: str = "cosine"
    embedding: str = "auto"
    llms: tuple[str, ...] = ()
    samples: int = 1
    cache: str | None = None
    format: Format = "jsonl"

    @property
    def filled(self) -> str:
        return f"{self.output.rstrip('/')}/filled"

    @property
    def wants_pairs(self) -> bool:
        return bool(self.llms) and self.expertise in (None, "similarity", "prompted")

    def counts(self, tfidf: bool) -> Callable[[str], list[str]] | None:
        """What the similarity weighs by how common it is: of a text its words or character n-grams."""
        if self.similarity == "new-words":
            return words
        return character_grams if self.similarity == "cosine" and tfidf else None


def filled_rows(task: Task, shard: Shard) -> Iterator[Record]:
    """The rows of a shard's filled file."""
    for line in read_shard(filled_shard(task, shard), lambda _: []):
        if line.record is None:
            raise RuntimeError(
                f"{task.filled}/{shard.name}.jsonl is damaged: delete it and {shard.name}.done.json beside it, "
                "and run the same command again"
            )
        yield line.record


def filled_shard(task: Task, shard: Shard) -> Shard:
    """A shard's filled file, whole."""
    system, path = fsspec.core.url_to_fs(f"{task.filled}/{shard.name}.jsonl")
    return Shard(shard.number, system.unstrip_protocol(path), 0, system.size(path), 1)


def gather(task: Task, shards: Sequence[Shard], tfidf: bool) -> tuple[Whole, NDArray[np.float32] | None]:
    """One pass over the filled records, in the order of the corpus.

    Returns:
        What the parts must know of the whole, and vectors_QD of its distinct questions where neighbours are wanted.

    Raises:
        UsageError: No record has reference answers.
    """
    whole = Whole(task.options.references, task.options.weak, task.counts(tfidf))
    vectors: list[NDArray[np.float32]] = []
    for shard in shards:
        rows: NDArray[np.float32] | None = None
        if task.options.penalty and not tfidf:
            with fsspec.open(f"{task.filled}/{shard.name}.npy", "rb") as file:
                rows = np.load(file, allow_pickle=False)
        for place, row in enumerate(filled_rows(task, shard)):
            record = read_record(row["record"])
            if rows is not None and record.question not in whole.pool:
                vectors.append(rows[place].copy())
            whole.add(record)
    if not whole.samples:
        raise UsageError(f"{task.input}: no record has reference_answers; add some, or give --reference-llm")
    if not task.options.penalty:
        return whole, None
    return whole, char_tfidf()(whole.questions) if tfidf else np.stack(vectors)


def resolved(task: Task, whole: Whole) -> Task:
    """The task with its expertise decided.

    Raises:
        UsageError: It needs pairs, and there are none, or names an LLM that gave no reference answer.
    """
    try:
        chosen_llms(list(whole.samples), task.options.references, task.options.weak)
    except ValueError as error:
        raise UsageError(str(error)) from error
    expertise: Expertise = task.expertise or ("similarity" if whole.has_pairs else "uniform")
    if expertise == "similarity" and not whole.has_pairs:
        raise UsageError("--expertise similarity: no record has iw and co; add them, or give --reference-llm")
    return replace(task, expertise=expertise, options=replace(task.options, expertise=expertise))


def surround(
    task: Task, shards: Sequence[Shard], whole: Whole, vectors_QD: NDArray[np.float32] | None
) -> None:
    """Write what each of these shards must know of the others."""
    if whole.items_of is not None:
        texts, items = whole.frequencies
        write_whole(f"{task.filled}/frequencies.json", dump_line({"texts": texts, "items": items}))
    questions = whole.questions
    number = {question: place for place, question in enumerate(questions)}
    table_QK = np.full((len(questions), 0), -1, dtype=np.int64)
    if vectors_QD is not None:
        table_QK = neighbours_of(vectors_QD, task.options)
    for shard in shards:
        asked = dict.fromkeys(read_record(row["record"]).question for row in filled_rows(task, shard))
        around = whole.around({question: table_QK[number[question]] for question in asked}, questions)
        write_whole(f"{task.filled}/{shard.name}.around.json", dump_line(asdict(around)))


def merged(parts: Sequence[Record], whole: Whole) -> Record:
    """The shards' reports as one: counts added up, mean λ over all questions with that LLM."""
    total: Record = {f.name: 0 for f in fields(FewlReport) if f.type == "int"}
    missing: Counter[str] = Counter()
    for part in parts:
        for name in total:
            total[name] += part["report"][name]
        missing.update(part["report"]["missing_references"])
    total["distinct_questions"] = len(whole.questions)
    names = [name for name in whole.samples if name in missing]
    means: dict[str, float | None] = {}
    for name in names:
        found = [part["lambda"][name] for part in parts if name in part["lambda"]]
        count = sum(n for _, n in found)
        means[name] = math.fsum(s for s, _ in found) / count if count else None
    return {**total, "missing_references": {n: missing[n] for n in names}, "mean_lambda": means}
