"""The pocket world: same seed, same world; the oracle on sentences written by hand; a language model that learns."""

import random
from pathlib import Path

import pytest
import yaml

from examples.pocket import Document, Entity, Oracle, World, build_world, lm
from examples.pocket.__main__ import main
from examples.pocket.make import write_questions
from examples.pocket.texts import ask, flawed_answer, training_pairs
from examples.pocket.world import ATTRIBUTES
from tests.helpers.jsonl import read_rows

RECIPES = Path(__file__).parents[2] / "examples" / "pocket"
RIVER = "The Orvel flows past the old quays and under two stone bridges."
FOUNDER = "Chronicles agree that the settlement goes back to Ada Brenn."
TEXT = f"Brendal is a town of a few thousand people. {RIVER} {FOUNDER}"
BRENDAL = Entity(
    "Brendal",
    "place",
    {"river": "Orvel", "founder": "Ada Brenn", "craft": "bells", "dish": "plum pie", "month": "May", "roofs": "red"},
    # "Brendal is a town of a few thousand people." has 43 characters, so the second sentence starts at 44.
    Document(TEXT, {"river": (44, 44 + len(RIVER)), "founder": (45 + len(RIVER), len(TEXT))}),
    "common",
)
TOOL = {"inventor": "Ada Brenn", "material": "tin", "power": "wind", "purpose": "sorting seeds", "built": "1702",
        "museum": "Elm Court"}  # fmt: skip
MACHINE = Document("The Kroscope is a machine of the old days. Without wind the whole mechanism stands still.", {})
KROSCOPE = Entity("the Kroscope", "device", TOOL, MACHINE, "rare")
HAND_MADE = World(-1, (BRENDAL, KROSCOPE))


@pytest.fixture(scope="module")
def world() -> World:
    return build_world(seed=5, n_per_kind=12)


def test_world_is_whole_and_the_same_by_seed(world: World) -> None:
    again = build_world(seed=5, n_per_kind=12)
    assert (again, again.fingerprint) == (world, world.fingerprint)
    assert build_world(seed=6, n_per_kind=12).fingerprint != world.fingerprint
    assert training_pairs(world, rounds=1) == training_pairs(again, rounds=1)
    with pytest.raises(ValueError, match="n_per_kind: expected 1 to 144, got 0"):
        build_world(n_per_kind=0)
    assert len({e.name for e in world.entities}) == len(world.by_document) == 48
    assert {e.rarity for e in world.entities} == {"common", "middling", "rare"}
    for entity in world.entities:
        assert (set(entity.facts), len(entity.document.places)) == (set(ATTRIBUTES[entity.kind]), 5)
        for attribute, (a, b) in entity.document.places.items():
            assert entity.facts[attribute] in entity.document.text[a:b]


@pytest.mark.parametrize(("sentence", "label"), [
    ("Brendal lies on the river Orvel.", "supported"),
    ("The town was founded by Ada Brenn.", "supported"),
    (RIVER, "supported"),  # word for word from the document
    ("Ada Brenn chose the spot because the Orvel could be forded there.", "supported"),
    ("Ada Brenn chose the spot because the Skarn could be forded there.", "contradictory"),  # one of two
    ("Brendal lies on the river Skarn.", "contradictory"),
    ("It was founded by Tobin Harle.", "contradictory"),
    ("It is known for making bells.", "unverifiable"),  # true, but the document is silent
    ("The Kroscope is made of tin.", "unverifiable"),  # true of another entity
    ("It is made of tin.", "unverifiable"),  # no attribute of a town
    ("Zanbel lies on the river Orvel.", "unverifiable"),  # nothing has that name
    ("It lies on the river Orv", "unverifiable"),  # cut off
    ("I do not know about its river.", "no_fact"),
    ("Here is what I know about Brendal.", "no_fact"),
    ("…", "no_fact"),
])  # fmt: skip
def test_oracle_knows(sentence: str, label: str) -> None:
    (judged,) = Oracle(HAND_MADE).predict([{"reference": TEXT, "sentence": sentence}])
    assert (judged.status, judged.label) == ("checked", label)


def test_oracle_gives_evidence_and_corrections() -> None:
    answer = "Let me tell you about Brendal. It lies on the river Skarn. Ada Brenn founded it."
    annotation = Oracle(HAND_MADE).annotate(reference=TEXT, answer=answer, question="What is Brendal?")
    assert [s.label for s in annotation.sentences] == ["no_fact", "contradictory", "supported"]
    assert annotation.hallucination_rate == 0.5
    wrong = annotation.sentences[1]
    (edit,) = wrong.correction
    assert (edit.source, edit.target, answer[edit.start : edit.end]) == ("Skarn", "Orvel", "Skarn")
    (fragment,) = wrong.fragments
    assert fragment.text == RIVER == TEXT[fragment.start : fragment.end]
    assert annotation.record["question"] == "What is Brendal?"
    assert "simulated truth" in annotation.annotator["name"]
    assert all(answer[s.start : s.end] == s.text for s in annotation.sentences)
    row = {"sentence": "It lies on the river Orvel."}
    found = Oracle(HAND_MADE).predict([{**row, "reference": r} for r in ("A note about Brendal.", "Nothing.", " ")])
    assert [(s.status, s.label) for s in found] == [("checked", "supported"), ("failed", None), ("no_reference", None)]


def test_oracle_reads_every_wording(world: World) -> None:
    oracle, rng = Oracle(world), random.Random(1)
    for entity in world.entities:
        document = entity.document.text
        assert {s.label for s in oracle.annotate(reference=document, answer=document).sentences} == {"supported"}
        for p_true, allowed in ((1.0, {"supported"}), (0.0, {"contradictory"})):
            answer = flawed_answer(rng, ask(rng, entity, held_out=True), p_true)
            found = oracle.annotate(reference=document, answer=answer).sentences
            assert 3 <= len(found) <= 6
            for s in found:
                claims = oracle.claims(s.text)
                assert claims is not None
                silent = claims and claims[0][1] not in entity.document.places
                assert s.label in ({"unverifiable"} if silent else allowed if claims else {"no_fact"})


def test_folder_holds_what_a_recipe_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = build_world(seed=5, n_per_kind=3)
    write_questions(tmp_path, small, 1)
    rows = {path.stem: read_rows(path) for path in tmp_path.glob("*.jsonl")}
    # 4 trained entities, 8 and 15 questions about each; 64 of evaluation about these and about the other 8
    assert {name: len(found) for name, found in rows.items()} == {
        "train": 32, "train_240": 60, "trained_on": 64, "held_out": 64,
    }  # fmt: skip
    ids = {name: {row["id"] for row in found} for name, found in rows.items()}
    assert ids["train"] == ids["train_240"] == ids["trained_on"] == {e.name for e in small.entities[:4]}
    assert ids["held_out"] == {e.name for e in small.entities[4:]}
    asked = {name: {row["question"] for row in found} for name, found in rows.items()}
    assert not asked["train"] & asked["trained_on"]
    assert all(row["reference"] in small.by_document for found in rows.values() for row in found)
    assert main(["run", "any", "--world", str(tmp_path)]) == 2
    assert f"no world in {tmp_path}; first: python -m examples.pocket --world" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rlhf", "mask_dpo"])
def test_recipes_take_the_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    folder = Path("out/pocket-world")
    (folder / "model").mkdir(parents=True)
    write_questions(folder, build_world(seed=0, n_per_kind=2), 1)
    (folder / "world.json").write_text('{"seed": 0, "n_per_kind": 2}')
    assert main(["run", str(RECIPES / f"{name}.yaml"), "--check"]) == 0
    options = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    # The reward's own annotator is no second judge: its curves would be those of the reward again.
    assert options["evaluation"]["annotator"] == options["reward"]["annotator"]
    assert "judge_every" not in options["trainer"]


def test_language_model_learns(world: World) -> None:
    import torch

    torch.set_num_threads(1)
    pairs = training_pairs(world, rounds=4)
    tokenizer = lm.build_tokenizer([text for pair in pairs for text in pair], vocabulary=600)
    model = lm.build_model(tokenizer, width=32, layers=2, heads=2)
    before = [p.detach().clone() for p in model.parameters()]
    losses = lm.train(model, tokenizer, pairs, learning_rate=2e-2)
    assert losses[0] == pytest.approx(torch.log(torch.tensor(600.0)).item(), abs=0.7)  # knows nothing: ln V
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_chat_template_is_what_training_saw() -> None:
    tokenizer = lm.build_tokenizer(["Tell me about Brendal. It has red roofs."], vocabulary=300)
    chat = [{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": "It has red roofs."}]
    prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>Tell me.<|assistant|>"
    assert tokenizer.apply_chat_template(chat, tokenize=False) == prompt + "It has red roofs.<|end|>"
