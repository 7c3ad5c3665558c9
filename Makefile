# Needs make and Python 3.11 or newer; everything else goes into .venv, in the versions of constraints.txt.

.DEFAULT_GOAL := help
.PHONY: help run test test-all lint clean
.DELETE_ON_ERROR:

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN := runs/mnist5k
METHODS := fedavg,fedper,pfedkdh

# The first Python that is new enough and can make a virtual environment; `make PYTHON=...` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Each test process computes with one thread; pytest-xdist runs one process a core.
test test-all: export OMP_NUM_THREADS := 1
test test-all: export MKL_NUM_THREADS := 1

help:
	@echo "make run       compare $(METHODS) on 5,000 MNIST images; called again, it goes on where it stopped"
	@echo "make test      the tests, without the slow ones"
	@echo "make test-all  all tests"
	@echo "make lint      ruff and mypy"
	@echo "make clean     remove .venv and caches, but not runs/"

run: .venv/user
	@if [ -e $(RUN)/comparison.toml ]; then \
		echo "$(RUN) is there already: going on with it (remove it for a fresh run)"; \
		$(BIN)/manyheads resume $(RUN); \
	else \
		$(BIN)/manyheads compare --profile mnist5k --methods $(METHODS) --folder $(RUN); \
	fi

test: .venv/dev
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: .venv/dev
	$(BIN)/python -m pytest -n auto

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Empty files that say what is installed, and when.
.venv/user: EXTRAS := data
.venv/dev: EXTRAS := data,dev
.venv/user .venv/dev: pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "manyheads needs Python 3.11 or newer with venv and ensurepip (Debian: python3-venv); none was found." >&2; \
		echo "Name one yourself: make PYTHON=/path/to/python3 ..." >&2; exit 1; \
	fi
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@echo "installing into .venv (PyTorch and what else is needed); this takes a minute or more"
	@$(PIP) install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
