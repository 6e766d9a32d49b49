"""FEWL: factuality scores without gold answers.

scored, report = score_records(records, similarity=cosine(embedder.encode), encode=embedder.encode)
"""

from fewl.records import FewlRecord, RecordError, read_record
from fewl.score import FewlOptions, FewlReport, score_records
from fewl.similarity import char_tfidf, cosine, from_function, rouge_l

__all__ = [
    "FewlOptions",
    "FewlRecord",
    "FewlReport",
    "RecordError",
    "char_tfidf",
    "cosine",
    "from_function",
    "read_record",
    "rouge_l",
    "score_records",
]
