# Needs Python 3.13, make and the package registries; everything else it installs.

SHELL := /bin/sh
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN := $(UV) run --frozen --no-sync
ENVIRONMENT := .venv/.made

.PHONY: run test bench lint format browser clean

run: $(ENVIRONMENT)
	@exec .venv/bin/python manage.py serve

# The whole suite: on SQLite, on PostgreSQL, then in a browser.
test: $(ENVIRONMENT) browser
	.venv/bin/python -m pytest -n auto --ignore=tests/e2e
	.venv/bin/python -m scripts.with_postgres .venv/bin/python -m pytest -n auto --ignore=tests/e2e
	.venv/bin/python -m pytest tests/e2e

bench: $(ENVIRONMENT)
	.venv/bin/python manage.py bench

lint: $(ENVIRONMENT)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/mypy .

format: $(ENVIRONMENT)
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

browser: $(ENVIRONMENT)
	@.venv/bin/python -m scripts.find_browser

clean:
	rm -rf .venv .uv

$(ENVIRONMENT): pyproject.toml uv.lock .python-version | $(UV)
	$(UV) sync --frozen
	@touch $(ENVIRONMENT)

.uv/bin/uv:
	@python3 scripts/make_uv.py
