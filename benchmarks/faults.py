"""Kills, full disks, dead servers: what is left, and whether the same command finishes as if nothing had happened.

    OMP_NUM_THREADS=1 python -m benchmarks.faults [--kills 30] [--records 60] [--only NAME …]

Soaks. A process is killed (SIGKILL) at a random moment of its run, started again, killed again, until it ends; then all
begins anew, until so many kills have hit. After each kill the output must be the beginning of the uninterrupted run's
output, at each end its equal, byte for byte, with nothing lost and nothing twice; where it is not, the row says FAILED
in place of numbers. Texts are the pocket world's and the data set example's; the LLM is a
scripted server that counts what it is asked.

Other faults: a disk that is full and then is not (a small file system, needs root), an output that can't be written, a
server that dies and returns, Ctrl-C. Writes docs/results/faults.md from the parts that are done, which are kept
beside it; exit code 1 where something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.fault_tools import (
    CONCURRENT,
    Server,
    command,
    expect,
    preload,
    remove,
    row,
    small_disk,
    soak,
    start,
    write_questions,
    write_records,
)
from benchmarks.kept import RESULTS, Part, keep, parts, provenance

PAGE = RESULTS / "faults.md"


def beginning(output: Path, whole: bytes) -> None:
    """What a killed run may leave: the first bytes of the whole result, or nothing."""
    found = output.read_bytes() if output.exists() else b""
    expect(whole.startswith(found), f"{output} is not the beginning of the uninterrupted run's output")


def asked_once(server: Server, kills: int) -> int:
    """How often something was asked again; more than what was in flight at the kills is wrong."""
    again = sum(n - 1 for n in server.count().values())
    expect(again <= kills * CONCURRENT, f"{again} questions were asked again after {kills} kills")
    return again


class Soaks:
    """The soaks; each returns a row of the table."""

    def __init__(self, folder: Path, server: Server, kills: int, records: int) -> None:
        self.folder, self.server, self.kills, self.records = folder, server, kills, records
        self.log = folder / "log.txt"

    def annotate(self) -> str:
        source, output = self.folder / "in.jsonl", self.folder / "annotated.jsonl"
        write_records(source, self.records)
        whole: list[bytes] = []

        def at_end() -> None:
            whole.append(output.read_bytes())
            expect(whole[-1] == whole[0], "annotate: another result than without kills")
            ids = [json.loads(line)["id"] for line in whole[-1].splitlines()]
            expect(ids == list(range(self.records)), f"annotate: records lost or twice: {ids}")

        found = soak(
            command("annotate", "--input", str(source), "--output", str(output), "--chunk-size", "4"),
            self.log,
            kills=self.kills,
            seed=1,
            fresh=lambda: remove(output),
            after_kill=lambda: beginning(output, whole[0]),
            at_end=at_end,
        )
        return row(f"`mitigate annotate`, {self.records} records", found, None)

    def fewl(self) -> str:
        source, output = self.folder / "questions.jsonl", self.folder / "scored.jsonl"
        write_questions(source, 2 * self.records)
        whole: list[bytes] = []
        asked: list[int] = []

        def at_end() -> None:
            whole.append(output.read_bytes())
            expect(whole[-1] == whole[0], "fewl: another result than without kills")
            expect(len(whole[-1].splitlines()) == 2 * self.records, "fewl: records lost or twice")
            expect(len(self.server.count()) == 2 * self.records, "fewl: other questions than without kills")

        def fresh() -> None:
            if self.server.count():
                asked.append(sum(n - 1 for n in self.server.count().values()))
            remove(output)
            self.server.forget()

        found = soak(self.fewl_command(source, output), self.log, kills=self.kills, seed=2, fresh=fresh,
                     after_kill=lambda: beginning(output, whole[0]), at_end=at_end)  # fmt: skip
        fresh()
        expect(sum(asked) <= found.kills * CONCURRENT, f"fewl: {sum(asked)} questions were asked again")
        return row(f"`mitigate fewl score`, {2 * self.records} questions", found, sum(asked))

    def fewl_command(self, source: Path, output: Path) -> Callable[[], int]:
        engine = f"openai:plain@{self.server.url}"
        options = ["--expertise", "uniform", "--embedding", "tfidf", "--reference-llm", engine]
        return command("fewl", "score", "--input", str(source), "--output", str(output), *options)

    def cache(self) -> str:
        path, n = self.folder / "cache.sqlite", 10 * self.records
        self.server.forget()
        asked: list[int] = []

        def work() -> int:
            from engines.chat import load_engine

            engine = load_engine(f"openai:plain@{self.server.url}", cache=path)
            chats = [[{"role": "user", "content": f"What is number {i}?"}] for i in range(n)]
            failed = [r.error for r in engine.chat(chats) if r.error is not None]
            engine.close()
            print(failed)
            return len(failed[:1])

        def stored() -> list[str]:
            if not path.exists():
                return []
            database = sqlite3.connect(path)
            try:
                expect(database.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "cache: damaged")
                if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    return []
                return [row[0] for row in database.execute("SELECT key || result FROM answers ORDER BY key")]
            finally:
                database.close()

        whole: list[list[str]] = []

        def at_end() -> None:
            whole.append(stored())
            expect(len(whole[-1]) == n, f"cache: {len(whole[-1])} answers of {n}")
            expect(whole[-1] == whole[0], "cache: other answers than without kills")

        def fresh() -> None:
            asked.append(sum(c - 1 for c in self.server.count().values()))
            remove(path)
            self.server.forget()

        def after_kill() -> None:
            expect(set(stored()) <= set(whole[0]), "cache: an answer that was never given")

        found = soak(work, self.log, kills=self.kills, seed=3, fresh=fresh, after_kill=after_kill, at_end=at_end)
        fresh()
        expect(sum(asked) <= found.kills * CONCURRENT, f"cache: {sum(asked)} chats were asked again")
        return row(f"response cache, {n} chats", found, sum(asked))

    def dataset(self) -> str:
        from tests.helpers.dataset_llm import EXAMPLE

        output, recipe, topics = (self.folder / n for n in ("data", "recipe.yaml", "topics.jsonl"))
        lines = (EXAMPLE / "topics.jsonl").read_text("utf-8").splitlines()
        topics.write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
        recipe.write_text(json.dumps({
            "task": "build-dataset", "about": "soak", "hardware": "any", "topics": str(topics), "chunk_size": 2,
            "engine": f"openai:player@{self.server.url}", "corpus": [str(EXAMPLE / "documents")],
            "questions": {"per_topic": 4}, "answers": [{"with_reference": True}, {"with_reference": False}],
        }), encoding="utf-8")  # fmt: skip
        whole: list[dict[str, bytes]] = []
        asked: list[int] = []

        def at_end() -> None:
            skip = ("responses.", "versions.", ".lock", "config.", "metrics.")
            files = sorted(p for p in output.rglob("*") if p.is_file() and not p.name.startswith(skip))
            whole.append({str(p.relative_to(output)): p.read_bytes() for p in files})
            expect(len(whole[0]) > 5, f"dataset: only {list(whole[0])}")
            for name in whole[0].keys() | whole[-1].keys():
                expect(whole[-1].get(name) == whole[0].get(name), f"dataset: {name} differs")

        def fresh() -> None:
            asked.append(sum(c - 1 for c in self.server.count().values()))
            remove(output)
            self.server.forget()

        def work() -> int:
            return command("run", str(recipe), "--output", str(output))()

        found = soak(work, self.log, kills=self.kills, seed=4, fresh=fresh, after_kill=lambda: None, at_end=at_end)
        fresh()
        expect(sum(asked) <= found.kills * CONCURRENT, f"dataset: {sum(asked)} requests were asked again")
        return row("`mitigate run` of a build-dataset recipe, 2 topics", found, sum(asked))

    # --- other faults ---------------------------------------------------------------------------------------------

    def full_disk(self) -> list[str]:
        """Annotate and FEWL on a file system that is too small, then enlarged."""
        rows = []
        source, questions = self.folder / "in.jsonl", self.folder / "questions.jsonl"
        for name, made in (
            ("annotate", lambda out: command("annotate", "--input", str(source), "--output", str(out))),
            ("fewl score", lambda out: self.fewl_command(questions, out)),
        ):
            right = self.folder / "right.jsonl"
            remove(right)
            expect(start(made(right), self.log).wait() == 0, f"{name}: {self.log.read_text()}")
            place = self.folder / "disk"
            with small_disk(place, 48) as remount:
                output = place / "out.jsonl"
                run = start(made(output), self.log)
                code, said = run.wait(), message(run.said)
                expect(code == 1, f"{name} on a full disk: exit code {code}: {run.said[-500:]}")
                if name == "annotate":
                    beginning(output, right.read_bytes())
                remount("size=64m")
                run = start(made(output), self.log)
                expect(run.wait() == 0, f"{name} with room again: {run.said[-500:]}")
                expect(output.read_bytes() == right.read_bytes(), f"{name}: another result after a full disk")
            rows.append(f"| disk full: {name} | exit code 1; {said} | the same bytes |")
        return rows

    def read_only(self) -> list[str]:
        source, place = self.folder / "in.jsonl", self.folder / "disk"
        with small_disk(place, 48) as remount:
            remount("ro")
            made = command("annotate", "--input", str(source), "--output", str(place / "out.jsonl"))
            run = start(made, self.log)
            code = run.wait()
            expect(code == 2, f"read-only output: exit code {code}: {run.said[-500:]}")
            expect(list(place.iterdir()) == [], "read-only output: something was written")
            return [f"| read-only output | exit code 2; {message(run.said)} | nothing written |"]

    def server_dies(self) -> list[str]:
        """The server is killed in the middle; once it returns late, once while the client still tries."""
        source, right = self.folder / "questions.jsonl", self.folder / "right.jsonl"
        output = self.folder / "scored.jsonl"
        rows = []
        remove(right)
        expect(start(self.fewl_command(source, right), self.log).wait() == 0, self.log.read_text())
        for late in (True, False):
            remove(output)
            self.server.forget()
            run = start(self.fewl_command(source, output), self.log)
            while sum(self.server.count().values()) < self.records // 2:
                expect(run.wait(0.01) is None, f"ended before the server died: {run.said[-500:]}")
            self.server.down()
            if late:
                code, said = run.wait(), message(run.said)
                expect(code == 1, f"server gone: exit code {code}: {run.said[-500:]}")
                self.server.up()
                run = start(self.fewl_command(source, output), self.log)
            else:
                time.sleep(0.3)
                self.server.up()
                said = "the client tries again"
            expect(run.wait() == 0, f"server back: {run.said[-500:]}")
            expect(output.read_bytes() == right.read_bytes(), "another result after the server had died")
            again = asked_once(self.server, 1)
            when = "after the run gave up, run again" if late else "0.3 s later"
            first = f"exit code 1; {said}" if late else said
            rows.append(f"| server killed, back {when} | {first} | the same bytes, {again} asked again |")
        return rows

    def interrupt(self) -> list[str]:
        source, output, right = (self.folder / n for n in ("in.jsonl", "out.jsonl", "right.jsonl"))
        remove(output, right)
        made = command("annotate", "--input", str(source), "--output", str(output), "--chunk-size", "4")
        again = command("annotate", "--input", str(source), "--output", str(right), "--chunk-size", "4")
        expect(start(again, self.log).wait() == 0, self.log.read_text())
        run = start(made, self.log)
        while not output.exists() or not output.stat().st_size:
            expect(run.wait(0.01) is None, f"ended before Ctrl-C: {run.said[-500:]}")
        run.send(signal.SIGINT)
        code, said = run.wait(), message(run.said)
        expect(code == 130, f"Ctrl-C: exit code {code}: {run.said[-500:]}")
        beginning(output, right.read_bytes())
        expect(start(made, self.log).wait() == 0, self.log.read_text())
        expect(output.read_bytes() == right.read_bytes(), "another result after Ctrl-C")
        return [f"| Ctrl-C in `annotate` | exit code 130; {said} | the same bytes |"]


def message(said: str) -> str:
    """The one line that tells the user, without the paths of this run."""
    expect("Traceback" not in said, f"a traceback instead of a message: {said[-1500:]}")
    line = [line for line in said.splitlines() if line.startswith("mitigate: ")][-1]
    words = [Path(w.strip("():,;")).name if w.startswith("/") else w for w in line.split()]
    return "“" + " ".join(words).replace("|", "\\|") + "”"


SOAKS = ("annotate", "fewl", "cache", "dataset")
FAULTS = ("full_disk", "read_only", "server_dies", "interrupt")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=30, help="of each soak (%(default)s)")
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument("--only", nargs="*", choices=SOAKS + FAULTS, help="do these parts anew")
    args = parser.parse_args()
    preload()
    rows: dict[str, list[str]] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        server.up()
        try:
            soaks = Soaks(Path(folder), server, args.kills, args.records)
            write_records(Path(folder, "in.jsonl"), args.records)
            write_questions(Path(folder, "questions.jsonl"), 2 * args.records)
            for name in args.only or SOAKS + FAULTS:
                begin = time.monotonic()
                try:
                    found = getattr(soaks, name)()
                except RuntimeError as error:
                    failed.append(f"{name}: {error}")
                    found = f"| {name} | FAILED: {' '.join(str(error).split())[:300]} | |"
                rows[name] = [found] if isinstance(found, str) else found
                print(f"{name}: {time.monotonic() - begin:.0f} s", *rows[name], sep="\n", flush=True)
                keep(PAGE, name, {"rows": rows[name], "records": args.records, "kills": args.kills})
        finally:
            server.down()
    PAGE.write_text(page(parts(PAGE)), encoding="utf-8")
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return bool(failed)


def table(kept: dict[str, Part], names: Sequence[str]) -> str:
    """The rows of the parts; one that was not run says so."""
    rows = [
        row for name in names for row in (kept[name]["found"]["rows"] if name in kept else [f"| {name} | not run |"])
    ]
    return "\n".join(rows)


def runs(kept: dict[str, Part]) -> str:
    """With what options the parts were run."""
    how: dict[str, list[str]] = {}
    for name, part in kept.items():
        found = part["found"]
        how.setdefault(f"`--kills {found['kills']} --records {found['records']}`", []).append(name)
    return "; ".join(f"{', '.join(names)}: {options}" for options, names in how.items())


def page(kept: dict[str, Part]) -> str:
    about = (__doc__ or "").split("\n\n", 2)[2].rsplit("Writes", 1)[0].strip()
    return f"""# Faults survived

`python -m benchmarks.faults`

{about}

A 2-core CPU machine, Linux. Options: {runs(kept)}.

{provenance(kept)}

## Killed at random

| what | kills | finished runs | asked again |
|---|---:|---:|---:|
{table(kept, SOAKS)}

"Asked again" are requests that were on their way when the process died, at most {CONCURRENT} a kill; the server counted
them. FEWL in one process writes its output anew at the end: what it keeps is every reply. Killed workers and nodes of
`--distributed`: [scale.md](scale.md), `tests/mitigate/test_scale.py`.

## Other faults

| fault | what the program does | the same command, once it is mended |
|---|---|---|
{table(kept, FAULTS)}
"""


if __name__ == "__main__":
    sys.exit(main())
