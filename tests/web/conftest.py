"""People in every role, their browsers, and a runtime that ends with the test."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db.models import QuerySet
from django.test import AsyncClient, Client

from conversations.archive.append import NewEvent, append
from conversations.archive.workspaces import add_member
from conversations.domain.events import AssistantText, UserMessage
from conversations.domain.turns import NewTurn
from conversations.models import Session, Workspace
from conversations.providers.config import ANTHROPIC, ProviderConfig
from conversations.runtime.current import stop_current_runtime

# The tests collect no static files, and WhiteNoise warns if their folder is missing.
Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)

ROLES = (
    "stranger",
    "other",
    "viewer",
    "member",
    "owner",
    "reviewer",
    "administrator",
    "staff",
    "superuser",
)
"""All roles. The roles from ``other`` on are signed in. Only ``viewer``, ``member`` and ``owner``
belong to the workspace. ``staff`` may view every table in the admin."""

AS_REVIEWER = frozenset({"reviewer", "superuser"})
"""Roles that may read sessions of workspaces to which they do not belong. Each reading is recorded
in the audit log."""

type MakePerson = Callable[[str], User | None]


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a provider with the Messages API. It receives no request."""
    provider = ProviderConfig(
        name="anthropic", kind=ANTHROPIC, url="http://localhost", api_key="k", is_plain=True
    )
    monkeypatch.setattr(settings.LOOM, "providers", (provider,))


@pytest.fixture
def make_person(workspace: Workspace, user: User) -> MakePerson:
    """Return a function that returns the person of a role, or None for the stranger."""

    def make(role: str) -> User | None:
        if role == "stranger":
            return None
        if role == "owner":
            return user
        person = User.objects.create_user(
            role, is_staff=role.startswith(("staff", "super")), is_superuser=role == "superuser"
        )
        if role in ("viewer", "member"):
            add_member(workspace, user_pk=person.pk, role=role)
        person.user_permissions.set(permissions_of(role))
        return person

    return make


def permissions_of(role: str) -> QuerySet[Permission]:
    """Return the permissions that the role has beyond its membership."""
    ours = Permission.objects.filter(content_type__app_label="conversations")
    wanted = {
        "reviewer": ours.filter(codename="review_transcripts"),
        "administrator": ours.filter(codename="administer_installation"),
        "staff": ours.filter(codename__startswith="view_"),
    }
    return wanted.get(role, ours.none())


def browser_of(person: User | None) -> Client:
    client = Client()
    if person is not None:
        client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


async def async_browser_of(person: User) -> AsyncClient:
    client = AsyncClient()
    await client.aforce_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def owner(user: User) -> Client:
    """The browser of the workspace's owner."""
    return browser_of(user)


def say(session: Session, *texts: str) -> list[int]:
    """Append alternating turns of the person and the assistant, and return their numbers."""
    numbers = []
    for place, text in enumerate(texts):
        payload = AssistantText(text=text) if place % 2 else UserMessage(text=text)
        role = "assistant" if place % 2 else "user"
        numbers += append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role=role, content=text)],
            events=[NewEvent(payload=payload, new=0)],
        ).turns
    session.refresh_from_db()
    return numbers


@pytest.fixture
async def runtime_ends(transactional_db: None) -> AsyncIterator[None]:
    """Stop the runtime that the test starts, on the test's own loop."""
    yield
    await stop_current_runtime()


@pytest.fixture
async def async_browser(runtime_ends: None, user: User) -> AsyncClient:
    """The browser of the workspace's owner, for tests of runs on the test's own loop."""
    return await async_browser_of(user)


def without_tokens(html: str) -> str:
    return re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", html)


def flat(html: str) -> str:
    """Return the HTML without the line breaks of its template, as a browser shows it."""
    html = re.sub(r">\s*\n\s*", ">", html)
    return re.sub(r"\s*\n\s*", " ", re.sub(r"\s*\n\s*<", "<", html))
