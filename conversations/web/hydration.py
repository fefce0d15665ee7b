"""Reading a page of the transcript for a request, with its diagnostics."""

import logging
from time import monotonic
from typing import Any

from django.conf import settings

from conversations.archive.transcript import TranscriptPage, read_page
from conversations.models import Session

logger = logging.getLogger(__name__)


def hydrate(session: Session, *, limit: int, **where: Any) -> TranscriptPage:
    """Read a page (``where`` as for ``read_page``) and log the result."""
    began, loom = monotonic(), settings.LOOM
    source = "journal" if loom.use_journal else "turns"
    base = {"session_id": str(session.uuid)}
    started = base | {"source": source, "page_size": limit}
    logger.debug("chat_hydrate_started", extra={"fields": started})
    try:
        page = read_page(
            session,
            limit=limit,
            use_journal=loom.use_journal,
            synthesise=loom.legacy_fallback,
            **where,
        )
    except Exception as error:
        failed = base | {"error_class": type(error).__name__, "source": source}
        # without a traceback, as it is raised again
        logger.error("chat_hydrate_failed", extra={"fields": failed})
        raise
    completed = base | {
        "source": page.source,
        "rows_rendered": len(page.rows),
        "rows_skipped": page.skipped,
        "elapsed_ms": round((monotonic() - began) * 1000, 1),
    }
    logger.info("chat_hydrate_completed", extra={"fields": completed})
    return page
