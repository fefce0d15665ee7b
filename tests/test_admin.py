"""The admin: every table can be viewed at constant cost, and none can be changed."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session as BrowserSession
from django.db import connection
from django.db.models import Model
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, reverse
from django.utils import timezone

from conversations.admin import MAX_PAGES, MAX_SHOWN_CHARS, NOT_SHOWN, PER_PAGE, TABLES
from conversations.admin_site import ReadOnlyAdmin
from conversations.archive.append import NewEvent, append
from conversations.archive.audit import AuditOrigin, readings_of, record, session_event
from conversations.archive.rewinds import append_rewind
from conversations.archive.rights import ADMINISTRATORS, REVIEWERS, role_group
from conversations.archive.sessions import create_session, get_session
from conversations.archive.workspaces import create_sign_in_link, create_workspace
from conversations.domain.audit import RECORD, TRANSCRIPT
from conversations.domain.events import UserMessage
from conversations.domain.turns import NewTurn
from conversations.models import (
    ApiAnswer,
    ApiToken,
    Attachment,
    AuditEntry,
    ChatEvent,
    Compaction,
    Device,
    DraftChunk,
    FileChange,
    Invitation,
    JournalGap,
    LearntModel,
    MemoryEntry,
    ModelCall,
    Preferences,
    PromptText,
    PurgedContent,
    PurgeOrder,
    PurgePermit,
    ReadingPosition,
    Receipt,
    Revert,
    Run,
    Session,
    SessionSkill,
    SignInLink,
    StateCheckpoint,
    ToolCall,
    ToolPermission,
    ToolServerGrant,
    Turn,
    TurnEmbedding,
    Workspace,
    WorkspaceGroup,
)
from conversations.models.search import entry_id
from conversations.review.remarks import mark_reviewed, set_flag, write_note
from conversations.search.indexing import index_session
from tests.features import collect

pytestmark = pytest.mark.django_db

# WhiteNoise warns about a missing folder, and the tests do not collect static files.
Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)

MODELS = list(apps.get_app_config("conversations").get_models())


def hide_sidebar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the list of all tables, which takes longer to render than the page beside it."""
    monkeypatch.setattr(admin.site, "get_app_list", lambda request, app_label=None: [])


@pytest.fixture
def without_sidebar(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_sidebar(monkeypatch)


@pytest.fixture
def staff(client: Client, without_sidebar: None) -> Client:
    client.force_login(User.objects.create_superuser("root"))
    return client


def say(session: Session, text: str) -> None:
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role="user", content=text, blocks='[{"type":"text"}]')],
        events=[NewEvent(payload=UserMessage(text=text), new=0)],
    )


def fill(workspace: Workspace, user: User, *, times: int) -> None:
    """Create at least ``times`` rows in every table, each for a session of its own."""
    for number in range(times):
        session = create_session(workspace, owner=user, title=f"Session {number}")
        say(session, f"«words {number}»")
        append_rewind(
            get_session(session.uuid), from_turn=1, from_seq=1, reason="edit", actor_pk=user.pk
        )
        index_session(session.pk)
        TurnEmbedding.objects.create(pk=entry_id(session.pk, 1), session=session, vector=bytes(384))
        JournalGap.objects.create(session=session, from_turn=1, to_turn=1, after_seq=0)
        now = timezone.now()
        SessionSkill.objects.create(
            session=session, name="s", content="c", digest="", turn_number=1, loaded_at=now
        )
        Compaction.objects.create(
            session=session,
            from_turn=1,
            to_turn=1,
            summary="s",
            model="m",
            reason="manual",
            before_turns=1,
            after_turns=1,
            before_tokens=1,
            after_tokens=1,
            created_at=now,
        )
        run = Run.objects.create(
            session=session, client_id="c", state="completed", requested_by=user, created_at=now
        )
        ReadingPosition.objects.create(session=session, user=user, turn=1)
        StateCheckpoint.objects.create(session=session, turn=9, seq=0, rewinds=0, state="{}")
        ModelCall.objects.create(
            session=session,
            run=run,
            ordinal=0,
            model="m",
            manifest="{}",
            request_digest="",
            created_at=now,
        )
        ToolCall.objects.create(
            session=session,
            run=run,
            call_id="c",
            name="ls",
            state="completed",
            turn_number=1,
            created_at=now,
        )
        MemoryEntry.objects.create(
            workspace=workspace, kind="rule", text="Use tabs", session=session, created_at=now
        )
        ToolPermission.objects.create(
            workspace=workspace, kind=f"shell:{session.pk}", label="x", granted_at=now
        )
        FileChange.objects.create(session=session, path="a.txt", created_at=now)
        Revert.objects.create(session=session, created_at=now)
        Attachment.objects.create(
            session=session,
            name="a.png",
            kind="image",
            media_type="image/png",
            digest="0" * 64,
            size=1,
            created_at=now,
        )
        DraftChunk.objects.create(run=run, ordinal=0, part=0, kind="text", text="x")
        LearntModel.objects.create(model=f"local/{session.pk}", input_tokens=2048)
        PromptText.objects.create(digest=f"{session.pk:064}", text="{}")
        PurgePermit.objects.create(session_pk=-session.pk, reason="x", created_at=now)
        PurgeOrder.objects.create(session=session, reason="x", ordered_at=now, due_at=now)
        PurgedContent.objects.create(digest=f"{session.pk:064}", purged_at=now)
        Receipt.objects.create(
            session=session.uuid,
            created_at=now,
            last_active_at=now,
            purged_at=now,
            turns=1,
            events=1,
        )
        create_sign_in_link(user)
        fill_accounts(workspace, user, number=session.pk)
        record(AuditOrigin(user=user), session_event(session, TRANSCRIPT))
        write_note(session, AuditOrigin(user=user), text="x", turn=None)
        set_flag(session, AuditOrigin(user=user), label="other", turn=None)
        mark_reviewed(get_session(session.uuid), AuditOrigin(user=user), through=1)
        ApiAnswer.objects.create(
            session=session, user=user, key=str(session.uuid), fingerprint="", created_at=now
        )
        for stock in collect("stock"):
            stock(session, run)


def fill_accounts(workspace: Workspace, user: User, *, number: int) -> None:
    now = timezone.now()
    Preferences.objects.create(user=User.objects.create(username=f"person {number}"))
    Device.objects.create(
        user=user, session_key=f"key-of-session-{number}", created_at=now, last_seen_at=now
    )
    Invitation.objects.create(
        digest=f"{number:064}", created_by=user, created_at=now, expires_at=now
    )
    ApiToken.objects.create(
        digest=f"{number:064}", hint="loom_abcd", user=user, name="", scopes="read", created_at=now
    )
    ToolServerGrant.objects.create(
        workspace=workspace.slug, server=f"server {number}", url="https://example.org/mcp"
    )
    WorkspaceGroup.objects.create(
        workspace=workspace, group=Group.objects.create(name=f"group {number}"), created_at=now
    )


def list_url(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def row_url(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def page(client: Client, url: str, **query: Any) -> str:
    response = client.get(url, query)
    assert response.status_code == 200
    return response.content.decode()


SAYS_NOTHING = frozenset({ApiAnswer}).union(*collect("SAYS_NOTHING"))
"""Models that refer to a session but neither hold nor show any of its content."""


def belongs_to_a_session(model: type[Model]) -> bool:
    """Return whether rows of the model refer to a session or a run."""
    owners = {field.related_model for field in model._meta.concrete_fields if field.is_relation}
    return model is Session or bool(owners & {Session, Run})


def is_of_session(model: type[Model]) -> bool:
    """Return whether rows of the model belong to a session and hold some of its content."""
    return belongs_to_a_session(model) and model not in SAYS_NOTHING


def test_every_table_and_row_can_be_viewed(
    staff: Client, workspace: Workspace, user: User, subtests: pytest.Subtests
) -> None:
    """Opening a row of a session is recorded in the audit log. Its list and history are not.

    A list takes the same number of queries for any number of rows.
    """

    def look_at_list(model: type[Model]) -> tuple[str, int]:
        with CaptureQueriesContext(connection) as queries:
            text = page(staff, list_url(model))
        return text, len(queries)

    fill(workspace, user, times=2)
    page(staff, list_url(Session))
    few = {}
    for model in MODELS:
        with subtests.test(model=model.__name__):
            row = model._default_manager.order_by("pk")[0]
            before = AuditEntry.objects.count()
            text, few[model] = look_at_list(model)
            assert row_url(row) in text
            assert AuditEntry.objects.count() == before
            text = page(staff, row_url(row))
            if is_of_session(model):
                page(staff, row_url(row).replace("/change/", "/history/"))
            entries = AuditEntry.objects.order_by("number")[before:]
            expected = [(RECORD, "root", row_url(row))] if is_of_session(model) else []
            assert [(one.action, one.actor_name, one.place) for one in entries] == expected
            assert "<form" in text
            assert 'type="submit" value="Save"' not in text
    fill(workspace, user, times=1)
    for model in MODELS:
        with subtests.test(model=model.__name__, rows="many"):
            assert look_at_list(model)[1] == few[model]


UNSAFE = ("post", "put", "patch", "delete")


def test_no_page_of_any_table_accepts_a_write_request(workspace: Workspace, user: User) -> None:
    """Write requests fail for every registered model, of any app, at each of its URLs.

    This is true for a superuser and for staff with all permissions.
    """
    fill(workspace, user, times=1)
    superuser, staff = Client(), Client()
    superuser.force_login(User.objects.create_superuser("root"))
    person = User.objects.create_user("sam", is_staff=True)
    person.user_permissions.set(Permission.objects.all())
    staff.force_login(person)
    before, in_turn = rows_of_all_tables(), cycle(UNSAFE)
    for model, model_admin in admin.site._registry.items():
        row = model._default_manager.order_by("pk").first()
        data = {"_save": "Save", "post": "yes", "action": "delete_selected"}
        data["_selected_action"] = str(row.pk) if row else "1"
        for pattern in model_admin.urls:
            taken = dict.fromkeys(pattern.pattern.converters, row.pk if row else 1)
            if pattern.name is None:  # redirects to the row's page
                continue
            address = reverse(f"admin:{pattern.name}", kwargs=taken)
            # Trying every method on every page would be slow.
            answers = staff.post(address, data), getattr(superuser, next(in_turn))(address, data)
            assert [one.status_code for one in answers] == [405, 405], address
            if model in (User, Turn) and pattern.name.endswith(("_add", "_delete")):
                assert superuser.get(address).status_code == 403, address
    assert changed_tables(before) == set()


def test_no_page_outside_of_tables_accepts_a_write_request(staff: Client, session: Session) -> None:
    before = rows_of_all_tables()
    patterns = admin.site.get_urls()
    pages = {one.name for one in patterns if isinstance(one, URLPattern) and one.name}
    assert len(pages) == 9, "a page that is not one of a table was added"
    for name in sorted(pages - {"login", "logout"}):
        kwargs = {"app_list": {"app_label": "auth"}, "view_on_site": {"content_type_id": 1}}
        more = {"object_id": 1} if name == "view_on_site" else {}
        address = reverse(f"admin:{name}", kwargs=kwargs.get(name, {}) | more)
        staff.get(address)  # which is not recorded as a reading
        for method in UNSAFE:
            assert getattr(staff, method)(address, {"x": "y"}).status_code == 405, address
    assert changed_tables(before) == set()


def test_a_writable_admin_class_is_not_registered() -> None:
    """Register Django's own ``ModelAdmin`` for sessions, as an app would when it is loaded."""
    admin.site.register(BrowserSession, admin.ModelAdmin)
    admin.site.register(BrowserSession)
    assert not admin.site.is_registered(BrowserSession)
    assert all(isinstance(one, ReadOnlyAdmin) for one in admin.site._registry.values())


def test_no_table_offers_a_way_to_write() -> None:
    """No permission, inline, editable column or action is offered, and no additional page."""
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_staff=True, is_active=True)
    may = {"add": False, "change": False, "delete": False, "view": True}
    pages = {"changelist", "add", "history", "delete", "change"}
    for model, one in admin.site._registry.items():
        label = model._meta.label
        assert one.get_model_perms(request) == may, label
        row = model()
        assert not one.has_add_permission(request, row), label
        assert not one.has_change_permission(request, row), label
        assert not one.has_delete_permission(request, row), label
        assert (list(one.get_inlines(request, None)), one.list_editable) == ([], ()), label
        assert one.get_actions(request) == {}, label
        named = {pattern.name.rpartition("_")[2] for pattern in one.urls if pattern.name}
        assert named == pages, label


def test_account_pages_of_the_admin_redirect_to_the_products_own(
    client: Client, user: User
) -> None:
    """The product's own pages do more than the admin's.

    Its sign-in page asks for a second factor, its password page signs other browsers out, and its
    sign-out clears the data that the browser has stored.
    """
    data = {"username": "ann", "password": "correct horse"}
    answer = client.post(reverse("admin:login") + "?next=/admin/auth/", data)
    assert answer["Location"] == f"{reverse('sign_in')}?next=/admin/auth/&unsaved=1"
    assert SESSION_KEY not in client.session
    elsewhere = client.get(reverse("admin:login") + "?next=https://evil.example/")
    assert elsewhere["Location"] == f"{reverse('sign_in')}?next={reverse('admin:index')}"
    client.force_login(user)
    assert client.get(reverse("admin:login")).status_code == 403
    User.objects.filter(pk=user.pk).update(is_staff=True)
    assert client.get(reverse("admin:login"))["Location"] == reverse("admin:index")
    assert client.get(reverse("admin:password_change"))["Location"] == reverse("password_change")
    signed_out = client.post(reverse("admin:logout"), follow=True)
    assert signed_out.redirect_chain == [(reverse("sign_out"), 307), (reverse("sign_in"), 302)]
    assert SESSION_KEY not in client.session


def test_large_tables_are_never_counted_or_read_whole(
    staff: Client, workspace: Workspace, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(workspace, user, times=3)
    for model in (Turn, ChatEvent, Session, Run, ModelCall, ToolCall):
        monkeypatch.setattr(type(admin.site.get_model_admin(model)), "list_per_page", 2)
        for query in ({}, {"q": "Session"}, {"p": "2"}, {"_facets": "True"}):
            with CaptureQueriesContext(connection) as queries:
                assert page(staff, list_url(model), **query)
            for captured in queries:
                sql = captured["sql"]
                if f'FROM "{model._meta.db_table}"' in sql:
                    assert "COUNT(" not in sql, (model, query)
                    assert "DISTINCT" not in sql, (model, query)
                    assert "LIMIT" in sql, (model, query)


def test_a_list_does_not_read_long_texts(staff: Client, workspace: Workspace, user: User) -> None:
    fill(workspace, user, times=1)
    with CaptureQueriesContext(connection) as queries:
        text = page(staff, list_url(Turn))
    assert "words 0" not in text
    assert not [q for q in queries if '"conversations_turn"."content"' in q["sql"]]
    assert not [q for q in queries if '"conversations_session"."system_prompt"' in q["sql"]]


def test_rows_are_found_by_uuid_title_and_owner_of_their_session(
    staff: Client, workspace: Workspace, user: User, other_user: User, subtests: pytest.Subtests
) -> None:
    fill(workspace, user, times=2)
    fill(workspace, other_user, times=1)
    wanted = str(Session.objects.get(owner=user, title="Session 1").uuid)
    counts = {wanted: 1, wanted[:13]: 1, "session 1": 1, "bob": 1, "nobody": 0, "%'": 0}
    for model in (Session, Turn, ChatEvent, Run, ModelCall, ToolCall, DraftChunk):
        # The sessions are found in the same way for all tables.
        terms = counts if model in (Session, Turn) else {wanted[:13]: 1}
        for term, count in terms.items():
            with subtests.test(model=model.__name__, term=term):
                text = page(staff, list_url(model), q=term)
                assert text.count('<th class="field-') == count


def test_rows_are_filtered_by_role_and_state(
    staff: Client, workspace: Workspace, user: User
) -> None:
    fill(workspace, user, times=1)
    assert "1 turn" in page(staff, list_url(Turn), role="user")
    assert "0 turns" in page(staff, list_url(Turn), role="tool")
    assert "1 run" in page(staff, list_url(Run), state="completed")
    assert "0 runs" in page(staff, list_url(Run), state="failed")


def test_a_list_accepts_no_conditions_except_its_filters(staff: Client) -> None:
    """With other conditions, the rows that remain would reveal hidden values."""
    conditions: list[tuple[type[Model], str, str]] = [
        (Turn, "content__contains", "beans"),
        (Turn, "session__title", "Plan the year"),
        (Session, "preview__contains", "beans"),
        (Session, "workspace__instructions__contains", "beans"),
        (Device, "session_key__startswith", "key"),
        (SignInLink, "digest__startswith", "0"),
    ]
    for model, name, value in conditions:
        assert staff.get(list_url(model), {name: value}).status_code == 400, name


def test_sessions_are_filtered_by_workspace_and_archiving(staff: Client, session: Session) -> None:
    Workspace.objects.create(name="Orchard", slug="orchard", root="/", created_at=timezone.now())
    of_garden = {"workspace__id__exact": session.workspace_id}
    assert "1 session" in page(staff, list_url(Session), **of_garden, archived_at__isempty=1)
    assert "0 sessions" in page(staff, list_url(Session), **of_garden, archived_at__isempty=0)
    assert "0 sessions" in page(staff, list_url(Session), workspace__id__exact=0)


def test_a_workspace_is_found_by_its_folder(
    staff: Client, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "data_dir", tmp_path / "data")
    for place in ("data/orchard", "elsewhere/orchard"):
        create_workspace(root=tmp_path / place, name="Orchard", owner=user)
        shown = page(staff, list_url(Workspace), q=str(tmp_path / place))
        assert "1 workspace" in shown
        assert str(tmp_path / place) in shown


def test_a_session_links_to_its_transcript(staff: Client, session: Session) -> None:
    say(session, "one")
    link = f'<a href="/s/{session.uuid}/">Transcript</a>'
    assert link in page(staff, list_url(Session))
    assert link in page(staff, row_url(session))
    turn = Turn.objects.get()
    assert f'<a href="/s/{session.uuid}/t/1/">Transcript</a>' in page(staff, row_url(turn))


def test_long_text_is_cut_and_escaped(staff: Client, session: Session) -> None:
    say(session, "<script>alert(1)</script>" + "x" * MAX_SHOWN_CHARS)
    text = page(staff, row_url(Turn.objects.get()))
    assert "<script>alert" not in text
    assert "… 25 more characters" in text
    assert "x" * MAX_SHOWN_CHARS not in text


def test_json_is_shown_indented_and_damaged_json_as_it_is(
    staff: Client, workspace: Workspace, user: User
) -> None:
    session = create_session(workspace, owner=user, metadata={"a": {"b": 1}})
    assert "&quot;b&quot;: 1\n  }" in page(staff, row_url(session))
    Session.objects.update(metadata="{broken")
    assert "<pre>{broken</pre>" in page(staff, row_url(session))


def test_a_sign_in_link_shows_no_digest(staff: Client, user: User) -> None:
    create_sign_in_link(user)
    link = SignInLink.objects.get()
    assert link.digest not in page(staff, row_url(link))
    assert link.digest not in page(staff, list_url(SignInLink))


def test_a_device_shows_no_key(staff: Client, workspace: Workspace, user: User) -> None:
    fill_accounts(workspace, user, number=1)
    assert "key-of-session-1" not in page(
        staff, row_url(Device.objects.get(session_key="key-of-session-1"))
    )
    assert "key-of-session-1" not in page(staff, list_url(Device))


def test_a_list_offers_a_limited_number_of_pages(
    staff: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [NewEvent(payload=UserMessage(text="x")) for _ in range(PER_PAGE + 1)]
    append(session.pk, session_uuid=session.uuid, events=events)
    assert "p=2" in page(staff, list_url(ChatEvent))
    assert page(staff, list_url(ChatEvent), p=2).count('class="field-seq"') == 1
    assert MAX_PAGES * PER_PAGE == 5000
    # The number of rows beyond the last page is not known.
    monkeypatch.setattr("conversations.admin.MAX_PAGES", 1)
    assert f"{PER_PAGE}+ chat events" in page(staff, list_url(ChatEvent))
    assert f"{PER_PAGE}+ results" in page(staff, list_url(ChatEvent), q=str(session.uuid))
    assert "1 session" in page(staff, list_url(Session))


def test_a_search_for_sessions_finds_all_of_them(
    staff: Client, workspace: Workspace, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        create_session(workspace, owner=user)
    monkeypatch.setattr("conversations.admin.MAX_FOUND_SESSIONS", 1)
    assert "2 results" in page(staff, list_url(Session), q=user.username)


def test_a_search_for_rows_says_that_it_leaves_out_sessions(
    staff: Client, workspace: Workspace, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A complete search would have to read the rows of all sessions."""
    sessions = [create_session(workspace, owner=user) for _ in range(2)]
    for one in sessions:
        say(one, "beans")
    monkeypatch.setattr("conversations.admin.MAX_FOUND_SESSIONS", 1)
    found = page(staff, list_url(Turn), q=user.username)
    assert found.count('class="field-session') == 1
    assert found.count("More than 1 session matches. Only the rows of the newest are shown.") == 1
    for q in (str(sessions[0].uuid), ""):
        assert "More than" not in page(staff, list_url(Turn), q=q)


@pytest.mark.parametrize(("role", "is_of_sessions"), [(REVIEWERS, True), (ADMINISTRATORS, False)])
def test_staff_see_only_the_tables_of_their_role(
    client: Client, user: User, role: str, monkeypatch: pytest.MonkeyPatch, *, is_of_sessions: bool
) -> None:
    """A role is assigned by a form under People and takes effect in the admin.

    Each table is visible to exactly one of the two roles. tests/web/test_matrix.py covers people
    who are not staff.
    """
    User.objects.filter(pk=user.pk).update(is_staff=True)
    user.groups.add(role_group(role))
    client.force_login(user)
    tables = admin.site._registry
    with monkeypatch.context() as patched:
        hide_sidebar(patched)
        statuses = {model: client.get(list_url(model)).status_code for model in tables}
    assert set(statuses.values()) == {200, 403}
    seen = {model for model, status in statuses.items() if status == 200}
    assert seen == {model for model in tables if belongs_to_a_session(model) == is_of_sessions}
    index = page(client, reverse("admin:index"))
    assert {model for model in tables if f'href="{list_url(model)}"' in index} == seen


def test_an_administrator_cannot_open_rows_of_a_session(
    client: Client, session: Session, other_user: User
) -> None:
    say(session, "runner beans")
    User.objects.filter(pk=other_user.pk).update(is_staff=True)
    other_user.groups.add(role_group(ADMINISTRATORS))
    client.force_login(other_user)
    for row in (session, Turn.objects.get(), ChatEvent.objects.get()):
        assert client.get(row_url(row)).status_code == 403
    other_user.groups.add(role_group(REVIEWERS))
    assert "runner beans" in page(client, row_url(Turn.objects.get()))
    assert readings_of(session.uuid).count() == 1


def test_a_view_permission_suffices_and_readings_are_recorded(
    client: Client, session: Session, other_user: User
) -> None:
    say(session, "Plan the year")  # becomes the title
    say(session, "runner beans")
    other_user.is_staff = True
    other_user.save()
    other_user.user_permissions.add(Permission.objects.get(codename="view_turn"))
    client.force_login(other_user)
    turn = Turn.objects.get(number=2)
    assert "runner beans" not in page(client, list_url(Turn))
    assert not readings_of(session.uuid)
    assert "runner beans" in page(client, row_url(turn))
    [entry] = readings_of(session.uuid)
    assert (entry.actor, entry.action, entry.place) == (other_user, "record", row_url(turn))


def test_no_page_shows_personal_memory_entries(
    staff: Client, workspace: Workspace, user: User
) -> None:
    entry = MemoryEntry.objects.create(
        workspace=workspace, owner=user, kind="rule", text="My leg hurts", created_at=timezone.now()
    )
    for address in (list_url(MemoryEntry), row_url(entry)):
        assert "My leg hurts" not in page(staff, address)


@pytest.mark.parametrize(
    ("model", "name"), [(Attachment, "settlement.pdf"), (FileChange, "settlement.txt")]
)
def test_a_list_shows_no_file_names(
    staff: Client, workspace: Workspace, user: User, model: type[Model], name: str
) -> None:
    fill(workspace, user, times=1)
    Attachment.objects.update(name=name)
    FileChange.objects.update(path=name)
    row = model._default_manager.get()
    assert name not in page(staff, list_url(model))
    assert name not in page(staff, row_url(row).replace("/change/", "/history/"))
    assert not AuditEntry.objects.filter(action=RECORD).exists()
    assert name in page(staff, row_url(row))


def test_the_session_list_links_to_the_review_pages(staff: Client, session: Session) -> None:
    assert reverse("review_session", args=[session.uuid]) in page(staff, list_url(Session))


def test_every_table_has_a_page_or_a_reason_for_none() -> None:
    """A new model, ours or a library's, needs an entry in one of the two lists."""
    models = {model._meta.label for model in apps.get_models(include_auto_created=False)}
    registered = {model._meta.label for model in admin.site._registry}
    assert registered == set(TABLES) & models
    assert not set(TABLES) & set(NOT_SHOWN)
    assert models <= set(TABLES) | set(NOT_SHOWN)
    ours = {model._meta.label for model in MODELS}
    assert ours <= set(TABLES), "all tables of the product are shown"
    assert {label for label in TABLES if label.startswith("conversations.")} == ours


def test_no_page_shows_password_hashes_or_browser_sessions(staff: Client, user: User) -> None:
    user.set_password("correct horse")
    user.save()
    shown = page(staff, row_url(user)) + page(staff, list_url(User))
    assert "ann" in shown
    assert user.password not in shown
    assert user.password.rpartition("$")[2] not in shown
    assert BrowserSession not in admin.site._registry


@pytest.mark.parametrize("condition", [{"password__startswith": "m"}, {"email__contains": "a"}])
def test_people_cannot_be_filtered_by_arbitrary_lookups(
    staff: Client, condition: dict[str, str]
) -> None:
    assert staff.get(list_url(User), condition).status_code == 400


def test_a_persons_row_links_to_the_page_that_changes_rights(staff: Client, user: User) -> None:
    user.groups.add(role_group(REVIEWERS))
    text = page(staff, row_url(user))
    assert reverse("person", args=[user.pk]) in text
    assert REVIEWERS in text
    assert page(staff, list_url(User), q="ann", is_active__exact=1).count("field-username") == 1


CHANGE = "auth/user/{person}/change/"
NEW_PASSWORD = {"password1": "long enough 12", "password2": "long enough 12"}
FORMS = {
    "make oneself a superuser": (CHANGE, {"is_superuser": "on"}),
    "become a reviewer": (CHANGE, {"groups": "{reviewers}"}),
    "close an account": (CHANGE, {"is_active": ""}),
    "add an account": ("auth/user/add/", {"username": "eve", "usable_password": "false"}),
    "choose somebody's password": (
        "auth/user/{person}/password/",
        NEW_PASSWORD | {"usable_password": "true"},
    ),
    "add a group": ("auth/group/add/", {"name": "Gardeners"}),
    "remove a locked-out attempt": ("axes/accessattempt/{attempt}/delete/", {"post": "yes"}),
    "choose one's own password": (
        "password_change/",
        {f"new_{name}": text for name, text in NEW_PASSWORD.items()}
        | {"old_password": "correct horse"},
    ),
}
"""Forms with which Django's own admin would let staff with all permissions change something."""


@pytest.mark.parametrize("what", FORMS)
def test_the_admin_changes_no_rights_accounts_or_lockouts(client: Client, what: str) -> None:
    address, fields = FORMS[what]
    person = User.objects.create_user("sam", password="correct horse", is_staff=True)
    person.user_permissions.set(Permission.objects.all())
    attempt = AccessAttempt.objects.create(
        username="ann", ip_address="127.0.0.1", failures_since_start=5
    )
    keys = {"person": person.pk, "attempt": attempt.pk, "reviewers": role_group(REVIEWERS).pk}
    client.force_login(person)
    data = {
        "username": "sam",
        "is_active": "on",
        "is_staff": "on",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00",
    } | {name: text.format(**keys) for name, text in fields.items()}
    before = rows_of_all_tables()
    answer = client.post("/admin/" + address.format(**keys), data)
    assert answer.status_code in (404, 405)
    assert changed_tables(before) == set()


def rows_of_all_tables() -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            found[table] = sorted(cursor.fetchall(), key=repr)
    return found


def changed_tables(before: dict[str, list[tuple[Any, ...]]]) -> set[str]:
    now = rows_of_all_tables()
    return {table for table in now.keys() | before if now.get(table) != before.get(table)}
