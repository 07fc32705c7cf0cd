# Every target works from nothing: it makes its own .venv and installs the pinned versions into it.
#
#   make setup        the virtual environment
#   make demo         publishers, a subscriber, a kill, a compaction and an audit, live in the terminal
#   make test         lint, then every test but the soak; `make test ARGS="-k ranges"` narrows it
#   make lint         ruff, mypy, import contracts
#   make bench        the figures;  make bench-smoke  the same, small, to see that they still run
#   make soak         the long runs
#   make test-matrix  the Spark tests on every supported Spark
#   make clean        removes what the targets above made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
EXTRAS := spark,nats,kafka,redis,dev
PACKAGES := trigger_core offsets trigger_outbox trigger_broker trigger_sink trigger_source pyspark_trigger
SLOWEST := 15
# pyspark and the delta-spark that was built for it; the pinned pair runs in `make test`.
SPARK_PAIRS := 4.0.5:4.0.1 4.1.4:4.1.0
ARGS ?=

# Spark's workers run the `python3` of PATH unless told otherwise, and would not find this package there.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench bench-smoke soak test-matrix clean python java

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt constraints-hashed.txt | python
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --no-deps --require-hashes -r constraints-hashed.txt
	$(PY) -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo "Python 3.10 or newer is needed: install it and run 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is needed: install it, for instance with 'apt-get install python3-venv'" >&2; exit 1; }

java:
	@{ [ -n "$$JAVA_HOME" ] && "$$JAVA_HOME/bin/java" -version || java -version; } >/dev/null 2>&1 \
	  || { echo "Java 17 or newer is needed: install it, for instance with 'apt-get install openjdk-17-jre-headless'" >&2; exit 1; }

demo: java $(STAMP)
	$(PY) -m demo $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg

test: java lint
	$(PY) -m pytest -m "not soak" --durations=$(SLOWEST) $(ARGS)

bench: java $(STAMP)
	$(PY) -m bench $(ARGS)

bench-smoke: java $(STAMP)
	$(PY) -m bench --smoke $(ARGS)

soak: java $(STAMP)
	$(PY) -m pytest -m soak --timeout=0 --durations=$(SLOWEST) $(ARGS)

# Two pins differ from the constraints here, so those two lines are left out of them.
test-matrix: java $(STAMP)
	@set -e; for pair in $(SPARK_PAIRS); do \
	  spark=$${pair%%:*}; delta=$${pair##*:}; venv=$(VENV)/matrix-$$spark; \
	  if [ ! -e $$venv/.installed ]; then \
	    $(PYTHON) -m venv $$venv; \
	    grep -v -E '^(pyspark|delta-spark|py4j)==' constraints.txt > $$venv/constraints.txt; \
	    $$venv/bin/python -m pip install --quiet --no-deps --require-hashes -r constraints-hashed.txt; \
	    $$venv/bin/python -m pip install --quiet -c $$venv/constraints.txt -e '.[$(EXTRAS)]' "pyspark==$$spark" "delta-spark==$$delta"; \
	    touch $$venv/.installed; \
	  fi; \
	  echo "Spark $$spark, delta-spark $$delta"; \
	  PYSPARK_PYTHON=$$PWD/$$venv/bin/python PYSPARK_DRIVER_PYTHON=$$PWD/$$venv/bin/python \
	    $$venv/bin/python -m pytest -m "spark and not soak" $(ARGS); \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	rm -rf spark-warehouse metastore_db derby.log
	find $(PACKAGES) tests bench demo -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
