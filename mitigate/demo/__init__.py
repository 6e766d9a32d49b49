"""The Gradio page: annotate, compare, batch, training. `mitigate demo` or `python app.py`; see docs/demo.md."""
