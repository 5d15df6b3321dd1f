# make train    set up, then train LeNet on handwritten digits
# make test     set up, then run the tests
# make help     everything else
#
# Settings go in ARGS: make train ARGS="learners=2 epochs=3"; make test ARGS="tests/sync -k sma"

VENV ?= .venv
PYTHON ?= $(shell .ci/find-python)
ARGS ?=
BIN := $(VENV)/bin

# Idle threads of OpenMP spin unless told not to, and take the other threads their cores.
export OMP_WAIT_POLICY ?= PASSIVE
# Tests that start processes would compile all modules anew in each of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train quick test nightly lint types layers check stress soak killed gpu image-test docs wheel clean
.DELETE_ON_ERROR:

help:
	@echo 'make train   train LeNet on handwritten digits with several learners'
	@echo 'make quick   the core of the tests, in less than a minute'
	@echo 'make test    the tests, in less than five minutes'
	@echo 'make nightly everything that takes long: all tests, fuzzing, stress, soak, killed'
	@echo 'make lint    formatting and lint rules'
	@echo 'make types   mypy, strict'
	@echo 'make layers  which package may import which'
	@echo 'make check   all of the above but train'
	@echo 'make stress  the native runtime on 100,000 random graphs, under a thread sanitizer'
	@echo 'make soak    ten minutes of training per engine while learners come and go'
	@echo 'make killed  end trainings 200 times by signals, full disks and closed pipes, and kill one under torchrun'
	@echo 'make gpu     tests and benchmark on a GPU with what python3 has, into OUT/gpu.tar.gz, in BUDGET seconds'
	@echo 'make image-test  build the container image without a container engine, and run bow inside it'
	@echo 'make docs    the documentation as a site, into build/docs; fails where a link leads nowhere'
	@echo 'make wheel   build the wheel into dist/'
	@echo 'make clean   remove the virtual environment and what builds left'

train: $(VENV)/.runtime
	@$(BIN)/bow train $(ARGS)

# Two processes, and whichever is through takes tests from the other.
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

soak: $(VENV)/.dev
	@$(BIN)/python -m tests.soak $(ARGS)

killed: $(VENV)/.dev
	@$(BIN)/python -m tests.endings $(or $(ARGS),200)
	@$(BIN)/python -m tests.cluster.killed $(or $(ARGS),30)

# On a machine that is lent: nothing is installed, and what is not there is done without. It ends within BUDGET seconds,
# all that was found until then is in OUT/gpu.tar.gz, and a second call goes on with what is missing in build/gpu.
GPU_PYTHON ?= python3
BUDGET ?= 540
OUT ?= build

gpu:
	@$(GPU_PYTHON) -m benchmarks gpu out=build/gpu archive='$(OUT)/gpu.tar.gz' budget_s=$(BUDGET) $(ARGS)

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'build/docs/index.html is the first page; for its search: python3 -m http.server --directory build/docs'

wheel: $(VENV)/.dev
	@$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist *.egg-info

# The two stamps: what training needs, and that plus the development tools. A newer pyproject.toml or
# constraints.txt makes them stale.
$(VENV)/.train: pyproject.toml constraints.txt .ci/setup
	@.ci/setup '$(VENV)' '$(PYTHON)'
	@touch $@

# Without a compiler a sentence says so, and again the next time.
$(VENV)/.runtime: $(VENV)/.train $(wildcard kernels/*.h kernels/*.cpp)
	@$(BIN)/python -m bow.runtime && touch $@ || true

$(VENV)/.dev: pyproject.toml constraints.txt .ci/setup
	@.ci/setup '$(VENV)' '$(PYTHON)' dev
	@touch $(VENV)/.train $@
