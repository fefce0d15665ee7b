"""A session as a file to keep or to read, streamed."""

from collections.abc import Callable, Iterator
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header
from django.utils.text import slugify
from django.views.decorators.http import require_safe

from conversations.access import get_session_for, sign_in_first, visit_of
from conversations.domain.errors import Rejected
from conversations.features.interchange.export_markdown import session_markdown
from conversations.features.interchange.export_messages import WRITERS
from conversations.features.interchange.export_sessions import session_lines
from conversations.models import Session
from conversations.web.downloads import in_threads

TITLE_CHARS = 60


def _lines(session: Session) -> Iterator[str]:
    return (line + "\n" for line in session_lines(session))


EXPORTERS: dict[str, tuple[Callable[[Session], Iterator[str]], str, str]] = {
    "markdown": (session_markdown, "md", "text/markdown; charset=utf-8"),
    "jsonl": (_lines, "jsonl", "application/jsonl; charset=utf-8"),
    **{name: (write, f"{name}.json", "application/json") for name, write in WRITERS.items()},
}
"""Format → what writes it, how the file's name ends, its type."""


@require_safe
async def session_export(request: HttpRequest, uuid: UUID) -> HttpResponseBase:
    """The whole session as it is now, in ``format``."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first(uuid=uuid)
    session, _ = await sync_to_async(get_session_for)(visit_of(request, user), uuid)
    wanted = request.GET.get("format", "markdown")
    return export_response(session, wanted, is_head=request.method == "HEAD")


def export_response(session: Session, wanted: str, *, is_head: bool = False) -> HttpResponseBase:
    """The file, streamed. Raises Rejected for a format that is none."""
    if wanted not in EXPORTERS:
        raise Rejected(f"The format must be one of {', '.join(EXPORTERS)}.", code="bad_format")
    write, ending, content_type = EXPORTERS[wanted]
    pieces = iter(()) if is_head else write(session)
    response = StreamingHttpResponse(in_threads(pieces), content_type=content_type)
    response["Content-Disposition"] = content_disposition_header(
        as_attachment=True, filename=file_name(session, ending=ending)
    )
    response["Cache-Control"] = "private, no-store"
    return response


def file_name(session: Session, *, ending: str) -> str:
    """Letters, digits and hyphens: what every system takes as a name."""
    words = slugify(session.title, allow_unicode=True)[:TITLE_CHARS].strip("-_")
    return f"{words or 'session'}-{str(session.uuid)[:8]}.{ending}"
