"""A connection to the sessions in the data folder, with a runtime of its own.

It also works while a server runs on the same data folder: each run is executed by the process that
claims it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from itertools import islice
from uuid import UUID

from django.conf import settings

from conversations.archive import sessions as archive_sessions
from conversations.archive.journal import synthesise_events, walk_events
from conversations.archive.messages import AcceptedMessage
from conversations.archive.runs import active_runs
from conversations.archive.session_records import SessionFilter, list_session_records
from conversations.archive.sessions import get_session
from conversations.archive.tool_calls import read_open_calls
from conversations.archive.turns import MAX_PAGE_ROWS, walk_active_turns_back
from conversations.archive.workspaces import get_workspace, owner_of, workspace_names
from conversations.domain.events import APPROVAL, APPROVAL_ASKED, Fallback, Info, Payload
from conversations.domain.text import load_json, require_encodable
from conversations.domain.tool_questions import DECLINE, make_asked_notice
from conversations.models import Session
from conversations.runtime.current import find_model
from conversations.runtime.following import wait_for_final_state
from conversations.runtime.options import read_options
from conversations.runtime.publish import Frame, Subscriber
from conversations.runtime.service import Runtime
from conversations.search.find import search_session
from conversations.search.query import parse_query, snippet

from .connection import (
    CHANNEL,
    Happening,
    OpenSession,
    RowReceived,
    RunEnded,
    SessionChoice,
    StatusChanged,
    TextDelta,
)

MAX_SNIPPET_CHARS = 160


class DirectConnection:
    """A connection that acts as the owner of each session and workspace.

    There are no other permissions: a user who may write to the data folder may do everything."""

    def __init__(self) -> None:
        self._runtime = Runtime(read_options(supervise=False))
        self._followed_sessions: set[int] = set()
        self._read = self._runtime.readers.read
        self._write = self._runtime.writer.write

    async def open(self) -> None:
        await self._runtime.start()

    async def close(self, *, at_once: bool = False) -> None:
        if not at_once:
            for session_pk in self._followed_sessions:
                await self._runtime.wait_idle(session_pk)
        await self._runtime.stop(by_person=True)

    async def list_workspaces(self) -> list[tuple[str, str]]:
        return await self._read(workspace_names)

    async def list_sessions(
        self, workspace: str, *, query: str = "", limit: int
    ) -> list[SessionChoice]:
        return await self._read(_list_sessions, workspace, query=query, limit=limit)

    async def open_session(self, uuid: UUID) -> OpenSession:
        return await self._read(_open, uuid)

    async def open_by_key(self, workspace: str, key: str) -> OpenSession:
        return await self._write(_begin, workspace, key, anew=False)

    async def begin_session(self, workspace: str, *, key: str = "") -> OpenSession:
        return await self._write(_begin, workspace, key, anew=True)

    async def read_history(
        self, session: UUID, *, before: int | None = None, limit: int
    ) -> tuple[int | None, list[Payload | Fallback]]:
        return await self._read(_read_history, session, before=before, limit=limit)

    async def find_words(
        self, session: UUID, query: str, *, limit: int
    ) -> list[tuple[int, str, str]]:
        return await self._read(_find_words, session, query, limit=limit)

    async def ask(
        self, session: OpenSession, text: str, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]:
        row = await self._read(get_session, session.uuid)
        sending = self._runtime.send(
            row, client_id=client_id, text=require_encodable(text), user_pk=row.owner_id
        )
        async for happening in self._follow(row, sending, after):
            yield happening

    async def compact(
        self, session: OpenSession, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]:
        row = await self._read(get_session, session.uuid)
        compacting = self._runtime.compact(row, client_id=client_id, user_pk=row.owner_id)
        async for happening in self._follow(row, compacting, after):
            yield happening

    async def watch(self, session: OpenSession, *, after: int) -> AsyncIterator[Happening]:
        row = await self._read(get_session, session.uuid)
        run_pk, notices = await self._read(_read_active_run, row.pk)
        if run_pk is None:
            return
        for notice in notices:
            yield RowReceived(seq=after, payload=notice)
        async for happening in self._follow(row, run_pk, after):
            yield happening

    async def stop(self, session: UUID) -> None:
        await self._runtime.stop_run(await self._read(get_session, session))

    async def decide(self, session: UUID, call: UUID, *, decision: str, reason: str = "") -> None:
        row = await self._read(get_session, session)
        await self._runtime.decide_call(
            row, call=call, decision=decision, user_pk=row.owner_id, reason=reason
        )

    async def decline(self, session: UUID, call: UUID, *, question: str) -> None:
        row = await self._read(get_session, session)
        await self._runtime.answer_question(
            row, call=call, question=question, action=DECLINE, user_pk=row.owner_id
        )

    async def rename(self, session: UUID, title: str) -> str:
        row = await self._read(get_session, session)
        chosen = await self._write(archive_sessions.rename_session, row, title=title)
        self._runtime.publisher.publish(row.pk, {"type": "title", "title": chosen})
        return chosen

    async def choose_model(self, session: UUID, model: str) -> str:
        row = await self._read(get_session, session)
        model_info = find_model(model, self._runtime.models.listed)
        await self._write(archive_sessions.choose_model, row, model=model_info.id)
        self._runtime.publisher.publish(row.pk, {"type": "model", "model": model_info.id})
        return model_info.name

    async def _follow(
        self, session: Session, run: int | Awaitable[AcceptedMessage], after: int
    ) -> AsyncIterator[Happening]:
        frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        watcher = Subscriber(
            session_pk=session.pk,
            deliver=lambda text: frames.put_nowait(load_json(text)),
            reached=after,
            held=False,
        )
        # Subscribe before the run begins, so that no frame is missed.
        self._runtime.hub.add(watcher)
        self._followed_sessions.add(session.pk)
        ending: asyncio.Task[str] | None = None
        try:
            run_pk = run if isinstance(run, int) else (await run).run_pk
            ending = asyncio.create_task(
                wait_for_final_state(self._runtime, session_pk=session.pk, run_pk=run_pk)
            )
            ending.add_done_callback(lambda _: frames.put_nowait(None))
            while (frame := await frames.get()) is not None:
                if frame["type"] == "rows" and frame["rows"]:
                    # Yield no later rows yet, even if they are stored: their drafts come first.
                    through = frame["rows"][-1]["seq"]
                    async for row in self._rows(session, after, through=through):
                        after = row.seq
                        yield row
                elif frame["type"] == "draft":
                    names = ("part", "kind", "offset", "text")
                    piece = {name: frame[name] for name in names}
                    yield TextDelta(name=frame.get("name", ""), **piece)
                elif frame["type"] == "state":
                    yield StatusChanged(state=frame["run_state"], text=frame["text"])
            async for row in self._rows(session, after):
                yield row
            yield RunEnded(await ending)
        finally:
            if ending is not None:
                ending.cancel()
            self._runtime.hub.remove(watcher)

    async def _rows(
        self, session: Session, after: int, *, through: int | None = None
    ) -> AsyncIterator[RowReceived]:
        while True:
            page = await self._read(walk_events, session.pk, start=after, limit=MAX_PAGE_ROWS)
            for event in page:
                if through is None or event.seq <= through:
                    yield RowReceived(seq=event.seq, payload=event.payload)
            if len(page) < MAX_PAGE_ROWS or (through is not None and page[-1].seq >= through):
                return
            after = page[-1].seq


def _read_active_run(session_pk: int) -> tuple[int | None, list[Info]]:
    """Return the session's active run, and notices of its open approvals and questions."""
    runs = active_runs(stale_seconds=settings.LOOM.stale_seconds, session_pks=[session_pk])
    if not runs:
        return None, []
    notices = []
    for call in read_open_calls(runs[0].run_pk):
        if call.asked is not None and not call.decision:
            data = call.asked.as_data()
            notices.append(Info(text="", kind=APPROVAL, code=APPROVAL_ASKED, data=data))
        if call.open_question is not None:
            notices.append(make_asked_notice(call.open_question))
    return runs[0].run_pk, notices


def _list_sessions(workspace: str, *, query: str, limit: int) -> list[SessionChoice]:
    session_filter = SessionFilter(
        workspaces=(get_workspace(workspace).pk,), archived=False, expired=False, query=query
    )
    return [
        SessionChoice(
            uuid=item.uuid,
            title=item.title or item.preview or "",
            turn_count=item.turns,
            last_active_at=item.last_active_at,
            model=item.model,
        )
        for item in list_session_records(session_filter, limit=limit)
    ]


def _open(uuid: UUID) -> OpenSession:
    session = get_session(uuid)
    return OpenSession(
        uuid=session.uuid,
        workspace=session.workspace.slug,
        key=session.key or "",
        title=session.title,
        turn_count=session.turn_count,
        last_seq=session.last_seq,
        url=f"{settings.LOOM.site}/s/{session.uuid}/",
    )


def _begin(slug: str, key: str, *, anew: bool) -> OpenSession:
    workspace = get_workspace(slug)
    owner, sessions = owner_of(workspace), archive_sessions
    if not key:
        session = sessions.create_session(workspace, owner=owner, channel=CHANNEL)
    else:
        find = sessions.begin_anew if anew else sessions.get_or_create_by_key
        session = find(workspace, key=key, owner=owner, channel=CHANNEL)
    return _open(session.uuid)


def _read_history(
    uuid: UUID, *, before: int | None, limit: int
) -> tuple[int | None, list[Payload | Fallback]]:
    session = get_session(uuid)
    below = session.next_turn if before is None else before
    walk = walk_active_turns_back(session.pk, before=below, page=limit)
    turns = list(islice(walk, limit))[::-1]
    rows = [row for turn in turns for row in synthesise_events(turn)]
    return (turns[0].number if turns else None), rows


def _find_words(uuid: UUID, text: str, *, limit: int) -> list[tuple[int, str, str]]:
    query = parse_query(text)
    result = search_session(get_session(uuid).pk, query, limit=limit, with_neighbours=False)
    return [
        (hit.turn, hit.tool_name or hit.role, snippet(hit.text, query, limit=MAX_SNIPPET_CHARS))
        for hit in result.hits
        if not hit.is_near
    ]
