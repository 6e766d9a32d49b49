"""The generative annotator against ``transformers serve`` with a tiny checkpoint taught three replies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from annotators import Annotation, load_annotator
from annotators.generative.prompts import load_templates
from engines.checkpoint import prompt_ids
from tests.helpers.tiny_chat import build_tiny_chat
from tests.helpers.transformers_server import Served, served

pytestmark = pytest.mark.slow  # a checkpoint is taught and served
TEMPLATE = "- name: tiny\n  protocol: tagged\n  language: en\n  prompt: 'D: {reference} Q: {question} S: {sentence}'\n"
REFERENCE = "The box is red. It is old."
TAUGHT = {
    "Hello!": "<No Fact>",
    "The box is red.": "<Reference> The box is red.\n<Hallucination> None",
    "The box is blue.": '<Reference> The box is red.\n<Hallucination> Contradictory\n<Correction> "blue" to "red"',
}
"""What the checkpoint is taught to say of each sentence."""


def teach(folder: Path, template: Path) -> None:
    """Train until it says each reply almost surely."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    prompt = load_templates(template)[0]
    rows = []
    for sentence, reply in TAUGHT.items():
        inputs = {"reference": REFERENCE, "question": "red or blue?", "sentence": sentence}
        ids = prompt_ids(tokenizer, [{"role": "user", "content": prompt.fill(0, "reference-first", inputs)}])
        answer = [*tokenizer(reply)["input_ids"], tokenizer.eos_token_id]
        rows.append((torch.tensor([ids + answer]), torch.tensor([[-100] * len(ids) + answer])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(300):
        losses = [model(input_ids=ids, labels=labels).loss for ids, labels in rows]
        if max(losses) < 0.02:
            break
        sum(losses).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    assert max(losses) < 0.02
    # What the server takes over (tests/helpers/transformers_server.py).
    model.generation_config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """The taught checkpoint on a server, and its template."""
    folder = build_tiny_chat(tmp_path_factory.mktemp("served"), context=512)
    template = folder.parent / "tiny.yaml"
    template.write_text(TEMPLATE)
    teach(folder, template)
    with served(folder) as running:
        yield running, template


def judge(name: str, template: Path, answer: str) -> Annotation:
    annotator: Any = load_annotator(
        f"generative:{name}", templates=template, prompt="tiny", max_retries=1, max_tokens=160, device="cpu"
    )
    return annotator.annotate(reference=REFERENCE, question="red or blue?", answer=answer)


def test_served_checkpoint_equals_the_local_one(tiny: tuple[Served, Path]) -> None:
    server, template = tiny
    answer = "Hello! The box is red. The box is blue."
    remote = judge(server.name, template, answer)
    local = judge(f"transformers:{server.folder}", template, answer)
    for judged in (remote, local):
        assert [s.label for s in judged.sentences] == ["no_fact", "supported", "contradictory"]
        third = judged.sentences[2]
        assert [(f.text, f.start, f.end) for f in third.fragments] == [("The box is red.", 0, 15)]
        assert [(e.source, e.target, e.start, e.end) for e in third.correction] == [("blue", "red", 34, 38)]
    # This server has no log-probabilities; the engine in this process has them.
    assert [s.scores for s in remote.sentences] == [None] * 3
    for sentence in local.sentences:
        assert sentence.scores is not None
        assert sum(sentence.scores.values()) == pytest.approx(1)
        assert sentence.scores[sentence.label] > 0.5  # type: ignore[index]
