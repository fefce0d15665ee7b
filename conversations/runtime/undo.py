"""Files that were changed: what a dead process left open is settled, files are put back."""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from conversations.agent.undo.records import Scope
from conversations.agent.undo.revert import Reverted, revert_files
from conversations.agent.undo.trees import complete_all
from conversations.models import Session

if TYPE_CHECKING:
    from .engine import Runtime

logger = logging.getLogger(__name__)


class Undo:
    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._settling = asyncio.Lock()

    def settle_soon(self) -> None:
        """See that what interrupted calls have changed is found out, beside other work."""
        self._runtime.run_in_background(self._settle())

    async def _settle(self) -> None:
        async with self._settling:
            count = await complete_all(
                read=self._runtime.readers.read, write=self._runtime.writer.write
            )
        if count:
            logger.info("changes_settled", extra={"fields": {"calls": count}})

    async def revert(
        self,
        session: Session,
        root: Path,
        *,
        scope: Scope,
        actor_pk: int | None,
        replace: Collection[str],
    ) -> Reverted:
        """Put files back (see ``agent.undo.revert``) and show it to every page."""
        done = await revert_files(
            session,
            root,
            scope=scope,
            actor_pk=actor_pk,
            replace=replace,
            read=self._runtime.readers.read,
            write=self._runtime.writer.write,
        )
        self._runtime.publish_rows(session.pk, done.appended.rows)
        return done
