# `make demo`, `make test` and `make bench` need Python 3.11 or newer and make, nothing else (the bench a C++ compiler as
# well, for its peers): each makes its own virtual environment and installs what it needs. They are installed anew only
# when pyproject.toml or constraints.txt change.

# PYTHON makes the environments, JOBS processes run the tests, ARGS go to pytest: make pytest ARGS="-k gaussian"
# CASES are parts of names of benchmark cases, BENCH options of it: make bench CASES="gaussian-3d additive" BENCH=--list
PYTHON ?= python3
JOBS ?= 2
ARGS ?=
CASES ?=
BENCH ?=

TESTS := .venv
DEMO := .venv-demo
PEERS := .venv-bench
RUN := $(TESTS)/bin/python -m

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo bench test pytest lint format docs pictures import-time first-call roofline clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(DEMO)/installed ## the story on real data, without torch; it says where its report is
	$(DEMO)/bin/regard demo

test: lint pytest ## all that must hold: lint, types, import order, tests, doctests, documents

bench: $(PEERS)/installed ## ours beside its peers, in a quarter of an hour; the tests are to be green before
	$(PEERS)/bin/python -m benchmarks $(CASES) $(BENCH)

# one thread per worker: the workers have the cores
pytest: $(TESTS)/installed ## the tests and doctests alone
	OMP_NUM_THREADS=1 $(RUN) pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: $(TESTS)/installed ## lint, format, types and import order
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(TESTS)/bin/lint-imports --no-cache

format: $(TESTS)/installed ## mend what ruff can mend, and format
	$(RUN) ruff check --fix
	$(RUN) ruff format

docs: $(TESTS)/installed ## docs/build/api.md: every public name with its docstring
	$(TESTS)/bin/python tools/make_api.py docs/build/api.md

pictures: $(TESTS)/installed ## draw the pictures of the documents again
	$(TESTS)/bin/python tools/make_pictures.py docs/images

import-time: $(TESTS)/installed ## how long `import regard` takes in a fresh process
	$(TESTS)/bin/python tools/import_time.py

first-call: $(TESTS)/installed ## how long the first call of the fused engine takes, compiled and from the disk
	$(TESTS)/bin/python tools/first_call.py

roofline: $(TESTS)/installed ## what limits the compiled loops: their operations, and how many the processor does
	$(TESTS)/bin/python tools/roofline.py

clean: ## remove the environments and all that was built
	rm -rf $(TESTS) $(DEMO) $(PEERS) docs/build build dist regard-demo
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests tools examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(TESTS)/installed: pyproject.toml constraints.txt
	$(call install,--editable ".[all]" --group test --group lint)

$(DEMO)/installed: pyproject.toml constraints.txt
	$(call install,--editable ".[cli]")

$(PEERS)/installed: pyproject.toml constraints.txt
	$(call install,--editable ".[torch]" --group bench)

# makes the environment that the target stands in and installs $(1); the target is its time stamp
define install
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'This needs Python 3.11 or newer with its module venv; name one: make PYTHON=/path/to/python3.12' >&2; exit 1; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt $(1)
	@touch $@
endef
