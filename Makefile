# Everything a developer or a CI runs. `make` alone lists it.
#
# PYTHON names the interpreter to make the environment with; it must be 3.11 or later.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
SOAK ?=

.PHONY: demo test check test-cluster test-upstream bench soak lab lock clean help

demo: $(READY) ## Two notebooks on GPU kernels while a third waits; emulated GPUs where there are none
	@$(BIN)/python examples/demo/run.py

test: check ## The checks and all tests that need no cluster, on every Python that is found
	@$(BIN)/python -m pytest -m "not cluster"
	@.ci/other-pythons

check: $(READY) ## Format, lint, types and layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

test-cluster: $(READY) ## The tests that need a Kubernetes cluster: that of KUBECONFIG, or one made here
	@tests/cluster/run

test-upstream: $(READY) ## Jupyter's own tests of kernel managers and notebooks, with our provisioner
	@$(BIN)/python tests/upstream/run.py

bench: $(READY) ## The ratios of speed that we promise
	@$(BIN)/python -m benchmarks

soak: $(READY) ## Long random tests of the local place: SOAK="--seed 7 --rounds 3 --only deaths"
	@$(BIN)/python -m tests.soak $(SOAK)

lab: $(READY) ## JupyterLab with the configuration of the demo
	@$(BIN)/python examples/demo/run.py --configure
	@JUPYTER_CONFIG_PATH="$(CURDIR)/demo-out/config$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
		$(BIN)/jupyter lab --notebook-dir=examples/demo

lock: $(READY) ## Resolve the dependencies anew: names, versions and hashes, no addresses
	@$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --upgrade --quiet \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header \
		--all-extras --group test --group check -o requirements/dev.txt

clean: ## Remove what these targets made
	@rm -rf .venv .venv-3.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache demo-out bench-out dist build
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

help: ## This list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "jupyter-gpu needs Python 3.11 or later, and $(PYTHON) is $$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1 || echo 'not there'):" \
			"name another one, like make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) can't make virtual environments: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@[[ -x $(BIN)/python ]] && $(BIN)/python -c '' 2>/dev/null || { echo "making .venv"; $(PYTHON) -m venv --clear .venv; }
	@[[ -x $(BIN)/uv ]] || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/uv pip install --quiet --require-hashes -r requirements/dev.txt
	@VIRTUAL_ENV="$(CURDIR)/.venv" $(BIN)/uv pip install --quiet --no-deps -e .
	@touch $@
