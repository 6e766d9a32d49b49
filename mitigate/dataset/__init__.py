"""An ANAH-style data set out of topics and documents; each stage is a JSON Lines job.

    topics → candidates → references → questions → distinct → filtered → selected → answers → annotated → export

Every stage reads the file of the one before and appends to its own, so a killed run goes on where it was; whatever an
LLM has answered is in the response cache of the run folder and is not asked again. The order, and what the files are
called, is in ``pipeline.py``; what an LLM is told, and how its replies are read, in ``prompts.py``.
"""
