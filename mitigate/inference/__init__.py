"""Hallucination reduced after training: correct, select, regenerate, judge, serve."""
