# Every target installs what it needs, and says so. For a landscape: as root, on Debian 12 or newer; whoever is not root on
# Linux, or says IN_CONTAINER=1, gets it in a privileged container of an engine (landscape/container/run.sh).
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$each -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$each; break; }; done)
NAME ?= default
PYTEST_ARGS ?=
NOT_IN_TEST := not charts and not compose and not container and not upgrade and not slow and not soak
ON_LANDSCAPE := (landscape or binaries) and $(NOT_IN_TEST)
OTHERS := not landscape and not binaries and $(NOT_IN_TEST)
BESIDE_EACH_OTHER := --dist loadfile --no-loadscope-reorder
IN_CONTAINER ?= $(shell [ "$$(uname -s) $$(id -u)" = "Linux 0" ] || echo 1)

.DEFAULT_GOAL := help
.PHONY: help venv packages landscape demo status down test test-slow test-upgrade test-unit test-charts test-compose test-container images soak lint docs site format lock clean python browser

help: ## Say what there is.
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

status: venv ## Say what of the landscape runs where.
	$(BIN)/gardener landscape status --name $(NAME)

down: venv ## Take the landscape down; nothing stays but caches.
	$(BIN)/gardener landscape down --name $(NAME)
endif

test: venv packages browser ## All tests but slow ones; those of the landscape bring up one of their own.
	@# First those without a landscape, which wait a third of their time: beside them its clusters would starve. For
	@# which tests run beside which, and in which order, see tests/conftest.py.
	@$(BIN)/pytest -m '$(OTHERS)' --numprocesses 3 $(BESIDE_EACH_OTHER) $(PYTEST_ARGS); others=$$?; \
	$(BIN)/pytest -m '$(ON_LANDSCAPE)' --numprocesses 2 $(BESIDE_EACH_OTHER) $(PYTEST_ARGS); on_landscape=$$?; \
	exit $$((others | on_landscape))

test-slow: venv packages ## What takes minutes of one cluster: it moves, is repaired, rolls, loses its nodes, is reconciled for nothing.
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

test-upgrade: venv packages ## Upgrade a cluster by one minor of Kubernetes; the older one is compiled once.
	$(BIN)/pytest -m upgrade $(PYTEST_ARGS)

test-unit: venv ## The tests that need no landscape.
	$(BIN)/pytest -m '$(OTHERS)' $(PYTEST_ARGS)

test-charts: venv packages ## The charts, installed by Helm: a cluster made by their pods.
	$(BIN)/pytest tests/charts -m 'charts or not charts' $(PYTEST_ARGS)

test-compose: venv packages ## docker-compose.yaml, brought up: a cluster made through its Temporal on PostgreSQL.
	@landscape/packages.sh engine
	$(BIN)/pytest tests/compose -m 'compose or not compose' $(PYTEST_ARGS)

test-container: venv packages ## make demo in a privileged container: a cluster that is made there.
	@landscape/packages.sh engine
	$(BIN)/pytest tests/container -m 'container or not container' $(PYTEST_ARGS)

images: venv packages ## The images of docker-compose.yaml, loaded into the engine if there is one, else left as images.tar.
	@if docker info >/dev/null 2>&1; then docker load --input "$$($(BIN)/gardener landscape images)"; \
	else $(BIN)/gardener landscape images --output images.tar; fi

soak: venv ## A thousand simulated takeovers, in which anything breaks.
	$(BIN)/pytest tests/simulation -m soak $(PYTEST_ARGS)

lint: venv ## Style, types, and who may import whom.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: venv site ## The documents as a site with search: build/site/index.html.

site:
	@rm -rf build/pages && mkdir -p build/pages
	@git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t build/pages
	@$(BIN)/zensical build --strict --clean --config-file zensical.toml

format: venv ## Format the code.
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

venv: $(VENV)/.installed ## The virtual environment with locked packages.

$(VENV)/.installed: requirements.lock pyproject.toml | python
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	@touch $@

python:
	@landscape/packages.sh python

browser:
	@landscape/packages.sh browser

packages: ## The Debian packages that are missing.
	@landscape/packages.sh

lock: venv ## Choose the newest versions that pyproject.toml allows.
	$(BIN)/pip install --quiet --require-hashes --requirement landscape/tools/uv.lock
	$(BIN)/uv pip compile --quiet --upgrade --all-extras --generate-hashes --no-header --python-version 3.11 \
		pyproject.toml --output-file requirements.lock

clean: ## Remove the virtual environment and the tools' caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
