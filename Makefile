# On a fresh machine: `make reproduce` measures what the hardware at hand can measure, `make test` checks the project.
# Both set up .venv first. `make help` lists the rest.

PYTHON      ?= python3
CONSTRAINTS ?= constraints.txt
RESULTS     ?= results/local
SWEEP       ?= reproduce
# More options of pytest: `make test TEST_OPTIONS=--require-browser`.
TEST_OPTIONS ?=
# More words for python -m harness, such as WORDS=timing.rounds=48.
WORDS       ?=
# Of check-regressions: a git ref or a results folder (else the committed rows), more flags, an exit code that is no failure.
AGAINST     ?=
COMPARE     ?=
TOLERATE    ?= 0
# What is installed of the project: dev, or dev,build for nvcc from PyPI.
EXTRAS      ?= dev
# A folder of wheels: `make setup WHEELS=dir` installs from it without a network, on top of the packages of $(PYTHON).
WHEELS      ?=

VENV := .venv
PY   := $(VENV)/bin/python
READY := $(VENV)/.ready

# Measure, then draw and report whatever was recorded: a failed case is shown too, and decides the exit code.
define measure-and-show
	@code=0; $(PY) -m harness $(1) results_dir=$(RESULTS) > /dev/null || code=$$?; \
	$(PY) -m plots $(RESULTS) --out $(RESULTS)/plots && \
	$(PY) -m harness.report $(RESULTS) && \
	$(PY) -m harness.summary $(RESULTS) --out $(RESULTS)/summary.csv --table && \
	echo "rows: $(RESULTS)/rows   figures: $(RESULTS)/plots   report: $(RESULTS)/report.html" && exit $$code
endef

.DEFAULT_GOAL := help
.PHONY: help setup reproduce reproduce-single-gpu measure-for-alarms check-regressions alarm-self-test test lint \
        format kernels doctor plots report claims summary clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

setup: $(READY)  ## everything into .venv (WHEELS=dir: without a network)

$(READY): pyproject.toml $(wildcard $(CONSTRAINTS))
	$(PYTHON) -m venv $(VENV)
ifeq ($(WHEELS),)
	$(PY) -m pip install --quiet --upgrade pip
	@# setuptools warns of every editable install, as if something were wrong.
	PYTHONWARNINGS=ignore $(PY) -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[$(EXTRAS)]'
else
	@# The packages that $(PYTHON) already has stay visible: a GPU machine brings its own torch.
	$(PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/parent.pth"
	$(PY) -m pip install --quiet --no-index --find-links $(WHEELS) --no-build-isolation -e '.[test]'
endif
	@touch $@

reproduce: setup  ## set up, measure what this hardware can, draw, report
	$(PY) -m harness.doctor
	$(call measure-and-show,sweep=$(SWEEP) $(WORDS))

reproduce-single-gpu: setup  ## the 12 masks at 4K to 128K on one GPU, every competitor that runs here
	$(PY) -m harness.doctor
	$(call measure-and-show,experiment=paper_single_gpu $(WORDS))

measure-for-alarms: setup  ## the small grid of the alarm on one GPU: five masks at 8K, 20 rounds
	$(call measure-and-show,experiment=alarms $(WORDS))

check-regressions: setup  ## did anything get slower? RESULTS against the committed rows, or AGAINST a git ref or a folder
	@code=0; $(PY) -m harness.compare $(RESULTS) $(if $(AGAINST),--against $(AGAINST)) $(COMPARE) || code=$$?; \
	test $$code -eq $(TOLERATE) || exit $$code

alarm-self-test: setup  ## would the alarm ring? drops injected into the committed rows: minutes, no GPU
	$(PY) -m harness.compare --self-test

test: setup  ## all tests that this hardware allows
	$(PY) -m pytest -q -n 2 $(TEST_OPTIONS)

lint: setup  ## style, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: setup  ## rewrite the code in the project's format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

kernels: setup  ## compile the CUDA kernels (needs nvcc, not a GPU) and print what each costs
	$(PY) -m fm3_kernel.build

doctor: setup  ## which competitors can run here, and why not
	$(PY) -m harness.doctor

plots: setup  ## figures from the rows below RESULTS
	$(PY) -m plots $(RESULTS) --out $(RESULTS)/plots
	$(PY) -m harness.claims $(RESULTS) --out $(RESULTS)/plots > /dev/null

claims: setup  ## the paper's claims against the committed rows
	$(PY) -m harness.claims results

report: setup  ## one HTML file from the rows below RESULTS
	$(PY) -m harness.report $(RESULTS)

summary: setup  ## results/summary.csv, the README's tables and the simulator's rates from the committed rows
	$(PY) -m harness.summary results --out results/summary.csv
	$(PY) -m harness.readme
	$(PY) -m harness.simulate.fit

clean:  ## remove what was built (recorded rows stay)
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
