# Needs Python 3.13, make and the package registries; everything else it installs.

SHELL := /bin/sh
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
PYTHON := .venv/bin/python
RUNNING := .venv/.running
ENVIRONMENT := .venv/.made
CLIENTS := .cache/clients

# Else every process that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run extra test soak test-clients test-compared test-firefox test-page-audits test-real test-features test-postgres test-uvicorn bench lint format messages browser sandbox gettext clean

run: $(RUNNING)
	@exec $(PYTHON) manage.py serve

# One of the extras of pyproject.toml, and nothing else: make extra NAME=semantic
extra: $(RUNNING)
	$(UV) sync --frozen --no-dev --inexact --extra $(NAME)

# The whole suite on SQLite; what asks the database in its own way again on PostgreSQL;
# the extra way to sign in with settings of its own; then in a browser.
test: $(ENVIRONMENT) browser sandbox gettext
	$(PYTHON) -m pytest -q -n auto -p no:playwright --dist worksteal --ignore=tests/e2e --ignore=tests/browsers --ignore=tests/clients --ignore=tests/real
	$(PYTHON) -m scripts.with_postgres $(PYTHON) -m pytest -q -n auto -p no:playwright --dist worksteal @tests/on_postgres.txt
	$(PYTHON) -m pytest -q -n auto -p no:playwright --ds=tests.sso.settings tests/sso
	$(PYTHON) -m pytest -q -n auto tests/e2e

# Programs of others, as clients. They are no part of the product's environment.
test-clients: $(ENVIRONMENT) $(CLIENTS)/.made
	$(PYTHON) -m pytest -q -p no:playwright tests/clients

# What is left without each of the features.
test-features: $(ENVIRONMENT) sandbox
	for feature in $(notdir $(patsubst %/apps.py,%,$(wildcard conversations/features/*/apps.py))); do \
		$(PYTHON) -m scripts.without $$feature || exit 1; \
	done

# All of it on PostgreSQL.
test-postgres: $(ENVIRONMENT) sandbox
	$(PYTHON) -m scripts.with_postgres $(PYTHON) -m pytest -q -n auto --dist worksteal --ignore=tests/e2e --ignore=tests/browsers --ignore=tests/clients --ignore=tests/real

# What starts a server, under the other one.
test-uvicorn: $(ENVIRONMENT) browser sandbox
	LOOM_ASGI_SERVER=uvicorn $(PYTHON) -m pytest -q -n auto -p no:playwright tests/crash tests/test_fresh_folder.py $(addprefix tests/,api/test_live.py features/test_deletion.py features/terminal/test_server.py features/model_apis/test_server.py)
	LOOM_ASGI_SERVER=uvicorn $(PYTHON) -m pytest -q -n auto tests/e2e

# Against a real model server, which is installed for it: minutes of CPU.
test-real: $(ENVIRONMENT)
	$(UV) sync --frozen --inexact --group real
	$(PYTHON) -m pytest -q -p no:playwright tests/real

# What hostile files and texts reach in the other browser.
test-firefox: $(ENVIRONMENT)
	$(PYTHON) -m scripts.find_browser firefox
	$(PYTHON) -m pytest -q -p no:playwright tests/browsers/firefox

# What Lighthouse and a virtual screen reader say of the pages.
test-page-audits: $(ENVIRONMENT) browser
	mkdir -p .cache/page-audits
	cp tests/browsers/page_audits/package.json tests/browsers/page_audits/measure.mjs .cache/page-audits
	npm install --prefix .cache/page-audits --ignore-scripts --no-audit --no-fund
	$(PYTHON) -m pytest -q -s tests/browsers/page_audits

# What fifty things take, against docs/compared.md; COMPARED=write puts it there.
test-compared: $(ENVIRONMENT) browser
	$(PYTHON) -m pytest -q tests/browsers/compared

# Kills of all kinds, many of each: minutes.
soak: $(ENVIRONMENT) sandbox
	$(PYTHON) -m tests.crash
	$(PYTHON) -m tests.features.discord.kill_discord --rounds 20
	$(PYTHON) -m tests.features.notices.kill_push --rounds 20

bench: $(ENVIRONMENT)
	$(PYTHON) manage.py bench --markdown bench.md

lint: $(ENVIRONMENT)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/mypy .

format: $(ENVIRONMENT)
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# The catalogs of the pages' languages, from the code.
messages: $(ENVIRONMENT)
	$(PYTHON) -m scripts.messages

browser: $(ENVIRONMENT)
	@$(PYTHON) -m scripts.find_browser

sandbox: $(ENVIRONMENT)
	@$(PYTHON) -m scripts.find_sandbox

gettext: $(ENVIRONMENT)
	@$(PYTHON) -m scripts.messages find

clean:
	rm -rf .venv .uv .cache

# What running needs; what tests need stays where it is there already.
$(RUNNING): pyproject.toml uv.lock .python-version | $(UV)
	$(UV) sync --frozen --no-dev --inexact
	@touch $(RUNNING)

$(ENVIRONMENT): pyproject.toml uv.lock .python-version | $(UV)
	$(UV) sync --frozen
	@touch $(RUNNING) $(ENVIRONMENT)

# The SDK's own tests are in the archives of its sources.
SDKS := 0.121.0 2.12.0
$(CLIENTS)/.made: $(wildcard tests/clients/*.txt) tests/clients/package.json | $(UV)
	mkdir -p $(CLIENTS)
	$(UV) venv --quiet --allow-existing $(CLIENTS)/venv
	$(UV) pip install --quiet --python $(CLIENTS)/venv -r tests/clients/requirements.txt
	$(UV) venv --quiet --allow-existing --python '>=3.10,<3.13' $(CLIENTS)/aider && \
		$(UV) pip install --quiet --python $(CLIENTS)/aider aider-chat==0.86.2 || \
		{ rm -rf $(CLIENTS)/aider; echo "aider is left out: it needs Python 3.10, 3.11 or 3.12."; }
	$(UV) venv --quiet --allow-existing $(CLIENTS)/sdk
	$(UV) pip install --quiet --python $(CLIENTS)/sdk -r tests/clients/sdk_tests.txt
	for version in $(SDKS); do \
		$(CLIENTS)/sdk/bin/python -m pip download --quiet --no-deps --no-binary anthropic --dest $(CLIENTS) anthropic==$$version && \
		tar -xzf $(CLIENTS)/anthropic-$$version.tar.gz -C $(CLIENTS) || exit 1; \
	done
	cp tests/clients/package.json $(CLIENTS)
	! command -v npm || npm install --prefix $(CLIENTS) --ignore-scripts --no-audit --no-fund
	@touch $(CLIENTS)/.made

.uv/bin/uv:
	@python3 scripts/make_uv.py
