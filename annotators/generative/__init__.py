"""An LLM as annotator: protocols, prompts, the strict parser, grounding, and training samples."""
