"""FEWL: factuality scores without gold answers.

scored, report = score_records(records, similarity=cosine(embedder.encode), encode=embedder.encode)
"""

from fewl.ranking import Ranking, kendall_tau, pick_answers, rank_models
from fewl.records import FewlRecord, RecordError, read_record
from fewl.score import FewlOptions, FewlReport, score_records
from fewl.similarity import char_tfidf, cosine, each_once, from_function, new_words, rouge_l

__all__ = [
    "FewlOptions",
    "FewlRecord",
    "FewlReport",
    "Ranking",
    "RecordError",
    "char_tfidf",
    "cosine",
    "each_once",
    "from_function",
    "kendall_tau",
    "new_words",
    "pick_answers",
    "rank_models",
    "read_record",
    "rouge_l",
    "score_records",
]
