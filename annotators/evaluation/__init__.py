"""Figures of annotators: metrics with intervals, agreement, accumulation, and ANAH's own data."""
