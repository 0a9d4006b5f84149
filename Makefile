# `make demo` and `make test` need only Python 3.11 or newer and make: each creates .venv, installs
# the tested set of versions from constraints.txt, and does its job.
#
#   make demo PYTHON=python3.12         another interpreter
#   make demo TORCH_INDEX=<url>         an extra package index for torch, such as its CPU wheels
#   make test PYTEST_ARGS='-k fusion'   some of the tests

PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 python,\
            $(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
TORCH_INDEX ?=
PYTEST_ARGS ?=
EXTRAS := torch,jax,mlir,tvm,cuda,triton,dev,docs,completion

VENV := .venv
BIN := $(VENV)/bin
PIP ?= $(BIN)/python -m pip
INSTALL = $(PIP) install --disable-pip-version-check --no-input --quiet -c constraints.txt
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test core alone sweep compat docs lint format clean distclean
MAKEFLAGS += --no-print-directory

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: $(STAMP) ## a transformer block through every stage, beside the other compilers
	$(BIN)/python -m stack.demos.transformer

test: lint ## everything a change has to pass
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" $(PYTEST_ARGS)

core: $(STAMP) ## the tests of the compiler's core, within three minutes
	$(BIN)/python -m pytest -n 2 --dist loadfile -m core $(PYTEST_ARGS)

sweep: $(STAMP) ## the slow tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(PYTEST_ARGS)

# TORCH=none or JAX=none leaves a framework out; without both, only NumPy is installed. The
# environment stays in .compat, for a look at what failed.
TORCH ?= none
JAX ?= none
comma := ,
FRAMEWORKS = $(if $(filter-out none,$(TORCH)),$(comma)torch)$(if $(filter-out none,$(JAX)),$(comma)jax)
COMPAT = .compat/torch-$(TORCH)-jax-$(JAX)
COMPAT_PIP = $(COMPAT)/bin/python -m pip install --disable-pip-version-check --no-input --quiet
compat: ## the smoke tests on other releases: make compat TORCH=2.14.1 JAX=none
	@test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	@echo "installing torch $(TORCH) and jax $(JAX) into $(COMPAT)"
	@$(COMPAT_PIP) 'setuptools>=77' wheel 'pytest<9.2'
	@$(COMPAT_PIP) --no-build-isolation -e '.$(if $(FRAMEWORKS),[mlir$(FRAMEWORKS)])' \
		$(if $(filter-out none,$(TORCH)),'torch==$(TORCH)') $(if $(filter-out none,$(JAX)),'jax==$(JAX)')
	@$(COMPAT)/bin/python -m pytest -p no:cacheprovider tests/smoke

CORE = $(CURDIR)/.compat/core
CORE_PIP = $(CORE)/bin/python -m pip install --disable-pip-version-check --no-input --quiet
alone: ## the core without its wings in a fresh environment, and its tests there
	@rm -rf $(CORE)
	@$(PYTHON) -m venv $(CORE)
	@$(PYTHON) tests/packaging/core_alone.py $(CORE)/tree
	@$(CORE_PIP) 'setuptools>=77' wheel 'pytest<9.2' hypothesis ml_dtypes expecttest scipy
	@$(CORE_PIP) --no-build-isolation '$(CORE)/tree[mlir]'
	@cd $(CORE) && bin/python $(CURDIR)/tests/packaging/without_wings.py $(CORE)/lib > without_wings.json
	@cd $(CORE) && bin/pytest -q -p no:cacheprovider \
		$(CURDIR)/tests/smoke/test_numpy.py $(CURDIR)/tests/ir --ignore=$(CURDIR)/tests/ir/test_mesh.py

docs: $(STAMP) ## the documentation site, in site/
	$(BIN)/python -m mkdocs build --strict --clean

lint: $(STAMP) ## ruff, the check of prose and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/prose.py
	$(BIN)/basedpyright

format: $(STAMP) ## lay the code out as `make lint` wants it
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

install: $(STAMP) ## only create .venv

# torch goes first and alone: a later call then finds it there, and no dependency can bring in
# another build of it, with the CUDA libraries behind it. The project builds with the pinned
# setuptools (no build isolation), so that nothing in .venv comes from outside constraints.txt.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; give it as PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing torch"
	@$(INSTALL) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@echo "installing the rest"
	@$(INSTALL) setuptools wheel
	@$(INSTALL) --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

clean: ## remove caches and build results
	rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis htmlcov .coverage
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)
