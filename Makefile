# Every target installs the packages that it needs, and says so. A landscape needs root, on Debian 12 or newer. Without root on
# Linux, or with IN_CONTAINER=1, it runs in a privileged container of a container engine (landscape/container/run.sh).
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$each -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$each; break; }; done)
NAME ?= default
PYTEST_ARGS ?=
NOT_IN_TEST := not charts and not compose and not container and not upgrade and not slow and not soak
ON_LANDSCAPE := landscape and $(NOT_IN_TEST)
WITH_BINARIES := binaries and not landscape and $(NOT_IN_TEST)
OTHERS := not landscape and not binaries and $(NOT_IN_TEST)
# Each process of a run reads all files that it is given. These have all tests with the marker.
FILES_WITH = $$(grep -rl 'mark\.$(1)' tests --include='test_*.py')
BESIDE_EACH_OTHER := --dist loadfile --no-loadscope-reorder
# Go's programs in the tests need less CPU time and more memory (a landscape with three Shoots 8 GiB): their heap grows
# fivefold until they collect garbage.
test: export GOGC := 400
IN_CONTAINER ?= $(shell [ "$$(uname -s) $$(id -u)" = "Linux 0" ] || echo 1)
# Each process would compile the assertions of all tests again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv packages landscape demo status down test test-slow test-upgrade test-unit test-charts test-compose test-container images soak chaos conformance histories benchmark benchmark-compare lint docs site format lock clean python browser

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r target text; do \
		printf '  make %-14s %s\n' "$$target" "$$text"; done

ifeq ($(IN_CONTAINER),1)
demo landscape status down:
	@landscape/container/run.sh $@ $(NAME)
else
demo: venv packages ## Bring up the landscape and a first cluster, and show them; with IN_CONTAINER=1 in a privileged container.
	$(BIN)/gardener demo --name $(NAME)

landscape: venv packages ## Bring up the landscape: Temporal, a garden, a cloud and two seeds.
	$(BIN)/gardener landscape up --name $(NAME)

status: venv ## Show the processes of the landscape, and where they run.
	$(BIN)/gardener landscape status --name $(NAME)

down: venv ## Remove the landscape; only caches stay.
	$(BIN)/gardener landscape down --name $(NAME)
endif

test: venv packages browser ## Run all tests except slow ones; landscape tests bring up their own landscape.
	@# Tests without a landscape run first: beside them the landscape's clusters would get too little CPU. They wait a third
	@# of their time, so four processes run them. The programs of the landscape are compiled beside the first tests, which
	@# need none of them. tests/conftest.py says which tests run beside each other, in which order.
	@mkdir -p build; nice -n 19 $(BIN)/gardener landscape prepare > build/prepare.log 2>&1 & \
	$(BIN)/pytest -m '$(OTHERS)' --numprocesses 4 $(BESIDE_EACH_OTHER) $(PYTEST_ARGS); others=$$?; wait; \
	$(BIN)/pytest -m '$(WITH_BINARIES)' $(call FILES_WITH,binaries) --numprocesses 4 $(BESIDE_EACH_OTHER) $(PYTEST_ARGS); with_binaries=$$?; \
	$(BIN)/pytest -m '$(ON_LANDSCAPE)' tests/landscape $(call FILES_WITH,landscape) --numprocesses 2 $(BESIDE_EACH_OTHER) $(PYTEST_ARGS); on_landscape=$$?; \
	exit $$((others | with_binaries | on_landscape))

test-slow: venv packages ## Run tests that use one cluster for minutes: move, hibernation, repair, rolling update, lost nodes, reconciliation without changes.
	@landscape/packages.sh gvisor
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

test-upgrade: venv packages ## Upgrade Kubernetes by a minor version, which is compiled once, and a landscape of an earlier version.
	$(BIN)/pytest -m upgrade $(PYTEST_ARGS)

test-unit: venv ## Run the tests that need no landscape.
	$(BIN)/pytest -m '$(OTHERS)' $(PYTEST_ARGS)

test-charts: venv packages ## Install the charts by Helm, and create a cluster with their pods.
	$(BIN)/pytest tests/charts -m 'charts or not charts' $(PYTEST_ARGS)

test-compose: venv packages ## Start docker-compose.yaml, and create a cluster through its Temporal on PostgreSQL.
	@landscape/packages.sh engine
	$(BIN)/pytest tests/compose -m 'compose or not compose' $(PYTEST_ARGS)

test-container: venv packages ## Run make demo in a privileged container.
	@landscape/packages.sh engine
	$(BIN)/pytest tests/container -m 'container or not container' $(PYTEST_ARGS)

images: venv packages ## Build the images of docker-compose.yaml, and load them into the container engine; without one, write images.tar.
	@if docker info >/dev/null 2>&1; then docker load --input "$$($(BIN)/gardener landscape images)"; \
	else $(BIN)/gardener landscape images --output images.tar; fi

soak: venv ## Run thousands of simulated takeovers and disturbed watches, and send thousands of broken objects to admission.
	$(BIN)/pytest tests/simulation tests/unit/admission/test_bad_input.py -m soak $(PYTEST_ARGS)

chaos: venv packages ## Kill workers at every point of a Seed's flows, servers in the middle, a gardenlet in each task of a Shoot, other processes during a creation, and controllers between two writes; compare effects.
	$(BIN)/python -m tests.chaos build/chaos.json
	$(BIN)/pytest -m slow tests/unit/garden_controllers/test_killed_processes.py tests/unit/resource_manager/test_killed_at_an_api_server.py
	$(BIN)/pytest -m slow -s tests/landscape/test_kill_matrix.py tests/landscape/test_chaos.py

conformance: venv packages ## Run Kubernetes' conformance specs on a Shoot of two nodes: ARGS="--shard 1/4 --minutes 20 --focus REGEX".
	$(BIN)/python -m tests.conformance $(ARGS)

benchmark: venv packages ## Run all benchmarks, or BENCHMARKS="shoot scale", and write reports, tables and plots to docs/benchmarks.
	$(BIN)/python -m benchmarks.record $(BENCHMARKS)

benchmark-compare: venv ## Compare two reports of a benchmark: BASE=file.json HEAD=file.json; fails if a ratio fell by 20 %.
	@$(BIN)/python -m benchmarks.compare \
		"$(or $(BASE),$(error BASE is missing: make benchmark-compare BASE=file.json HEAD=file.json))" \
		"$(or $(HEAD),$(error HEAD is missing: make benchmark-compare BASE=file.json HEAD=file.json))"

histories: venv ## Record histories of all workflows for RELEASE=NAME, and replay all recorded histories.
	$(BIN)/python -m tests.replay.corpus "$(or $(RELEASE),$(error RELEASE is missing: make histories RELEASE=NAME))"

lint: venv ## Check style, types and import rules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: venv site ## Build the documents as a site with search: build/site/index.html.

site:
	@rm -rf build/pages && mkdir -p build/pages
	@git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t build/pages
	@$(BIN)/zensical build --strict --clean --config-file zensical.toml

format: venv ## Format the code.
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

venv: $(VENV)/.installed ## Make the virtual environment with locked packages.

$(VENV)/.installed: requirements.lock pyproject.toml | python
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	@touch $@

python:
	@landscape/packages.sh python

browser:
	@landscape/packages.sh browser

packages: ## Install missing Debian packages.
	@landscape/packages.sh

lock: venv ## Choose the newest versions that pyproject.toml allows.
	$(BIN)/pip install --quiet --require-hashes --requirement landscape/tools/uv.lock
	$(BIN)/uv pip compile --quiet --upgrade --all-extras --generate-hashes --no-header --python-version 3.11 \
		pyproject.toml --output-file requirements.lock

clean: ## Remove the virtual environment and the tools' caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
