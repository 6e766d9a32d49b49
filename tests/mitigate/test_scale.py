"""`--distributed`: the bytes of one process, each record once, whatever dies on the way.

Most tests work in this process (`--workers 0`). Those that start Ray are skipped where it is not installed;
`.ci/run` runs them in an environment of its own.
"""

import hashlib
import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import annotators
from mitigate import models
from mitigate.cli.main import main
from mitigate.io import UsageError, check_annotation_input, read_lines
from mitigate.scale import PartsError, Pool, Task, do_parts, folder_of
from tests.helpers.engines_server import completion, error, serving
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.rule_annotator import RuleAnnotator
from tests.helpers.standin import wait_until

RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not RAY, reason="needs the extra ray, which is not installed")
BOM = b"\xef\xbb\xbf"
SCALED = ("--distributed", "--workers", 0, "--part-size", 2)


def record(i):
    text = f"Bridge {i} opened in 1931."
    return {"id": i, "reference": f"{text} 石桥。", "answer": text}


def ids(output):
    return [row["id"] for row in read_rows(output)]


def questions(n):
    """Questions that lack reference answers and, some of them, pairs; the last stands twice."""
    rows = [{"id": i, "question": f"When was tower {min(i, n - 2)} built?"} for i in range(n)]
    pairs = {"iw": ["never"], "co": ["a stone"]}
    return [{**row, "answers": [{"text": f"a stone {i}"}], **(pairs if i % 3 else {})} for i, row in enumerate(rows)]


class Place:
    """An input of six records with a byte order mark, a blank line and a bad line; commands that read it."""

    def __init__(self, folder, said):
        self.source, self.output, self.one = (folder / f"{name}.jsonl" for name in ("in", "out", "one"))
        self.parts, self.said = folder_of(self.output), said
        lines = [json.dumps(record(i), ensure_ascii=False).encode() for i in range(6)]
        lines[2:2] = [b"", b"{broken"]
        self.source.write_bytes(BOM + b"\n".join(lines))

    def run(self, *argv):
        self.said.readouterr()
        code = main([*map(str, argv)])
        said = self.said.readouterr().err
        done = [int(number) for number in re.findall(r"^mitigate: part (\d+) done, ", said, re.M)]
        return code, done, "".join(line for line in said.splitlines() if "error: " in line)

    def annotate(self, *more):
        where = ("--input", self.source, "--output", self.output, "--chunk-size", 2)
        return self.run("annotate", *where, *SCALED, *more)

    def in_one_process(self):
        assert self.run("annotate", "--input", self.source, "--output", self.one, "--chunk-size", 2)[0] == 3
        return self.one.read_bytes()

    def score(self, output, *more):
        how = ("--similarity", "rouge-l", "--embedding", "tfidf")
        return self.run("fewl", "score", "--input", self.source, "--output", output, *how, *more)


@pytest.fixture
def place(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(annotators, "load_annotator", lambda name, **options: RuleAnnotator())
    return Place(tmp_path, capsys)


@contextmanager
def stopped(at, raised):
    judge = RuleAnnotator.annotate_batch

    def annotate_batch(self, records):
        if any(record["id"] == at for record in records):
            raise raised
        return judge(self, records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuleAnnotator, "annotate_batch", annotate_batch)
        yield


def task(source, settings=""):
    folder = folder_of(source.with_name("out.jsonl"))
    folder.mkdir(exist_ok=True)
    return Task(source, folder, check_annotation_input, settings)


def same(records):
    return records


LINES = st.sampled_from([b'{"reference": "a", "answer": "b"}', b"{}", b"", b" \r", b"\xff", BOM])


@given(st.lists(LINES, max_size=9), st.booleans(), st.integers(1, 4))
def test_parts_hold_every_record_once(tmp_path_factory, lines, marked, size):
    path = tmp_path_factory.mktemp("cut") / "in.jsonl"
    path.write_bytes((BOM if marked else b"") + b"\n".join(lines))
    cut = task(path)
    parts = cut.cut(size)
    for part in parts:
        cut.do(part, same)
    found = list(cut.rows(parts))
    assert found == [line.record for line in read_lines(path, check_annotation_input) if line.record]
    assert [part.records for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert sum(part.records for part in parts) == len(found)


def test_the_bytes_of_one_process(place):
    one = place.in_one_process()
    assert place.annotate() == (3, [1, 2, 3], "")
    assert (place.output.read_bytes(), ids(place.output)) == (one, list(range(6)))
    bad, same = (Path(f"{path}.rejected.jsonl").read_bytes() for path in (place.one, place.output))
    assert bad == same
    assert json.loads(bad)["line"] == 4  # two records and a blank line stand before it
    assert not place.parts.exists()


def test_a_stopped_run_goes_on(place):
    with stopped(4, KeyboardInterrupt()):
        assert place.annotate()[:2] == (130, [1, 2])
    (place.parts / "part-00002-0.jsonl.1234abcd.part").write_text("half a li")  # of a worker that died
    assert place.annotate() == (3, [3], "")
    assert ids(place.output) == list(range(6))
    assert not place.parts.exists()


def test_other_lines_or_settings_are_done_anew(place):
    with stopped(4, OSError("gone")):
        assert (*place.annotate()[:2], place.output.exists()) == (1, [1, 2], False)
        place.source.write_bytes(place.source.read_bytes().replace(b"Bridge 1 opened", b"Bridge X opened"))
        assert place.annotate()[1] == [1]
        assert place.annotate("--annotator", "another")[1] == [1, 2]


def test_an_output_of_one_process_is_continued(place):
    one = place.in_one_process()
    place.output.write_bytes(b"".join(one.splitlines(keepends=True)[:3]) + b'{"id": 3, "ref')
    assert place.annotate() == (3, [2, 3], "")  # the first two were there; the second of part 2 is taken
    assert place.output.read_bytes() == one


def test_another_annotator_does_not_continue(place, monkeypatch):
    with stopped(4, OSError("gone")):
        assert place.annotate()[0] == 1
    monkeypatch.setattr(RuleAnnotator, "fingerprint", "other")
    why = place.annotate()[2]  # a part is left
    assert "finished records are by an annotator with fingerprint rule, and embedded has other" in why
    assert place.annotate("--overwrite") == (3, [1, 2, 3], "")
    assert {row["annotator"]["fingerprint"] for row in read_rows(place.output)} == {"other"}
    monkeypatch.setattr(RuleAnnotator, "fingerprint", "rule")
    code, _, why = place.annotate()  # nothing is left
    assert (code, "with fingerprint other, and embedded has rule" in why) == (2, True)


def test_nodes_with_different_annotators_are_found(place, monkeypatch):
    judge = RuleAnnotator.annotate_batch

    def changing(self, records):
        monkeypatch.setattr(RuleAnnotator, "fingerprint", f"node {records[0]['id']}")
        return judge(self, records)

    monkeypatch.setattr(RuleAnnotator, "annotate_batch", changing)
    code, _, why = place.annotate()
    assert code == 2
    assert "annotators with fingerprints node 0, node 2, node 4: see that all nodes" in why


def test_damaged_parts_and_changed_inputs_are_refused(place):
    cut = task(place.source)
    part = cut.cut(2)[1]
    cut.do(part, same)
    whole = cut.path(part).read_bytes()
    for damaged in (b"", whole[:-9], whole.splitlines(keepends=True)[0], whole + whole):
        cut.path(part).write_bytes(damaged)
        with pytest.raises(PartsError, match=r"part-00001-.* is damaged: delete it and run the same command"):
            list(cut.rows([part]))
    cut.path(part).unlink()
    with pytest.raises(RuntimeError, match="2 records went in and 1 results came out"):
        cut.do(part, lambda records: records[:1])
    place.source.write_bytes(place.source.read_bytes().replace(b"1931", b"1913"))
    with pytest.raises(UsageError, match="changed after it was cut into parts"):
        cut.do(part, same)
    assert not list(cut.folder.iterdir())
    # Two workers may do one part, as when Ray gave one up for lost: the second writes while the first is at work.
    cut = task(place.source)
    part = cut.cut(9)[0]
    cut.do(part, lambda records: (cut.do(part, same), records)[1])
    assert [path.name for path in cut.folder.iterdir()] == [cut.path(part).name]
    assert [row["id"] for row in cut.rows([part])] == list(range(6))


def test_a_full_disk_leaves_no_unfinished_file(place, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # its files would be cut, and spoil later imports
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))  # the rejected line fits, two results do not
        code, _, why = place.annotate()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 1
    assert "3 of 3 parts failed, first part 1: OSError" in why
    assert not list(place.parts.iterdir())
    assert place.annotate()[0] == 3
    assert ids(place.output) == list(range(6))


@pytest.mark.skipif(RAY, reason="ray is installed")
def test_missing_ray_is_named(place):
    why = place.run("annotate", "--distributed", "--input", "x", "--output", "y")[2]
    assert "pip install 'hallucination-toolkit[ray]'" in why


def reply(body):
    prompt = body["messages"][-1]["content"]
    number = int(hashlib.sha256(prompt.encode()).hexdigest()[:4], 16)
    if "Wrong Answer" in prompt:
        pairs = (f"{i}. Wrong Answer: hill {number + i}\n{i}. Non-Wrong Answer: no {i}" for i in range(1, 26))
        return completion("\n".join(pairs))
    return completion(("Yes" if number % 2 else "No") if "Yes or No" in prompt else f"a stone {number}")


@pytest.mark.parametrize("expertise", [[], pytest.param(["--expertise", "prompted"], marks=pytest.mark.slow)])
def test_scores_are_those_of_one_process(place, expertise):
    write_rows(place.source, questions(7))
    with place.source.open("a") as file:
        file.write("{broken\n")
    with serving(reply) as server:
        engine = ["--reference-llm", f"openai:player@{server.url}", *expertise]
        assert place.score(place.one, *engine)[0] == 3
        asked = len(server.requests)
        assert place.score(place.output, *engine, *SCALED) == (3, [1, 2, 3, 4], "")
        assert len(server.requests) == 2 * asked  # as many again, also for the question that stands twice
        other = ("--divergence", "js", "--overwrite")
        assert place.score(place.output, *engine, *SCALED, *other) == (3, [], "")
        assert place.score(place.one, *engine, *other)[0] == 3
        assert len(server.requests) == 2 * asked
    assert place.output.read_bytes() == place.one.read_bytes()
    mine, its = (json.loads(Path(f"{p}.run.json").read_text()) for p in (place.output, place.one))
    for name in ("report", "pairs", "agreement", "similarity", "embedding", "fewl_options", "rejected_lines"):
        assert mine[name] == its[name], name
    assert mine["pairs"]["questions"] == 3  # 0, 3 and 6 had none


def test_workers_know_llms_by_name(place, monkeypatch):
    """One model is a reference LLM and the one to be scored; it is loaded once, and asked one thing at a time."""
    given = {"answers": [], "reference_answers": {"b": "a stone"}}
    write_rows(place.source, [{**row, **given} for row in questions(4)])
    loaded, in_flight = [], []
    loading = models.load_engine
    monkeypatch.setattr(models, "load_engine", lambda spec, **more: loaded.append(spec) or loading(spec, **more))

    def script(body):
        in_flight.append("begun")
        assert in_flight.count("begun") == in_flight.count("over") + 1
        time.sleep(0.05)
        in_flight.append("over")
        return reply(body)

    with serving(script) as server:
        player = f"openai:player@{server.url}"
        llms = ["--reference-llm", f"a={player}", "--answer-llm", f"a={player}", "--expertise", "uniform"]
        assert place.score(place.output, *llms, *SCALED, "--concurrency", 1) == (0, [1, 2], "")
        why = place.score(place.one, *llms, "--reference-llm", f"a={player}2", *SCALED)[2]
    assert loaded == [player]
    assert len(in_flight) == 2 * 3
    assert [row["answers"][0]["model"] for row in read_rows(place.output)] == ["a"] * 4
    assert "--reference-llm: expected a name of its own for each language model, got 'a' twice" in why


def test_a_request_that_fails_takes_its_part_along_and_a_refused_one_nothing(place):
    write_rows(place.source, questions(6))
    broken = 500

    def script(body):
        failing = broken and "tower 3" in body["messages"][-1]["content"]
        return error(broken, "not today") if failing else reply(body)

    with serving(script) as server:
        argv = ["--expertise", "uniform", "--reference-llm", f"openai:player@{server.url}", *SCALED]
        code, done, why = place.score(place.output, *argv)
        assert (code, done) == (1, [1, 3])
        assert "1 of 3 parts failed, first part 2: RuntimeError: openai:player" in why
        assert "1 request failed" in why
        broken = 400  # as a content filter would always say: the rest is scored
        code, done, why = place.score(place.output, *argv)
        assert (code, done) == (1, [2])
        assert "1 request failed, the last: " in why
        assert "not today" in why
        assert ids(place.output) == list(range(6))
        assert place.score(place.output, *argv, "--overwrite", "--divergence", "js")[:2] == (1, [2])
        broken, before = None, len(server.requests)
        assert place.score(place.output, *argv, "--overwrite") == (0, [2], "")
        assert len(server.requests) == before + 1  # the other question of that part was answered and kept
        assert place.score(place.output, *argv, "--overwrite") == (0, [], "")
    assert ids(place.output) == list(range(6))
    # Without an LLM to ask one process scores.
    write_rows(place.source, [row | {"reference_answers": {"one": "a stone 1"}} for row in questions(4)])
    assert place.score(place.one)[0] == place.score(place.output, *SCALED, "--overwrite")[0] == 0
    assert place.output.read_bytes() == place.one.read_bytes()


def slow(folder, deadly):
    """Work that takes a while and says where it is done; the worker that first meets record 3 may kill itself.

    Workers wait until there is one on each of both nodes: on a busy machine one would do all the work before.
    """
    import ray

    (folder / f"node-{ray.get_runtime_context().get_node_id()}").touch()
    deadline = time.monotonic() + 200
    while len(list(folder.glob("node-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)

    def process(records):
        for row in records:
            with (folder / str(row["id"])).open("a") as file:
                file.write(ray.get_runtime_context().get_node_id() + "\n")
            if deadly and row["id"] == 3 and len((folder / "3").read_text().splitlines()) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        return records

    return process


@needs_ray
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_killed_workers_and_nodes_lose_and_repeat_nothing(tmp_path):
    import ray
    from ray.cluster_utils import Cluster

    source = write_rows(tmp_path / "in.jsonl", [record(i) for i in range(40)])
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node, _ = nodes.add_node(num_cpus=1), nodes.add_node(num_cpus=1)

    def kill(work):
        while len(list(work.folder.glob("part-*.jsonl"))) < 20 + 4:  # those of the first round and four more
            time.sleep(0.05)
        nodes.remove_node(node, allow_graceful=False)

    try:
        for dies in ("worker", "node"):
            work, folder = task(source, dies), tmp_path / dies
            folder.mkdir()
            parts = work.cut(2)
            killer = threading.Thread(target=kill, args=(work,), daemon=True)
            if dies == "node":
                killer.start()
            told = []
            prepare = partial(slow, folder, dies == "worker")
            do_parts(work, prepare, parts, Pool(nodes.address, workers=2), told.append)
            assert [row["id"] for row in work.rows(parts)] == list(range(40))
            assert len(told) == len(parts) == 20
            where = [(folder / str(i)).read_text().split() for i in range(40)]
            if dies == "worker":
                assert len(where[3]) == 2
            else:
                killer.join(60)
                assert any(node.node_id in one for one in where)  # it had work
                assert where[-1] != [node.node_id]
            do_parts(work, prepare, parts, Pool(), told.append)
            assert len(told) == 20  # nothing is left to do
    finally:
        ray.shutdown()
        nodes.shutdown()


@needs_ray
@pytest.mark.timeout(900)
def test_a_killed_run_on_ray_goes_on(tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [record(i) for i in range(200)])
    one, many = tmp_path / "one.jsonl", tmp_path / "many.jsonl"
    judge = ["--annotator", "embedded-fast", "--chunk-size", "4"]
    assert main(["annotate", "--input", str(source), "--output", str(one), *judge]) == 0
    command = [sys.executable, "-m", "mitigate.cli", "annotate", "--input", source, "--output", many, "--distributed"]
    command += [*judge, "--workers", "2", "--part-size", "3"]  # so parts of four
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(folder_of(many).glob("part-*.jsonl"))) >= 5, first, 400)
    done = list(folder_of(many).glob("part-*.jsonl"))
    first.kill()
    first.wait()
    second = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert second.returncode == 0, second.stderr[-3000:]
    anew = [int(number) for number in re.findall(r"^mitigate: part (\d+) done, ", second.stderr, re.M)]
    assert len(anew) == len(set(anew)) <= 45
    assert not {int(path.name[5:10]) + 1 for path in done} & set(anew)
    assert many.read_bytes() == one.read_bytes()
