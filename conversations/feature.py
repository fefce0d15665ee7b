"""The interface of features: the hooks that the core calls.

A feature is a Django app below ``conversations.features`` with one line in
``settings.FEATURES``. The core calls the methods of :class:`Feature` on each feature, in the order
of that setting. It imports no feature, so a feature can be deleted together with its line. The
models of a feature have ``app_label = "conversations"``, so the names of its tables do not depend
on where the code lies.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.utils.module_loading import module_has_submodule

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.db.models import Model, QuerySet
    from django.http import HttpRequest, HttpResponse
    from ninja import Router

    from conversations.domain.events import Info
    from conversations.models import ModelCall, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One line of ``/metrics``. ``kind`` is the type of the metric in Prometheus."""

    name: str
    help: str
    value: float
    kind: str = "gauge"


type Notices = Callable[[], Sequence["Info"]]
"""A function that returns notices to write as rows.

It is called in the transaction that writes them, so each notice is written once.
"""

type Rows = Callable[[int], "QuerySet[Any]"]
"""The rows of a table that belong to the session with this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedTables:
    """The tables with rows of a session, and how a purge treats them.

    ``removed`` maps each table to its rows of a session; the rows are deleted in this order.
    ``folded`` maps a table to a function that adds a session's rows to rows that name no session,
    and returns their number. ``names`` maps a table to the name of its rows in a plan and a
    receipt, if that differs from the table's name. The names are English and marked with
    ``gettext_noop``.
    """

    removed: dict[type["Model"], Rows] = field(default_factory=dict)
    folded: dict[type["Model"], Callable[[int], int]] = field(default_factory=dict)
    names: dict[type["Model"], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a feature's page, created for one request, in the language of that request.

    ``says`` explains the link and is shown if there is room. With ``begins_group``, a menu draws a
    line above the link.
    """

    label: str
    url: str
    says: str = ""
    begins_group: bool = False

    @property
    def path(self) -> str:
        return self.url.partition("?")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadCommand:
    """A command of the composer that downloads something of the session.

    One of the ``choices`` may follow the name of the command; the first is the default. ``view``
    is the name of a URL, whose query has the choice under the name ``argument``. The same object
    serves all people, so its texts are messages (``domain.messages``).
    """

    name: str
    says: str
    argument: str
    choices: Mapping[str, str]
    view: str


class Feature(AppConfig):
    """The base class of features. A subclass overrides the hooks that it needs.

    An ``apps.py`` imports this module and not the class, because Django considers every AppConfig
    that it finds there. The hooks whose names begin with ``on_`` are called inside the transaction
    that writes the change, so an exception rolls the change back.
    """

    def _import(self, name: str) -> Any:
        assert self.module is not None
        if not module_has_submodule(self.module, name):
            return None
        return import_module(f"{self.name}.{name}")

    def url_patterns(self) -> list[Any]:
        """Return the URL patterns of its pages: ``urlpatterns`` of its module ``urls``."""
        urls = self._import("urls")
        return [] if urls is None else list(urls.urlpatterns)

    def api_routers(self) -> Iterable["Router"]:
        """Return the routers of its API operations: ``router`` of its module ``api``."""
        api = self._import("api")
        return () if api is None else (api.router,)

    def session_facts(self, session: "Session", access: Any, person: "User") -> Mapping[str, Any]:
        """Return further facts for the ``session`` of the templates of a session's page.

        ``access`` is the person's ``conversations.access.Access``.
        """
        return {}

    def links(self, place: str, request: "HttpRequest", **about: Any) -> Iterable[Link]:
        """Return links to its pages for a place of the core's pages.

        The places are listed here with the keyword arguments that they pass:

        - ``account``: a section of the account, and the menu of the account
        - ``menu.you``, ``menu.team``, ``menu.administration``: the main menu, below these words,
          and the palette
        - ``session.menu`` (``uuid``, ``can_write``), ``session.menu.end`` (``session``): the menu
          of a session
        - ``session.row`` (``uuid``, ``workspace``, ``access``, ``is_own``): the menu of a session
          in a list, where the addresses of two sessions may differ only in the uuid
        - ``window`` (``uuid``): the panel of a session, beside its cost
        - ``review`` (``uuid``): beside a session that is reviewed
        - ``workspace`` (``slug``): the menu of a workspace
        - ``workspace.file`` (``slug``, ``path``, ``version``, ``can_write``): beside a file
          that is shown
        - ``workspace.settings`` (``slug``): a section of a workspace's settings
        - ``workspace.programs`` (``slug``): a workspace's settings, below “Programs”
        """
        return ()

    def render_part(self, place: str, request: "HttpRequest", **about: Any) -> str:
        """Return HTML for a place of the core's pages where links do not suffice.

        The places are listed here with the keyword arguments that they pass:

        - ``page.head``: the head of every page of a person who is signed in
        - ``session.style`` (``session``): the head of a session's page
        - ``session.notice`` (``session``): instead of the box for messages
        - ``session.dock`` (``session``): above the box for messages
        - ``session.menu`` (``session``): the menu of a session, before the links
        - ``workspace.bulk`` (``workspace``): among the buttons for the sessions that are selected
          in a workspace's list
        """
        return ""

    def commands(self) -> Iterable[DownloadCommand]:
        """Return commands of the composer, in addition to the core's own."""
        return ()

    def account_files(self, user: "User") -> Iterable[tuple[str, Iterator[bytes]]]:
        """Return names and contents of files for the ZIP with all of a person's data."""
        return ()

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        """Return loops that the supervising process runs. A loop that fails is started again."""
        return ()

    def metrics(self) -> Iterable[Metric]:
        return ()

    def purged_tables(self) -> PurgedTables:
        """Return the feature's tables that have rows of a session."""
        return PurgedTables()

    def named_blobs(self) -> Iterable[str]:
        """Return digests of blobs that its tables need even if sessions are purged."""
        return ()

    def check_purge(self, session: "Session") -> None:
        """Raise Conflict to keep a session from being purged."""

    def forget_old(self, now: datetime) -> None:
        """Delete expired data. Called periodically, outside of any transaction."""

    def verify(self) -> tuple[Sequence[str], str]:
        """Return a sentence for each defect that ``verify_archive`` reports.

        The second value is the text that is shown if there is no defect.
        """
        return (), ""

    def format_error(
        self, request: "HttpRequest", response: "HttpResponse"
    ) -> "HttpResponse | None":
        """Return an API error in the feature's own format, or None if it is not the feature's."""
        return None

    has_call_limits_sql = ""
    """An SQL condition that is true if :meth:`check_model_call` has to be called.

    It is part of a statement that is executed before each model call anyway, so it costs nothing
    if there are no limits.
    """

    def check_model_call(self, session_pk: int, person_pk: int | None) -> Notices | None:
        """Raise BudgetReached to prevent a model call in this session for this person.

        ``person_pk`` is None for a model call without a person. Otherwise return notices to write
        while the model is called, or None.
        """
        return None

    def on_model_call(self, call: "ModelCall", person_pk: int | None) -> None:
        """Handle the end of a model call, with or without an answer.

        ``person_pk`` is None if the server called the model without a person.
        """

    def on_run_finished(self, run_pk: int, session_pk: int) -> None:
        """Handle the end of a run, whatever its final state."""

    def on_approval_asked(self, session_pk: int, call_pks: Sequence[int]) -> None:
        """Handle tool calls that wait for a person's approval."""

    def on_question_asked(self, session_pk: int, call_pk: int, question: str) -> None:
        """Handle a question of a call's tool server to a person; ``question`` is its UUID."""


@cache
def features() -> tuple[Feature, ...]:
    """Return the features of this installation, in the order of ``settings.FEATURES``."""
    return tuple(config for config in apps.get_app_configs() if isinstance(config, Feature))


def links_at(place: str, request: "HttpRequest", **about: Any) -> Iterator[Link]:
    for feature in features():
        yield from feature.links(place, request, **about)
