# Every target works on a bare machine with Python 3.11 and make. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
# Names of tests or options for pytest: make test-only TESTS="tests/tenancy -k bind"
TESTS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Make .venv with the pinned packages and this checkout installed in it

# The stamp is written last, so that an interrupted set-up is taken up again.
$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tenantry needs Python 3.11 or newer; say which one with make PYTHON=…" >&2; exit 1; }
	@echo "Fetching the pinned packages into .venv: a minute or two, once."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Start everything, run the sample workflows of two tenants (ONCE=1: then stop; SLOW=1: slow stages)
	$(BIN)/tenantry demo $(if $(ONCE),--once) $(if $(SLOW),--slow)

.PHONY: test
test: lint types test-only ## Lint, types, import rules and all tests

.PHONY: test-only
test-only: $(STAMP) .venv-helm/.installed ## Only the tests (TESTS="path -k word" for some of them)
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	$(BIN)/python -m pytest -n 2 --ignore=tests/acceptance
	@# Real processes with bounds in time: not two of them at once on two cores.
	$(BIN)/python -m pytest tests/acceptance
endif

.PHONY: lint
lint: $(STAMP) ## Format, lint and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: types
types: $(STAMP) ## mypy and pyright, both strict
	$(BIN)/mypy
	$(BIN)/pyright

.PHONY: bench
bench: $(STAMP) $(if $(ALONE),,.venv-bench/.installed) ## Measure speed against peers, on a quiet machine (ONLY=w1,w3 QUICK=1 ALONE=1)
	$(BIN)/python -m tests.bench $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) $(if $(ALONE),--alone)

# The peers' packages stay out of the product's environment.
.PHONY: profile
profile: $(STAMP) ## Show where the time of W1 goes, in the worker and in the server
	$(BIN)/python -m tests.bench.profile

.venv-bench/.installed: tests/bench/requirements.txt
	@test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/bench/requirements.txt
	@touch $@

# Helm as a library is large, and only the tests of the chart want it: an environment of its own.
.PHONY: chart-setup
chart-setup: .venv-helm/.installed ## Make .venv-helm, with which the chart is tested

.venv-helm/.installed: tests/helm/requirements.txt
	@test -x .venv-helm/bin/python || $(PYTHON) -m venv .venv-helm
	.venv-helm/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/helm/requirements.txt
	@touch $@

.PHONY: chart-docs
chart-docs: $(STAMP) ## Write the table of values into helm/README.md from the comments of helm/values.yaml
	$(BIN)/python -m tests.helm.values_table

.PHONY: soak
soak: $(STAMP) ## Random commands and crashes against a model, for long
	$(BIN)/python -m pytest -m soak -s $(TESTS)

# An upgrade of all pins: make pins UPGRADE=1. Written without any download address; the tool lives in a venv of its own.
.PHONY: pins
pins: ## Write requirements.txt and requirements-dev.txt from pyproject.toml
	@test -x .venv-pins/bin/pip-compile || { $(PYTHON) -m venv .venv-pins && .venv-pins/bin/pip install --quiet pip-tools; }
	.venv-pins/bin/pip-compile $(PIN_OPTIONS) --extra dev --output-file requirements-dev.txt pyproject.toml
	.venv-pins/bin/pip-compile $(PIN_OPTIONS) --constraint requirements-dev.txt --output-file requirements.txt pyproject.toml
	.venv-pins/bin/pip-compile $(PIN_OPTIONS) --output-file tests/bench/requirements.txt tests/bench/requirements.in
	.venv-pins/bin/pip-compile $(PIN_OPTIONS) --output-file tests/helm/requirements.txt tests/helm/requirements.in
	@sed -i '/^# The following packages are considered/d' requirements.txt requirements-dev.txt tests/*/requirements.txt

PIN_OPTIONS = --quiet --generate-hashes --strip-extras --allow-unsafe --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## Remove what set-up, tests and tools made
	rm -rf .venv .venv-pins .venv-bench .venv-helm .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist ./*.egg-info
