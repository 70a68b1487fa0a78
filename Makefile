# Everything a contributor types. `make` alone lists it.
# Needs make and Python 3.11 or newer; each target sets up what it needs in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
WORKERS ?= 2
ROWS ?= 10_000_000

BIN := .venv/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 $(BIN)/python -m pip install --quiet
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup demo test quick check lint types imports docs nightly bench peers clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 12

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# Each stamp is newer than pyproject.toml when its extras are installed.
.venv/.demo: pyproject.toml | .venv/bin/python
	@echo "installing into .venv, about a minute" >&2
	@$(PIP) -e '.[plot]' </dev/null
	@touch $@

.venv/.dev: pyproject.toml | .venv/bin/python
	@echo "installing into .venv, about a minute" >&2
	@$(PIP) -e '.[plot,dev]' </dev/null
	@touch $@ .venv/.demo

.peers/.ready: Makefile
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .peers
	PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 .peers/bin/python -m pip install --quiet \
		'pandas<3' 'pyarrow>=21,<27' 'pandas_match_recognize==0.2.5' </dev/null
	@touch $@

setup: .venv/.dev  ## install everything for development (about 1 min)
	@echo "ready: make demo, make quick, make check"

demo: .venv/.demo  ## the stock demo: real prices, live and archived in one query (20 s after the first time)
	$(BIN)/hybrid demo stock </dev/null

test: .venv/.dev  ## the whole suite
	$(PYTEST) -n $(WORKERS) </dev/null

quick: .venv/.dev  ## the suite without slow tests and with few examples (under 1 min)
	HYPOTHESIS_PROFILE=quick $(PYTEST) -n $(WORKERS) -m "not slow" </dev/null

check: lint types imports docs  ## lint, types, import rules, documents

lint: .venv/.dev  ## ruff
	$(BIN)/ruff check .

types: .venv/.dev  ## mypy
	$(BIN)/mypy

imports: .venv/.dev  ## who may import whom
	$(BIN)/lint-imports

docs: .venv/.dev  ## every example, table and help text of the documents is what the code does
	$(PYTEST) -q tests/docs </dev/null

nightly: .venv/.dev  ## the properties with 20,000 examples each (hours)
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -n $(WORKERS) tests/properties </dev/null

bench: .venv/.dev  ## the V pattern beside its peers, as JSON; ROWS=1_000_000 for a short one
	$(BIN)/python -m benchmarks.v_pattern --rows $(ROWS) </dev/null

peers: .peers/.ready  ## other engines for make bench, in their own environment .peers

clean:  ## remove environments and caches
	rm -rf .venv .peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache *.egg-info
