"""Webhooks through the API: making, changing and testing them, and permissions."""

from pathlib import Path
from typing import Any, get_args

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.archive.workspaces import add_member, create_workspace
from conversations.features.webhooks.api import Event
from conversations.features.webhooks.models import EVENTS, Delivery, Webhook
from conversations.features.webhooks.service import read_secret
from conversations.models import Membership, Workspace
from tests.api.conftest import caller_of, fresh_rates  # noqa: F401 (a fixture)

pytestmark = pytest.mark.django_db

HOOKS = "/api/v1/workspaces/garden/hooks"
WISH = {"url": "https://hooks.example.org/token", "events": ["run.completed"]}


def make(client: Client, headers: dict[str, str] | None = None, **values: Any) -> Any:
    return client.post(HOOKS, WISH | values, content_type="application/json", headers=headers)


@pytest.fixture
def owner(user: User) -> Client:
    return caller_of(user)


@pytest.fixture
def hook(workspace: Workspace, owner: Client) -> str:
    """Create a webhook and return its address."""
    return str(make(owner)["Location"])


def test_the_api_description_names_every_event() -> None:
    assert get_args(Event) == tuple(EVENTS)


def test_a_webhook_is_made_and_its_secret_shown_once(owner: Client, workspace: Workspace) -> None:
    answer = make(owner, with_text=True)
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert made.pop("secret") == read_secret(Webhook.objects.get())
    assert made == owner.get(answer["Location"]).json() == owner.get(HOOKS).json()["items"][0]
    assert (made["state"], made["with_text"], made["created_by"]) == ("on", True, "ann")
    rotated = owner.post(f"{answer['Location']}/rotate")
    assert rotated.json()["secret"] == read_secret(Webhook.objects.get())


def test_an_idempotency_key_creates_one_webhook(
    owner: Client, user: User, other_user: User, workspace: Workspace
) -> None:
    headers = {"Idempotency-Key": "deploy-1"}
    first, again = make(owner, headers), make(owner, headers)
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    add_member(workspace, user_pk=other_user.pk, role="owner")
    assert make(caller_of(other_user), headers).json()["uuid"] != first.json()["uuid"]
    assert make(owner).json()["uuid"] != first.json()["uuid"]
    assert make(owner, {"Idempotency-Key": "x" * 256}).status_code == 422
    create_workspace(root=Path(workspace.root), name="Two", slug="two", owner=user)
    elsewhere = owner.post(
        "/api/v1/workspaces/two/hooks", WISH, content_type="application/json", headers=headers
    )
    assert elsewhere.status_code == 201
    assert elsewhere.json()["uuid"] != first.json()["uuid"]
    for _ in range(2):
        owner.post(f"{first['Location']}/test", headers={"Idempotency-Key": "test-1"})
    assert Delivery.objects.count() == 1


@pytest.mark.parametrize(
    "other",
    [{"url": "https://other.example.org/"}, {"events": ["run.failed"]}, {"with_text": True}],
)
def test_an_idempotency_key_is_bound_to_one_request(
    owner: Client, workspace: Workspace, other: Any
) -> None:
    headers = {"Idempotency-Key": "deploy-1"}
    first = make(owner, headers)
    refused = make(owner, headers, **other)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    owner.patch(first["Location"], other, content_type="application/json")
    again = make(owner, headers)
    assert again.json()["uuid"] == first.json()["uuid"], "it was asked for like that"
    assert Webhook.objects.count() == 1


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"url": "http://example.org/"}, 400),
        ({"url": "https://192.168.0.1/"}, 400),
        ({"url": ""}, 422),
        ({"events": []}, 422),
        ({"events": ["run.begun"]}, 422),
        ({"active": 0}, 422),
    ],
)
def test_a_webhook_with_invalid_values_is_refused(
    owner: Client, workspace: Workspace, values: dict[str, Any], status: int
) -> None:
    assert make(owner, **values).status_code == status


def test_a_webhook_is_changed_and_removed(owner: Client, hook: str) -> None:
    def patch(**values: Any) -> Any:
        return owner.patch(hook, values, content_type="application/json").json()

    delivery = owner.post(f"{hook}/test").json()["uuid"]
    Delivery.objects.update(state="failed")
    assert patch(active=False)["state"] == "off"
    assert patch(events=["run.failed"])["events"] == ["run.failed"]
    assert patch(url="https://b.example.org/")["url"] == "https://b.example.org/"
    assert owner.get(hook).json()["state"] == "off"
    assert owner.patch(hook, [None], content_type="application/json").status_code == 400
    for act in ("test", f"deliveries/{delivery}/again"):
        refused = owner.post(f"{hook}/{act}")
        assert (refused.status_code, refused.json()["code"]) == (409, "hook_off")
    assert owner.delete(hook).status_code == 204
    assert owner.get(hook).status_code == 404


def test_deliveries_are_listed_in_pages_and_sent_again(owner: Client, hook: str) -> None:
    made = [owner.post(f"{hook}/test").json()["uuid"] for _ in range(3)]
    page = owner.get(f"{hook}/deliveries?limit=2").json()
    assert [one["uuid"] for one in page["items"]] == made[:0:-1]
    rest = owner.get(f"{hook}/deliveries?limit=2&cursor={page['next']}").json()
    assert [one["uuid"] for one in rest["items"]] == made[:1]
    assert rest["next"] is None
    back = owner.get(f"{hook}/deliveries?limit=2&cursor={rest['previous']}").json()
    assert back["items"] == page["items"]
    assert owner.post(f"{hook}/deliveries/{made[0]}/again").status_code == 409
    Delivery.objects.update(state="failed", attempts=10)
    again = owner.post(f"{hook}/deliveries/{made[0]}/again")
    assert (again.status_code, again.json()["state"]) == (202, "pending")


def test_webhooks_require_an_owner_with_the_scope(
    user: User, other_user: User, viewer: User, workspace: Workspace, hook: str
) -> None:
    member = User.objects.create_user("mia")
    add_member(workspace, user_pk=member.pk, role="member")
    for person, status in ((other_user, 404), (viewer, 403), (member, 403), (None, 401)):
        client = caller_of(person)
        for answer in (client.get(HOOKS), client.get(hook), make(client), client.delete(hook)):
            assert answer.status_code == status
    answer = caller_of(user, scopes=["read", "write"]).get(HOOKS)
    assert answer.json()["code"] == "insufficient_scope"


def test_a_response_is_repeated_only_to_a_current_owner(
    owner: Client, hook: str, user: User
) -> None:
    def try_out() -> int:
        return owner.post(f"{hook}/test", headers={"Idempotency-Key": "k-1"}).status_code

    assert try_out() == 202
    Membership.objects.filter(user=user).update(role="member")
    assert try_out() == 403
