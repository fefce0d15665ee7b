"""Sessions by key: found, begun and replaced by a new session."""

import threading
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from conversations.archive.sessions import get_session
from conversations.models import Session, Workspace

from .conftest import caller_of

KEYS = "/api/v1/workspaces/garden/keys/"


def opened(caller: Client, key: str, **body: Any) -> Any:
    return caller.put(f"{KEYS}{quote(key)}", body, content_type="application/json")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "key", ["cli:default", "discord:dm:7", "discord:thread:42", "bead:ac/c0f.2", "bot:été? #1"]
)
def test_the_first_use_of_a_key_creates_its_session(
    workspace: Workspace, owner: Client, key: str
) -> None:
    assert owner.get(f"{KEYS}{quote(key)}").status_code == 404
    first = opened(owner, key, title="Roses", instructions="Be brief.")
    assert first.status_code == 201
    made = first.json()
    assert (made["key"], made["channel"]) == (key, key.partition(":")[0])
    assert first["Location"] == f"/api/v1/sessions/{made['uuid']}"
    again = opened(owner, key, title="Other")
    assert (again.status_code, again.json()) == (200, made)
    assert owner.get(f"{KEYS}{quote(key)}").json() == made
    assert get_session(made["uuid"]).instructions == "Be brief."


@pytest.mark.django_db
def test_a_new_session_takes_over_the_key(workspace: Workspace, owner: Client) -> None:
    first = opened(owner, "cli:default").json()
    second = owner.post(f"{KEYS}cli:default").json()
    assert (second["parent"], second["key"]) == (first["uuid"], "cli:default")
    assert opened(owner, "cli:default").json()["uuid"] == second["uuid"]


@pytest.mark.django_db
def test_an_invalid_key_is_refused(workspace: Workspace, owner: Client) -> None:
    answer = opened(owner, "default")
    assert (answer.status_code, answer.json()["code"]) == (400, "key_invalid")
    assert not Session.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_many_callers_at_once_get_one_session(workspace: Workspace, user: User) -> None:
    callers = [caller_of(user) for _ in range(12)]
    together = threading.Barrier(len(callers))
    found: list[tuple[int, str]] = []

    def call(caller: Client) -> None:
        together.wait()
        answer = opened(caller, "bead:1")
        found.append((answer.status_code, answer.json()["uuid"]))
        connection.close()

    threads = [threading.Thread(target=call, args=[caller]) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(status for status, _ in found) == [200] * 11 + [201]
    assert len({uuid for _, uuid in found}) == 1
    assert Session.objects.count() == 1
