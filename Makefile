# make train    set up, then train LeNet on handwritten digits
# make test     set up, then run the tests
# make help     list all targets
#
# Settings go in ARGS: make train ARGS="learners=2 epochs=3"; make test ARGS="tests/sync -k sma"

VENV ?= .venv
PYTHON ?= $(shell .ci/find-python)
ARGS ?=
BIN := $(VENV)/bin

# By default, idle OpenMP threads spin and occupy cores that other threads need.
export OMP_WAIT_POLICY ?= PASSIVE
# Without bytecode, every process that a test starts would recompile all modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train quick test nightly lint types layers check stress soak killed gpu image-test docs wheel clean bench-all
.DELETE_ON_ERROR:

help:
	@echo 'make train   train LeNet on handwritten digits with several learners'
	@echo 'make quick   core tests, less than a minute'
	@echo 'make test    all tests of behaviour: five minutes on two cores'
	@echo 'make nightly all tests, doctests, stress, soak and killed: about two hours'
	@echo 'make lint    formatting and lint rules'
	@echo 'make types   mypy, strict'
	@echo 'make layers  import rules between packages'
	@echo 'make check   lint, types, layers and test'
	@echo 'make stress  run 100,000 random graphs in the native runtime, under ThreadSanitizer'
	@echo 'make soak    train ten minutes per engine while learners are added and removed'
	@echo 'make killed  200 trainings ended by signals, full disks and closed pipes, and trainings killed under torchrun'
	@echo 'make gpu     GPU tests and benchmark with the packages of python3, in BUDGET seconds, into OUT/gpu.tar.gz'
	@echo 'make image-test  build the container image without a container engine, and run bow inside it'
	@echo 'make bench-all  every benchmark, after a list of them and of how long they take (ARGS=--dry-run: the list alone)'
	@echo 'make docs    build the documentation into build/docs; fails on broken links'
	@echo 'make wheel   build the wheel into dist/'
	@echo 'make clean   remove the virtual environment and build outputs'

train: $(VENV)/.runtime
	@$(BIN)/bow train $(ARGS)

# Two processes; an idle one steals tests from the other.
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(VENV)/.dev
	@$(PYTEST) -q $$(grep -rlw --include='test_*.py' pytest.mark.quick tests) -m quick $(ARGS)

test: $(VENV)/.dev
	@$(PYTEST) $(ARGS)

nightly: $(VENV)/.dev
	@$(PYTEST) --nightly --doctest-modules $(or $(ARGS),tests bow benchmarks)
	@$(MAKE) --no-print-directory stress soak killed ARGS=

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/hadolint Dockerfile

types: $(VENV)/.dev
	@$(BIN)/mypy

layers: $(VENV)/.dev
	@$(BIN)/lint-imports

check: lint types layers test

stress:
	@mkdir -p build
	@$${CXX:-g++} -std=c++20 -O1 -g -pthread -fsanitize=thread -Ikernels tests/runtime/race.cpp -o build/race
	@build/race $(or $(ARGS),100000)

image-test:
	@docker/test_image.sh

bench-all: $(VENV)/.dev
	@$(BIN)/python -m benchmarks all $(ARGS)

soak: $(VENV)/.dev
	@$(BIN)/python -m tests.soak $(ARGS)

killed: $(VENV)/.dev
	@$(BIN)/python -m tests.endings $(or $(ARGS),200)
	@$(BIN)/python -m tests.cluster.killed $(or $(ARGS),30)

# For a borrowed machine: installs nothing, and skips what is not available. It ends within BUDGET seconds with the
# results so far in OUT/gpu.tar.gz; calling it again continues with the missing parts in build/gpu.
GPU_PYTHON ?= python3
BUDGET ?= 540
OUT ?= build

gpu:
	@$(GPU_PYTHON) -m benchmarks gpu out=build/gpu archive='$(OUT)/gpu.tar.gz' budget_s=$(BUDGET) $(ARGS)

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'build/docs/index.html is the first page; for its search: python3 -m http.server --directory build/docs'

wheel:
	@.ci/setup '$(VENV)' '$(PYTHON)' build
	@$(BIN)/python -m build --quiet
	@ls dist/*.whl

clean:
	rm -rf $(VENV) build dist *.egg-info

# Stamps of the two installations: for training, and with the development tools. A newer pyproject.toml or
# constraints.txt makes them stale.
$(VENV)/.train: pyproject.toml constraints.txt .ci/setup
	@.ci/setup '$(VENV)' '$(PYTHON)'
	@touch $@

# Without a compiler it prints a message, and tries again the next time.
$(VENV)/.runtime: $(VENV)/.train $(wildcard kernels/*.h kernels/*.cpp)
	@$(BIN)/python -m bow.runtime && touch $@ || true

$(VENV)/.dev: pyproject.toml constraints.txt .ci/setup
	@.ci/setup '$(VENV)' '$(PYTHON)' dev
	@touch $(VENV)/.train $@
