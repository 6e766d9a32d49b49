"""For `benchmarks/faults.py`: the soak of `mitigate fewl score --distributed`, in one process (`--workers 0`)."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.fault_tools import CONCURRENT, Server, command, expect, remove, row, soak, write_questions


def soak_shards(folder: Path, server: Server, kills: int, records: int, log: Path) -> str:
    """Kills in the middle of asking and scoring; a shard that calls itself done must be right, also after a kill."""
    source, output = folder / "questions.jsonl", folder / "shards"
    write_questions(source, 2 * records)
    whole: list[dict[str, bytes]] = []
    asked: list[int] = []

    def finished() -> dict[str, bytes]:
        marks = [*output.glob("part-*.done.json"), *output.glob("filled/part-*.done.json")]
        paths = [p for mark in marks for p in (mark, Path(str(mark).replace(".done.json", ".jsonl")))]
        return {str(p.relative_to(output)): p.read_bytes() for p in paths}

    def after_kill() -> None:
        for name, data in finished().items():
            expect(data == whole[0][name], f"shards: {name} says it is done and is not right")

    def at_end() -> None:
        whole.append({**finished(), "manifest.json": (output / "manifest.json").read_bytes()})
        expect(whole[-1] == whole[0], "shards: another result than without kills")
        parts = [whole[-1][n] for n in sorted(whole[-1]) if n.startswith("part-") and n.endswith(".jsonl")]
        ids = [json.loads(line)["id"] for part in parts for line in part.splitlines()]
        expect(ids == list(range(2 * records)), f"shards: records lost or twice: {ids}")

    def fresh() -> None:
        asked.append(sum(n - 1 for n in server.count().values()))
        remove(output)
        server.forget()

    how = ["--embedding", "tfidf", "--similarity", "rouge-l", "--expertise", "uniform"]
    engine = ["--reference-llm", f"openai:plain@{server.url}"]
    where = ["--distributed", "--workers", "0", "--shard-size", "7"]
    work = command("fewl", "score", *where, "--input", str(source), "--output", str(output), *how, *engine)
    fresh()
    found = soak(work, log, kills=kills, seed=5, fresh=fresh, after_kill=after_kill, at_end=at_end)
    fresh()
    expect(sum(asked[1:]) <= found.kills * CONCURRENT, f"shards: {sum(asked[1:])} questions were asked again")
    what = f"`mitigate fewl score --distributed --workers 0`, {2 * records} questions in shards of 7"
    return row(what, found, sum(asked[1:]))
