"""Annotated records as HTML pages and terminal reports."""
