"""What a feature may add to the core, and how the core finds it.

A feature is a Django app below ``conversations.features`` with one line in
``settings.FEATURES``. The core calls the methods below on each of them, in that order, and
imports none: a feature can be deleted together with its line. Its models say
``app_label = "conversations"``, so its tables have the same names wherever the code lies.
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
    """One line of ``/metrics``. ``kind`` is what Prometheus calls its type."""

    name: str
    help: str
    value: float
    kind: str = "gauge"


type Notices = Callable[[], Sequence["Info"]]
"""Called in a transaction that then writes these rows: a notice is given once."""

type Rows = Callable[[int], "QuerySet[Any]"]
"""The rows of a table that belong to the session with this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedTables:
    """``removed``: table to its rows of a session, in the order in which they go. ``folded``:
    table to what takes a session's rows together with others that name none, and returns
    how many it took. ``names``: what rows are called in a plan and a receipt, where that
    is not the table's own name: in English, marked for pages by ``gettext_noop``."""

    removed: dict[type["Model"], Rows] = field(default_factory=dict)
    folded: dict[type["Model"], Callable[[int], int]] = field(default_factory=dict)
    names: dict[type["Model"], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a feature's page. ``says``: what it is for, where there is room for that;
    ``begins_group``: in a menu a line stands above it. Made for a request, in its language."""

    label: str
    url: str
    says: str = ""
    begins_group: bool = False

    @property
    def path(self) -> str:
        return self.url.partition("?")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadCommand:
    """A command of the composer that downloads something of the session. ``choices`` may
    follow its name, the first where nothing does; ``view`` is the name of the URL, which
    takes the choice in its query under the name ``argument``. There is one for everybody: its
    words are messages (``domain.messages``)."""

    name: str
    says: str
    argument: str
    choices: Mapping[str, str]
    view: str


class Feature(AppConfig):
    """Override what the feature adds. An ``apps.py`` imports this module and not the class:
    Django takes each AppConfig that it finds there. The hooks that begin with ``on_`` are
    called inside the transaction that writes what they tell of: what they raise undoes it.
    """

    def _import(self, name: str) -> Any:
        assert self.module is not None
        if not module_has_submodule(self.module, name):
            return None
        return import_module(f"{self.name}.{name}")

    def url_patterns(self) -> list[Any]:
        """Of its pages: ``urlpatterns`` in its module ``urls``."""
        urls = self._import("urls")
        return [] if urls is None else list(urls.urlpatterns)

    def api_routers(self) -> Iterable["Router"]:
        """Of its API operations: ``router`` in its module ``api``."""
        api = self._import("api")
        return () if api is None else (api.router,)

    def session_facts(self, session: "Session", access: Any, person: "User") -> Mapping[str, Any]:
        """What its page has to know of a session besides, for a person with this
        ``conversations.access.Access``: goes into the ``session`` of its templates."""
        return {}

    def links(self, place: str, request: "HttpRequest", **about: Any) -> Iterable[Link]:
        """Links to its pages at a place of the core's pages, with what the page is about:

        - ``account``: a section of the account, and in the menu of the account
        - ``menu.you``, ``menu.team``, ``menu.administration``: in that menu, below these words;
          the palette has them as well
        - ``session.menu`` (``uuid``, ``can_write``), ``session.menu.end`` (``session``): in
          that of a session
        - ``session.row`` (``uuid``, ``workspace``, ``access``, ``is_own``): in that of a session in
          a list, where the address may differ in the uuid alone
        - ``window`` (``uuid``): beside what a session cost, in its panel
        - ``review`` (``uuid``): beside a session that is reviewed
        - ``workspace`` (``slug``): in its menu
        - ``workspace.file`` (``slug``, ``path``, ``version``, ``can_write``): beside a file
          that is shown
        - ``workspace.settings`` (``slug``): a section of its settings
        - ``workspace.programs`` (``slug``): in its settings, below “Programs”
        """
        return ()

    def render_part(self, place: str, request: "HttpRequest", **about: Any) -> str:
        """HTML of its own at a place of the core's pages, where links do not suffice:

        - ``page.head``: in the head of every page of somebody who is signed in
        - ``session.style``, ``session.notice`` (``session``): in the head of its page; in the
          place of the box for messages
        - ``session.dock`` (``session``): above the box for messages
        - ``session.menu`` (``session``): in its menu, before the links
        - ``workspace.bulk`` (``workspace``): among the buttons for sessions chosen in its list
        """
        return ""

    def commands(self) -> Iterable[DownloadCommand]:
        """Of the composer, beside the core's own."""
        return ()

    def account_files(self, user: "User") -> Iterable[tuple[str, Iterator[bytes]]]:
        """Files of the ZIP with everything that is a person's: names and contents."""
        return ()

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        """Loops for the process that supervises; one that fails is started again."""
        return ()

    def metrics(self) -> Iterable[Metric]:
        return ()

    def purged_tables(self) -> PurgedTables:
        """Of the feature's own tables, those that have rows of a session."""
        return PurgedTables()

    def named_blobs(self) -> Iterable[str]:
        """Digests of contents that its own tables need, whatever becomes of sessions."""
        return ()

    def check_purge(self, session: "Session") -> None:
        """Raise Conflict to keep a session from being purged."""

    def forget_old(self, now: datetime) -> None:
        """Remove what is kept for a time only. Called every so often, outside of any
        transaction."""

    def verify(self) -> tuple[Sequence[str], str]:
        """For ``verify_archive``: a sentence for each thing that is not as it should be,
        and what to say where there is none."""
        return (), ""

    def format_error(
        self, request: "HttpRequest", response: "HttpResponse"
    ) -> "HttpResponse | None":
        """An error below the API's address in the feature's own form; None: not its own."""
        return None

    has_call_limits_sql = ""
    """SQL that is true while :meth:`check_model_call` is to be asked, as part of a statement
    that is made before each call anyway: where nothing is limited, that costs nothing."""

    def check_model_call(self, session_pk: int, person_pk: int | None) -> Notices | None:
        """Raise BudgetReached to keep the model from being called in this session, for this
        person or for nobody in particular; or return what is to be said while it is."""
        return None

    def on_model_call(self, call: "ModelCall", person_pk: int | None) -> None:
        """A call of the model has ended, with an answer or without. ``person_pk``: for whom,
        None for a program of the server."""

    def on_run_finished(self, run_pk: int, session_pk: int) -> None:
        """A run has ended, in whatever state."""

    def on_approval_asked(self, session_pk: int, call_pks: Sequence[int]) -> None:
        """Calls of tools wait for a person."""

    def on_question_asked(self, session_pk: int, call_pk: int, question: str) -> None:
        """The tool server of a call asks a person something; ``question`` is its UUID."""


@cache
def features() -> tuple[Feature, ...]:
    """Those of this installation, in the order of ``settings.FEATURES``."""
    return tuple(config for config in apps.get_app_configs() if isinstance(config, Feature))


def links_at(place: str, request: "HttpRequest", **about: Any) -> Iterator[Link]:
    for feature in features():
        yield from feature.links(place, request, **about)
