"""Coverage-guided fuzzing of one target with atheris (not among the dependencies: pip install atheris).

    python -m tests.fuzz.run records|tagged [SECONDS] [NEW-INPUTS-FOLDER]

Inputs that reach new code go to the folder, or are forgotten. An input that breaks a target is written to the working
directory and named; add it to the corpus with the mending.
"""

import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


if __name__ == "__main__":
    import atheris

    name, seconds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with atheris.instrument_imports(include=["annotators", "mitigate", "fewl"]):
        from tests.fuzz.targets import TARGETS
    options = [f"-max_total_time={seconds}", "-max_len=2000", "-timeout=10", "-print_final_stats=1", "-verbosity=1"]
    folders = [*sys.argv[3:4], str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *options, *folders], TARGETS[name])
    atheris.Fuzz()
