"""An ANAH-style data set out of topics and documents; each stage is a JSON Lines job.

    topics → candidates → references → questions → distinct → filtered → selected → answers → annotated → export

The order, and what the files are called, is in ``pipeline.py``; what an LLM is told, and how its replies are read, in
``prompts.py``.
"""
