# Two commands matter: `make quickstart` and `make test`. Both set up what they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup quickstart test lint docs-check docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch uv
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

quickstart: setup
	$(BIN)/gnomon clients install
	$(BIN)/gnomon run recipes/quickstart.yaml

test: setup
	$(BIN)/gnomon clients install
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/lint-imports

docs-check: setup
	$(BIN)/python docs/tables.py --check

docs: setup
	$(BIN)/python docs/tables.py --write

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
