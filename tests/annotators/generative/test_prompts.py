# ruff: noqa: E501  (tables)
"""Prompts of the generative annotator: wordings, own templates, options."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from annotators import load_annotator
from annotators.generative.prompts import Chooser, load_templates
from engines.openai_engine import OpenAIEngine
from mitigate.cli.main import main
from tests.helpers.annotator_server import annotating


def test_random_prompts_are_drawn_by_seed_and_answer() -> None:
    def drawn(seed: int) -> list[Any]:
        chooser = Chooser("tagged", "random", seed=seed)
        return [(t.name, order) for n in range(200) for t, order in [chooser("en", f"reference {n}", "q")]]

    assert len(set(drawn(1))) == 10
    assert min(Counter(drawn(1)).values()) >= 6  # 20 each on average
    assert drawn(1) == drawn(1) != drawn(2)


GOOD = "- name: mine\n  protocol: tagged\n  language: en\n  prompt: 'D {reference} Q {question} S {sentence}'\n"


def test_own_templates(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD.replace("prompt: 'D", "system: Be strict {sentence}.\n  prompt: '{name} D"))
    with annotating(lambda body: "<No Fact>") as server:
        judge = load_annotator(f"generative:openai:m@{server.url}", templates=file, prompt="mine")
        record = {"reference": "a {sentence} <b>", "answer": "The b is in here.", "question": "c?", "topic": "<T>"}
        english, chinese = judge.annotate_batch(
            [record, {"reference": "水坝建于1959年。", "answer": "水坝建于1959年。"}]
        )
    assert [body["messages"] for body in server.requests] == [[
        {"role": "system", "content": "Be strict {sentence}."},
        {"role": "user", "content": "‹T› D a {sentence} ‹b› Q c? S The b is in here."},
    ]]  # fmt: skip
    assert english.sentences[0].label == "no_fact"
    assert chinese.sentences[0].status == "language_unsupported"  # the file has no Chinese template
    assert {"name", "topic"} <= set(judge.reads)


def test_the_template_of_the_docs_is_one(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "annotators.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "page.yaml").write_text(blocks[0], encoding="utf-8")
    assert [(t.name, t.protocol, t.language) for t in load_templates(tmp_path / "page.yaml")] == [
        ("v2", "three-turn", "en")
    ]


PUBLISHED = '''
import os
os.makedirs("ran")
def fact_check(question, annotation, language):
    cn = f"""
    问：{question} 答：{annotation} 有没有事实？"""
    en = f"Q {question} A {annotation}: facts?"
    return cn if language == "zh" else en
def reference_check(question, reference, annotation):
    cn = f"{question}，{annotation}：抄写{reference}的有关内容"
    en = f"{question} {annotation}: copy from {reference}"
def hallucination_check(question, reference, annotation):
    cn = f"{question}，{annotation}，{reference}：有没有幻觉？"
    en = f"{question} {annotation} {reference}: which type?"
'''


def test_published_prompts_become_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "v2.py").write_text(PUBLISHED, encoding="utf-8")
    (folder / "v1.txt").write_text("{name}? Q {question}\nReference: {document}\nAnnotate: {answer}", encoding="utf-8")
    assert main(["prompts", "import", str(folder), "--output", "mine.yaml"]) == 0
    assert not (tmp_path / "ran").exists()  # it was read, not run
    found = {(t.name, t.language): t.turns for t in load_templates("mine.yaml")}
    assert found["anah-v2", "en"] == (
        "Q {question} A {sentence}: facts?", "{question} {sentence}: copy from {reference}",
        "{question} {sentence} {points}: which type?",
    )  # fmt: skip
    assert found["anah-v2", "zh"][0] == "\n    问：{question} 答：{sentence} 有没有事实？"
    assert found["anah-v1", "en"] == ("{name}? Q {question}\nReference: {reference}\nAnnotate: {sentence}",)
    for text, message in (("def f(:", "expected prompts in UTF-8"), ("x = 1", "found none"),
                          ("def fact(q):\n    a = f'{q} {q.x}'", "expected points to be a text")):  # fmt: skip
        (folder / "v2.py").write_text(text)
        assert main(["prompts", "import", str(folder / "v2.py"), "--output", "other.yaml"]) == 2
        assert message in capsys.readouterr().err


def test_presets_ask_as_the_checkpoints_were_asked(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "v2.py").write_text(PUBLISHED, encoding="utf-8")
    (tmp_path / "copy" / "system.txt").write_text("You are a judge.", encoding="utf-8")
    assert main(["prompts", "import", "copy", "--output", "mine.yaml"]) == 0
    with pytest.raises(ValueError, match=r"preset anah-v2: its wording .* `mitigate prompts import`"):
        load_annotator("generative:openai:m@http://127.0.0.1:1/v1", preset="anah-v2")
    with pytest.raises(ValueError, match="protcol: expected one of protocol, "):
        load_annotator("generative:openai:m@http://127.0.0.1:1/v1", protcol="tagged")
    reference = "The bridge opened in 1931. " * 500
    with annotating(lambda body: "<No Facts>") as server:
        name = f"generative:openai:m@{server.url}"
        annotator = load_annotator(name, preset="anah-v2", templates="mine.yaml", concurrency=1)
        found = annotator.annotate(reference=reference, answer="It is old; it opened in 1931.", question="When?")
        annotator.annotate(reference=reference, answer="它很旧；建于1931年。", question="何时？")
    assert [one.text for one in found.sentences] == ["It is old;", "it opened in 1931."]
    assert {body["temperature"] for body in server.requests} == {0}
    assert [[message["content"] for message in body["messages"]] for body in server.requests] == [
        ["You are a judge.", "Q When? A It is old;: facts?"], ["You are a judge.", "Q When? A it opened in 1931.: facts?"],
        ["You are a judge.", "\n    问：何时？ 答：它很旧； 有没有事实？"], ["You are a judge.", "\n    问：何时？ 答：建于1931年。 有没有事实？"],
    ]  # fmt: skip
    asked = ["annotate", "--reference", "r", "--answer", "a", "--annotator", name, "--preset", "anah-v1"]
    assert main(asked) == 2
    assert "prompts import" in capsys.readouterr().err


TWO, TURNED = '{"prompts": ["brief", "steps"]}', '{"protocol": "three-turn", "prompts": ["brief"]}'
WHOLE = '{"prompts": ["brief"], "window": "whole", "window_tokens": 200}'


@pytest.mark.parametrize(("settings", "options", "asked"), [
    (TWO, {}, ("brief", "tagged", "sentence", None)),
    (TWO, {"protocol": "three-turn"}, ("brief", "three-turn", "sentence", None)),
    (TWO, {"prompt": "rules"}, ("rules", "tagged", "sentence", None)),
    (TURNED, {}, ("brief", "three-turn", "sentence", None)),
    (TURNED, {"protocol": "tagged"}, ("brief", "tagged", "sentence", None)),
    (TURNED, {"prompt": "rules"}, ("rules", "three-turn", "sentence", None)),
    (WHOLE, {"window": "answer"}, ("brief", "tagged", "answer", 200)),
    (WHOLE, {"prompt": "rules"}, ("rules", "tagged", "whole", 200)),
])  # fmt: skip
def test_trained_models_are_asked_as_trained(
    tmp_path: Path, monkeypatch: Any, settings: str, options: Any, asked: Any
) -> None:
    (tmp_path / "annotator.json").write_text(settings)
    monkeypatch.setattr("engines.load_engine", lambda name, **options: OpenAIEngine("m", "http://127.0.0.1:1/v1"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for model in (tmp_path, "~"):
        found: Any = load_annotator(f"generative:transformers:{model}", **options)
        how = found.options
        assert (how.chooser("en", "r", "q")[0].name, how.protocol, how.window, how.window_tokens) == asked


@pytest.mark.parametrize(
    ("text", "said"), [("{", "JSON: "), ("[1]", "got "), ('{"prompts": "plain"}', "got "), ('{"prompts": [1]}', "got ")]
)
def test_damaged_settings_of_a_model_are_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "annotator.json").write_text(text)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/annotator\.json: expected .*{said}"):
        load_annotator(f"generative:transformers:{tmp_path}")


def test_only_published_wordings_keep_their_blanks(tmp_path: Path) -> None:
    inputs = {"reference": "r", "question": "q", "sentence": "s"}
    sent = []
    for verbatim in ("false", "true"):
        (tmp_path / "mine.yaml").write_text(GOOD.replace("'D ", "' D ") + f"  verbatim: {verbatim}\n")
        (template,) = load_templates(tmp_path / "mine.yaml")
        sent.append(template.fill(0, "reference-first", inputs))
    assert sent[0] == sent[1].strip() != sent[1]


THREE = "- name: v2\n  protocol: three-turn\n  language: en\n"


@pytest.mark.parametrize(("text", "message"), [
    ("a: 1", "expected a list of templates"),
    ("- [", "expected a YAML file"),
    ("- 3", "number 1: expected keys and values, got int"),
    (GOOD.replace("tagged", "single"), "expected protocol to be one of tagged, three-turn, object, got 'single'"),
    (GOOD.replace("language: en", "language: fr"), "expected language to be en or zh, got 'fr'"),
    (GOOD.replace("prompt:", "promt:"), "unknown key 'promt'; expected name, .*, system or verbatim"),
    (GOOD.replace(" {question} ", " "), r"the field \{question\} must be in the prompt"),
    (GOOD.replace("{reference}", "{document}"), r"unknown field \{document\}"),
    (GOOD.replace("{reference}", "{referenc}"), r"did you mean \{reference\}"),
    (GOOD.replace("Q ", "{points} "), r"\{points\} is known in the turn 'type' only"),
    (GOOD + "  verbatim: 3", "expected verbatim to be true or false, got 3"),
    (GOOD + GOOD, "mine tagged en is there twice"),
    (GOOD.replace("name: mine", "name: random"), "can't be a name"),
    (THREE + "  facts: '{sentence} {question}'\n  points: '{reference}'\n", "expected type to be a text, got None"),
    (THREE + "  facts: '{sentence} {question}'\n  points: x\n  type: y\n", r"the field \{reference\} must be in the turns"),
])  # fmt: skip
def test_wrong_templates_are_explained(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_templates(file)
    with pytest.raises(ValueError, match=message):  # before the checkpoint, which is not there either
        load_annotator("generative:transformers:/no/such/folder", templates=file, prompt="mine")


@pytest.mark.parametrize(("options", "message"), [
    ({"protocol": "two-turn"}, "protocol: expected one of tagged, three-turn, got 'two-turn'"),
    ({"schema": 5}, "schema: the transformers engine has no JSON schemas"),
    ({"schema": 5, "prompt": "steps"}, "no such wording; expected plain, or random"),
    ({"window": "page"}, "window: expected one of sentence, answer, whole"),
    ({"prompt": "nice"}, "no such wording; expected plain, inspector, steps, rules, brief, or random"),
    ({"prompt": "plain/backwards"}, "expected NAME/reference-first or NAME/question-first"),
    ({"max_retries": -1}, "max_retries: expected a whole number of at least 0, got -1"),
    ({"window_tokens": 0}, "window_tokens: expected a whole number of at least 1"),
    ({"templates": "/no/such/file"}, "expected a YAML file"),
])  # fmt: skip
def test_wrong_options_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_annotator("generative:transformers:/no/such/folder", **options)
