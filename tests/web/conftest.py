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

# WhiteNoise warns of a folder that is not there; the tests collect no static files.
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
"""Everybody who may come. From ``other`` on they are signed in; ``viewer``, ``member``
and ``owner`` belong to the workspace, all others do not; ``staff`` may look at every
table in the admin."""

AS_REVIEWER = frozenset({"reviewer", "superuser"})
"""Those who may read what is not theirs; each reading is entered in the audit log."""

type MakePerson = Callable[[str], User | None]


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Messages API is configured; nobody asks it."""
    provider = ProviderConfig(
        name="anthropic", kind=ANTHROPIC, url="http://localhost", api_key="k", is_plain=True
    )
    monkeypatch.setattr(settings.LOOM, "providers", (provider,))


@pytest.fixture
def make_person(workspace: Workspace, user: User) -> MakePerson:
    """The person of a role in the workspace; None for the stranger."""

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
    """What is granted to the role beside its membership."""
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
    """Append messages, by turns of the person and of the assistant."""
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
    """Whatever runtime the test starts on its loop is stopped on it."""
    yield
    await stop_current_runtime()


@pytest.fixture
async def async_browser(runtime_ends: None, user: User) -> AsyncClient:
    """The same, for what goes on after a response: a run on the test's loop."""
    return await async_browser_of(user)


def without_tokens(html: str) -> str:
    return re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", html)


def flat(html: str) -> str:
    """The HTML without the line breaks of its template, as a browser shows it."""
    html = re.sub(r">\s*\n\s*", ">", html)
    return re.sub(r"\s*\n\s*", " ", re.sub(r"\s*\n\s*<", "<", html))
