# Strandline: what to do here. `make help` lists it.
#
# Every target sets up what it needs: a virtual environment in .venv with this project (editable) and
# everything for development, Spark and the demo in it, installed again whenever its lock changes.
# Required: Python 3.11 or later, with its venv module. PYTHON=… chooses one.
# LOCK= (empty) installs the newest versions that pyproject.toml allows instead of the locked ones.

SHELL   := /bin/bash
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PYTHON  ?=
MINUTES ?= 5
JOBS    ?= 3
LOCK    ?= requirements/dev.lock
EXTRAS  := dev,spark,demo
VERSIONS ?= 3.11 3.12 3.13
PYTEST  := $(BIN)/python -m pytest
# tests/conftest.py decides the groups and their order. A test that kills its process ends that process's
# groups: xdist runs such a test again in a new process, and then waits for ever.
PARALLEL = -n $(JOBS) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes. Each would compile every module again if none kept the result.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/bytecode
unexport PYTHONDONTWRITEBYTECODE

comma := ,

.DEFAULT_GOAL := help
.PHONY: help demo wow cast pictures test long quick matrix battery chaos lowest lock faust faust-chaos faust-newest faust-suite audit docs api lint format types bench bench-streams bench-offload bench-clean bench-kafka bench-spark bench-faust wheel clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP)  ## The main job on real flights: produce, kill half-way, restore, read with Spark, compare
	$(BIN)/python -m examples.flights.demo

wow: $(STAMP)  ## Flights as they come, live totals: kill and freeze the workers, and see what is lost or doubled
	$(BIN)/python -m examples.flights.wow.show $(ARGS)

cast: $(STAMP)  ## Record docs/wow.cast (asciinema play docs/wow.cast) and docs/wow.svg
	$(BIN)/python -m examples.flights.wow.show --script "7 k 5 z 6 z 6 d 8 k 6 q" --cast docs/wow.cast --picture docs/wow.svg

pictures: $(STAMP)  ## Draw the pictures of docs/compaction.md, from logs that are filled and cleaned for it
	$(BIN)/python -m examples.compaction.pictures

test: $(STAMP)  ## All tests, in JOBS processes (default 3, because many wait; ARGS='-k name' for some)
	$(PYTEST) $(PARALLEL) $(ARGS)

long: export STRANDLINE_LONG := 1
long: test  ## All tests in their long forms, as every night (an hour and more on 2 cores)

quick: $(STAMP)  ## The tests that take no JVM and no patience
	$(PYTEST) $(PARALLEL) -m 'not slow and not spark' $(ARGS)

matrix:  ## The quick tests on each of VERSIONS that is installed, in an environment of its own
	@ran=; for version in $(VERSIONS); do python=; \
	    for candidate in "python$$version" "$$HOME"/.pyenv/versions/$$version.*/bin/python; do \
	        "$$candidate" -c 'import sys, venv, ensurepip' 2>/dev/null && python=$$candidate && break; \
	    done; \
	    if [ -z "$$python" ]; then echo "Python $$version is not here: left out" >&2; \
	        [ "$$CI" = true ] && exit 1; continue; fi; \
	    ran="$$ran $$version"; \
	    $(MAKE) --no-print-directory quick VENV=.venv-$$version PYTHON="$$python" ARGS='$(ARGS)' || exit 1; \
	done; echo "the quick tests ran on Python:$${ran:- none}"; [ -n "$$ran" ]

battery: $(STAMP)  ## Every step as a crash point, and 200 processes killed (more than an hour on 2 cores)
	$(BIN)/python -m tests.crash.battery $(ARGS)
	STRANDLINE_KILLS=200 $(PYTEST) tests/crash/test_kills.py

chaos: $(STAMP)  ## Workers, owner and disk struck at random for MINUTES (default 5), and everything counted (ARGS=--kafka)
	$(BIN)/python -m tests.chaos.chaos --minutes $(MINUTES) $(ARGS)

LOWEST = UV_PYTHON_DOWNLOADS=never $(BIN)/uv run --python $(BIN)/python --no-project --isolated --resolution lowest-direct
lowest: $(STAMP)  ## The quick tests on the oldest versions that pyproject.toml allows
	$(LOWEST) --with-editable '.[$(EXTRAS)]' python -m pytest -m 'not slow and not spark' $(ARGS)
	$(LOWEST) --with-editable '.[dev,faust]' python -m pytest -m 'not slow' tests/faust $(ARGS)

lock: $(STAMP)  ## Rewrite requirements/dev.lock with the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	    $(patsubst %,--extra %,$(subst $(comma), ,$(EXTRAS))) pyproject.toml -o requirements/dev.lock \
	    --custom-compile-command 'make lock'
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	    --extra dev --extra faust pyproject.toml -o requirements/faust.lock --custom-compile-command 'make lock'
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade --extra faust \
	    pyproject.toml requirements/faust-suite.txt -o requirements/faust-suite.lock --custom-compile-command 'make lock'
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	    requirements/docs.txt -o requirements/docs.lock --custom-compile-command 'make lock'

# Faust needs an older click than the other tools, so it has an environment of its own.
faust: $(if $(filter .venv-faust,$(VENV)),$(STAMP))  ## The tests of Faust apps
ifeq ($(VENV),.venv-faust)
	$(PYTEST) $(PARALLEL) tests/faust $(ARGS)
else
	$(MAKE) --no-print-directory faust VENV=.venv-faust LOCK=requirements/faust.lock
endif

faust-chaos: $(if $(filter .venv-faust,$(VENV)),$(STAMP))  ## Faust workers and their log struck at random for MINUTES (default 5), and everything compared
ifeq ($(VENV),.venv-faust)
	$(BIN)/python -m tests.faust.chaos --minutes $(MINUTES) $(ARGS)
else
	$(MAKE) --no-print-directory faust-chaos VENV=.venv-faust LOCK=requirements/faust.lock
endif

# pip installs a release that pyproject.toml does not allow, and says so.
faust-newest:  ## The tests of Faust apps with the newest Faust there is; a failure is only a warning
	@$(MAKE) --no-print-directory .venv-faust-newest/.installed VENV=.venv-faust-newest LOCK= EXTRAS=dev,faust
	@.venv-faust-newest/bin/python -m pip install --quiet --upgrade faust-streaming
	@newest=$$(.venv-faust-newest/bin/python -c 'from importlib.metadata import version; print(version("faust-streaming"))'); \
	if .venv-faust-newest/bin/python -m pytest $(PARALLEL) tests/faust $(ARGS); \
	    then echo "the tests pass with faust-streaming $$newest"; \
	    else echo "::warning::tests fail with faust-streaming $$newest"; fi

faust-suite: .venv-faust-suite/.installed  ## Faust's own tests on this transport and store (ARGS='--only stress --seconds 300')
	.venv-faust-suite/bin/python -m tests.faust.suite $(ARGS)

audit: $(STAMP)  ## Look the locked versions up in the databases of known vulnerabilities
	@found=; for file in requirements/*.lock; do \
	    echo "$$file:" >&2; \
	    $(BIN)/uvx pip-audit --requirement $$file --require-hashes --disable-pip --strict || found=1; \
	done; [ -z "$$found" ]

docs: .venv-docs/.installed  ## Build the documentation as a site, in site/, and check its links (BROWSER=chromium opens it too)
	.venv-docs/bin/python docs/build.py $(if $(BROWSER),--browser $(BROWSER))

api: .venv-docs/.installed  ## What breaks programs that were written for AGAINST (a tag or commit)
	.venv-docs/bin/python docs/api_changes.py $(AGAINST)

lint: $(STAMP)  ## Style, likely mistakes, banned calls, formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## Put the source into the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(STAMP)  ## Strict type check of the packages and benchmarks, and of the examples as a user's checker sees them
	$(BIN)/mypy
	$(BIN)/mypy examples benchmarks

bench: $(STAMP)  ## The figures in docs/benchmarks.md, measured here
	$(BIN)/python -m benchmarks

bench-streams: $(STAMP)  ## Streams by columns, beside bare loops, Polars and tasks
	$(BIN)/python -m benchmarks streams latency $(ARGS)

bench-offload: $(STAMP)  ## Topics loaded into Parquet files and Delta Lake, beside pyarrow
	$(BIN)/python -m benchmarks offload $(ARGS)

bench-clean: $(STAMP)  ## The cleaner against a real Kafka's (needs Linux, Java 17, Maven; 20 GB, or ARGS='--largest 4')
	$(BIN)/python -m pip install --quiet confluent-kafka
	$(BIN)/python -m benchmarks.cleaning $(ARGS)

bench-kafka: $(STAMP)  ## On a real Kafka, beside Kafka Streams and Quix Streams (needs Linux, a JDK, Maven; ARGS='--rounds 1')
	$(BIN)/python -m benchmarks.kafka_job $(ARGS)

bench-spark: $(STAMP)  ## Spark's reads and writes beside Parquet and Spark's own Kafka connector (needs Linux, Java 17, Maven, or ARGS=--without-kafka)
	$(BIN)/python -m pip install --quiet confluent-kafka
	$(BIN)/python -m benchmarks.spark_kafka $(ARGS)

bench-faust: $(if $(filter .venv-faust,$(VENV)),$(STAMP))  ## A Faust app here, beside Faust's own transport on a real Kafka (needs Linux, Java 17, Maven; ARGS='--rounds 1')
ifeq ($(VENV),.venv-faust)
	$(BIN)/python -m benchmarks.faust_job $(ARGS)
else
	$(MAKE) --no-print-directory bench-faust VENV=.venv-faust LOCK=requirements/faust.lock
endif

wheel: $(STAMP)  ## Build dist/strandline-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## Remove environments, caches and what the demo left
	rm -rf $(VENV) .venv-docs .venv-faust .venv-faust-newest .venv-faust-suite site $(addprefix .venv-,$(VERSIONS)) .cache build dist data/flights data/hello .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment ---------------------------------------------------------------------------------

# A name may be there and not run (version managers leave such), so each candidate is tried.
$(BIN)/python:
	@for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "creating $(VENV) with $$("$$candidate" --version)"; \
	        exec "$$candidate" -m venv $(VENV); \
	    fi; \
	done; \
	echo "Strandline needs Python 3.11 or later, with its venv module." >&2; \
	echo "Tried: $(or $(PYTHON),python3 python3.13 python3.12 python3.11). Install one, or say: make PYTHON=/path/to/python3.11 …" >&2; \
	exit 1

.venv-docs/.installed: requirements/docs.lock | $(BIN)/python
	$(BIN)/python -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --require-hashes --requirement $< && touch $@

# Faust's own tests need an old pytest.
.venv-faust-suite/.installed: requirements/faust-suite.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv .venv-faust-suite
	.venv-faust-suite/bin/python -m pip install --quiet --require-hashes --requirement $< && \
	    .venv-faust-suite/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable . && touch $@

# The lock names each package with its version and hashes. A package index may fail for a moment.
INSTALL := $(BIN)/python -m pip install --quiet
ifeq ($(LOCK),)
install = $(INSTALL) --editable '.[$(EXTRAS)]'
else
install = $(INSTALL) --require-hashes --requirement $(LOCK) && \
	    $(INSTALL) --no-deps --no-build-isolation --editable .
endif

$(STAMP): pyproject.toml $(LOCK) | $(BIN)/python
	@for pause in 10 30 0; do \
	    $(install) && exec touch $@; \
	    if [ $$pause -gt 0 ]; then echo "pip failed; once more in $$pause s" >&2; sleep $$pause; fi; \
	done; \
	exit 1
