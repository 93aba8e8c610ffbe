# One command each; `make demo` and `make test` are the README's two.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEVSTAMP := $(VENV)/.installed-dev

.PHONY: demo test lint unit mutations bench nightly docs lock clean preflight

demo: preflight $(STAMP)
	@$(BIN)/corral demo $(DEMO_ARGS)

test: preflight $(DEVSTAMP) lint unit

lint: $(DEVSTAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.lints

unit: $(DEVSTAMP)
	$(BIN)/pytest -n 2 --dist worksteal -q

# Breaks every guard on purpose, in copies of the tree, and shows that its test turns red.
mutations: $(DEVSTAMP)
	$(BIN)/python tools/mutations.py $(MUTATIONS)

docs: $(DEVSTAMP)
	$(BIN)/python tools/cli_reference.py
	$(BIN)/python tools/api_reference.py
	$(BIN)/python tools/event_reference.py
	$(BIN)/python tools/metrics_reference.py
	$(BIN)/python tools/grafana_dashboard.py

# What is too long for the test command; an hour or two.
nightly: $(DEVSTAMP)
	$(BIN)/pytest -n 2 --dist worksteal -q -m nightly
	$(BIN)/corral sim run --seeds 400 --first-seed 10000
	$(BIN)/python tools/mutations.py

preflight:
	@sh tools/preflight.sh "$(PYTHON)"

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

$(DEVSTAMP): $(STAMP) requirements-dev.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header -o requirements.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --extra dev -o requirements-dev.lock pyproject.toml

bench: $(DEVSTAMP)
	$(BIN)/python bench/tail.py
	$(BIN)/python bench/firecracker_api.py
	$(BIN)/python -m bench --json bench/results/latest.json $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
