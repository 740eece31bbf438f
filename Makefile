# What a checkout needs: demo, test, lint. Only make and a python3 (3.11 or newer) are assumed.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
PYTEST_ARGS ?= -n 2 --dist loadfile
DEMO := qwen3-32b-h100
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Real engines for the tests, each in an environment of its own under .engines.
QUICK_ENGINES := mlx dynamo
ALL_ENGINES := $(QUICK_ENGINES) vllm

.PHONY: help demo test test-engines engines lint format docs clean

help:
	@echo 'make demo    install into $(VENV) and decide the example fleet'
	@echo 'make test    run the tests          (PYTEST_ARGS="-k grid" selects)'
	@echo 'make test-engines  install real engines for a CPU (4 GB) and run the tests that need them'
	@echo 'make lint    formatting, lint, types, import rules'
	@echo 'make format  rewrite the sources in the house format'
	@echo 'make docs    build the documentation as a site, in site/'
	@echo 'make clean   remove $(VENV) and what the demo wrote'

# A name on PATH may be a shim that cannot run, so an interpreter counts only once it has run.
$(VENV)/.created:
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv $(VENV)"; "$$python" -m venv --clear $(VENV) && touch $@; exit; \
	  fi; \
	done; \
	echo 'No Python 3.11 or newer with venv was found; name one with make PYTHON=/path/to/python' >&2; exit 1

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP_INSTALL) -e '.[test]'
	@touch $(VENV)/.installed $@

demo: $(VENV)/.installed
	@mkdir -p .demo
	@rm -f .demo/$(DEMO).study.db*
	$(BIN)/python -m fleetsieve run examples/$(DEMO)/fleet.yaml --study .demo/$(DEMO).study.db

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

engines: $(VENV)/.installed-test
	$(BIN)/python tests/engines/install.py $(QUICK_ENGINES)

test-engines: $(VENV)/.installed-test
	$(BIN)/python tests/engines/install.py $(ALL_ENGINES)
	$(BIN)/python -m pytest --engines tests/engines

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL) -e '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .demo site
