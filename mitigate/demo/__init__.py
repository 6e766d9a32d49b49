"""The demo: a page in a browser, made with Gradio."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported: nothing is sent anywhere
