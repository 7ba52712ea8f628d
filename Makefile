# Each target sets itself up with nothing but python3 and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test stress lint types check matrix e2e phoenix fuzz audit mutation deep bench dashboards tables docs clean

help: ## this list
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade 'pip>=25.1'
	$(BIN)/pip install -qq --editable '.[all]' --group test --group lint
	@touch $(READY)

demo: $(READY) ## real conversations through an embedded vLLM and LMCache stand-in
	$(BIN)/otel-kvpolicy demo $(ARGS)

test: $(READY) ## the test suite
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy --strict
	$(BIN)/mypy

check: lint types test ## all three

matrix: $(READY) ## openai 1, 2 and 3, the oldest dependencies, every Python installed
	$(BIN)/nox $(ARGS)

e2e: $(READY) ## against a real vLLM with a real LMCache: KVPOLICY_REAL_STACK=script KVPOLICY_REAL_VENV=venv make e2e
	$(BIN)/python -m pytest tests -m e2e $(ARGS)

phoenix: $(READY) ## explain against a real Phoenix, which is installed into a venv of its own; or KVPOLICY_PHOENIX=url make phoenix
	test -n "$$KVPOLICY_PHOENIX" || test -x $(VENV)-phoenix/bin/phoenix || \
		{ $(PYTHON) -m venv $(VENV)-phoenix && $(VENV)-phoenix/bin/pip install -qq arize-phoenix; }
	KVPOLICY_PHOENIX=$${KVPOLICY_PHOENIX:-$(VENV)-phoenix/bin/phoenix} $(BIN)/python -m pytest tests/explain/test_phoenix.py $(ARGS)

$(VENV)-%/.ready: pyproject.toml # a venv of its own for each group of tools
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -qq --upgrade 'pip>=25.1'
	$(@D)/bin/pip install -qq --editable '.[all]' --group $*
	@touch $@

fuzz: $(VENV)-fuzz/.ready ## what is read of requests and answers, under atheris: 200,000 inputs, or KVPOLICY_FUZZ_RUNS
	$(VENV)-fuzz/bin/python -m tests.fuzz.readers $(ARGS)

audit: $(VENV)-audit/.ready ## known vulnerabilities of all dependencies; fails too where one cannot be looked up
	$(VENV)-audit/bin/pip freeze --exclude-editable > $(VENV)-audit/installed.txt
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r $(VENV)-audit/installed.txt $(ARGS)

mutation: $(VENV)-mutation/.ready ## mutmut over the fixed rule and the hint: which changes no test of theirs notices
	rm -rf .cache/mutation && mkdir -p .cache/mutation
	cp -r otel_kvpolicy tests README.md pyproject.toml .cache/mutation
	cp tests/fuzz/mutation.cfg .cache/mutation/setup.cfg
	cd .cache/mutation && $(abspath $(VENV)-mutation)/bin/mutmut run $(ARGS)
	cd .cache/mutation && $(abspath $(VENV)-mutation)/bin/mutmut results

deep: $(READY) ## the property tests with 20 times their examples
	$(BIN)/python -m pytest -p tests.fuzz.deep -o faulthandler_timeout=3600 -m hypothesis $(ARGS)

stress: $(READY) ## 50,000 calls at 64-fold concurrency that end in every way a call can end
	KVPOLICY_LOAD_CALLS=$${KVPOLICY_LOAD_CALLS:-50000} $(BIN)/python -m pytest -s -o faulthandler_timeout=3600 tests/reliability/test_load.py $(ARGS)

bench: $(READY) ## what a decision costs, as ratios in one run
	$(BIN)/python -m benchmarks $(ARGS)

dashboards: $(READY) ## build the dashboards' JSON and the rules' YAML from dashboards/source
	$(BIN)/python -m dashboards.source.build

tables: $(READY) ## fill the generated tables and command outputs of the docs
	$(BIN)/python -m tools.docs_tables

docs: $(VENV)-docs/.ready ## build the documentation site into build/site; warnings fail
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict $(ARGS)

clean: ## forget the venv and all caches
	rm -rf $(VENV) $(VENV)-* .cache .nox .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
