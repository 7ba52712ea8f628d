# Each target creates the virtual environment it needs. It takes python3 and pip, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n auto --dist loadscope # one worker per core; tests of a module share a worker

.PHONY: help demo test test-all stress lint types check matrix e2e real-telemetry phoenix fuzz audit \
	mutation deep bench dashboards tables docs clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade 'pip>=25.1'
	$(BIN)/pip install -qq --editable '.[all]' --group test --group lint
	@touch $(READY)

demo: $(READY) ## run conversations through an embedded vLLM and LMCache stand-in
	$(BIN)/otel-kvpolicy demo $(ARGS)

test: $(READY) ## run the tests, without those marked live, bars, slow, or e2e
	$(PYTEST) $(PARALLEL) $(ARGS)

test-all: $(READY) ## run every test and check the coverage
	$(PYTEST) $(PARALLEL) --cov --cov-report=term:skip-covered $(ARGS)
	$(PYTEST) $(PARALLEL) -m "live or bars or slow" $(ARGS)

lint: $(READY) ## check style, spelling, and which module imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

types: $(READY) ## check types with mypy in strict mode
	$(BIN)/mypy

check: lint types test ## lint, types, and test

matrix: $(READY) ## test with openai 1, 2, and 3, the oldest dependencies, and every installed Python
	$(BIN)/nox $(ARGS)

# Set KVPOLICY_REAL_STACK to a script that starts the servers, and KVPOLICY_REAL_VENV to the
# environment they run in.
e2e: $(READY) ## test against a real vLLM with a real LMCache
	$(PYTEST) tests -m e2e $(ARGS)

# Builds what is missing from Go modules: the first time takes minutes and about 10 GB in Go's caches.
real-telemetry: $(READY) ## test with the real Collector, Prometheus 3, Alertmanager, and Jaeger
	folder=$$($(BIN)/python -m tools.real_telemetry.build) && KVPOLICY_REAL_TELEMETRY=$$folder \
		$(PYTEST) -m live tests/collector tests/real_telemetry $(ARGS)

# Installs Phoenix into an environment of its own, unless KVPOLICY_PHOENIX is the URL of a running
# Phoenix or the path of its program.
phoenix: $(READY) ## test explain against a real Phoenix
	test -n "$$KVPOLICY_PHOENIX" || test -x $(VENV)-phoenix/bin/phoenix || \
		{ $(PYTHON) -m venv $(VENV)-phoenix && \
		$(VENV)-phoenix/bin/pip install -qq arize-phoenix; }
	KVPOLICY_PHOENIX=$${KVPOLICY_PHOENIX:-$(VENV)-phoenix/bin/phoenix} \
		$(PYTEST) -m "" tests/explain/test_phoenix.py $(ARGS)

$(VENV)-%/.ready: pyproject.toml # one environment for each group of tools
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -qq --upgrade 'pip>=25.1'
	$(@D)/bin/pip install -qq --editable '.[all]' --group $*
	@touch $@

fuzz: $(VENV)-fuzz/.ready ## fuzz the readers of requests and answers: KVPOLICY_FUZZ_RUNS inputs, or 200,000
	$(VENV)-fuzz/bin/python -m tests.fuzz.readers $(ARGS)

audit: $(VENV)-audit/.ready ## look up known vulnerabilities of all dependencies
	$(VENV)-audit/bin/pip freeze --exclude-editable > $(VENV)-audit/installed.txt
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off \
		-r $(VENV)-audit/installed.txt $(ARGS)

mutation: $(VENV)-mutation/.ready ## list the changes to the thresholds rule and the hint that no test notices
	rm -rf .cache/mutation && mkdir -p .cache/mutation
	cp -r otel_kvpolicy tests README.md pyproject.toml .cache/mutation
	cp tests/fuzz/mutation.cfg .cache/mutation/setup.cfg
	cd .cache/mutation && $(abspath $(VENV)-mutation)/bin/mutmut run $(ARGS)
	cd .cache/mutation && $(abspath $(VENV)-mutation)/bin/mutmut results

deep: $(READY) ## run the property tests with 20 times as many examples
	$(PYTEST) -p tests.fuzz.deep -o faulthandler_timeout=3600 -m hypothesis $(ARGS)

stress: $(READY) ## make 50,000 concurrent calls that end in every way a call can end
	KVPOLICY_LOAD_CALLS=$${KVPOLICY_LOAD_CALLS:-50000} \
		$(PYTEST) -s -o faulthandler_timeout=3600 -m "" tests/reliability/test_load.py $(ARGS)

bench: $(READY) ## measure what a decision costs, as ratios within one run
	$(BIN)/python -m benchmarks $(ARGS)

dashboards: $(READY) ## build the dashboards' JSON and the rules' YAML from dashboards/source
	$(BIN)/python -m dashboards.source.build

tables: $(READY) ## fill the generated tables and command outputs of the docs
	$(BIN)/python -m tools.docs_tables

docs: $(VENV)-docs/.ready ## build the documentation site into build/site; warnings fail
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict $(ARGS)

clean: ## remove the environments and all caches
	rm -rf $(VENV) $(VENV)-* .cache .nox .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
