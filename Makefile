# Needs Python 3.13, make and the package registries; everything else it installs.

SHELL := /bin/sh
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
PYTHON := .venv/bin/python
ENVIRONMENT := .venv/.made

# Else every process that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test bench lint format browser sandbox clean

run: $(ENVIRONMENT)
	@exec $(PYTHON) manage.py serve

# The whole suite on SQLite; what asks the database in its own way again on PostgreSQL;
# the extra way to sign in with settings of its own; then in a browser.
ON_POSTGRES = tests/archive tests/changes tests/retention tests/runtime tests/web tests/context/test_hint.py tests/tools/test_conversation_recall.py tests/tools/test_load_skill.py tests/tools/test_session_state.py tests/test_admin.py tests/test_migrations.py tests/test_recall_command.py
NOT_ON_POSTGRES = $(addprefix tests/api/test_,calling.py docs.py examples.py matrix.py schemathesis.py) $(addprefix tests/runtime/test_,needles.py product_tools.py program_tools.py tool_servers.py webhooks.py windows.py) $(addprefix tests/web/test_,accounts.py call_records.py calls.py commands.py feed.py matrix.py pages.py request_text.py signed_out.py state_panel.py tool_servers.py webhooks.py widgets.py imports.py) $(addprefix tests/imports/test_,claude_code.py json_items.py trees.py)
test: $(ENVIRONMENT) browser sandbox
	$(PYTHON) -m pytest -q -n auto --ignore=tests/e2e
	$(PYTHON) -m scripts.with_postgres $(PYTHON) -m pytest -q -n auto $(ON_POSTGRES) $(NOT_ON_POSTGRES:%=--ignore=%)
	$(PYTHON) -m pytest -q --ds=tests.sso.settings tests/sso
	$(PYTHON) -m pytest -q -n auto --dist worksteal tests/e2e

bench: $(ENVIRONMENT)
	$(PYTHON) manage.py bench

lint: $(ENVIRONMENT)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/mypy .

format: $(ENVIRONMENT)
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

browser: $(ENVIRONMENT)
	@$(PYTHON) -m scripts.find_browser

sandbox: $(ENVIRONMENT)
	@$(PYTHON) -m scripts.find_sandbox

clean:
	rm -rf .venv .uv

$(ENVIRONMENT): pyproject.toml uv.lock .python-version | $(UV)
	$(UV) sync --frozen
	@touch $(ENVIRONMENT)

.uv/bin/uv:
	@python3 scripts/make_uv.py
