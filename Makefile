# Antiphon's commands. `make` alone prints them.
#
# One environment, .venv: `make serve` installs the locked runtime there, `make test` and `make check` add the locked
# test tools. Each step leaves a stamp, so that the next call installs nothing. Packages are not compiled when they
# are installed but when they are first imported: that halves a cold install.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
INSTALL := $(PIP) install --no-compile
# The locks are complete, and say on purpose that one dependency of a dependency is left out (pyproject.toml, tool.uv).
LOCKED := --no-deps --require-hashes --requirement

BENCH := $(filter-out make_model,$(basename $(notdir $(wildcard benchmarks/*.py))))

.DEFAULT_GOAL := help
.PHONY: help serve native install test check soak bench score docs lock clean system

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

serve: system .venv/serve.stamp ## Serve the demo model (HOST=, PORT=, ARGS="--model PATH.gguf")
	@exec $(BIN)/antiphon serve $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(ARGS)

native: system .venv/native.stamp ## Build llama.cpp for this processor, which the engine then takes (minutes)

install: .venv/test.stamp ## Make .venv with the runtime and the test tools

test: .venv/test.stamp ## Run every test but the soak, on every core (ARGS="-k words" chooses)
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

check: .venv/test.stamp ## Check format, lint, types, made docs and architecture
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/python scripts/generate_docs.py --check
	@$(BIN)/python -m pytest --quiet tests/architecture

soak: .venv/test.stamp ## Run the tests that take minutes
	@$(BIN)/python -m pytest -m soak $(ARGS)

bench: .venv/test.stamp ## Run the measurements (BENCH=serve chooses one, ARGS="--rounds 5")
	@for each in $(BENCH); do $(BIN)/python benchmarks/$$each.py $(ARGS) || exit 1; done

score: .venv/test.stamp ## Score the demo model on its held-out set, as `antiphon serve` serves it
	@$(BIN)/python -m models.cantor.score --serve

docs: .venv/serve.stamp ## Write the pages that are made from code again
	@$(BIN)/python scripts/generate_docs.py

lock: .venv/lock.stamp ## Resolve the locks again from pyproject.toml (ARGS=--upgrade for newer versions)
	@$(LOCK) --group lock --output-file requirements/lock.txt
	@$(LOCK) pyproject.toml --group build --output-file requirements/serve.txt
	@$(LOCK) --group native-build --output-file requirements/native-build.txt
	@$(LOCK) --group native --no-deps --output-file requirements/native.txt
	@$(LOCK) pyproject.toml --group build --group test --constraint requirements/serve.txt \
		--output-file requirements/test.txt

clean: ## Remove .venv and what the tools left behind
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# The locks hold for every platform and name no registry: the user's own pip configuration says where packages are.
LOCK = .venv/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate \
	--no-header $(ARGS)

system:
	@scripts/check-system $(PYTHON)

# The setuptools that Python 3.11 puts into every new environment runs code at each start (a .pth file); nothing needs it.
.venv/made.stamp: | system
	@echo "Making .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) --quiet uninstall --yes setuptools
	@touch $@

# The project itself is built by the locked backend, with nothing fetched on the side.
.venv/serve.stamp: .venv/made.stamp requirements/serve.txt pyproject.toml
	@echo "Installing the runtime"
	@$(INSTALL) $(LOCKED) requirements/serve.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# The compiler and CMake are the system's: without them this says what to install.
.venv/native.stamp: requirements/native.txt requirements/native-build.txt scripts/build-native | .venv/serve.stamp
	@scripts/build-native .venv
	@touch $@

.venv/test.stamp: .venv/serve.stamp requirements/test.txt
	@echo "Installing the test tools"
	@$(INSTALL) $(LOCKED) requirements/test.txt
	@touch $@

.venv/lock.stamp: .venv/made.stamp requirements/lock.txt
	@$(PYTHON) -m venv .venv/lock
	@.venv/lock/bin/python -m pip --quiet install --require-hashes --requirement requirements/lock.txt
	@touch $@
