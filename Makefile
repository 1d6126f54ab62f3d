# make demo    install into .venv and compare six methods on the digits that come with the package
# make test    install into .venv and run the tests
# make test-slow  what papers show, on data; fuzz tests; whether every extra can be installed
# make bench   a plain loop against the engine, on this machine
# make lint    ruff, mypy --strict, formatting, who imports whom (import-linter)
# make clean   remove everything that was built or installed

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNNABLE := $(VENV)/.runnable
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow bench lint format clean

demo: $(RUNNABLE)
	$(BIN)/strata compare --jobs 2 $(ARGS)

# Two processes of one thread each: on two cores faster than two that compete for them.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(ARGS)

test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(ARGS)

bench: $(INSTALLED)
	$(BIN)/strata bench $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The constraint on torch keeps pip from a build with gigabytes of CUDA.
$(RUNNABLE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV), which takes a minute or two …"
	$(PIP) -e .
	touch $@

$(INSTALLED): $(RUNNABLE)
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
