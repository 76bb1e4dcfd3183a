# Everything here works on a machine that has Python 3.11 or newer and a C compiler.
PYTHON ?= python3
VENV ?= .venv
EXPORTERS ?= .venv-exporters
SKLEARN ?= .venv-sklearn
# On Linux, MLX needs a backend: cpu, cuda12 or cuda13. On a Mac it brings Metal.
BACKEND ?= $(if $(filter Darwin,$(shell uname -s)),,cpu)
BIN := $(VENV)/bin
# setuptools warns of every editable installation.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet
comma := ,

.PHONY: demo test fuzz-ops fuzz-graphs fuzz-files faults load lint models browser conformance matrix exporters sklearn bench bench-partition bench-dispatch bench-trace bench-report pictures clean

demo: $(VENV)/.installed
	$(BIN)/opgraft demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

# The property of every operator on 5,000 random cases, each operator in a process of its own: half an hour or more.
fuzz-ops: $(VENV)/.installed-dev
	$(BIN)/python tests/conformance/fuzz.py

# 100,000 random whole graphs, in all ways in which they can be run: some hours. What fails is written into failures/,
# made smaller.
fuzz-graphs: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz/graphs.py --models 100000

# Damaged model files, 100,000 of them: some hours. What fails is kept in failures/, with no more damage than it needs.
fuzz-files: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz/files.py --files 100000

# An error at every 13th line that a session's life comes through, by seven kinds, in four ways: some minutes. All of
# them: $(BIN)/python tests/faults/lines.py --every 1
faults: $(VENV)/.installed-dev
	$(BIN)/python tests/faults/lines.py

# Eight threads by 10,000 runs, on one session and on eight, and 1,000 sessions made and dropped: half an hour or less.
load: $(VENV)/.installed-dev
	$(BIN)/python tests/load/load.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy plugins_example/*/opgraft_*

models: $(VENV)/.installed-dev
	$(BIN)/python tests/models/table.py

# The HTML report in a real browser, which must be there: apt-get install chromium, or CHROMIUM=/its/path.
browser: $(VENV)/.installed-dev
	$(PIP) -e ".[browser]"
	$(BIN)/python -m pytest -rs tests/browser

# The HTML reports of the real models as docs/report.md shows them; needs Chromium too.
pictures: $(VENV)/.installed-dev
	$(PIP) -e ".[browser]"
	$(BIN)/python tests/browser/pictures.py

# ONNX's own node cases; writes docs/coverage.md and raises tests/conformance/floor.txt.
conformance: $(VENV)/.installed-dev
	$(BIN)/python tests/conformance/run.py

# Graphs as exporters write them; torch gets an environment of its own.
exporters: $(VENV)/.installed-dev $(EXPORTERS)/.installed
	$(EXPORTERS)/bin/python tests/exporters/export.py
	$(BIN)/python tests/exporters/check.py

$(EXPORTERS)/.installed: tests/exporters/requirements.txt
	$(PYTHON) -m venv $(EXPORTERS)
	$(EXPORTERS)/bin/python -m pip install --quiet -r tests/exporters/requirements.txt
	touch $@

# Models of scikit-learn, exported anew into tests/ml/sklearn_models, and their test.
sklearn: $(VENV)/.installed-dev $(SKLEARN)/.installed
	$(SKLEARN)/bin/python tests/ml/export_sklearn.py
	$(BIN)/python -m pytest tests/ml/test_ml_sklearn.py

$(SKLEARN)/.installed: tests/ml/requirements.txt
	$(PYTHON) -m venv $(SKLEARN)
	$(SKLEARN)/bin/python -m pip install --quiet -r tests/ml/requirements.txt
	touch $@

# The oldest and the newest of what opgraft supports, each combination in an environment of its own; writes
# docs/compatibility.md. About 40 minutes on two cores. Interpreters that are not on the PATH, or a choice of cells:
# make matrix MATRIX="--python /path/to/python3.14 newest all-oldest"
matrix: $(VENV)/.installed-dev
	$(PIP) -e ".[matrix]"
	$(BIN)/python tests/matrix/run.py $(MATRIX)

# Everything beside what it is compared with; writes bench/RESULTS.md.
bench: $(VENV)/.installed-dev
	$(BIN)/python bench/run.py

bench-partition bench-dispatch bench-trace: bench-%: $(VENV)/.installed-dev
	$(BIN)/python bench/$*.py

$(VENV)/bin/python:
	@echo "Making the environment $(VENV): about a minute"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml setup.py core/opgraft/host/abi.py core/opgraft/host/build_ffi.py core/opgraft/host/support.c core/opgraft/_blas.c
	$(PIP) -e ".[$(BACKEND)]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[$(BACKEND)$(if $(BACKEND),$(comma))dev]"
	touch $@

clean:
	rm -rf $(VENV) $(EXPORTERS) $(SKLEARN) build dist *.egg-info core/*.egg-info
