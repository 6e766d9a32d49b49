"""FEWL: factuality scores without gold answers."""
