# Each target does all the set-up itself; it needs Python 3.11, Java 17 and, the first time, a network.
SHELL := /bin/sh
BIN := .venv/bin
STAMP := .venv/.setup.stamp
HISTORIES ?= $(or $(N),20)
SEED ?= 1
# Airflow writes its configuration and database where it is first imported: keep ~/airflow alone.
export AIRFLOW_HOME := $(CURDIR)/.build/airflow
export AIRFLOW__CORE__LOAD_EXAMPLES := False
# Where CI is set, pytest ends with whole assertions, so that a log's tail would not name what failed.
unexport CI
# And its last lines have room for why it failed.
export COLUMNS := 240
# Four workers for two cores, since tests wait more than they work; each keeps a broker of its own. In the order of the
# folders, since the files with few tests are the long ones: last, they would leave the others idle.
PYTEST = $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations=30
FILES = $(if $(ROOM),files=$$($(BIN)/python -m tests.suite $(ROOM)) || exit 2;)

.PHONY: setup test long classes proof examples browser cluster brokers mysql postgres docs servers lint unit matrix mutants demo chaos bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml uv.lock scripts/bootstrap $(wildcard airflow_eos/local/locks/*.lock tests/support/servers/locks/*.lock)
	scripts/bootstrap
	@touch $@

# make test ROOM=kinds/postgres: of the tests those that a change of airflow_eos/kinds/postgres can break.
# Lint runs beside them, and is told whole.
test: setup servers classes
	@mkdir -p .build; $(FILES) \
	make --no-print-directory lint >.build/lint.log 2>&1 & lint=$$!; trap 'kill $$lint' INT TERM; \
	$(PYTEST) -m "$$($(BIN)/python -m tests.suite)" $$files; tests=$$?; \
	wait $$lint; lint=$$?; cat .build/lint.log; [ $$tests -eq 0 ] && [ $$lint -eq 0 ]

# What takes longer than a second and no mutant names: each night and before a release, when its table is written; and
# where a room is changed (ROOM).
long: setup servers classes
	@$(if $(ROOM),$(FILES) $(PYTEST) -m long $$files,$(BIN)/python -m tests.long)

# The archive of Spark's classes that every JVM of the tests maps; else all workers wait for the first of them.
classes: setup
	@$(BIN)/python -c "from tests.support.jvm import spark_submit_opts; spark_submit_opts()"

# Every kind of sink at every place that it can die at; the table is committed with its commit.
proof: setup servers
	$(BIN)/python -m tests.proof

# Every example app, killed at two places, by itself and by its DAG; the table is committed with its commit.
examples: setup servers
	$(BIN)/python -m tests.examples

# The page in a real browser, before real pipelines; the pictures of docs/page.md are of this run.
browser: setup
	scripts/servers browser
	$(BIN)/python -m pytest -m browser

# Spark standalone, YARN with HDFS, and S3: machines lost, drivers killed; the table is committed with its commit.
cluster: setup
	$(BIN)/python -m tests.cluster

# The core against each minor release of Apache Kafka; the table is committed with its commit.
brokers: setup
	$(BIN)/python -m tests.brokers

# The tests of MySQL, which else run on MariaDB, on MySQL's own server.
mysql: setup
	scripts/mysql .build/mysql
	EOS_TESTS_MYSQL=$(CURDIR)/.build/mysql $(BIN)/python -m pytest tests/integration/mysql tests/integration/kept/test_mysql.py tests/integration/kept/test_set_back.py

# The tests of PostgreSQL, which else run on Debian's, on PostgreSQL 17.
postgres: setup
	$(BIN)/python -m tests.support.servers.postgres .build/postgres17
	EOS_TESTS_POSTGRES=$(CURDIR)/.build/postgres17 $(BIN)/python -m pytest tests/integration/postgres

# The site, of docs/ and of the docstrings. A warning is a failure.
docs: setup
	$(BIN)/sphinx-build -W --keep-going --quiet --jobs auto -b html docs .build/site

# The databases that the tests start for themselves.
servers:
	scripts/servers

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy airflow_eos demo tests $(patsubst %/,%,$(sort $(dir $(wildcard dags/*.py spark_apps/*.py benchmarks/*.py))))
	$(BIN)/lint-imports

# What needs no server: in two minutes.
unit: setup
	$(BIN)/python -m pytest -m "unit and not slow" -n 3 --dist loadfile tests/unit tests/model

# The unit tests on the lowest and the newest of Airflow, pyspark and Python that are declared.
matrix: setup
	scripts/matrix

# make mutants NAME=query; without NAME, all of them
mutants: setup
	$(BIN)/python -m tests.mutants $(NAME)

demo: setup
	$(BIN)/airflow-eos demo

# make chaos N=100 SEED=7
chaos: setup
	$(BIN)/python -m tests.chaos --histories $(HISTORIES) --seed $(SEED)

# make bench NAME=throughput; without NAME, all of them
bench: setup
	$(BIN)/python -m benchmarks $(NAME)

clean:
	rm -rf .venv .tool-venv .build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
