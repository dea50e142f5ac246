# Two commands, each doing all of its own set-up: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo test lint clean

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3)
INSTALLED := $(VENV)/.installed
# Options of `synth demo`, for example: make demo ARGS="--seed 1 --batches 5"
ARGS ?=
# Options of pytest, for example: make test PYTEST_ARGS="tests/domain -k statistics"
PYTEST_ARGS ?=

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

help: ## show this help
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/'

$(INSTALLED): requirements.lock pyproject.toml deploy/setup.sh
	deploy/setup.sh python "$(PYTHON)"
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	deploy/setup.sh packages $(BIN)/python
	touch $@

install: $(INSTALLED) ## make the virtual environment with the pinned packages
	@echo "synth: ready; \`source $(BIN)/activate\` puts synth on the path" >&2

demo: $(INSTALLED) ## the main job: base policy, evaluation, training, evaluation, report
	deploy/setup.sh demo
	$(BIN)/synth demo $(ARGS)

lint: $(INSTALLED) ## ruff, import-linter, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

test: lint ## everything that CI checks: lint, pytest, and pytest with vLLM servers where they are installed
	deploy/setup.sh test
	$(BIN)/python -m pytest -m "not vllm" $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m vllm $(PYTEST_ARGS) || test $$? -eq 5 # 5: none is among those asked for

clean: ## remove the virtual environment and caches; state in SYNTH_HOME stays
	rm -rf $(VENV) build *.egg-info .ruff_cache .hypothesis
