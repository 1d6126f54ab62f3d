# make demo    install into .venv and compare the six systems with local and fedavg on the digits in the package
# make test    install into .venv and run the fast tests: about four minutes on two idle cores
# make test-slow  every method through every law, kills, chaos, fuzz tests, the browser, the pages: about 16 minutes
# make test-all   everything, and the full products of methods, settings and executors: an hour or more
# make flower142  the fast tests of federations with Flower 1.42, in an environment of its own; see docs/design/flower.md
# make mutants  try small mutations of the source, each of which some test must notice
# make messages write tests/messages.txt, all words of the source, whose diff shows changes of wording
# make bench   a plain loop against the engine, on this machine
# make lint    ruff, mypy --strict, formatting, who imports whom (import-linter), names and sizes (tools/)
# make docs    build the documentation site into site/, with every warning an error
# make serve   show the site at http://127.0.0.1:8000 while you write
# make package build sdist and wheel into dist/, and use the wheel in a clean environment
# make clean   remove everything that was built or installed

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNNABLE := $(VENV)/.runnable
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-all flower142 mutants messages bench docs serve lint format package clean

demo: $(RUNNABLE)
	$(BIN)/strata compare --jobs 2 $(ARGS)

# Processes of one thread each: on two cores faster than two that compete for them. Bytecode is kept, because asserts
# are rewritten otherwise by every process of every run.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

test: $(INSTALLED)
	$(PYTEST) -n 2 -m "not slow and not nightly" $(ARGS)

# One process more than cores, because federations of real processes mostly wait.
test-slow: $(INSTALLED)
	$(PYTEST) -n 3 -m "slow and not nightly" $(ARGS)

test-all: $(INSTALLED)
	$(PYTEST) -n 3 $(ARGS)

# pip cannot resolve 1.42 yet: it asks for a certifi that is not on PyPI.
FLOWER142 := .venv-flower142

flower142: $(FLOWER142)/.flower
	$(PYTEST:$(VENV)/%=$(FLOWER142)/%) -n 2 -m "not slow and not nightly" $(or $(ARGS),tests/deploy tests/exchange)

$(FLOWER142)/.flower: pyproject.toml constraints.txt
	$(MAKE) VENV=$(FLOWER142) $(FLOWER142)/.installed
	$(FLOWER142)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "flwr==1.42.*"
	touch $@

mutants: $(INSTALLED)
	$(BIN)/python tests/mutants try $(ARGS)

messages: $(INSTALLED)
	$(BIN)/python tools/messages.py

bench: $(INSTALLED)
	$(BIN)/python benchmarks/against_loops.py $(ARGS)

MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

docs: $(INSTALLED)
	$(MKDOCS) build --strict --quiet $(ARGS)
	$(BIN)/python docs/tools/check_site.py

serve: $(INSTALLED)
	$(MKDOCS) serve $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/house_rules.py
	$(BIN)/python tools/messages.py --check

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

package: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python tools/check_package.py dist

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
	rm -rf $(VENV) $(FLOWER142) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
