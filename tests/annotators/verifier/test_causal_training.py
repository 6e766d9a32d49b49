"""The loss, class weights and figures of training the causal annotator, by hand; where labels stand."""

import numpy as np
import pytest
import torch

from annotators import LABELS
from annotators.evaluation.anah import flatten
from annotators.verifier.causal import IGNORED, UNSUPPORTED, class_weights, collator, figures, head_loss, training_rows
from tests.helpers.anah_fixture import TOPICS
from tests.helpers.tiny_models import tokenizer


def test_loss_by_hand() -> None:
    # Softmax of log 1, 2, 3, 4 is 0.1, 0.2, 0.3, 0.4; "unsupported" has 0.2 + 0.3.
    logits = torch.log(torch.tensor([1.0, 2.0, 3.0, 4.0])).repeat(1, 4, 1)
    labels = torch.tensor([[0, IGNORED, 3, UNSUPPORTED]])
    ones = torch.ones(5)
    terms = [-np.log(0.1), -np.log(0.4), -np.log(0.5)]
    assert float(head_loss(logits, labels, ones)) == pytest.approx(np.mean(terms))
    assert float(head_loss(logits, labels, ones, n_items=6)) == pytest.approx(sum(terms) / 6)
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5, 3.0])
    weighted = 2 * terms[0] + 0.5 * terms[1] + 3 * terms[2]
    assert float(head_loss(logits, labels, weights)) == pytest.approx(weighted / 3)
    focal = 0.9**2 * terms[0] + 0.6**2 * terms[1] + 0.5**2 * terms[2]
    assert float(head_loss(logits, labels, ones, focal=2.0)) == pytest.approx(focal / 3)
    plain = torch.nn.functional.cross_entropy(logits[0, [0, 2]], torch.tensor([0, 3]))
    assert float(head_loss(logits[:, :3], labels[:, :3], ones)) == pytest.approx(float(plain))


def test_class_weights_by_hand() -> None:
    targets = [0] * 8 + [1] * 2
    np.testing.assert_allclose(class_weights(targets, "none"), [1, 1, 0, 0, 0])
    full = class_weights(targets, "full")  # 1/8 and 1/2, times 5: both classes weigh 5 in total
    np.testing.assert_allclose(full, [0.625, 2.5, 0, 0, 0])
    root = class_weights(targets, "sqrt")
    assert root[1] / root[0] == pytest.approx(2)
    assert root[0] * 8 + root[1] * 2 == pytest.approx(10)
    np.testing.assert_array_equal(class_weights([], "full"), np.zeros(5))


def test_figures_by_hand() -> None:
    labels = np.array([[0, IGNORED, 1, 3], [0, UNSUPPORTED, 0, IGNORED]])
    predicted = np.array([[0, 3, 0, 3], [1, 0, 0, 0]])
    # Right: 0, 3 and one more 0 of five; recalls 2/3, 0, 1.
    found = figures(predicted, labels)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["balanced_accuracy_4way"] == pytest.approx((2 / 3 + 0 + 1) / 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_stand_at_sentence_ends_only(side: str) -> None:
    made = tokenizer(side)
    rows, report = flatten(TOPICS)
    encoded, lost = training_rows(made, rows, 512)
    assert (len(encoded), lost) == (report.answers - 1, 0)  # two models gave one answer: read once
    batch = collator(made)(encoded)
    assert int((batch["labels"] != IGNORED).sum()) == report.sentences - 1
    ends = {row["sentence"][-1] for row in rows}
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        for place in (labels != IGNORED).nonzero()[:, 0].tolist():
            assert made.decode(ids[: place + 1])[-1] in ends
    starts = {row["answer"]: {r["start"]: r["label"] for r in rows if r["answer"] == row["answer"]} for row in rows}
    found = [[LABELS[t] for t in row["targets"].values()] for row in encoded]
    assert sorted(found) == sorted(list(labels.values()) for labels in starts.values())
