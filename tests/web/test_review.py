"""The reviewers' pages: lists, samples, a session to read, notes, flags and marks."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.archive.append import NewEvent, append
from conversations.archive.audit import AuditOrigin, readings_of
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member
from conversations.domain.events import ToolCallCompleted, ToolCallStarted
from conversations.domain.turns import NewTurn
from conversations.models import AuditEntry, Run, Session, Workspace
from conversations.models.review import MAX_TEXT_CHARS
from conversations.review.remarks import mark_reviewed, read_remarks, set_flag, write_note
from tests.archive.test_review import entries_of

from .conftest import browser_of, flat, permissions_of, say

pytestmark = pytest.mark.django_db


@pytest.fixture
def rita(db: None) -> User:
    person = User.objects.create_user("rita")
    person.user_permissions.set(permissions_of("reviewer"))
    return person


@pytest.fixture
def reviewer(rita: User) -> Client:
    return browser_of(rita)


@pytest.fixture
def talk(session: Session) -> Session:
    say(session, "Plant the beans", "In May", "And the peas?", "In March")
    return session


def page(client: Client, address: str, **query: str) -> str:
    response = client.get(address, query)
    assert response.status_code == 200
    return response.text


def rows_of(html: str) -> list[str]:
    """Return the HTML of the rows, in order."""
    return re.findall(r"<article.*?</article>", html, re.DOTALL)


def address_of(session: Session, turn: int | None = None) -> str:
    if turn is None:
        return reverse("review_session", args=[session.uuid])
    return reverse("review_turn", args=[session.uuid, turn])


def links(html: str, text: str) -> list[str]:
    return [unescape(found) for found in re.findall(rf'href="([^"]*)"[^>]*>{text}<', html)]


def test_reviewer_sees_the_same_rows_as_the_owner(
    owner: Client, reviewer: Client, talk: Session
) -> None:
    seen = rows_of(page(owner, reverse("session", args=[talk.uuid])).partition("<template")[0])
    assert len(seen) == 4
    assert rows_of(page(reviewer, address_of(talk))) == seen
    assert rows_of(page(reviewer, reverse("session", args=[talk.uuid]))) == seen
    assert rows_of(page(reviewer, reverse("turn", args=[talk.uuid, 1]))) == seen


def test_reviewer_gets_no_socket_and_no_composer(reviewer: Client, talk: Session) -> None:
    html = page(reviewer, reverse("session", args=[talk.uuid]))
    assert "data-socket" not in html
    assert "chat.js" not in html
    assert 'id="composer"' not in html
    assert reverse("session_send", args=[talk.uuid]) not in html


def test_replaced_turns_are_shown_and_marked(
    owner: Client, reviewer: Client, talk: Session
) -> None:
    append_rewind(talk, from_turn=3, from_seq=3, reason="edit", actor_pk=None)
    talk.refresh_from_db()
    say(talk, "And the leeks?")
    html = flat(page(reviewer, address_of(talk)))
    assert "And the peas?" in html
    parts = re.findall(r'<section class="turn([^"]*)" id="turn-(\d)"', html)
    assert parts == [("", "1"), ("", "2"), (" replaced", "3"), (" replaced", "4"), ("", "5")]
    assert html.count('<span class="badge">Replaced</span>') == 2
    assert "And the peas?" not in page(owner, reverse("session", args=[talk.uuid]))


@pytest.fixture
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "page_size", 20)


@pytest.mark.usefixtures("_small_pages")
def test_older_and_newer_rows_are_paginated(reviewer: Client, session: Session) -> None:
    say(session, *(f"Message {number}." for number in range(50)))
    found: list[str] = []
    html = page(reviewer, address_of(session), person="ann")
    assert "Message 49." in html
    assert not links(html, "Newer rows")
    while True:
        found = rows_of(html) + found
        older = links(html, "Older rows")
        if not older:
            break
        assert "person=ann" in older[0]
        html = page(reviewer, older[0])
    assert len(found) == len(set(found)) == 50
    assert "Message 20." in page(reviewer, links(html, "Newer rows")[0])
    assert entries_of(session) == ["transcript", "older", "older", "older"]


@pytest.mark.usefixtures("_small_pages")
def test_a_turn_has_an_address(reviewer: Client, session: Session) -> None:
    say(session, *(f"Message {number}." for number in range(50)))
    html = flat(page(reviewer, address_of(session, 25)))
    assert '<section class="turn" id="turn-25" data-target>' in html
    assert f'href="{address_of(session, 25)}#turn-25"' in html
    assert links(html, "Older rows")
    assert links(html, "Newer rows")
    assert reviewer.get(address_of(session, 51)).status_code == 404


def test_tool_call_is_shown_once_and_both_its_turns_have_addresses(
    reviewer: Client, session: Session
) -> None:
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[
            NewTurn(role="assistant", content=""),
            NewTurn(role="tool", content="a.txt", tool_call_id="c", tool_name="ls"),
        ],
        events=[
            NewEvent(payload=ToolCallStarted(call_id="c", name="ls"), new=0),
            NewEvent(
                payload=ToolCallCompleted(call_id="c", name="ls", output="a.txt", ok=True), new=1
            ),
        ],
    )
    folded = '<section class="turn settled" id="turn-1"'
    assert folded in flat(page(reviewer, address_of(session)))
    assert folded not in flat(page(reviewer, address_of(session, 1)))


def test_session_shows_how_far_it_is_reviewed(reviewer: Client, rita: User, talk: Session) -> None:
    def in_list() -> list[str]:
        html = flat(page(reviewer, reverse("review"), queue="all"))
        return re.findall(r'<span class="badge[^"]*">([^<]*)', html)

    assert "Not reviewed" in page(reviewer, address_of(talk))
    assert in_list() == ["Not reviewed"]
    mark_reviewed(talk, AuditOrigin(user=rita), through=2)
    assert in_list() == ["2 new since turn 2"]
    html = page(reviewer, address_of(talk))
    assert "Reviewed through turn 2" in html
    assert "2 newer turns" in html
    new = html.index("New since the last review")
    assert html.index('id="turn-2"') < new < html.index('id="turn-3"')
    mark_reviewed(talk, AuditOrigin(user=rita), through=4)
    assert in_list() == ["Reviewed by rita"]


def test_review_mark_covers_only_the_turns_on_its_page(
    reviewer: Client, rita: User, talk: Session
) -> None:
    html = page(reviewer, address_of(talk))
    through = re.search(r'name="through"[^>]* value="(\d+)"', html)
    assert through
    say(talk, "Something new")
    reviewer.post(reverse("review_mark", args=[talk.uuid]), {"through": through[1]})
    talk.refresh_from_db()
    assert talk.reviewed_turn == 4
    [mark] = read_remarks(talk).marks
    assert (mark.author, mark.through_turn) == (rita, 4)
    reviewer.post(reverse("review_mark", args=[talk.uuid]), {"through": "0"})
    talk.refresh_from_db()
    assert talk.reviewed_turn == 0
    assert entries_of(talk) == ["transcript", "reviewed", "unreviewed"]


def test_review_mark_for_an_unknown_turn_is_refused(reviewer: Client, talk: Session) -> None:
    to = reverse("review_mark", args=[talk.uuid])
    for through in ("", "-1", "99", "two", "9" * 5000, "²"):
        answer = reviewer.post(to, {"through": through}, follow=True)
        assert "This turn does not exist in this session." in answer.text, through
        talk.refresh_from_db()
        assert talk.reviewed_turn == 0, through


def test_note_and_flag_are_shown_under_their_turn(reviewer: Client, talk: Session) -> None:
    to = reverse("review_remark", args=[talk.uuid])
    answer = reviewer.post(to, {"text": "Is that so?", "turn": "2"}, follow=True)
    assert answer.redirect_chain == [(f"{address_of(talk, 2)}#turn-2", 302)]
    reviewer.post(to, {"text": "An address", "label": "privacy", "turn": "2"})
    html = page(reviewer, address_of(talk))
    part = html[html.index('id="turn-2"') : html.index('id="turn-3"')]
    assert "Is that so?" in part
    assert "Privacy" in part
    assert entries_of(talk) == ["note", "transcript", "flag", "transcript"]


def test_note_of_the_maximum_length_is_stored(reviewer: Client, talk: Session) -> None:
    text = "\n".join(["lines " * 100] * 6)[:MAX_TEXT_CHARS]
    sent = text.replace("\n", "\r\n")
    reviewer.post(reverse("review_remark", args=[talk.uuid]), {"text": sent, "turn": "2"})
    (note,) = read_remarks(talk).notes
    assert note.text == text.strip()


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"turn": "2", "text": "Long and careful " * 300}, "at most 4000 characters"),
        ({"turn": "99", "text": "Long and careful", "label": "privacy"}, "This turn does not"),
        ({"text": "Long and careful", "label": "odd"}, "odd"),
    ],
)
def test_refused_remark_stays_in_its_form(
    reviewer: Client, talk: Session, about: dict[str, str], problem: str
) -> None:
    answer = reviewer.post(reverse("review_remark", args=[talk.uuid]), about)
    assert answer.status_code == 400
    assert problem in answer.text
    (draft,) = re.findall(r'<details class="say" open>(.*?)</details>', answer.text, re.DOTALL)
    assert about["text"].strip() in unescape(draft)
    assert ('name="turn" value="2"' in draft) is (about.get("turn") == "2")
    chosen = re.findall(r'value="(\w+)"\s+selected', draft)
    assert chosen == ["privacy"] * (about.get("label") == "privacy")
    assert f'name="next" value="{address_of(talk)}"' in answer.text
    assert entries_of(talk) == ["transcript"]


def test_reviewer_can_open_every_session_link_of_the_page(reviewer: Client, talk: Session) -> None:
    html = page(reviewer, address_of(talk))
    for link in re.findall(r'href="(/s/[^"]*)"', html):
        assert reviewer.get(unescape(link)).status_code == 200, link


@pytest.mark.usefixtures("_small_pages")
def test_remarks_are_shown_beside_the_session(
    reviewer: Client, rita: User, session: Session
) -> None:
    say(session, *(f"Message {number}." for number in range(50)))
    to = reverse("review_remark", args=[session.uuid])
    answer = reviewer.post(to, {"text": "<b>All</b> of it"}, follow=True)
    assert "&lt;b&gt;All&lt;/b&gt; of it" in answer.text
    set_flag(session, AuditOrigin(user=rita), label="safety", turn=3)
    html = page(reviewer, address_of(session))
    there = re.escape(f'href="{address_of(session, 3)}#turn-3"')
    assert re.search(rf"{there}>\s*Turn 3</a>\s+Safety\s*<", html)


def test_notes_are_withdrawn_and_flags_resolved(
    reviewer: Client, rita: User, talk: Session
) -> None:
    origin = AuditOrigin(user=rita)
    note = write_note(talk, origin, text="Hm", turn=1)
    flag = set_flag(talk, origin, label="other", turn=1)
    forms = re.findall(r'action="([^"]*/(?:resolve|withdraw)/)"', page(reviewer, address_of(talk)))
    assert forms == [
        reverse("review_flag_resolve", args=[talk.uuid, flag.uuid]),
        reverse("review_note_withdraw", args=[talk.uuid, note.uuid]),
    ]
    for form in forms:
        answer = reviewer.post(form, {"turn": "1"})
        assert answer["Location"] == f"{address_of(talk, 1)}#turn-1"
    html = page(reviewer, address_of(talk))
    assert "withdrawn by rita" in html
    assert "resolved by rita" in html
    again = reviewer.post(forms[0], {"turn": "1"}, follow=True)
    assert "This flag is already resolved." in again.text


def test_invalid_remark_is_refused(reviewer: Client, talk: Session) -> None:
    for data, message in (
        ({"text": " "}, "A note must have at least one character."),
        ({"text": "x" * 4001}, "at most 4000 characters"),
        ({"text": "x", "turn": "9"}, "This turn does not exist"),
        ({"text": "x", "turn": "first"}, "Enter a whole number"),
        ({"text": "x", "label": "funny"}, "Select a valid choice"),
    ):
        answer = reviewer.post(reverse("review_remark", args=[talk.uuid]), data, follow=True)
        assert message in answer.text, data
    assert set(entries_of(talk)) == {"transcript"}


def test_members_do_not_see_the_notes_of_reviewers(
    owner: Client, rita: User, talk: Session
) -> None:
    write_note(talk, AuditOrigin(user=rita), text="Between ourselves", turn=1)
    assert "Between ourselves" not in page(owner, reverse("session", args=[talk.uuid]))
    assert owner.get(address_of(talk)).status_code == 404


def test_reading_is_recorded_unless_the_session_is_ones_own(
    reviewer: Client, rita: User, workspace: Workspace, talk: Session
) -> None:
    """The reviewers' pages record readings even if the reviewer is a member."""
    add_member(workspace, user_pk=rita.pk, role="member")
    own = create_session(workspace, owner=rita)
    say(own, "Mine")
    for session in (talk, own):
        page(reviewer, address_of(session))
        page(reviewer, reverse("session", args=[session.uuid]))
    assert entries_of(talk) == ["transcript"]
    assert entries_of(own) == []


def test_reading_ones_own_session_without_membership_is_recorded(
    reviewer: Client, rita: User, workspace: Workspace
) -> None:
    began = create_session(workspace, owner=rita)
    say(began, "Plant the beans")
    page(reviewer, address_of(began))
    page(reviewer, "/review/search/?q=beans")
    page(reviewer, reverse("session", args=[began.uuid]))
    assert sorted(entries_of(began)) == ["search_hit", "transcript", "transcript"]


def test_stated_reason_is_in_the_entries_that_follow(reviewer: Client, talk: Session) -> None:
    form = {"reason": "Report 7", "session": str(talk.uuid), "covers": "session"}
    assert 'name="reason"' in page(reviewer, address_of(talk))
    reviewer.post(reverse("review_reason"), form)
    reviewer.post(reverse("review_remark", args=[talk.uuid]), {"text": "x", "turn": "1"})
    assert "Report 7" in page(reviewer, address_of(talk))
    found = AuditEntry.objects.order_by("number").values_list("action", "reason")
    assert list(found) == [("transcript", ""), ("note", "Report 7"), ("transcript", "Report 7")]


def test_session_is_hidden_while_a_required_reason_is_missing(
    reviewer: Client, talk: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "review_reason", "required")
    answer = reviewer.get(address_of(talk))
    assert "Why are you reading this?" in answer.text
    assert "Plant the beans" not in answer.text
    assert entries_of(talk) == []


def test_list_shows_titles_but_no_message_text(reviewer: Client, talk: Session) -> None:
    Session.objects.filter(pk=talk.pk).update(title="Vegetables", archived_at=timezone.now())
    html = page(reviewer, reverse("review"))
    assert "Vegetables" in html
    assert "Archived" in html
    assert "Plant the beans" not in html
    assert "In March" not in html
    assert entries_of(talk) == []


def test_a_list_has_tabs_filters_and_pages(
    reviewer: Client,
    rita: User,
    workspace: Workspace,
    user: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.LOOM, "session_list_size", 5)
    sessions = [create_session(workspace, owner=user, title=f"Bed {n}") for n in range(8)]
    for session in sessions:
        say(session, "x")
    set_flag(sessions[0], AuditOrigin(user=rita), label="other", turn=None)
    html = page(reviewer, reverse("review"), person="ann", workspace="garden")
    assert len(re.findall(r">\s*Bed \d+</a>", html)) == 5
    html = page(
        reviewer, reverse("review") + links(html, "Earlier sessions")[0].partition("/review/")[2]
    )
    assert re.findall(r">\s*(Bed \d+)</a>", html) == ["Bed 2", "Bed 1", "Bed 0"]
    html = page(reviewer, reverse("review"), queue="flagged")
    assert re.findall(r">\s*(Bed \d+)</a>", html) == ["Bed 0"]
    assert "No matching sessions" in page(reviewer, reverse("review"), person="rita")
    assert "1 open flag" in html


def test_invalid_list_filters_show_an_error(reviewer: Client) -> None:
    for query, message in (
        ({"person": "nobody"}, "This username does not exist."),
        ({"person": "a\0"}, "This username does not exist."),
        ({"workspace": "nowhere"}, "Select a valid choice"),
        ({"since": "soon"}, "A date must look like 2026-01-31."),
        ({"since": "2026-02-02", "until": "2026-02-01"}, "nothing can match"),
        ({"queue": "mine"}, "This list does not exist."),
        ({"before": "x"}, "This is not a cursor"),
    ):
        answer = reviewer.get(reverse("review"), query)
        assert answer.status_code == 400, query
        assert message in answer.text, query
        query.pop("before", None)
        assert reviewer.get(reverse("review_next"), query).status_code == 302, query


def test_query_count_of_a_list_is_independent_of_its_length(
    reviewer: Client, workspace: Workspace, user: User
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            page(reviewer, reverse("review"))
        return len(queries)

    say(create_session(workspace, owner=user), "x")
    few = count()
    for _ in range(4):
        say(create_session(workspace, owner=user), "x")
    assert count() == few


def test_query_count_of_a_session_is_independent_of_its_length(
    reviewer: Client, talk: Session
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            page(reviewer, address_of(talk))
        return len(queries)

    page(reviewer, address_of(talk))  # the first audit entry takes more queries
    few = count()
    say(talk, *("x" for _ in range(40)))
    assert count() == few


def test_next_leads_to_unreviewed_turns_and_keeps_the_filters(
    reviewer: Client, rita: User, workspace: Workspace, user: User
) -> None:
    later, earlier = (create_session(workspace, owner=user) for _ in range(2))
    for session in (earlier, later):
        say(session, "one", "two", "three")
    mark_reviewed(earlier, AuditOrigin(user=rita), through=2)
    query = {"person": "ann", "after": str(later.uuid)}
    answer = reviewer.get(reverse("review_next"), query)
    assert answer["Location"] == f"{address_of(earlier, 3)}?person=ann#turn-3"
    assert entries_of(earlier) == ["reviewed"]
    link = links(page(reviewer, answer["Location"]), "Next unreviewed")[0]
    assert link == f"{reverse('review_next')}?person=ann&after={earlier.uuid}"
    marked = reviewer.post(
        f"{reverse('review_mark', args=[later.uuid])}?person=ann", {"through": "3", "then": "next"}
    )
    assert marked["Location"] == f"{reverse('review_next')}?person=ann&after={later.uuid}"
    mark_reviewed(earlier, AuditOrigin(user=rita), through=3)
    answer = reviewer.get(reverse("review_next"), query, follow=True)
    assert "Nothing left to review here." in answer.text


def test_later_messages_do_not_change_a_sample(
    reviewer: Client, workspace: Workspace, user: User
) -> None:
    sessions = [create_session(workspace, owner=user, title=f"Bed {n}") for n in range(12)]
    for session in sessions[:10]:
        say(session, "x")
    address = reviewer.get(reverse("review_sample"), {"n": "4", "days": "7"})["Location"]
    drawn = re.findall(r">\s*(Bed \d+)</a>", page(reviewer, address))
    assert len(drawn) == len(set(drawn)) == 4
    later = create_session(workspace, owner=user, title="Bed 99")
    moment = timezone.now() + timedelta(hours=1)
    Session.objects.filter(pk=later.pk).update(created_at=moment, last_active_at=moment)
    for session in (sessions[0], sessions[11]):
        say(session, "once more")
    assert re.findall(r">\s*(Bed \d+)</a>", page(reviewer, address)) == drawn
    again = reviewer.get(reverse("review_sample"), {"n": "4", "days": "7"})["Location"]
    assert again != address
    assert not readings_of(sessions[0].uuid)


def test_sample_contains_only_sessions_active_in_its_period(
    reviewer: Client, workspace: Workspace, user: User
) -> None:
    session = create_session(workspace, owner=user, title="Bed")
    say(session, "x")
    create_session(workspace, owner=user, title="Shed")
    address = reviewer.get(reverse("review_sample"), {"n": "9", "days": "1"})["Location"]
    html = page(reviewer, address)
    assert "Bed" in html
    assert "Shed" not in html
    old = (timezone.now() - timedelta(days=9)).isoformat()
    html = page(reviewer, reverse("review_sample"), n="9", days="1", seed="s", until=old)
    assert "No sessions in this period" in html


@pytest.mark.parametrize("far", ["0001-01-01", "1899-12-31", "9000-01-01", "9999-12-31"])
def test_date_outside_the_supported_years_is_refused(reviewer: Client, far: str) -> None:
    sample = {"n": "5", "days": "7", "seed": "s"}
    for name, query in (
        ("review", {"since": far}),
        ("review", {"until": far}),
        ("review_sample", sample | {"until": f"{far}T00:00:00+14:00"}),
    ):
        answer = reviewer.get(reverse(name), query)
        assert answer.status_code == 400, query
        assert "The year must be from 1900 through 8999." in answer.text, query


def test_sample_says_whether_it_contains_all_sessions(
    reviewer: Client, workspace: Workspace, user: User
) -> None:
    for _ in range(2):
        say(create_session(workspace, owner=user), "x")
    for count, said in (("2", "2 random sessions active"), ("3", "All 2 sessions active")):
        query = {"n": count, "days": "7"}
        assert said in flat(reviewer.get(reverse("review_sample"), query, follow=True).text)


def test_sample_of_a_person_ignores_their_later_runs(
    reviewer: Client, rita: User, workspace: Workspace, user: User
) -> None:
    session = create_session(workspace, owner=user, title="Bed")
    say(session, "x")
    query = {"n": "9", "days": "7", "person": rita.username}
    address = reviewer.get(reverse("review_sample"), query)["Location"]
    for moment, is_in in ((timezone.now(), False), (timezone.now() - timedelta(days=1), True)):
        Run.objects.create(
            session=session,
            client_id=f"{moment}",
            state="completed",
            requested_by=rita,
            created_at=moment,
        )
        assert ("Bed" in page(reviewer, address)) is is_in


def test_invalid_sample_is_refused(reviewer: Client) -> None:
    wanted = [{"n": "0", "days": "7"}, {"n": "5", "days": "x"}]
    for query in [*wanted, {"n": "5", "days": "7", "until": "y"}]:
        assert reviewer.get(reverse("review_sample"), query).status_code == 400, query
