"""Settings of every test: no hub, no colours, and one thread for small tensors, where more only get in the way.

"embedded" has the weights of "embedded-fast", which need no download, so that tests are the same on every machine; the
fixture ``shipped`` has the folders as they are.

Examples of hypothesis are the same in every run and may take their time, so that a result is of the code and not of the
machine or of chance; `HYPOTHESIS_PROFILE=default` draws others.
"""

import os
import shutil
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()  # read when datasets is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

from annotators.verifier.annotator import SHIPPED
from engines.usage import METER

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
PRISTINE = dict(SHIPPED)
SHIPPED["embedded"] = SHIPPED["embedded-fast"]


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["HF_DATASETS_CACHE"], ignore_errors=True)


@pytest.fixture
def shipped() -> dict[str, Path]:
    return PRISTINE


@pytest.fixture(autouse=True)
def unmetered() -> None:
    """Limits of a command that an earlier test ran in this process are forgotten."""
    METER.begin()
