"""The Gradio page: annotate, mitigate, compare, batch. `mitigate demo` or `python app.py`; see docs/demo.md."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported: nothing is sent anywhere
