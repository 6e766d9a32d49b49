"""FEWL: factuality scores without gold answers.

scored, report = score_records(records, similarity=cosine(embedder.encode), encode=embedder.encode)
"""

from fewl.ranking import pick_answers, rank_models
from fewl.score import FewlOptions, score_records
from fewl.similarity import both_ways, char_tfidf, cosine, each_once, from_function, new_words, rouge_l

__all__ = [
    "FewlOptions", "both_ways", "char_tfidf", "cosine", "each_once", "from_function", "new_words", "pick_answers",
    "rank_models", "rouge_l", "score_records",
]  # fmt: skip
