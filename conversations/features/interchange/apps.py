from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext

from conversations import feature
from conversations.domain.messages import say

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class InterchangeConfig(feature.Feature):
    name = "conversations.features.interchange"
    verbose_name = "Import and export"

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        if place == "menu.you" and settings.LOOM.max_import_bytes:
            yield feature.Link(label=gettext("Import"), url=reverse("imports"))
        elif place == "session.menu":
            address = reverse("session_export", args=[about["uuid"]])
            yield feature.Link(
                label=gettext("Export as Markdown"),
                url=f"{address}?format=markdown",
                begins_group=True,
            )
            yield feature.Link(label=gettext("Export as JSON lines"), url=f"{address}?format=jsonl")
        elif place == "review":
            address = reverse("session_export", args=[about["uuid"]])
            yield feature.Link(label=gettext("Export"), url=f"{address}?format=markdown")

    def render_part(self, place: str, request: HttpRequest, **about: Any) -> str:
        if place != "workspace.bulk":
            return ""
        address = reverse("workspace_export", args=[about["workspace"]["slug"]])
        return format_html(
            '<button class="btn small" formaction="{}">{}</button>', address, gettext("Export")
        )

    def commands(self) -> Iterable[feature.DownloadCommand]:
        from .export import FORMATS

        yield feature.DownloadCommand(
            name="export",
            says=say("Download the session"),
            argument=say("format"),
            choices={name: format.says for name, format in FORMATS.items()},
            view="session_export",
        )

    def account_files(self, user: "User") -> Iterable[tuple[str, Iterator[bytes]]]:
        from .export import own_session_text

        yield "sessions.jsonl", own_session_text(user)

    def workers(self, runtime: Any) -> Iterable[Callable[[], Coroutine[Any, Any, None]]]:
        from .worker import ImportWorker

        return (ImportWorker(runtime).run,)
