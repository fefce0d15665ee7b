"""The pages for purges, holds, receipts and the retention policies of a workspace."""

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.sessions import create_session, get_session
from conversations.archive.workspaces import add_member
from conversations.domain import audit
from conversations.features.retention.models import Hold
from conversations.features.retention.service import place_hold
from conversations.features.retention.views import PAGE_ROWS
from conversations.models import AuditEntry, PurgeOrder, Receipt, Session, Workspace
from tests.web.conftest import MakePerson, browser_of, say
from tests.web.test_moments import shown

pytestmark = pytest.mark.django_db


def page(client: Client, name: str, *args: Any, **query: str) -> str:
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200
    return html.unescape(re.sub(r"\s+", " ", response.text))


def order(client: Client, session: Session, reason: str = "They asked for it.") -> int:
    return client.post(
        reverse("session_purge", args=[session.uuid]), {"reason": reason}
    ).status_code


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("number").values_list("action", flat=True))


def test_a_purge_is_previewed_ordered_and_called_off(owner: Client, session: Session) -> None:
    say(session, "Plant the beans", "In May")
    assert f'href="/s/{session.uuid}/purge/"' in page(owner, "session", session.uuid)
    text = page(owner, "session_purge", session.uuid)
    assert '<th scope="row">Turns</th> <td class="number">2</td>' in text
    assert "cannot be undone" in text
    assert order(owner, session) == 302
    assert get_session(session.uuid).archived_at is not None
    text = page(owner, "session", session.uuid)
    assert "This session will be permanently deleted on" in text
    assert "They asked for it." in text
    assert 'id="composer"' not in text
    owner.post(reverse("session_purge_call_off", args=[session.uuid]))
    assert 'id="composer"' in page(owner, "session", session.uuid)
    assert actions() == [audit.PURGE_ORDERED, audit.PURGE_CALLED_OFF]


def test_a_purge_order_needs_a_reason(owner: Client, session: Session) -> None:
    assert order(owner, session, reason="  ") == 400
    assert not PurgeOrder.objects.exists()


@pytest.mark.parametrize("where", ["session", "workspace"])
def test_unarchiving_is_refused_while_a_purge_is_ordered(
    owner: Client, session: Session, where: str
) -> None:
    """A page that was opened before the order still has the button, which leads to a message."""
    order(owner, session)
    stale = {"archived": "0"} | ({"next": "workspace"} if where == "workspace" else {})
    answer = owner.post(reverse("session_archive", args=[session.uuid]), stale, follow=True)
    assert answer.redirect_chain[-1][1] == 302
    assert (
        "This session is scheduled for deletion. Cancel the deletion to unarchive it."
        in answer.text
    )
    assert get_session(session.uuid).archived_at is not None
    assert actions() == [audit.PURGE_ORDERED]


def test_a_session_to_be_purged_offers_no_unarchive_button(owner: Client, session: Session) -> None:
    # The expression does not match the button for chosen sessions.
    of_one = r'(?<!value="unarchive">)Unarchive ?</button>'

    def pages() -> list[str]:
        name = session.workspace.slug
        return [page(owner, "session", session.uuid), page(owner, "workspace", name, archived="1")]

    owner.post(reverse("session_archive", args=[session.uuid]))
    assert all(re.search(of_one, text) for text in pages())
    order(owner, session)
    assert not any(re.search(of_one, text) for text in pages())
    assert "<span>Deletion scheduled</span>" in pages()[1]
    owner.post(reverse("session_purge_call_off", args=[session.uuid]))
    assert all(re.search(of_one, text) for text in pages())


def test_a_session_on_hold_offers_no_purge(owner: Client, session: Session, user: User) -> None:
    place_hold(session, origin=AuditOrigin(user=user), reason="A dispute")
    text = page(owner, "session_purge", session.uuid)
    assert "cannot be permanently deleted: A dispute" in text
    assert "Delete permanently</button>" not in text
    assert order(owner, session) == 302
    assert not PurgeOrder.objects.exists()


def test_members_purge_their_own_sessions_if_the_workspace_allows_it(
    session: Session, workspace: Workspace, make_person: MakePerson
) -> None:
    member = make_person("member")
    assert member
    own, client = create_session(workspace, owner=member), browser_of(member)
    assert order(client, own) == 403
    assert "/purge/" not in page(client, "session", own.uuid)
    Workspace.objects.update(members_may_purge=True)
    assert order(client, session) == 403
    assert order(client, own) == 302


def test_a_session_owner_can_call_off_only_a_policy_purge(
    workspace: Workspace, session: Session, make_person: MakePerson
) -> None:
    member = make_person("member")
    assert member
    own, client, now = create_session(workspace, owner=member), browser_of(member), timezone.now()
    made = PurgeOrder.objects.create(session=own, reason="Idle", ordered_at=now, due_at=now)
    address = reverse("session_purge_call_off", args=[own.uuid])
    assert client.post(address).status_code == 403
    PurgeOrder.objects.filter(pk=made.pk).update(by_policy=True)
    assert client.post(address).status_code == 302
    assert not PurgeOrder.objects.exists()


def test_an_expired_session_is_shown_as_read_only(owner: Client, session: Session) -> None:
    say(session, "Plant the beans")
    Session.objects.update(expires_at=timezone.now())
    text = page(owner, "session", session.uuid)
    assert "This session has expired. It is read-only." in text
    assert "Plant the beans" in text
    assert 'id="composer"' not in text
    assert 'data-can-write="false"' in text
    assert "<span>Expired</span>" in page(owner, "workspace", session.workspace.slug)


def test_owners_set_retention_policies(owner: Client, workspace: Workspace) -> None:
    address = reverse("workspace_retention", args=[workspace.slug])
    owner.post(
        address, {"expire_after_hours": "24", "retention_days": "", "members_may_purge": "on"}
    )
    workspace.refresh_from_db()
    assert (workspace.expire_after_hours, workspace.retention_days) == (24, None)
    assert workspace.members_may_purge
    assert actions() == [audit.RETENTION]
    assert 'value="24"' in page(owner, "workspace_retention", workspace.slug)
    refused = owner.post(address, {"retention_days": "0"})
    assert refused.status_code == 400
    assert "greater than or equal to 1" in refused.text
    # Another owner posts an outdated form. A field that they leave alone keeps its newer value.
    shown = dict(owner.get(address).context["form"].shown)
    Workspace.objects.update(expire_after_hours=None)
    owner.post(address, shown | {"expire_after_hours": "24", "retention_days": "30"})
    workspace.refresh_from_db()
    assert (workspace.expire_after_hours, workspace.retention_days) == (None, 30)


@pytest.fixture
def reader(make_person: MakePerson) -> Client:
    return browser_of(make_person("superuser"))


@pytest.fixture
def administrator(make_person: MakePerson) -> Client:
    return browser_of(make_person("administrator"))


def test_holds_are_placed_and_released_without_showing_content(
    administrator: Client, session: Session, workspace: Workspace
) -> None:
    say(session, "Plant the beans")
    assert "Nothing is on hold." in page(administrator, "holds")
    assert f'value="{session.uuid}"' in page(administrator, "holds", session=str(session.uuid))
    for what in (str(session.uuid), workspace.slug):
        administrator.post(reverse("holds"), {"what": what, "reason": "A dispute"})
    text = page(administrator, "holds")
    assert str(session.uuid) in text
    assert "Workspace Garden" in text
    assert "beans" not in text
    for hold in Hold.objects.all():
        assert f'href="{reverse("hold_release", args=[hold.pk])}"' in text
        assert "“A dispute”" in page(administrator, "hold_release", hold.pk)
        administrator.post(reverse("hold_release", args=[hold.pk]))
    again = administrator.post(reverse("hold_release", args=[hold.pk]), follow=True)
    assert "already released" in again.text
    assert actions() == [audit.HOLD, audit.HOLD, audit.RELEASE, audit.RELEASE]


def test_a_session_on_hold_is_named_to_people_who_may_read_it(
    administrator: Client, session: Session, workspace: Workspace, make_person: MakePerson
) -> None:
    say(session, "Plant the beans")
    place_hold(session, origin=AuditOrigin(name="x"), reason="A dispute")
    place_hold(workspace, origin=AuditOrigin(name="x"), reason="Another")
    link = f'<a href="/s/{session.uuid}/">{get_session(session.uuid).title}</a>'
    assert link in page(browser_of(make_person("reviewer")), "holds")
    assert "/s/" not in page(administrator, "holds")


@pytest.mark.parametrize("what", ["none-of-that-name", "00000000-0000-4000-8000-000000000000", ""])
def test_a_hold_on_an_unknown_target_is_refused(administrator: Client, what: str) -> None:
    sent = administrator.post(reverse("holds"), {"what": what, "reason": "A dispute"})
    assert sent.status_code == 400
    assert ("No session has this UUID" in sent.text) == bool(what)
    assert not Hold.objects.exists()


def test_holds_are_paged(administrator: Client, workspace: Workspace, user: User) -> None:
    for number in range(PAGE_ROWS + 1):
        place_hold(workspace, origin=AuditOrigin(user=user), reason=f"Reason no. {number}.")
    first = page(administrator, "holds")
    assert "Reason no. 0." not in first
    [before] = re.findall(r"before=(\d+)", first)
    second = page(administrator, "holds", before=before)
    assert "Reason no. 0." in second
    assert second.count("Release…</a>") == 1


def test_a_hold_of_a_workspace_can_be_viewed_in_the_admin(
    workspace: Workspace, user: User, make_person: MakePerson
) -> None:
    hold = place_hold(workspace, origin=AuditOrigin(user=user), reason="A dispute")
    change = reverse("admin:conversations_hold_change", args=[hold.pk])
    assert browser_of(make_person("superuser")).get(change).status_code == 200


def purged(session: Session, user: User, **order: Any) -> Receipt:
    return purge(
        get_session(session.uuid),
        order=PurgeRequest(reason="They asked for it.", by=user, **order),
        origin=AuditOrigin(user=user),
        now=timezone.now() + timedelta(days=1),
    )


def test_a_receipt_shows_facts_about_the_session_but_no_content(
    administrator: Client, session: Session, user: User
) -> None:
    assert "No receipts yet" in page(administrator, "receipts")
    say(session, "Plant the beans", "In May")
    receipt = purged(session, user)
    text = page(administrator, "receipts")
    assert f"Session {str(session.uuid)[:8]} of ann" in text
    text = page(administrator, "receipt", receipt.uuid)
    for said in (str(session.uuid), receipt.turn_digest, receipt.digest, "They asked for it."):
        assert said in text
    assert "differs from what was written" not in text
    assert "beans" not in text


def test_receipts_are_found_by_session_workspace_and_owner(
    administrator: Client, session: Session, user: User
) -> None:
    receipt = purged(session, user)
    for query in (str(session.uuid), "garden", "ann"):
        assert str(receipt.uuid) in page(administrator, "receipts", q=query)
    for query in ("bob", "00000000-0000-4000-8000-000000000000"):
        assert "No matching receipts" in page(administrator, "receipts", q=query)


# Times are elements that show the time in the reader's time zone.


@pytest.mark.parametrize("name", ["session", "session_purge"])
def test_pages_show_when_a_session_will_be_purged(
    owner: Client, session: Session, name: str
) -> None:
    address = reverse(name, args=[session.uuid])
    if name == "session_purge":
        [before] = shown(owner, address)
        assert timedelta(days=29) < before - timezone.now() <= timedelta(days=30)
    order(owner, session)
    due = PurgeOrder.objects.get().due_at
    assert due.replace(microsecond=0) in shown(owner, address)


def test_receipt_pages_show_when_a_session_was_used_and_purged(
    reader: Client, session: Session, user: User
) -> None:
    now = timezone.now().replace(microsecond=0)
    made = purge(
        session,
        order=PurgeRequest(reason="Asked for", by=user),
        origin=AuditOrigin(user=user),
        now=now,
    )
    assert shown(reader, reverse("receipts")) == [now]
    assert shown(reader, reverse("receipt", args=[made.uuid]))[-1] == now
    assert len(shown(reader, reverse("receipt", args=[made.uuid]))) == 3


def test_the_holds_page_shows_when_a_hold_was_placed(
    reader: Client, session: Session, user: User
) -> None:
    place_hold(session, origin=AuditOrigin(user=user), reason="A dispute")
    assert len(shown(reader, reverse("holds"))) == 1


def test_a_session_can_be_put_on_hold_from_its_review(
    session: Session, make_person: MakePerson
) -> None:
    say(session, "Plant the beans")
    browser = browser_of(make_person("reviewer"))
    address = f"{reverse('holds')}?session={session.uuid}"
    assert f'href="{address}">Put on hold' in browser.get(f"/review/s/{session.uuid}/").text
    assert f'value="{session.uuid}"' in browser.get(address).text


def test_a_session_list_offers_deletion_only_where_it_is_permitted(
    owner: Client, workspace: Workspace, session: Session, other_user: User
) -> None:
    add_member(workspace, user_pk=other_user.pk, role="member")
    theirs = create_session(workspace, owner=other_user, title="Theirs")
    address = reverse("workspace", args=[workspace.slug])

    def offered(browser: Client) -> list[bool]:
        text = browser.get(address).text
        return [reverse("session_purge", args=[one.uuid]) in text for one in (session, theirs)]

    member = browser_of(other_user)
    assert (offered(owner), offered(member)) == ([True, True], [False, False])
    Workspace.objects.update(members_may_purge=True)
    assert offered(member) == [False, True]


def test_several_sessions_are_scheduled_for_deletion_at_once(
    owner: Client, workspace: Workspace, user: User, make_person: MakePerson
) -> None:
    sessions = [create_session(workspace, owner=user, title=f"Row {n}") for n in range(3)]
    place_hold(sessions[2], origin=AuditOrigin(user=user), reason="A dispute")
    address = reverse("workspace_purge", args=["garden"])
    chosen = {"session": [str(session.uuid) for session in sessions]}
    narrowed = "/w/garden/?q=row&order=title"
    came_from = {"Referer": f"http://testserver{narrowed}"}
    assert owner.post(address, headers=came_from)["Location"] == narrowed  # no session is chosen
    page = owner.post(address, chosen, headers=came_from)
    assert page.status_code == 200
    assert f'href="{html.escape(narrowed)}">Keep the sessions' in page.text
    assert "Delete 3 sessions" in page.text
    assert "Row 1" in page.text
    assert not PurgeOrder.objects.exists()
    assert owner.post(address, chosen | {"reason": ""}).status_code == 400
    [query] = re.findall('name="list" value="(.*?)"', page.text)
    sent = chosen | {"reason": "Finished", "list": html.unescape(query)}
    done = owner.post(address, sent, follow=True)
    assert done.redirect_chain == [(narrowed, 302)]
    assert "2 sessions scheduled for deletion." in done.text
    assert "1 not changed" in done.text
    assert {order.session.title for order in PurgeOrder.objects.all()} == {"Row 0", "Row 1"}
    assert browser_of(make_person("member")).post(address, chosen).status_code == 403
