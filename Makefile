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
ON_POSTGRES = tests/archive $(addprefix tests/runtime/test_,database.py forgetting.py hello.py indexer.py lost_commit.py recovery.py tool_interleavings.py watch.py access_refresh.py::test_the_number_of_pages_costs_no_statement) $(addprefix tests/runtime/test_runs.py::test_,an_answer_is_kept_and_shown a_session_with_many_rewinds_is_answered blocks_are_kept_exactly_as_received live_rows_are_the_bytes_of_a_reload the_same_client_id_is_carried_out_once messages_queue_while_an_answer_is_written a_queued_message_can_be_withdrawn too_many_waiting_messages_are_refused_with_the_reason a_retry_replaces_the_failed_rows an_edit_replaces_the_message_and_what_followed a_message_sent_the_moment_a_run_ends_is_answered a_stop_right_after_continue_is_not_lost) $(addprefix tests/runtime/test_tool_calls.py::test_,a_call_is_stopped_from_another_process arguments_that_no_request_can_hold_do_not_end_the_session) $(addprefix tests/features/,retention usage/test_recording.py webhooks/test_deliveries.py) $(addprefix tests/features/usage/test_runs.py::test_,a_warning_is_given_once_in_a_period looking_at_budgets_takes_one_query what_counts_is_the_period_that_it_is) $(addprefix tests/web/test_,rights.py outage.py search.py::test_any_text_is_a_query search.py::test_nothing_of_others_is_found_by_any_parameter) $(addprefix tests/api/test_,idempotency.py::TestKeeping idempotency.py::test_of_many_at_once_one_makes_it idempotency.py::TestAgain::test_a_request_that_was_refused_can_be_sent_again keys.py::test_a_key_is_begun_at_first_use_and_found_again keys.py::test_a_new_session_is_begun_under_a_key keys.py::test_many_callers_at_once_get_one_session) $(addprefix tests/tools/test_conversation_recall.py::test_,any_text_is_a_query a_tool_by_any_name_is_no_error filters_narrow_a_search a_word_in_another_form_is_found_and_shown a_cursor_leads_through_all_hits past_calls_can_be_narrowed_by_words a_cursor_leads_through_all_past_calls the_summary_has_the_figures sessions_lists_the_others_and_pages sessions_searches_the_others every_action_costs_the_same_in_a_long_session the_uses_of_a_tool_are_not_counted_to_the_end) $(addprefix tests/test_admin.py::test_,every_table_can_be_looked_at rows_are_found_by_uuid_title_and_owner_of_their_session rows_are_filtered_by_role_and_state) tests/test_migrations.py
NOT_ON_POSTGRES = $(addprefix tests/archive/test_,attachments.py audit_export.py bring_messages.py claimed_files.py idle_looks.py provided_groups.py) $(addprefix tests/features/*/test_,pages.py api.py)
test: $(ENVIRONMENT) browser sandbox gettext
	$(PYTHON) -m pytest -q -n auto -p no:playwright --dist worksteal --ignore=tests/e2e --ignore=tests/browsers --ignore=tests/clients --ignore=tests/real
	$(PYTHON) -m scripts.with_postgres $(PYTHON) -m pytest -q -n auto -p no:playwright --dist worksteal $(ON_POSTGRES) $(NOT_ON_POSTGRES:%=--ignore-glob=%)
	$(PYTHON) -m pytest -q -p no:playwright --ds=tests.sso.settings tests/sso
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
