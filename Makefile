# Everything a contributor types. `make` alone lists it.
# Needs make and Python 3.11 or newer; each target sets up what it needs in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Bytecode is kept: tests start hundreds of processes, and each would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
# Tests wait for brokers, Java and disks for a third of their time: four workers keep two cores busy. Quick ones do not.
WORKERS ?= 4
QUICK_WORKERS ?= 2
ROWS ?= 10_000_000
SEED ?= 1
QUERIES ?= 300
TESTS ?=

BIN := .venv/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 $(BIN)/python -m pip install --quiet
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup demo test quick check lint types imports docs site nightly bench soak performance sase peers flink pycer differential golden-verify clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# Each stamp is newer than pyproject.toml when its extras are installed.
.venv/.demo: pyproject.toml | .venv/bin/python
	@echo "installing into .venv, about a minute" >&2
	@$(PIP) -e '.[pandas,plot]' </dev/null
	@touch $@

.venv/.dev: pyproject.toml | .venv/bin/python
	@echo "installing into .venv, about a minute" >&2
	@$(PIP) -e '.[dev]' </dev/null
	@touch $@ .venv/.demo .venv/.site

.venv/.site: pyproject.toml | .venv/bin/python
	@echo "installing into .venv, about a minute" >&2
	@$(PIP) -e '.[docs]' </dev/null
	@touch $@

# The whole suite starts Java a dozen times: half of each start is loading classes that are kept here.
.venv/.spark: .venv/.dev tests/spark_classes.py
	@echo "writing an archive of Spark's classes, half a minute" >&2
	@$(BIN)/python -m tests.spark_classes </dev/null
	@touch $@

.peers/.ready: Makefile
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .peers
	PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 .peers/bin/python -m pip install --quiet \
		'pandas<3' 'pyarrow>=21,<27' 'pandas_match_recognize==0.2.5' </dev/null
	@touch $@

# Flink wants an older pandas and much else of its own; it runs on Java 17.
.flink/.ready: Makefile
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "installing Flink into .flink, 850 MB, some minutes" >&2
	$(PYTHON) -m venv .flink
	PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 .flink/bin/python -m pip install --quiet \
		'apache-flink==2.3.0' </dev/null
	@touch $@

# CORE's Python package comes for Python 3.13 only. Without one there is no figure of it, and no failure.
PYTHON313 ?= $(shell for p in python3.13 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.13.*/bin/python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null && echo "$$p" && break; done)

.pycer/.ready: Makefile
	@test -n "$(PYTHON313)" || { echo "Python 3.13 is needed: make PYTHON313=/path/to/python" >&2; exit 1; }
	$(PYTHON313) -m venv .pycer
	PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 .pycer/bin/python -m pip install --quiet 'pycer==0.1.6' </dev/null
	@touch $@

setup: .venv/.dev .venv/.spark  ## install everything for development (about 1 min)
	@echo "ready: make demo, make quick, make check"

demo: .venv/.demo  ## README's two queries and their pictures: nine prices, then real ones, live and archived (20 s after the first time)
	$(BIN)/hybrid demo valley </dev/null
	$(BIN)/hybrid demo stock </dev/null

test: .venv/.dev .venv/.spark  ## the whole suite
	$(PYTEST) -n $(WORKERS) --dist worksteal $(TESTS) </dev/null

quick: .venv/.dev  ## the suite without Spark and slow tests, and with few examples (about 1 min)
	HYPOTHESIS_PROFILE=quick $(PYTEST) -n $(QUICK_WORKERS) --dist worksteal -m "not slow and not spark" </dev/null

check: lint types imports docs  ## lint, types, import rules, documents

lint: .venv/.dev  ## ruff
	$(BIN)/ruff check .

types: .venv/.dev  ## mypy
	$(BIN)/mypy

imports: .venv/.dev  ## who may import whom
	$(BIN)/lint-imports

docs: .venv/.dev  ## every example, table and help text of the documents is what the code does
	$(PYTEST) -q -n $(QUICK_WORKERS) --dist worksteal tests/docs </dev/null

nightly: .venv/.dev .venv/.spark  ## 200 kills, every interrupt, each bit flipped, each call failing, and all cases of all tests with 20,000 examples each (hours)
	KILLS=200 $(PYTEST) -k 'killed or kills' tests/archive tests/live tests/hybrid/database/test_leaving.py </dev/null
	INTERRUPTS=all HYPOTHESIS_PROFILE=nightly $(PYTEST) tests/hybrid/database/test_interrupts.py </dev/null
	NIGHTLY_DAMAGE=1 $(PYTEST) -k no_damage_is_silent tests/archive/test_log.py </dev/null
	DAMAGE=all DAMAGE_SECONDS=3600 $(PYTEST) -s tests/archive/test_damage.py tests/hybrid/database/test_damage.py \
		tests/hybrid/service/test_service_files.py </dev/null
	CALLS_SECONDS=3600 HYPOTHESIS_PROFILE=nightly $(PYTEST) -s tests/hybrid/service/test_service_calls.py </dev/null
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -n $(WORKERS) --dist worksteal --timeout 0 --ignore tests/docs </dev/null

bench: .venv/.dev  ## the V pattern beside its peers, as JSON; ROWS=1_000_000 for a short one
	$(BIN)/python -m benchmarks.v_pattern --rows $(ROWS) </dev/null

soak: .venv/.dev  ## a service at a fixed rate through Kafka for half an hour: memory, lag, and every match once
	$(BIN)/python -m benchmarks.soak --plot soak.png > soak.json </dev/null

performance: .venv/.dev .peers/.ready .flink/.ready  ## docs/performance.md from one run, beside all peers (hours, on a quiet machine)
	@$(MAKE) --no-print-directory pycer || echo "without CORE" >&2
	$(BIN)/python -m benchmarks.performance </dev/null

sase: .venv/.dev  ## the experiments of the SASE paper: measures, and writes docs/sase_experiments.md
	$(BIN)/python -m benchmarks.sase --write >/dev/null </dev/null

peers: .peers/.ready  ## pandas_match_recognize for make bench and make differential, in its own environment .peers

flink: .flink/.ready  ## Flink for make differential and make performance, in its own environment .flink; needs Java 17

pycer: .pycer/.ready  ## CORE for make performance, in its own environment .pycer; needs Python 3.13

differential: .venv/.dev .peers/.ready .flink/.ready  ## 300 random statements on each other engine, beside ours
	$(BIN)/python -m tests.differential compare --seed $(SEED) --queries $(QUERIES) </dev/null

golden-verify: .venv/.dev .peers/.ready .flink/.ready  ## the golden cases of other engines, on those engines
	$(BIN)/python -m tests.differential verify </dev/null

site: .venv/.site  ## the documents and the reference of the Python interface as pages: build/site/html
	$(BIN)/python -m tests.docs.site </dev/null

clean:  ## remove environments and caches
	rm -rf .venv .peers .flink .pycer build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache *.egg-info
