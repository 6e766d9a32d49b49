"""Passages, BM25, fusion and the windows: hand-derived values, rank_bm25 as a second opinion, hostile references."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotators import retrieval
from annotators.retrieval import BM25, ReferenceIndex, Window, index_references, second_pass, select, words


def tokenize(texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    found = []
    for text in texts:
        spans = [m.span() for m in re.finditer(r"[一-鿿]|[^\W一-鿿]+|[^\w\s]", text)]
        found.append((np.arange(len(spans)), np.asarray(spans, dtype=np.int64).reshape(-1, 2)))
    return found


class Letters:
    """An encoder that compares letter counts, and keeps what it was asked to encode."""

    def __init__(self, reads_chinese: bool = False) -> None:
        self.reads_chinese = reads_chinese
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        counts = np.array([[t.lower().count(c) + 0.01 for c in "abcdefghijklmnopqrstuvwxyz"] for t in texts])
        counts = counts.reshape(-1, 26)
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def index_one(reference: str, encoder: Any = None, budget: int | None = None) -> ReferenceIndex:
    return index_references([reference], tokenize, encoder, budget)[0]


def tokens_of(window: Window) -> int:
    return sum(passage.tokens for passage in window.passages)


def texts_of(window: Window) -> list[str]:
    return [passage.text for passage in window.passages]


def check_passages(index: ReferenceIndex) -> None:
    end = 0
    for passage in index.passages:
        assert index.reference[passage.start : passage.end] == passage.text
        assert passage.text == passage.text.strip() != ""
        assert not index.reference[end : passage.start].strip()
        end = passage.end
    assert not index.reference[end:].strip()


TOPICS = "rivers castles violins comets beetles glaciers bakeries lanterns harbours orchids"
LONG = "\n".join(
    f"Note {n} tells of {topic} in the year {1500 + 7 * n} at some length."
    for n, topic in enumerate((TOPICS + " ").split() * 4)
)  # 40 lines of 13 tokens


def test_bm25_by_hand() -> None:
    # P = 3, all of length 2, so the length norm is k1 = 1.5.
    # a: df 2, idf ln(4/2) = 0.6931; tf 1: 1 · 2.5 / (1 + 1.5) = 1      → 0.6931
    # d: df 1, idf ln(4/1) = 1.3863; tf 2: 2 · 2.5 / (2 + 1.5) = 1.4286 → 1.9804
    scores = BM25([["a", "b"], ["a", "c"], ["d", "d"]]).scores([["a"], ["d", "x"], ["a", "a", "c"], []])
    expected = [[0.6931, 0.6931, 0], [0, 0, 1.9804], [1.3863, 1.3863 + 1.3863, 0], [0, 0, 0]]
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_bm25_orders_as_rank_bm25() -> None:
    from rank_bm25 import BM25Plus

    rng = np.random.default_rng(0)
    vocabulary = [f"w{i}" for i in range(40)]
    passages = [rng.choice(vocabulary, size=rng.integers(1, 30)).tolist() for _ in range(50)] + [[]]
    queries = [rng.choice([*vocabulary, "unknown"], size=rng.integers(1, 12)).tolist() for _ in range(30)]
    other = BM25Plus(passages)
    for query, found in zip(queries, BM25(passages).scores(queries), strict=True):
        constant = sum(other.idf.get(word, 0) * other.delta for word in query)
        np.testing.assert_allclose(found, other.get_scores(query) - constant, rtol=1e-4, atol=1e-5)


def test_bm25_among_near_passages_by_hand() -> None:
    # Of "ada wrote the" the passages have 2, 1 and 0 content words; all lengths are 2, so tf counts 1.
    # Near from 1: N = 2; ada df 2, ln(3/2) = 0.4055; wrote df 1, ln(3/1) = 1.0986. Near from 1.2: N = 1, ln 2 each.
    bm25 = BM25([["ada", "wrote"], ["ada", "died"], ["the", "sky"]])
    query = ["ada", "wrote", "the"]
    np.testing.assert_allclose(bm25.scores([query], 0.5), [[1.5041, 0.4055, 0]], atol=1e-4)
    np.testing.assert_allclose(bm25.scores([query], 0.6), [[1.3863, 0, 0]], atol=1e-4)
    np.testing.assert_array_equal(bm25.scores([["the"], ["unknown"], []], 0.5)[1:], np.zeros((2, 3)))


def test_unrelated_passages_change_no_score_of_near_ones() -> None:
    own = [words(line) for line in ("The Suez Canal opened in 1869.", "The canal is long.", "Ships pay for the canal.")]
    other = [words(f"Unrelated sentence {n} is about the weather of another year.") for n in range(200)]
    queries = [words("When was the canal opened?"), words("Ships of 1869")]
    alone, padded = BM25(own).scores(queries, 0.3), BM25([*own, *other]).scores(queries, 0.3)
    np.testing.assert_allclose(padded, np.pad(alone, ((0, 0), (0, 200))), rtol=1e-6)
    assert not np.allclose(BM25([*own, *other]).scores(queries)[:, :3], BM25(own).scores(queries))


def test_words_of_both_languages() -> None:
    assert words("The 1,000 Dogs' walked") == words("the 1000 dog walks") == ["the", "1000", "dog", "walk"]
    assert words("released") == words("RELEASE") == words("releases")
    assert words("was this his gas") == ["was", "thi", "his", "gas"]  # three letters stay
    assert words("Café-Bar’s _x_ \x00") == ["café", "bar", "_x_"]
    assert words("他在北京大学读书2008年") == ["他", "在", "北京大学", "读书", "2008", "年"]
    assert words("") == words(" \t。！") == []


def test_jieba_is_silent_and_writes_nothing(tmp_path: Path) -> None:
    code = "from annotators.retrieval import words; print(words('北京大学'))"
    env = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("['北京大学']\n", "")
    assert list(tmp_path.iterdir()) == []


def test_passages_are_sentences_with_offsets_and_lines() -> None:
    index = index_one("Title\nOne is here. Two is here.\n\n  Three is here.\n", budget=5)
    check_passages(index)
    expected = [("Title", 1), ("One is here.", 4), ("Two is here.", 4), ("Three is here.", 4)]
    assert [(passage.text, passage.tokens) for passage in index.passages] == expected
    assert index.lines.tolist() == [0, 1, 1, 2]


def test_long_sentences_are_cut_at_words_if_possible() -> None:
    listed = index_one("It lists " + " ".join(f"item{i}" for i in range(300)) + ".")  # 303 tokens
    unbroken = index_one("北京是中国的首都" * 50)  # 400 characters, 400 tokens
    for index, expected in ((listed, [128, 128, 47]), (unbroken, [128, 128, 128, 16])):
        check_passages(index)
        assert [passage.tokens for passage in index.passages] == expected
    assert all(re.fullmatch(r"(It lists )?(item\d+ )*item\d+\.?", p.text) for p in listed.passages)

    # Characters of several tokens stay whole.
    def bytes_of(texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        spans = [[(i, i + 1) for i, char in enumerate(text) for _ in char.encode()] for text in texts]
        return [(np.arange(len(s)), np.asarray(s, dtype=np.int64).reshape(-1, 2)) for s in spans]

    for budget, expected in ((8, ["京京"] * 5), (2, ["京"] * 10)):  # 3 tokens each: two fit, or none
        index = index_references(["京" * 10], bytes_of, budget=budget)[0]
        check_passages(index)
        assert [(p.text, p.tokens) for p in index.passages] == [(text, 3 * len(text)) for text in expected]


@given(st.text(alphabet=st.sampled_from("ab .,\n\t\x00\x1c\x85\u2028\u3000京。，😀\ud800[1"), max_size=400))
def test_any_text_is_cut_without_loss(text: str) -> None:
    index = index_one(text, budget=7)
    check_passages(index)
    for window in [*select([(index, "a b")]), *second_pass([(index, "a b")])[0]]:
        assert tokens_of(window) <= 7
        assert list(window.places) == sorted(window.places)


def test_fusion_by_hand() -> None:
    # ranks of (3, 1, 3): 1, 3, 1 (equal scores, equal ranks); of (0, 5, 2): 3, 1, 2; k = 5
    found = retrieval.fuse([np.array([[3.0, 1.0, 3.0]]), np.array([[0.0, 5.0, 2.0]])])
    np.testing.assert_allclose(found, [[1 / 6 + 1 / 8, 1 / 8 + 1 / 6, 1 / 6 + 1 / 7]], rtol=1e-6)
    scores = np.random.default_rng(1).random((2, 4, 6)) + 1  # worse passages besides change nothing
    padded = retrieval.fuse(list(np.pad(scores, ((0, 0), (0, 0), (9, 9)))))
    np.testing.assert_array_equal(padded[:, 9:15], retrieval.fuse(list(scores)))


def test_neighbours_by_hand() -> None:
    index = index_one("A one. B two. C three.\nD four.", budget=3)
    # The best neighbour of A is C (8), of B A or C (8), of C A (8); D is alone on its line.
    support = np.array([[8, 4, 8, 16], [1, 0, 0, 2]], dtype=np.float32)
    np.testing.assert_allclose(retrieval.with_neighbours(support, index), [[14, 10, 14, 16], [1, 0.75, 0.75, 2]])
    for fillers, expected in ((25, 0.75), (26, 0.0)):  # neighbours end after 128 tokens: 125 and 130 between
        index = index_one("Start here. " + "Alpha beta gamma delta. " * fillers + "End here.")
        support = np.zeros((1, len(index.passages)), np.float32)
        support[0, 0] = 1
        assert retrieval.with_neighbours(support, index)[0, -1] == expected


def test_fitting_reference_is_the_window_unranked() -> None:
    encoder = Letters()
    index = index_one("One is here. Two is here. One is here.", encoder)
    window = select([(index, "Two?")])[0]
    assert window.whole
    assert texts_of(window) == ["One is here.", "Two is here.", "One is here."]
    assert window.text == "One is here.\nTwo is here.\nOne is here."
    assert second_pass([(index, "Two?")]) == [[]]
    assert sum(map(len, encoder.calls)) == 0
    assert "bm25" not in vars(index)


def test_window_holds_evidence_in_document_order() -> None:
    index = index_one(LONG, budget=60)
    query = "What of glaciers in 1745 and of violins in 1584?"
    window = select([(index, query)])[0]
    assert not window.whole
    assert LONG.split("\n")[35] in texts_of(window)  # glaciers, 1500 + 7 · 35 = 1745
    assert LONG.split("\n")[12] in texts_of(window)  # violins, 1500 + 7 · 12 = 1584
    assert tokens_of(window) == 52  # four of 13
    assert [index.passages[place] for place in window.places] == window.passages


@pytest.mark.parametrize(("reference", "budget", "query", "expected"), [
    # 5 + 2 tokens; the passage of 8 + 1 no longer fits and is passed over whole
    ("Zebra zebra zebra runs. Zebra " + "word " * 6 + "end. Zebra. " + "None of it. " * 3, 8, "zebra",
     ["Zebra zebra zebra runs.", "Zebra."]),
    # a budget smaller than a sentence still gets the best piece
    ("Some words stand here first of all. The rare zebra ran off today again.", 4, "zebra", ["The rare zebra ran"]),
    # equal passages are taken once: 3 + 5 + 3 tokens
    ("Zebras run. " * 30 + "Zebras sleep at night. " + "Lions eat. " * 30, 12, "Do zebras sleep or run?",
     ["Zebras run.", "Zebras sleep at night.", "Lions eat."]),
])  # fmt: skip
def test_passages_are_taken_till_the_budget(reference: str, budget: int, query: str, expected: list[str]) -> None:
    assert texts_of(select([(index_one(reference, budget=budget), query)])[0]) == expected


def test_unrelated_passages_are_not_read_though_there_be_room() -> None:
    query, lines = "glaciers in 1745", LONG.split("\n")
    glaciers = [line for line in lines if "glaciers" in line]
    for relevant, expected in ((1.0, lines[35:36]), (0.2, glaciers)):  # the line of that year, or of those words
        (index,) = index_references([LONG], tokenize, None, 60, relevant)
        assert texts_of(select([(index, query)])[0]) == expected
        assert [text for window in second_pass([(index, query)])[0] for text in texts_of(window)] == expected
    assert len(texts_of(select([(index_one(LONG, budget=60), query)])[0])) == 4
    (index,) = index_references([LONG], tokenize, None, 60, 1.0)
    assert len(texts_of(select([(index, "nothing of it")])[0])) == 4  # no passage has a word of it: all are alike
    (index,) = index_references(["Glaciers melt. Violins play."], tokenize, None, 60, 1.0)
    assert select([(index, "Glaciers melt.")])[0].whole


def test_embeddings_and_bm25_both_count() -> None:
    reference = "The qqq zzz jjj. " + "Common words are here. " * 10 + "Quick fox jumps."
    alone = index_one(reference, budget=5)
    assert texts_of(select([(alone, "quick")])[0]) == ["Quick fox jumps."]
    both = index_one(reference, Letters(), budget=9)
    assert set(texts_of(select([(both, "quick qqqqzzzzzjjjj")])[0])) == {"The qqq zzz jjj.", "Quick fox jumps."}


def test_each_passage_and_query_is_embedded_once() -> None:
    encoder = Letters()
    other = LONG.replace("tells", "speaks")
    indexes = index_references([LONG, "Short one.", LONG, other], tokenize, encoder)
    assert indexes[0] is indexes[2]
    assert (len(encoder.calls), encoder.calls[0]) == (1, [*LONG.split("\n"), *other.split("\n")])
    select([(index, query) for index in indexes for query in ("comets", "orchids", "comets")])
    assert encoder.calls[1:] == [["comets", "orchids"]]


def test_many_pairs_give_what_each_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Letters()
    indexes = index_references([LONG, "Short one.", LONG[::-1], "", LONG], tokenize, encoder, budget=50)
    queries = ["comets", "the lanterns of 1500", "", "zzz"]
    pairs = [(index, query) for query in queries for index in indexes]
    together = select(pairs), second_pass(pairs)
    assert together == ([select([pair])[0] for pair in pairs], [second_pass([pair])[0] for pair in pairs])
    monkeypatch.setattr("annotators.retrieval._CELLS", 1)
    assert (select(pairs), second_pass(pairs)) == together
    assert [window.whole for window in together[0][:5]] == [False, True, False, True, False]


def test_second_pass_reads_six_times_as_much() -> None:
    index = index_one(LONG, Letters(), budget=52)
    query = "glaciers in 1745"
    windows = second_pass([(index, query)])[0]
    places = [place for window in windows for place in window.places]
    assert places == sorted(set(places))
    assert set(select([(index, query)])[0].places) <= set(places)
    assert [tokens_of(window) for window in windows] == [52] * 6  # four of 13 each
    assert not any(window.whole for window in windows)
    assert len(second_pass([(index, query)], factor=3)[0]) == 3
    middling = second_pass([(index_one(LONG, budget=100), "orchids")])[0]  # 520 tokens: all of it
    assert [place for window in middling for place in window.places] == list(range(40))
    lines = [f"Line {n} has " + "words " * (n % 5) + "in it." for n in range(80)]  # 6 to 10 tokens: there are gaps
    windows = second_pass([(index_one("\n".join(lines), budget=17), "Line 33 has words")])[0]
    assert len(windows) == 6
    assert any(lines[33] in texts_of(window) for window in windows)


def test_chinese_needs_an_embedder_that_reads_it() -> None:
    cities = "北京 上海 广州 成都 杭州 西安 南京 武汉 苏州 天津".split()
    reference = "".join(f"第{n}年他住在{cities[n % 10]}，那时他写了很多关于城市的文章和诗歌。" for n in range(40))
    blind, able = Letters(reads_chinese=False), Letters(reads_chinese=True)
    alone = index_one(reference, blind)
    assert (alone.encoder, alone.vectors) == (None, None)
    index = index_one(reference, able)
    assert (index.budget, index.encoder, len(index.vectors)) == (540, able, 40)
    window = select([(index, "他在第27年住在武汉。")])[0]
    assert any("第27年" in text for text in texts_of(window))
    assert blind.calls == []
    assert sum(map(len, able.calls)) == 41  # 40 passages, 1 query
    assert index_one(LONG).budget == 400
    with pytest.raises(ValueError, match="expected a number of tokens above 0, got 0"):
        index_one("Text.", budget=0)


HOSTILE = {
    "empty": "", "white space": " \n\t\u3000\x1c ", "one endless word": "x" * 50_000,
    "one endless Chinese word": "京" * 50_000, "control characters": "\x00\x01\x1b[31m\x07 " * 4_000,
    "sentences of one letter": "a. " * 5_000, "no stop": "word and another, " * 10_000,
    "lone surrogates": "a \ud800 b. \udfff " * 1_000,
    "a megabyte": " ".join(f"Sentence {n} of the book says {n % 97} things." for n in range(23_000)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_references_are_survived(name: str) -> None:
    index = index_one(HOSTILE[name])
    check_passages(index)
    pairs = [(index, query) for query in ("Sentence 4711 of the book says 55.", "", "\x00\ud800", "京", "x" * 9_000)]
    for window, more in zip(select(pairs), second_pass(pairs), strict=True):
        assert bool(window.passages) == bool(index.passages)
        assert len(more) <= 6
        assert all(tokens_of(w) <= index.budget for w in [window, *more])
    if name == "a megabyte":
        assert "Sentence 4711 of the book says 55 things." in select(pairs)[0].text
