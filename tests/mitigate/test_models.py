"""Similarities and encoders by name: where FEWL meets the annotators."""

import numpy as np

from annotators.records import SentenceAnnotation
from fewl.similarity import compare
from mitigate import models


def test_annotator_similarity_weighs_sentences_by_how_factual_they_are():
    class Judge:
        name, fingerprint = "judge", "0"

        def predict(self, rows):
            table = {"Good.": (0.8, 0.0), "Hello!": (0.1, 0.9), "Bad.": (0.0, 0.5)}
            out = []
            for row in rows:
                text = row["sentence"]
                if text not in table:
                    out.append(SentenceAnnotation(text, 0, len(text), "failed"))
                    continue
                supported, none = table[text]
                scores = {
                    "supported": supported,
                    "no_fact": none,
                    "contradictory": 1 - supported - none,
                    "unverifiable": 0.0,
                }
                out.append(SentenceAnnotation(text, 0, len(text), "checked", "supported", scores))
            return out

    similarity = models.annotator_similarity(Judge())
    candidates = ["Good.", "Good. Hello!", "Good. Bad.", "Odd.", "Odd. Bad."]
    values = compare(similarity, candidates, ["r"] * 5, ["q"] * 5)
    # 0.8/1; (0.8 + 0.1)/(1 + 0.1); 0.8/(1 + 0.5); nothing judged; 0/0.5
    np.testing.assert_allclose(values, [0.8, 0.9 / 1.1, 0.8 / 1.5, np.nan, 0.0])


def test_chinese_input_is_not_given_to_a_model_that_cannot_read_it():
    name, encode = models.load_encoder("auto", ["你是哪国人？"])
    assert "cannot read Chinese" in name
    assert encode(["你是哪国人？"]).shape == (1, 4096)
