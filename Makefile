# Antiphon's commands. `make` alone prints them.
#
# One environment in .venv: `make serve` puts the locked runtime there, `make test` and `make check` add the locked
# test tools. Each install leaves a stamp, so the second call does nothing.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
SERVE := .venv/serve.stamp
TEST := .venv/test.stamp

.DEFAULT_GOAL := help
.PHONY: help serve install test check soak bench lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

serve: $(SERVE) ## Serve the demo model (HOST, PORT, ARGS="--model PATH.gguf ...")
	@exec $(BIN)/antiphon serve --host $(HOST) --port $(PORT) $(ARGS)

install: $(TEST) ## Build .venv with the runtime and the test tools

test: $(TEST) ## Run every test (ARGS="-k words" to choose)
	@$(BIN)/python -m pytest $(ARGS)

check: $(TEST) ## Formatting, lint, types and architecture
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/python -m pytest --quiet tests/architecture

soak: $(TEST) ## Run the tests that take minutes
	@$(BIN)/python -m pytest -m soak $(ARGS)

clean: ## Remove .venv and what the tools left behind
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

.venv/made.stamp:
	@$(PYTHON) -m venv .venv
	@touch $@

$(SERVE): .venv/made.stamp requirements/serve.txt pyproject.toml
	@$(PIP) install --require-hashes --requirement requirements/serve.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(TEST): $(SERVE) requirements/test.txt
	@$(PIP) install --require-hashes --requirement requirements/test.txt
	@touch $@
