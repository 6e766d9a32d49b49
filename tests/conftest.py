"""Settings of every test: no hub, no colours, and one thread for small tensors, where more only get in the way."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
