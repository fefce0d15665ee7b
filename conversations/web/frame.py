"""The frame of all pages: the sidebar, the menus and the current place."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext

from conversations.access import AccessedObject, access_context_of, person
from conversations.archive.rights import is_administrator, is_reviewer
from conversations.archive.workspaces import list_workspace_names
from conversations.feature import Link, links_at

from .session_list import read_session_list


class PageFrame:
    """The frame of a page. Its parts are read when the page shows them, and only once.

    ``workspace`` is None if the page belongs to no workspace of which the person is a member.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @cached_property
    def _opened(self) -> AccessedObject | None:
        opened = next(iter(access_context_of(self._request).accessed), None)
        # A reviewer who is not a member must not see the rest of the workspace.
        return opened if opened and opened.access.role else None

    @property
    def workspace(self) -> dict[str, Any] | None:
        if self._opened is None:
            return None
        workspace, access = self._opened.workspace, self._opened.access
        return {
            "name": workspace.name,
            "slug": workspace.slug,
            "can_write": access.can_write,
        }

    @property
    def session(self) -> dict[str, Any] | None:
        session = self._opened.session if self._opened else None
        if session is None:
            return None
        return {"uuid": session.uuid, "title": session.title or gettext("Untitled session")}

    @cached_property
    def workspaces(self) -> list[dict[str, str]]:
        return list_workspace_names(person(self._request).pk)

    @cached_property
    def sessions(self) -> dict[str, Any]:
        """The newest sessions of the workspace, and the one that is open."""
        assert self._opened is not None
        workspace, session = self._opened.workspace, self._opened.session
        return read_session_list(
            self._request, workspace, access=self._opened.access, current=session
        )

    @property
    def places(self) -> list[Link]:
        """The menu of the workspace."""
        assert self._opened is not None
        opened = self._opened
        slug, session = opened.workspace.slug, opened.session
        marked = str(session.uuid) if session else ""
        manages = opened.access.can_manage
        return list(list_places(self._request, slug, manages=manages, marked=marked))

    @property
    def settings_sections(self) -> list[Link]:
        assert self._opened is not None
        slug = self._opened.workspace.slug
        return [
            Link(gettext("General"), reverse("workspace_settings", args=[slug])),
            Link(gettext("Tools"), reverse("workspace_tools", args=[slug])),
            *links_at("workspace.settings", self._request, slug=slug),
            Link(gettext("Programs"), reverse("workspace_programs", args=[slug])),
        ]

    @property
    def account_sections(self) -> list[Link]:
        return [
            Link(gettext("Account"), reverse("account")),
            Link(gettext("Preferences"), reverse("account_preferences")),
            *links_at("account", self._request),
            Link(gettext("Devices"), reverse("account_devices")),
            Link(gettext("Tokens"), reverse("tokens")),
            Link(gettext("Your data"), reverse("account_data")),
        ]

    @property
    def menu(self) -> list[tuple[str, list[Link]]]:
        """The menu of the account: the groups that are not empty, with their names."""
        return [(name, links) for name, links in list_menu(self._request) if links]


def list_places(
    request: HttpRequest, slug: str, *, manages: bool, marked: str = ""
) -> Iterator[Link]:
    """Yield the links of a workspace. ``marked`` names a session whose changes Files marks."""
    yield Link(gettext("Sessions"), reverse("workspace", args=[slug]))
    query = {"session": marked} if marked else None
    yield Link(gettext("Files"), reverse("workspace_files", args=[slug], query=query))
    yield Link(gettext("Memory"), reverse("workspace_memory", args=[slug]))
    yield Link(gettext("Search"), f"{reverse('search')}?workspace={slug}")
    yield from links_at("workspace", request, slug=slug)
    if manages:
        yield Link(gettext("Members"), reverse("workspace_members", args=[slug]))
        yield Link(gettext("Settings"), reverse("workspace_settings", args=[slug]))


def list_menu(request: HttpRequest) -> Iterator[tuple[str, list[Link]]]:
    user = person(request)
    personal = [
        Link(gettext("Account"), reverse("account")),
        Link(gettext("Preferences"), reverse("account_preferences")),
        *links_at("account", request),
        *links_at("menu.you", request),
        Link(gettext("Tokens"), reverse("tokens")),
        Link(gettext("API"), reverse("api_docs")),
    ]
    yield gettext("You"), personal
    review = [Link(gettext("Review"), reverse("review"))] if is_reviewer(user) else []
    yield gettext("Team"), [*review, *links_at("menu.team", request)]
    administration = list(links_at("menu.administration", request))
    if is_administrator(user):
        administration = [
            Link(gettext("People"), reverse("people")),
            Link(gettext("Models"), reverse("providers")),
            Link(gettext("Audit log"), reverse("audit")),
            *administration,
        ]
    if user.is_staff:
        administration.append(Link(gettext("Admin"), reverse("admin:index")))
    yield gettext("Administration"), administration


def frame(request: HttpRequest) -> dict[str, PageFrame]:
    """Return the context of the frame, as a context processor for every page."""
    return {"frame": PageFrame(request)}
