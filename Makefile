# Each target sets up what it needs: a virtual environment with the locked dependencies, and a Java for the Spark tests if there is none.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test engines bench compare spark-suite soak soak-tests mutants random-mutants docs lint types lock clean

demo: $(READY)
	$(BIN)/python examples/ad_join.py

test: lint types
	$(BIN)/python -m tests.run

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.words

types: $(READY)
	$(BIN)/mypy

# The pipeline tests on Spark, with workers that stay instead of a task for each slot and epoch.
engines: ENGINES_MINUTES ?= 60
engines: $(READY)
	$(BIN)/python -m tests.engines --minutes $(ENGINES_MINUTES)

soak: SOAK_MINUTES ?= 60
soak: $(READY)
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

soak-tests: $(READY)
	$(BIN)/python -m pytest -m soak -s

# Plants bugs in a copy, one after the other: the tests must find each. MUTANT_MINUTES=5 stops after so long.
mutants: MUTANT_MINUTES ?= 0
mutants: $(READY)
	$(BIN)/python -m tests.mutants --minutes $(MUTANT_MINUTES)

# COUNT mutants of versions/ and store/, drawn by SEED.
random-mutants: COUNT ?= 200
random-mutants: SEED ?= 1
random-mutants: MUTANT_MINUTES ?= 120
random-mutants: $(READY)
	$(BIN)/python -m tests.random_mutants --count $(COUNT) --seed $(SEED) --minutes $(MUTANT_MINUTES)

bench: $(READY)
	$(BIN)/floodplain bench state-types --json
	$(BIN)/floodplain bench slots --json
	$(BIN)/floodplain bench counter --json
	$(BIN)/floodplain bench process --json
	$(BIN)/floodplain bench nexmark --json
	$(BIN)/floodplain bench cloud --json
	$(BIN)/floodplain bench peers --json

# Whether this tree is slower than BASE: make compare BASE=HEAD~1
compare: ROUNDS ?= 9
compare: $(READY)
	$(BIN)/python -m tools.compare --base $(BASE) --rounds $(ROUNDS)

# Spark's own tests of transformWithState, on the drop-in and on stock Spark: make spark-suite SPARK_SOURCE=<Spark's sources> [ONLY=<words>]
spark-suite: SPARK_SUITE_MINUTES ?= 45
spark-suite: SIDES ?= drop-in,stock
spark-suite: $(READY)
	$(BIN)/python -m tools.spark_suite --source "$(SPARK_SOURCE)" --ref "$(SPARK_REF)" --minutes $(SPARK_SUITE_MINUTES) --sides $(SIDES) --only "$(ONLY)" --logs "$(LOGS)"

docs: $(READY)
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/plots.py
	$(BIN)/python docs/reliability.py
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs site

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Floodplain needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o requirements.lock

clean:
	rm -rf .venv .random-mutants .mypy_cache .ruff_cache .pytest_cache
