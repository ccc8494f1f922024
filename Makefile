# `make` lists the targets; all of them work in a fresh clone with Python 3.11 or newer and no MPI.
#
# Everything is installed into .venv from requirements.lock (exact versions, hashes, wheels only).  The project itself
# is not built: a .pth file with a relative path puts this folder on .venv's path, and .venv/bin/quadrille starts it, so
# that the folder may be moved.  Programs of .venv are called as `python -m`, since the
# first line of a script cannot hold a path with a space.

PYTHON ?= python3
ARGS ?=

# For a machine with a GPU and no network: `make gpu-wheels` here, `make gpu-all OUT=DIR` there.
OUT ?= out/gpu
COMMIT ?= $(shell git describe --always --dirty --abbrev=12 2>/dev/null)
GPU_PYTHON ?= 3.12
GPU_WHEELS ?= build/gpu-wheels

VENV := .venv
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
VENV_PYTHON := $(VENV)/bin/python
QUADRILLE := $(VENV)/bin/quadrille
PIP_OPTIONS := --quiet --disable-pip-version-check --no-input --only-binary :all:

# Sets the shell's arguments to the pip of .venv, or to the one outside where .venv has none.
WITH_PIP = if [ -e "$(VENV)/bin/pip" ]; then set -- "$(VENV_PYTHON)" -m pip; else set -- "$(PYTHON)" -m pip --python "$(VENV_PYTHON)"; fi;

BUILD_DOCS = "$(VENV_PYTHON)" -m sphinx -W --keep-going -q -b html -d out/docs-doctrees docs out/docs

# What comes before a command that needs CuPy: it is installed as fits the driver; without a driver nothing follows.
WITH_CUPY = cuda=$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1); \
	if [ -z "$$cuda" ]; then echo "make $@: skipped, nvidia-smi finds no CUDA driver"; exit 0; fi; \
	if [ "$$cuda" -ge 13 ]; then cupy='cupy-cuda13x[ctk]'; else cupy='cupy-cuda12x[ctk]'; fi; \
	if ! "$(VENV_PYTHON)" -c 'import cupy' 2>/dev/null; then \
	  $(WITH_PIP) \
	  "$$@" install $(PIP_OPTIONS) -c requirements.lock "$$cupy" \
	    || { echo "make $@: $$cupy, which fits CUDA $$cuda, could not be installed" >&2; exit 1; }; \
	fi;

.DEFAULT_GOAL := help
.PHONY: help setup run test check docs docs-outputs fuzz fuzz-files crashes kills kills-sweep bench bench-simulator bench-runtime bench-app bench-gpu test-gpu gpu-wheels gpu-all \
	studies wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## install what is needed into .venv (the other targets do this by themselves)

$(INSTALLED): requirements.lock Makefile
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "make: $(PYTHON) is missing or older than Python 3.11: install Debian's package python3, or name another: make PYTHON=python3.11" >&2; exit 2; }
	@echo "installing into $(VENV) from requirements.lock (about a minute)" >&2
	@rm -rf "$(VENV)"
	@if "$(PYTHON)" -c 'import ensurepip' 2>/dev/null; then "$(PYTHON)" -m venv "$(VENV)"; \
	elif "$(PYTHON)" -m pip --version >/dev/null 2>&1; then "$(PYTHON)" -m venv --without-pip "$(VENV)"; \
	else echo "make: $(PYTHON) has neither ensurepip nor pip: install Debian's package python3-venv" >&2; exit 2; fi
	@$(WITH_PIP) \
	"$$@" install $(PIP_OPTIONS) --no-deps --require-hashes -r requirements.lock
	@site=$$("$(VENV_PYTHON)" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	"$(VENV_PYTHON)" -c 'import os, sys; print(os.path.relpath(os.getcwd(), sys.argv[1]))' "$$site" > "$$site/quadrille.pth"
	@printf '%s\n' '#!/bin/sh' \
	  'exec "$$(dirname "$$(readlink -f "$$0")")/python" -P -m quadrille "$$@"' > "$(QUADRILLE)"
	@chmod +x "$(QUADRILLE)"
	@touch "$@"

$(DOCS_INSTALLED): $(INSTALLED) requirements-docs.lock
	@echo "installing Sphinx into $(VENV) from requirements-docs.lock" >&2
	@$(WITH_PIP) "$$@" install $(PIP_OPTIONS) --no-deps --require-hashes -r requirements-docs.lock
	@touch "$@"

run: $(INSTALLED) ## the main job: calibrate, predict, run, verify, compare (under 3 minutes)
	@"$(QUADRILLE)" study main-job $(ARGS)

test: $(INSTALLED) ## all tests and doctests, real MPI ranks included
	@"$(VENV_PYTHON)" -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(INSTALLED) $(DOCS_INSTALLED) ## formatting, lint, types, documentation
	@"$(VENV_PYTHON)" -m ruff format --check .
	@"$(VENV_PYTHON)" -m ruff check .
	@"$(VENV_PYTHON)" -m mypy
	@"$(VENV_PYTHON)" docs/generate.py --check
	@$(BUILD_DOCS)

docs: $(INSTALLED) $(DOCS_INSTALLED) ## build the documentation into out/docs (the reference is generated anew first)
	@"$(VENV_PYTHON)" docs/generate.py
	@$(BUILD_DOCS)
	@echo "open out/docs/index.html"

docs-outputs: $(INSTALLED) ## run the console examples of README and docs, write what they print into the pages, and strip notebooks
	@"$(VENV_PYTHON)" docs/examples.py

fuzz: $(INSTALLED) ## 10,000 damaged files and flags over all readers, then tests with cases drawn anew; SEED=N repeats, BUDGET=SECONDS ends each half
	@seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; echo "make fuzz SEED=$$seed"; \
	"$(VENV_PYTHON)" -m tests.fuzzing --seed "$$seed" --count 10000 --seconds "$${BUDGET:-7200}" && \
	"$(VENV_PYTHON)" -m pytest --numprocesses 2 --hypothesis-profile fresh --hypothesis-seed "$$seed" \
	  $${BUDGET:+--budget "$$BUDGET"} -m hypothesis tests $(ARGS)

fuzz-files: $(INSTALLED) ## random files of every reader and random flags, for ten minutes; ARGS="--seconds 60 --seed 5" limits and repeats
	"$(VENV_PYTHON)" -m tests.fuzzing --seconds 600 $(ARGS)

crashes: $(INSTALLED) ## kill every writer at each of its calls to the file system, several ranks included (ten minutes)
	"$(VENV_PYTHON)" -m tests.support.crash_trials $(ARGS)

kills: $(INSTALLED) ## stop or kill a process of a launch at random, 200 times (ten minutes); ARGS="--seed 5 --draws 20" repeats
	"$(VENV_PYTHON)" -m tests.support.process_trials $(ARGS)

kills-sweep: $(INSTALLED) ## kill a sweep with a store at random, 100 times (one minute); ARGS="--seed 5 --draws 20" repeats
	"$(VENV_PYTHON)" -m tests.support.store_trials $(ARGS)

bench: $(INSTALLED) ## the figures that the project must reach, in one table
	@"$(QUADRILLE)" bench $(ARGS)

bench-simulator: $(INSTALLED) ## the speed of the network simulator, beside SimGrid's where that is installed
	@"$(QUADRILLE)" study simulator-speed $(ARGS)

bench-runtime: $(INSTALLED) ## the speed of our product, beside that of peers that are installed
	@"$(QUADRILLE)" study runtime-speed $(ARGS)

bench-app: $(INSTALLED) ## the time from a move of a slider of the app to its answer, at 1,024 GPUs, in a headless browser
	@"$(VENV_PYTHON)" -m tests.support.app_moves

test-gpu: $(INSTALLED) ## the tests on a CUDA device; skipped with a reason where there is none
	@$(WITH_CUPY) "$(VENV_PYTHON)" -m pytest -m gpu $(ARGS)

bench-gpu: $(INSTALLED) ## the speed of a CUDA device, and ranks that share it, predicted and run; skipped without one
	@$(WITH_CUPY) "$(QUADRILLE)" study gpu $(ARGS)

gpu-wheels: ## fill build/gpu-wheels with what a machine with a GPU and no network may lack (GPU_PYTHON=3.12)
	@"$(PYTHON)" -P studies/gpu/offline_python.py wheels "$(GPU_WHEELS)" --python "$(GPU_PYTHON)"

gpu-all: ## there: all that takes a GPU, in 8 minutes and without a network, into the folder OUT; goes on where it was killed
	@"$(PYTHON)" -P studies/gpu/offline_python.py run "$(GPU_WHEELS)" "$(OUT)" --commit "$(COMMIT)" $(ARGS)

studies: $(INSTALLED) ## run every study again and rewrite its results (more than an hour)
	@for study in studies/*/study.py; do \
	  echo "$$study" >&2; module=$$(echo "$${study%.py}" | tr / .); "$(VENV_PYTHON)" -P -m "quadrille.$$module" || exit 1; \
	done

wheel: $(INSTALLED) ## build dist/quadrille_hpc-VERSION-py3-none-any.whl, for pip install elsewhere
	@"$(VENV_PYTHON)" -m hatchling build --target wheel

clean: ## remove .venv and all caches
	rm -rf "$(VENV)" dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
