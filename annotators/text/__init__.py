"""Text as annotators read it: sentences with offsets, normalising, language, words."""
