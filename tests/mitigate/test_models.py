"""Similarities and encoders by name: where FEWL meets the annotators."""

import numpy as np

from annotators.records import LABELS, SentenceAnnotation
from fewl.similarity import compare
from mitigate import models


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


def test_chinese_goes_to_an_encoder_that_reads():
    name, encode = models.load_encoder("auto", ["你是哪国人？"])
    assert "cannot read Chinese" in name
    assert encode(["你是哪国人？"]).shape == (1, 4096)
