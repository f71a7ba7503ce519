# Every verb of this repository; people and CI use the same ones. `make help` lists them.
#
# What a step has made is remembered by a stamp inside it, so that a second run does only what has
# changed, and so that deleting a folder is enough to have it made again. Everything that is installed lands in .venv, node_modules and ui-tests/node_modules;
# the two exceptions, which need root or sudo, are Debian's python3-venv and chromium packages.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Python to make .venv with; every later step uses .venv alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Options for `jupyter lab`, such as LAB_ARGS="--no-browser --port 9000".
LAB_ARGS ?=
# Options for `make raft-search` (--short, --only NAME) and `make raft-mutants` (NAME, --jobs N).
SEARCH_ARGS ?=
MUTANTS_ARGS ?=
# Options for bench-state: --only WORDS, --repeats N, --large.
STATE_ARGS ?=
# A run of chaos: what is drawn from SEED for DURATION_S seconds; CHAOS_ARGS: --rounds-shown, --only FAULT, --scheduling NAME=VALUE.
SEED ?= 1
DURATION_S ?= 300
CHAOS_ARGS ?=
# Options for pytest, such as PYTEST_ARGS="tests/cluster -x".
PYTEST_ARGS ?=

# Lives of sim-soak: one seed, or FIRST:BEYOND.
SIM_SEEDS ?= 0:50000

# Folder of the traces that the evaluation replays, where there is one.
TRACES ?= ../shared/data/traces

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMPS := .venv/.made
LABEXTENSION := notebookos_ext/labextension
export PATH := $(BIN):$(PATH)
export VIRTUAL_ENV := $(VENV)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1

# The server refuses to run as root unless told to; only then is it told.
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root,)

BUILD_TOOLS := "editables>=0.5" "hatchling>=1.5" "hatch-nodejs-version>=0.3.2" "hatch-jupyter-builder>=0.5" "jupyter-builder>=1.2,<2"
TS_SOURCES := $(shell find src schema style -type f -not -path '*/__tests__/*' 2>/dev/null)
PACKAGE_FILES := pyproject.toml package.json install.json $(wildcard notebookos_ext/kernelspec/* jupyter-config/server-config/*)

say = @printf '\n\033[1m== %s\033[0m\n' $(1)

.PHONY: help lab test test-full test-python test-ts test-ui screenshots check check-python check-ts bench bench-raft bench-state raft-mutants raft-search raft-soak sim-soak chaos evaluation fix build wheel clean chromium

help: ## Show this list
	@echo "NotebookOS: replicated Jupyter kernels. Verbs:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Options: LAB_ARGS, PYTEST_ARGS, PYTHON (see the top of the Makefile)"

# ---------------------------------------------------------------- prepare

$(STAMPS)/venv: scripts/make_venv.sh
	$(call say,"Python environment in .venv")
	@bash scripts/make_venv.sh "$(PYTHON)" "$(VENV)"
	@mkdir -p $(STAMPS)
	@bash scripts/quiet.sh build-tools $(BIN)/pip install $(BUILD_TOOLS)
	@touch $@

$(STAMPS)/node: $(STAMPS)/venv scripts/find_node.sh
	$(call say,"Node")
	@bash scripts/find_node.sh "$(VENV)"
	@touch $@

node_modules/.made: $(STAMPS)/node package.json yarn.lock .yarnrc.yml
	$(call say,"Node packages in node_modules (minutes the first time)")
	@bash scripts/quiet.sh node-modules jlpm install --immutable
	@touch $@

# lib/ is compiled from src/, and the labextension is bundled from lib/.
$(LABEXTENSION)/package.json: node_modules/.made tsconfig.json $(TS_SOURCES)
	$(call say,"Front end: compile and bundle into $(LABEXTENSION)")
	@bash scripts/quiet.sh labextension jlpm build:prod
	@touch $@

# The wheel hook would build the front end again; it is there already.
define install_extra
@HATCH_JUPYTER_BUILDER_SKIP_NPM=1 bash scripts/quiet.sh pip-$(1) $(BIN)/pip install --no-build-isolation --editable ".[$(1)]"
endef

$(STAMPS)/python-demo: $(PACKAGE_FILES) | $(LABEXTENSION)/package.json
	$(call say,"Package with the libraries of the demo notebook in .venv (minutes the first time)")
	$(call install_extra,demo)
	@touch $@

$(STAMPS)/python-dev: $(PACKAGE_FILES) | $(LABEXTENSION)/package.json
	$(call say,"Package with test and lint tools in .venv (minutes the first time)")
	$(call install_extra,dev)
	@touch $@ $(STAMPS)/python-demo

# An editable install copies the bundle; this keeps the copy equal to the last build.
define place_labextension
@rm -rf $(VENV)/share/jupyter/labextensions/notebookos-ext
@mkdir -p $(VENV)/share/jupyter/labextensions
@cp -r $(LABEXTENSION) $(VENV)/share/jupyter/labextensions/notebookos-ext
@cp install.json $(VENV)/share/jupyter/labextensions/notebookos-ext/
endef

$(STAMPS)/installed-demo: $(STAMPS)/python-demo $(LABEXTENSION)/package.json
	$(place_labextension)
	@touch $@

$(STAMPS)/installed-dev: $(STAMPS)/python-dev $(LABEXTENSION)/package.json
	$(place_labextension)
	@touch $@ $(STAMPS)/installed-demo

# The published raftos has pins that nobody can satisfy, so it is no dependency but a step.
$(STAMPS)/raftos: notebookos_ext/live/cli/raftos.py | $(STAMPS)/installed-dev
	$(call say,"The engine raftos for its tests")
	@bash scripts/quiet.sh raftos $(BIN)/jupyter-notebookos install-raftos
	@touch $@

ui-tests/node_modules/.made: $(STAMPS)/node ui-tests/package.json ui-tests/yarn.lock
	$(call say,"Node packages of the browser tests in ui-tests/node_modules")
	@cd ui-tests && bash ../scripts/quiet.sh ui-node-modules jlpm install --immutable
	@touch $@

chromium:
	$(call say,"Chromium")
	@bash scripts/find_chromium.sh

build: $(LABEXTENSION)/package.json ## Compile and bundle the front end

# ---------------------------------------------------------------- use

lab: $(STAMPS)/installed-demo ## Prepare everything and start JupyterLab with the embedded cluster
	$(call say,"JupyterLab (Ctrl-C ends it); open examples/train_digits.ipynb with 'Python 3 (NotebookOS)'")
	@exec $(BIN)/jupyter lab $(ALLOW_ROOT) $(LAB_ARGS)

# ---------------------------------------------------------------- check

test: $(STAMPS)/installed-dev $(STAMPS)/raftos ui-tests/node_modules/.made chromium ## Prepare everything; run Python, TypeScript and browser tests
	@bash scripts/run_tests.sh python typescript browser

test-full: $(STAMPS)/installed-dev $(STAMPS)/raftos ui-tests/node_modules/.made chromium ## The same with the tests that take minutes
	@NOTEBOOKOS_FULL=1 bash scripts/run_tests.sh python typescript browser

test-python: $(STAMPS)/installed-dev $(STAMPS)/raftos ## Python tests only
	@bash scripts/run_tests.sh python

test-ts: node_modules/.made ## TypeScript tests only
	@bash scripts/run_tests.sh typescript

test-ui: $(STAMPS)/installed-dev ui-tests/node_modules/.made chromium ## Browser tests only
	@bash scripts/run_tests.sh browser

screenshots: $(STAMPS)/installed-dev ui-tests/node_modules/.made chromium ## Write the pictures in docs/ anew, by browser tests
	@UPDATE_SCREENSHOT=1 bash scripts/run_tests.sh browser

check: check-python check-ts ## Linters, types and import layering, in under a minute

check-python: $(STAMPS)/installed-dev
	$(call say,"ruff")
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	$(call say,"mypy")
	@$(BIN)/mypy
	$(call say,"layering: ARCHITECTURE.md against the tree")
	@$(BIN)/pytest -q tests/test_tree.py

check-ts: node_modules/.made
	$(call say,"eslint prettier stylelint tsc")
	@jlpm run stylelint:check
	@jlpm run prettier:check
	@jlpm run eslint:check
	@jlpm run tsc --project tsconfig.test.json

fix: $(STAMPS)/installed-dev node_modules/.made ## Let the linters and formatters repair what they can
	-@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@jlpm run lint

bench: $(STAMPS)/bench $(STAMPS)/raftos ## Measure against plain ipykernel, and consensus beside PySyncObj; prints ratios
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks.consensus
	@$(BIN)/python -m benchmarks.transport
	@$(BIN)/python -m benchmarks.scheduler

# What our consensus is compared with. Its sources must be built apart from ours.
$(STAMPS)/bench: pyproject.toml | $(STAMPS)/installed-dev
	@bash scripts/quiet.sh pip-bench $(BIN)/pip install $$($(BIN)/python scripts/extra.py bench)
	@touch $@

bench-raft: $(STAMPS)/bench $(STAMPS)/raftos ## Measure replicated logs beside PySyncObj and raftos: commits, fail-over, restart, rest
	@$(BIN)/python -m benchmarks.consensus

bench-state: $(STAMPS)/installed-dev ## Measure replication of the namespace beside saving it whole
	@$(BIN)/python -m benchmarks.state $(STATE_ARGS)

sim-soak: $(STAMPS)/installed-dev ## Simulate 50,000 short lives full of faults, all invariants checked
	@$(BIN)/python -m notebookos_ext.simulation soak $(SIM_SEEDS)

raft-soak: $(STAMPS)/installed-dev ## Live SEEDS=10000 random lives of Raft groups in all; goes on where it ended
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python scripts/raft_soak.py $(if $(SEEDS),--seeds $(SEEDS))

chaos: $(STAMPS)/installed-dev ## Break real processes at random while cells run: SEED=1 DURATION_S=300
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m chaos --seed $(SEED) --duration-s $(DURATION_S) $(CHAOS_ARGS)

raft-mutants: $(STAMPS)/installed-dev ## Plant faults in consensus, one at a time: who catches each; MUTANTS_ARGS="NAME"
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m gate.mutants --write $(MUTANTS_ARGS)

raft-search: $(STAMPS)/installed-dev ## Search all states of small Raft groups; SEARCH_ARGS="--short"
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m gate $(SEARCH_ARGS)

evaluation: $(STAMPS)/installed-dev ## Simulate the paper's comparison; writes docs/evaluation.md (minutes)
	@$(BIN)/python -m notebookos_ext.simulation evaluate --data "$(TRACES)"

wheel: $(STAMPS)/installed-dev ## Build dist/*.whl with the production front end
	$(call say,"Wheel in dist/")
	@HATCH_JUPYTER_BUILDER_SKIP_NPM=1 $(BIN)/python -m build --wheel --no-isolation

clean: ## Remove everything that these verbs have made, environments included
	rm -rf .venv .cache lib dist build coverage $(LABEXTENSION) notebookos_ext/_version.py tsconfig.tsbuildinfo
	rm -rf node_modules .yarn ui-tests/node_modules ui-tests/.yarn ui-tests/test-results ui-tests/playwright-report
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .eslintcache .stylelintcache
	find notebookos_ext tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
