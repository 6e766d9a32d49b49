"""What of a reference bears on a sentence: passages, BM25 and the window."""
