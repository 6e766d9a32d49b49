"""Similarities and encoders by name: where FEWL meets the annotators."""

import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from annotators.records import LABELS, SentenceAnnotation
from fewl.similarity import compare
from mitigate import models
from mitigate.io import UsageError


def test_annotator_similarity_weighs_factual_sentences():
    class Judge:
        name, fingerprint = "judge", "0"

        def predict(self, rows):
            table = {"Good.": (0.8, 0.2, 0.0, 0.0), "Hello!": (0.1, 0.0, 0.0, 0.9), "Bad.": (0.0, 0.5, 0.0, 0.5)}
            for text in (row["sentence"] for row in rows):
                scores = dict(zip(LABELS, table.get(text, ()), strict=False))
                judged = ("checked", "supported", scores) if scores else ("failed",)
                yield SentenceAnnotation(text, 0, len(text), *judged)

    similarity = models.annotator_similarity(Judge())
    candidates = ["Good.", "Good. Hello!", "Good. Bad.", "Odd.", "Odd. Bad."]
    values = compare(similarity, candidates, ["r"] * 5, ["q"] * 5)
    # 0.8/1; (0.8 + 0.1)/(1 + 0.1); 0.8/(1 + 0.5); nothing judged; 0/0.5
    np.testing.assert_allclose(values, [0.8, 0.9 / 1.1, 0.8 / 1.5, np.nan, 0.0])


def test_half_a_first_line_of_judgements_is_cut(tmp_path):
    """As a full disk leaves it: what is judged after it is read by the next start."""
    path = tmp_path / "judged.jsonl"
    path.write_bytes(b'{"of": "abc", "judged": [{"te')
    judge = SimpleNamespace(name="judge", own_fingerprint="0", fingerprint="0", reads=("sentence",))
    judge.predict = lambda rows: [SentenceAnnotation("Good.", 0, 5, "checked", "supported", None) for _ in rows]
    ask = models.Judgements(path).asking("judge", judge)
    for said in ("Good.", "Bad."):
        ask([{"sentence": said}])
    assert len(models.Judgements(path).said) == 2


def test_chinese_goes_to_an_encoder_that_reads(tmp_path):
    zh, en = "你是哪国人？", "Where are you from?"
    name, encode = models.load_encoder("auto", [zh])
    assert "cannot read Chinese" in name
    assert encode([zh]).shape == (1, 4096)
    name, both = models.load_encoder("auto", [en, zh], tmp_path / "cache")  # one Chinese question among others
    assert name.startswith("all-MiniLM")
    english = models.load_encoder("auto", [en], tmp_path / "cache")[1]
    np.testing.assert_allclose(both([en, zh]) @ both([en, zh]).T, np.eye(2), atol=1e-5)
    values = [  # "1949" is compared as its question is
        compare(models.load_similarity("cosine", one)[1], ["1949"], ["in 1949"], [question])[0]
        for one, question in ((both, en), (english, en), (both, zh), (encode, zh))
    ]
    assert values[0] == pytest.approx(values[1])
    assert values[2] == pytest.approx(values[3], abs=0.1)  # the document frequencies are of other texts
    assert abs(values[0] - values[2]) > 0.1


def test_ctrl_c_does_not_wait_for_servers():
    both, reply, done, threads = threading.Barrier(2), threading.Event(), [], []
    servers = {name: SimpleNamespace(identity={"engine": "openai"}) for name in ("one", "two")}

    def work(name, engine):
        threads.append(threading.current_thread())
        both.wait(60)
        if name == "one":
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        reply.wait(20)
        done.append(name)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            models.at_once(servers, work)
        assert not done
        assert all(thread.daemon for thread in threads)  # the interpreter does not wait for them, either
    finally:
        reply.set()
        signal.signal(signal.SIGINT, before)


def test_names_of_annotators_that_can_be(tmp_path):
    """Known words, hub ids, folders; a published detector may be of the hub's first years, which have no owner."""
    for name in ("embedded", "nli:roberta-large-mnli", "nli:a/b", f"nli:{tmp_path}", "a/b"):
        assert models.check_annotator(name, "--annotator") == [name]
    assert models.check_annotator("ensemble:min:a/b+nli:old+embedded", "--annotator") == ["a/b", "nli:old", "embedded"]
    for name in ("embeded", "nli:", "nli:a/b/c", "nli:no such", "cascade:embedded+embeded"):
        with pytest.raises(UsageError, match=r"^--annotator: "):
            models.check_annotator(name, "--annotator")
