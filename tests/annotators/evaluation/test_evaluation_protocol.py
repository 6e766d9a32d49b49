"""The protocol of the ANAH paper: texts of annotations, splits, comparison, without references, other wordings."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from annotators import LABELS, Annotator, Edit, Fragment, SentenceAnnotation
from annotators.base import Sentence
from annotators.evaluation import metrics
from annotators.evaluation.anah import flatten
from annotators.evaluation.evaluate import compare, evaluate, labelled, predict
from annotators.evaluation.texts import bert_scores, gold_text, ngram_precision, predicted_text, text_figures
from annotators.generative.prompts import names_of
from annotators.generative.tagged import parse_tagged
from mitigate.cli.evaluate import untrained_wording
from mitigate.cli.main import main
from tests.helpers.anah_fixture import TOPICS, write_topics
from tests.helpers.jsonl import read_rows

ROWS, _ = flatten(TOPICS)
BY_ID = {row["id"]: row for row in ROWS}
FEW_WRONG = [row["id"] for row in ROWS if row["label"] == "supported"][:4]


class Gold(Annotator):
    """Says what it was given as gold, but for the rows it is told to get wrong, or not to check."""

    name, fingerprint = "gold", "beef"

    def __init__(self, wrong: Iterable[str] = (), unchecked: Iterable[str] = ()) -> None:
        self.wrong, self.unchecked = set(wrong), set(unchecked)
        self.seen: list[Mapping[str, Any]] = []

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        self.seen += [sentence.record for sentence in sentences]
        return [self._judge(sentence, BY_ID[sentence.record["id"]]) for sentence in sentences]

    def _judge(self, sentence: Sentence, gold: Mapping[str, Any]) -> SentenceAnnotation:
        if gold["id"] in self.unchecked:
            return sentence.judged("too_long")
        label = "no_fact" if gold["id"] in self.wrong else gold["label"]
        places = [(gold["reference"].index(piece), piece) for piece in gold["fragments"]]
        cuts = [(sentence.text.index(old), old, new) for old, new in gold["edits"]]
        return sentence.scored(
            [name == label for name in LABELS],
            fragments=tuple(Fragment(piece, at, at + len(piece)) for at, piece in places),
            correction=tuple(Edit(old, new, at, at + len(old)) for at, old, new in cuts),
        )


def rows_of(split: bool = True) -> Any:
    split_of = {"zh": {"split": "unseen_topic"}, "en": {"split": "unseen_question"}} if split else {"zh": {}, "en": {}}
    rows = [row | split_of[row["lang"]] for row in ROWS]
    return labelled(rows, ["f"] * len(rows), [row["topic"] for row in rows])


# --- texts --------------------------------------------------------------------------------------------


def test_ngram_precision_by_hand() -> None:
    reference = "The lamp burned oil until 1934, when it was changed."
    assert ngram_precision(["The lamp burned oil"], reference, 3, "en") == 1
    # the lamp burned, lamp burned gas, burned gas until: one of three
    assert ngram_precision(["The lamp burned gas until"], reference, 3, "en") == pytest.approx(1 / 3)
    # fragments are not joined: "oil until 1934" and "when it was" have one 3-gram each
    assert ngram_precision(["oil until 1934", "when it was"], reference, 3, "en") == 1
    assert ngram_precision(["oil until 1934 when"], reference, 4, "en") == 1
    assert ngram_precision(["two words"], reference, 3, "en") is None
    assert ngram_precision([], reference, 3, "en") is None
    assert ngram_precision(["石桥建于1568年"], "云河石桥，建于1568年。", 4, "zh") == 1
    # 石桥建, 桥建在, 建在山: the first of three
    assert ngram_precision(["石桥建在山"], "石桥建于山", 3, "zh") == pytest.approx(1 / 3)


def test_gold_and_predicted_texts_are_the_same_annotation() -> None:
    for row, judged in zip(ROWS, Gold().predict(ROWS), strict=True):
        gold = gold_text(row)
        assert gold is not None
        assert parse_tagged(gold).label == row["label"]
        assert predicted_text(judged, row["lang"]) == gold
    bare = {"label": "supported", "sentence": "x", "reference": "x"}
    assert gold_text(bare) is None
    assert gold_text({**bare, "label": "unsupported", "fragments": ["x"]}) is None
    assert gold_text({**bare, "label": "no_fact"}) == "<No Fact>"
    corrected = {**bare, "label": "contradictory", "sentence": "It has 30 locks.", "correction": "It has 17 locks."}
    assert parse_tagged(str(gold_text(corrected))).corrections == (("30", "17"),)


def test_misquoted_fragments_lower_every_figure() -> None:
    reference, words = "The tower of 1889 is 330 metres high.", "the tower of 1899 is 331 metres high"
    row = {"label": "supported", "sentence": "s", "reference": reference, "fragments": [reference], "lang": "en"}
    located = Fragment(reference, 0, len(reference), 0.9, written=words)
    judged = SentenceAnnotation("s", 0, 1, "checked", "supported", None, (located,))
    found = text_figures([row], [judged])
    # 3-grams of eight words: "the tower of" alone is in the reference; no 4-gram is.
    assert (found["fragment_precision_3"], found["fragment_precision_4"]) == (pytest.approx(1 / 6), 0)
    # 10 of 12 words of "reference the tower of 1889 is 330 metres high hallucination none" (11 each): 9 are common
    assert found["rouge_l"] == pytest.approx(9 / 11)


def test_text_figures_overall_by_language_and_split() -> None:
    rows = rows_of()
    perfect = evaluate(rows, predict(Gold(), rows), n_resamples=0, texts=True)
    assert perfect["overall"]["texts"]["rouge_l"] == pytest.approx(1)
    assert perfect["overall"]["texts"]["fragment_precision_3"] == 1
    assert perfect["overall"]["texts"]["bert_score"] is None
    assert set(perfect["splits"]) == {"unseen_topic", "unseen_question"}
    assert perfect["splits"]["unseen_topic"]["n"] == perfect["languages"]["zh"]["n"] == 13
    assert "texts" not in evaluate(rows, predict(Gold(), rows), n_resamples=0)["overall"]
    assert "splits" not in evaluate(rows_of(split=False), predict(Gold(), rows), n_resamples=0)

    # Unchecked rows count 0: 3 of 14 English ones.
    english = [row["id"] for row in ROWS if row["lang"] == "en"]
    found = evaluate(rows, predict(Gold(unchecked=english[:3]), rows), n_resamples=0, texts=True)
    assert found["languages"]["en"]["texts"]["rouge_l"] == pytest.approx(11 / 14)
    assert found["languages"]["zh"]["texts"]["rouge_l"] == pytest.approx(1)
    scores = [None, *np.linspace(0, 1, len(rows) - 1)]
    assert text_figures(ROWS, predict(Gold(), rows), scores)["bert_score"] == pytest.approx(0.5)
    of_rows = [float(row["lang"] == "zh") for row in ROWS]
    found = evaluate(rows, predict(Gold(), rows), n_resamples=0, texts=True, similarity=of_rows)["languages"]
    assert [found[name]["texts"]["bert_score"] for name in ("en", "zh")] == [0, 1]


def test_bert_score_with_the_packaged_model() -> None:
    pytest.importorskip("bert_score", reason="skipped: bert-score not installed")
    rows = [row for row in ROWS if row["label"] == "contradictory"]
    judged = Gold(wrong=[rows[0]["id"]], unchecked=[rows[1]["id"]]).predict(rows)
    found, names = bert_scores(rows, judged, "packaged")
    assert names == {"en": "all-MiniLM-L6-v2 (packaged, layer 6)"}
    assert [row["lang"] for row in rows] == ["en", "en", "zh", "zh", "zh"]
    assert found[2:] == [None] * 3  # it does not read Chinese
    assert found[1] == 0  # not checked
    assert found[0] is not None
    assert 0.2 < found[0] < 0.95
    same, _ = bert_scores(rows[:1], Gold().predict(rows[:1]), "packaged")
    assert same[0] == pytest.approx(1, abs=1e-4)


# --- comparison ---------------------------------------------------------------------------------------


def test_comparison_by_hand() -> None:
    rows = rows_of()
    perfect, worse = (predict(annotator, rows) for annotator in (Gold(), Gold(FEW_WRONG)))
    found = compare(rows, perfect, worse, n_resamples=200)
    assert set(found) == {"overall", "language en", "language zh", "split unseen_topic", "split unseen_question"}
    overall = found["overall"]["accuracy"]
    assert overall["difference"] == pytest.approx(4 / 27)
    assert overall["low"] <= overall["difference"] <= overall["high"]
    one = compare([replace(row, group="one") for row in rows], perfect, worse, n_resamples=9)["overall"]["accuracy"]
    assert (one["difference"], one["low"]) == (overall["difference"], None)  # groups are drawn, not sources
    assert found["language zh"]["accuracy"]["difference"] == 0  # the four are English
    itself = compare(rows, worse, worse, n_resamples=50)
    for figures in itself.values():
        assert all(figures[name]["difference"] == 0 for name in ("accuracy", "macro_f1", "balanced_accuracy", "auc"))
    back = compare(rows, worse, perfect, n_resamples=200)["overall"]["accuracy"]
    assert (back["difference"], back["low"]) == (pytest.approx(-overall["difference"]), pytest.approx(-overall["high"]))


# --- the command --------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_topics(tmp_path / "rows.jsonl", [dict(r.row) for r in rows_of()])


def run(monkeypatch: pytest.MonkeyPatch, annotators: Mapping[str, Any], *args: object) -> int:
    monkeypatch.setattr("annotators.load_annotator", lambda name, **options: annotators[name])
    draw = metrics.resample  # few times: intervals have tests of their own
    monkeypatch.setattr(metrics, "resample", lambda groups, n, seed: draw(groups, min(n, 20), seed))
    return main(["evaluate", *map(str, args)])


def test_the_command_writes_everything(data, tmp_path, monkeypatch, capsys):
    figures, said = (tmp_path / "out" / name for name in ("figures.json", "said.jsonl"))
    asked = ("--input", data, "--annotator", "x/a", "--texts", "--output", figures, "--judgements", said)
    assert run(monkeypatch, {"x/a": Gold()}, *asked) == 0
    shown = capsys.readouterr().out
    for text in ("split unseen_topic", "Annotations as texts", "ROUGE-L", "4-gram precision", "1.000"):
        assert text in shown
    assert "parametric" not in json.loads(figures.read_text())["run"]
    rows = read_rows(said)
    assert len(rows) == 27
    assert {"gold", "label", "status", "scores", "split", "annotator"} <= set(rows[0])
    assert "parametric" not in rows[0]
    assert main(["stats", "--agreement", str(said), str(data), "--resamples", "0", "--json"]) == 0
    agreed = json.loads(capsys.readouterr().out)
    assert [agreed[k]["value"] for k in ("type", "reference", "correction")] == [1, 1, 1]


def test_without_reference_hides_it_and_marks_the_rows(data, tmp_path, monkeypatch):
    blind = Gold()
    name = "generative:openai:m@http://127.0.0.1:1/v1"
    asked = ("--input", data, "--annotator", name, "--without-reference", "--json")
    written = ("--output", tmp_path / "f.json", "--judgements", tmp_path / "s.jsonl")
    assert run(monkeypatch, {name: blind}, *asked, *written) == 0
    assert all(row["reference"] == "" and row["parametric"] is True for row in blind.seen)
    assert not any({"label", "fragments", "correction", "edits", "annotation"} & set(row) for row in blind.seen)
    assert json.loads((tmp_path / "f.json").read_text())["run"]["parametric"] is True
    assert all(row["parametric"] for row in read_rows(tmp_path / "s.jsonl"))


def test_compare_two(data, tmp_path, monkeypatch, capsys):
    both = {"x/a": Gold(), "x/b": Gold(FEW_WRONG)}
    assert run(monkeypatch, both, "--input", data, "--compare", "x/a", "x/b", "--output", tmp_path / "f.json") == 0
    assert "x/a minus x/b" in capsys.readouterr().out
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["difference"]["overall"]["accuracy"]["difference"] == pytest.approx(4 / 27)
    assert found["first"]["overall"]["accuracy"] == 1
    assert "--compare x/a x/b" in found["second"]["run"]["command"]


def test_a_wording_that_was_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = untrained_wording("generative:openai:model@http://127.0.0.1:1/v1")
    assert elsewhere == {"protocol": "tagged", "prompt": "brief/question-first"}
    (tmp_path / "annotator.json").write_text('{"kind": "generative", "prompts": ["steps", "brief"]}')
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("annotators.load_annotator", lambda name, **options: asked.append(options) or Gold())
    name = f"generative:transformers:{tmp_path}"
    code = main(["evaluate", "--input", str(data), "--annotator", name, "--disturbed-prompts", "--json"])
    assert code == 0
    assert asked == [{"protocol": "tagged", "prompt": "rules/question-first"}]
    (tmp_path / "annotator.json").write_text('{"protocol": "three-turn", "prompts": ["rules"]}')
    assert untrained_wording(name) == {"protocol": "three-turn", "prompt": "brief/question-first"}
    (tmp_path / "annotator.json").write_text(json.dumps({"prompts": names_of("tagged", "en")}))
    assert main(["evaluate", "--input", str(data), "--annotator", name, "--disturbed-prompts"]) == 2
    assert "--disturbed-prompts: it was trained on every wording" in capsys.readouterr().err
