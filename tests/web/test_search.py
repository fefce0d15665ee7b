"""The search page and the search in a session: hits, access, filters and paging."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from conversations.archive.append import append
from conversations.archive.audit import readings_of
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import archive_session, create_session
from conversations.archive.workspaces import add_member, create_workspace, remove_member
from conversations.domain.turns import NewTurn
from conversations.models import Session, Workspace
from conversations.search import best_matches, pages
from conversations.search.pages import MAX_TITLED_SESSIONS
from tests.web.conftest import without_tokens

from .conftest import ROLES, MakePerson, browser_of, say

pytestmark = pytest.mark.django_db

SEARCH = "/search/"
HIT = re.compile(r'href="/s/([0-9a-f-]{36})/t/(\d+)/"')


def ask(browser: Client, address: str = SEARCH, *, htmx: bool = False, **query: str) -> Any:
    return browser.get(address, query, headers={"HX-Request": "true"} if htmx else {})


def hits(response: HttpResponse) -> list[tuple[str, int]]:
    """Return the session and turn of each hit on the page."""
    return [(uuid, int(turn)) for uuid, turn in HIT.findall(response.text)]


def turns(response: HttpResponse) -> list[int]:
    return [turn for _, turn in hits(response)]


def more(response: HttpResponse) -> str:
    """Return the address of the link "More results", or "" if there is none."""
    found = re.search(r'id="more-hits">\s*<a[^>]* href="([^"]+)"', response.text)
    return unescape(found.group(1)) if found else ""


def tell(session: Session, *said: NewTurn) -> list[int]:
    """Append turns without rows."""
    numbers = append(session.pk, session_uuid=session.uuid, turns=list(said)).turns
    session.refresh_from_db()
    return list(numbers)


@pytest.fixture
def other_garden(other_user: User, tmp_path: Path) -> Session:
    """A session of another person, in that person's own workspace."""
    root = tmp_path / "theirs"
    root.mkdir()
    theirs = create_workspace(root=root, name="Their garden", slug="theirs", owner=other_user)
    session = create_session(theirs, owner=other_user, title="Their secret")
    say(session, "The beans are hidden under the plum tree", "I shall tell nobody of the beans")
    return session


def find_address(session: Session) -> str:
    return reverse("session_find", args=[session.uuid])


def both(session: Session) -> list[str]:
    return [SEARCH, find_address(session)]


# --- hits ---


def test_a_hit_is_a_permalink_with_its_words_marked(owner: Client, session: Session) -> None:
    say(session, "Plant the beans", "In May, when the soil is warm")
    for address in both(session):
        page = ask(owner, address, q="beans")
        assert hits(page) == [(str(session.uuid), 1)]
        assert "Plant the <mark>beans</mark>" in page.text
        assert "1 turn" in page.text
        assert owner.get(f"/s/{session.uuid}/t/1/").status_code == 200


def test_a_hit_shows_the_turns_next_to_it(owner: Client, session: Session) -> None:
    say(session, "Is it warm?", "Plant the beans", "And the peas?")
    page = ask(owner, q="beans")
    assert "Is it warm?" in page.text
    assert "And the peas?" in page.text


def test_a_hit_deep_in_a_long_text_is_shown(owner: Client, session: Session) -> None:
    filling = "The quick gardener waters the beds at dawn. " * 400
    words = ("zeppelin", "Zéppelin", "飛行船")
    for word in words:
        tell(session, NewTurn(role="user", content=f"{filling}A {word} flew by. {filling}"))
    for word in words:
        assert f"<mark>{word}</mark>" in ask(owner, q=word).text


def test_hits_are_escaped(owner: Client, session: Session) -> None:
    say(session, "<script>alert('beans')</script>", "<b>peas</b>")
    session.title = "<i>bold</i>"
    session.save()
    page = ask(owner, q="beans")
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "<b>peas" not in page.text
    assert "<i>bold" not in page.text
    assert '"><script>' not in ask(owner, q='"><script>').text


def test_hits_of_a_session_are_grouped(owner: Client, workspace: Workspace, user: User) -> None:
    session = create_session(workspace, owner=user, title="Beds")
    say(session, "beans one", "beans two")
    page = ask(owner, q="beans", order="newest")
    assert turns(page) == [2, 1]
    assert page.text.count("Beds") == 1
    assert "Garden" in page.text


def test_archived_session_is_found_and_marked(owner: Client, session: Session) -> None:
    say(session, "Plant the beans")
    assert "Archived" not in ask(owner, q="beans").text
    archive_session(session, archived=True)
    page = ask(owner, q="beans")
    assert turns(page) == [1]
    assert "Archived" in page.text


def test_hit_in_a_replaced_turn_is_marked(owner: Client, session: Session, user: User) -> None:
    say(session, "Plant the beans", "Beans in May")
    append_rewind(session, from_turn=2, from_seq=2, reason="edit", actor_pk=user.pk)
    page = ask(owner, q="beans", order="newest")
    assert re.findall(r"Turn (\d)|(Replaced)", page.text) == [
        ("2", ""),
        ("", "Replaced"),
        ("1", ""),
    ]


def test_permalink_to_a_replaced_turn_shows_the_replaced_turns(
    owner: Client, session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "page_size", 20)
    said = [f"beans {number}" for number in range(1, 101)]
    say(session, *said)
    append_rewind(session, from_turn=2, from_seq=2, reason="edit", actor_pk=user.pk)
    page = owner.get(f"/s/{session.uuid}/t/90/")
    assert "beans 90" in page.text
    assert "Earlier versions are shown too" in page.text
    before = re.search(r'href="([^"]+)"[^>]*>Load older', page.text)
    assert before
    older = owner.get(unescape(before.group(1)))
    assert "beans 70" in older.text


def titled(response: HttpResponse) -> list[str]:
    [_, *found] = response.text.partition('id="titled"')
    return re.findall(r'<a href="/s/[^"]+">([^<]+)</a>', found[-1].partition("</section>")[0])


def test_sessions_with_matching_titles_are_listed(
    owner: Client, workspace: Workspace, user: User, other_garden: Session
) -> None:
    for number in range(MAX_TITLED_SESSIONS + 2):
        create_session(workspace, owner=user, title=f"Secret plan {number}")
    latest = [f"Secret plan {number}" for number in range(MAX_TITLED_SESSIONS + 1, 1, -1)]
    assert titled(ask(owner, q="secret PLAN")) == latest
    assert titled(ask(owner, q="secret 7")) == ["Secret plan 7"]
    assert titled(ask(owner, q="secret", workspace=workspace.slug)) == latest
    assert titled(ask(owner, q=f"secret in:{workspace.slug}")) == latest
    none = ("seldom", "role:user", "secret role:user", "secret in:tool", "secret in:elsewhere")
    for query in (*({"q": q} for q in none), {"q": "secret", "role": "user"}):
        assert titled(ask(owner, **query)) == []


def test_a_hit_names_the_tool(owner: Client, session: Session) -> None:
    tell(session, NewTurn(role="tool", content="beans.txt", tool_call_id="a", tool_name="list_dir"))
    assert "list_dir" in ask(owner, q="beans").text


# --- access ---


def test_each_role_finds_only_what_it_may_read(session: Session, make_person: MakePerson) -> None:
    say(session, "Plant the beans")
    for role in ROLES:
        if role == "stranger":
            continue
        browser = browser_of(make_person(role))
        readable = browser.get(f"/s/{session.uuid}/").status_code == 200
        assert turns(ask(browser, q="beans")) == ([1] if readable else []), role
        assert ("Garden" in ask(browser, q="").text) == readable, role


def test_no_parameter_finds_a_session_of_others(
    owner: Client, session: Session, other_garden: Session
) -> None:
    say(session, "Plant the beans")
    for query in (
        {"q": "beans"},
        {"q": "beans in:theirs"},
        {"q": f"beans in:{other_garden.uuid}"},
        {"q": "in:theirs"},
        {"q": f"in:{other_garden.uuid}"},
        {"q": str(other_garden.uuid)},
        {"q": "Their secret"},
        {"q": "plum"},
        {"q": '"plum tree"'},
        {"q": "beans", "workspace": "theirs"},
        {"q": "beans", "person": "bob"},
        {"q": "role:user"},
        {"after": "2000-01-01"},
        {"q": "beans", "order": "newest"},
    ):
        for htmx in (False, True) if query == {"q": "beans"} else (False,):
            page = ask(owner, htmx=htmx, **query)
            assert str(other_garden.uuid) not in "".join(uuid for uuid, _ in hits(page)), query
            assert "Their garden" not in page.text, query
            assert "hidden under" not in page.text, query


def test_workspace_of_others_looks_like_a_missing_workspace(
    owner: Client, session: Session, other_garden: Session
) -> None:
    theirs = ask(owner, q="beans", workspace="theirs")
    none = ask(owner, q="beans", workspace="nothere")
    assert (theirs.status_code, none.status_code) == (400, 400)
    assert without_tokens(theirs.text) == without_tokens(none.text)


def test_filter_by_a_workspace_of_others_looks_like_a_missing_one(
    owner: Client, session: Session, other_garden: Session
) -> None:
    say(session, "Plant the beans")
    theirs, none = (ask(owner, q=f"beans in:{slug}") for slug in ("theirs", "nobody"))
    assert "<b>in:nobody</b>" in none.text
    assert without_tokens(theirs.text) == without_tokens(none.text).replace("nobody", "theirs")


def test_search_in_a_session_of_others_is_not_found(owner: Client, other_garden: Session) -> None:
    assert ask(owner, find_address(other_garden), q="beans").status_code == 404


def test_cursor_of_another_persons_search_gives_no_access(
    owner: Client, session: Session, other_user: User, other_garden: Session
) -> None:
    say(session, *["Plant the beans"] * 30)
    say(other_garden, *["Hide the beans"] * 30)
    theirs = more(ask(browser_of(other_user), q="beans"))
    assert theirs
    page = owner.get(theirs)
    assert {uuid for uuid, _ in hits(page)} <= {str(session.uuid)}
    assert "Hide the" not in page.text


def test_removed_member_finds_nothing_in_the_workspace(
    session: Session, viewer: User, workspace: Workspace
) -> None:
    say(session, *["Plant the beans"] * 30)
    browser = browser_of(viewer)
    page = ask(browser, q="beans")
    assert turns(page)
    remove_member(workspace, user_pk=viewer.pk)
    assert turns(browser.get(more(page))) == turns(ask(browser, q="beans")) == []
    assert ask(browser, q="beans", workspace="garden").status_code == 400


def test_a_session_of_another_member_names_its_owner(
    session: Session, other_user: User, user: User, workspace: Workspace
) -> None:
    say(session, "Plant the beans")
    add_member(workspace, user_pk=other_user.pk, role="viewer")
    assert "<span>of ann</span>" in ask(browser_of(other_user), q="beans").text
    assert "<span>of ann</span>" not in ask(browser_of(user), q="beans").text


def test_hits_of_a_reviewer_without_membership_are_recorded(
    session: Session, make_person: MakePerson
) -> None:
    say(session, "Plant the beans")
    reviewer, member = make_person("reviewer"), make_person("member")
    ask(browser_of(member), q="beans")
    ask(browser_of(reviewer), q="nothing")
    assert not readings_of(session.uuid)
    ask(browser_of(reviewer), q="beans")
    [entry] = readings_of(session.uuid)
    assert (entry.actor, entry.action, entry.place) == (reviewer, "search_hit", "/search/?q=beans")


# --- filters ---


@pytest.fixture
def years(session: Session) -> Session:
    """A session with turns of three roles in three years."""
    said = [("user", None), ("assistant", None), ("tool", "read_file")]
    tell(
        session,
        *[
            NewTurn(
                role=role,
                content="beans",
                tool_name=tool,
                tool_call_id="a" if tool else None,
                created_at=datetime(2023 + place, 5, 1, tzinfo=UTC),
            )
            for place, (role, tool) in enumerate(said)
        ],
    )
    return session


def test_a_filter_stays_in_the_form_and_in_the_links(owner: Client, session: Session) -> None:
    say(session, *["Plant the beans"] * 30)
    query = {"q": "beans", "workspace": "garden", "order": "newest", "after": "2020-01-01"}
    page = ask(owner, **query)
    assert 'value="2020-01-01"' in page.text
    assert '<option value="garden" selected>' in page.text
    assert '<option value="newest" selected>' in page.text
    address = more(page)
    assert all(f"{name}={value}" in address for name, value in query.items())


def test_invalid_date_shows_an_explanation(owner: Client, session: Session) -> None:
    dates = [("after", "yesterday"), ("before", "2026-02-30"), ("after", "31.1.2026")]
    for name, date in [*dates, ("before", "0")]:
        page = ask(owner, q="beans", **{name: date})
        assert page.status_code == 400
        assert "A date must look like 2026-01-31." in page.text
        assert f'value="{date}"' in page.text


def test_filters_work_without_search_words(owner: Client, years: Session) -> None:
    for query, expected in (
        ({"role": "assistant"}, [2]),
        ({"tool": "read_file"}, [3]),
        ({"after": "2024-05-01"}, [3, 2]),
        ({"before": "2024-05-01"}, [1]),
        ({"after": "2024-05-01", "before": "2024-05-02", "workspace": "garden"}, [2]),
        ({"q": "beans", "role": "user", "tool": "read_file"}, []),
        ({"q": "beans role:user role:tool", "order": "newest"}, [3, 1]),
    ):
        assert turns(ask(owner, **query)) == expected, query


def test_contradictory_dates_show_an_explanation(owner: Client) -> None:
    page = ask(owner, q="beans", after="2026-02-01", before="2026-01-01")
    assert "nothing can match" in page.text


# --- paging ---


def test_hits_are_paginated_without_repetition(owner: Client, session: Session) -> None:
    numbers = say(session, *["Plant the beans"] * 60)
    for address in both(session):
        page = ask(owner, address, q="beans", order="newest")
        assert "60 turns" in page.text
        seen = turns(page)
        while more(page):
            page = owner.get(more(page), headers={"HX-Request": "true"})
            assert "<form" not in page.text
            seen += turns(page)
        assert seen == numbers[::-1]


def test_the_next_page_works_without_htmx(owner: Client, session: Session) -> None:
    say(session, *["Plant the beans"] * 25)
    page = owner.get(more(ask(owner, q="beans")))
    assert len(turns(page)) == 5
    assert "More of 25 turns" in page.text
    assert "Back to the first results" in page.text


def test_last_page_says_if_it_shows_only_the_best_matches(
    owner: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (best_matches, pages):
        monkeypatch.setattr(module, "MAX_RANKED_TURNS", 50)
    tell(session, *[NewTurn(role="user", content="Plant the beans")] * 90)
    page = ask(owner, q="beans")
    seen = len(turns(page))
    while more(page):
        assert "These are the best matches" not in page.text
        page = owner.get(more(page))
        seen += len(turns(page))
    assert seen == 50
    assert "These are the best matches" in page.text
    assert "These are the best matches" not in ask(owner, q="beans", order="newest").text


def test_invalid_cursor_causes_no_error(owner: Client, session: Session) -> None:
    say(session, "Plant the beans")
    for cursor in ("x", "9" * 400, "\0", "{}", "1~2~3", "-1", "🫘"):
        for address in both(session):
            assert ask(owner, address, q="beans", cursor=cursor).status_code == 200, cursor


# --- no hits, costs and errors ---


def test_empty_search_explains_the_query_language(owner: Client, session: Session) -> None:
    for address in both(session):
        page = ask(owner, address)
        assert "role:user" in page.text
        assert "Nothing found" not in page.text


def test_search_without_hits_offers_to_drop_the_filters(owner: Client, session: Session) -> None:
    say(session, "Plant the beans")
    page = ask(owner, q="zeppelin", role="tool")
    assert "Nothing found" in page.text
    assert "<b>zeppelin</b>" in page.text
    assert 'href="/search/?q=zeppelin"' in page.text


def test_limited_phrase_search_shows_a_notice(
    owner: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (best_matches, pages):
        monkeypatch.setattr(module, "MAX_PHRASE_TURNS", 3)
    say(session, "a dry wall", *["wall so dry"] * 4)
    for address in both(session):
        page = ask(owner, address, q='"dry wall"')
        assert "Nothing found so far" in page.text
        assert "only searched in the newest 3 turns with its words" in page.text
        [newest] = re.findall(r'href="([^"]+)">Newest first</a>', page.text)
        assert turns(owner.get(unescape(newest))) == [1]
    say(session, "dry wall again")
    page = ask(owner, q='"dry wall"')
    assert turns(page) == [6]
    assert "only searched in the newest 3 turns with its words" in page.text
    assert "only searched in" not in ask(owner, q='"wall again"').text


ODD_QUERIES = [
    "?", "-", '"', "' OR 1=1 --", "AND", "NEAR(a b)", "*", "beans*", "\0", "x" * 9000,
    "role:", "role:emperor", "before:", "before:never", "after:9999-99-99", "in:", "tool:",
    "((((", "🫘", "豆", "%", "_", "{{ q }}", "a:b:c", '""', "\u202e", "col:beans",
]  # fmt: skip


def test_odd_query_causes_no_error(owner: Client, session: Session) -> None:
    say(session, "Plant the beans")
    for place, query in enumerate(ODD_QUERIES):
        address = both(session)[place % 2]
        assert ask(owner, address, q=query).status_code == 200, query


def count_queries(browser: Client, address: str, **query: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert ask(browser, address, **query).status_code == 200
    return len(queries)


def test_query_count_is_independent_of_the_number_of_hits(
    owner: Client, user: User, workspace: Workspace, session: Session
) -> None:
    say(session, "Plant the beans", "In May")
    few = [count_queries(owner, address, q="beans") for address in both(session)]
    for _ in range(4):
        another = create_session(workspace, owner=user)
        say(another, *["Plant the beans", "In May"] * 4)
        reading = NewTurn(
            role="tool", content="Plant the beans", tool_call_id="a", tool_name="read_file"
        )
        tell(another, reading, reading)
        append_rewind(another, from_turn=3, from_seq=3, reason="edit", actor_pk=user.pk)
    say(session, *["Plant the beans", "In May"] * 10)
    for address in both(session):
        ask(owner, address, q="beans")  # indexes the new turns
    many = [count_queries(owner, address, q="beans") for address in both(session)]
    assert all(count <= before for count, before in zip(many, few, strict=True)), (many, few)


def test_the_search_is_linked_from_every_page(owner: Client, session: Session) -> None:
    for address in ("/", "/w/garden/", f"/s/{session.uuid}/", "/password/"):
        assert 'href="/search/"' in owner.get(address).text, address


def test_session_filter_without_a_match_links_to_the_search(
    owner: Client, session: Session
) -> None:
    page = owner.get("/w/garden/", {"q": "zeppelin & co"})
    assert 'href="/search/?q=zeppelin%20%26%20co&amp;workspace=garden"' in page.text


def test_the_form_can_be_sent_without_scripts(owner: Client) -> None:
    assert 'method="get"' in ask(owner).text
    assert "onclick" not in ask(owner).text


def with_database_down(call: Callable[[], Any]) -> Any:
    """Call ``call`` while the database refuses every statement about turns or the search."""

    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        from django.db import OperationalError

        if "conversations_turn" in sql or "search" in sql:
            raise OperationalError("disk I/O error")
        return execute(sql, *rest)

    with connection.execute_wrapper(refuse):
        return call()


def test_failed_search_answers_503_with_a_message(owner: Client, session: Session) -> None:
    say(session, "Plant the beans")
    page = with_database_down(lambda: ask(owner, q="beans"))
    assert page.status_code == 503
    assert "The search is not responding" in page.text
    assert 'value="beans"' in page.text
