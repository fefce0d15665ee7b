"""A running server, by its API. What happens there goes on when the connection breaks,
and is caught up with."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from urllib.parse import quote, urljoin
from uuid import UUID, uuid4

from conversations.domain.events import (
    APPROVAL,
    APPROVAL_ASKED,
    Fallback,
    Info,
    Malformed,
    Payload,
    parse_payload,
)
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.stream import ModelInfo
from conversations.domain.text import dump_json
from conversations.domain.tool_calls import ALWAYS, DENY, WAITING, ApprovalRequest
from conversations.domain.turns import MalformedTurn, StoredTurn, synthesise_rows
from conversations.runtime.current import find_model

from .calling import END, LOST, Api, ServerEvent
from .connection import (
    UNKNOWN,
    Delta,
    Doing,
    Happening,
    OpenSession,
    RunEnded,
    Seen,
    SessionChoice,
    ShownTurn,
    TurnMatch,
    WorkspaceChoice,
)

BEYOND_ALL = 2**53 - 1

PAGE = 500


class ServerConnection:
    """What is kept there is the same as on the data folder; who one is, the token says."""

    def __init__(self, server: str, token: str) -> None:
        self._server = server
        self._api = Api(server, token)

    async def open(self) -> None:
        await self._api.check()

    async def close(self, *, at_once: bool = False) -> None:
        await self._api.close()

    async def list_workspaces(self) -> list[WorkspaceChoice]:
        page = await self._api.get("workspaces")
        return [WorkspaceChoice(slug=one["slug"], name=one["name"]) for one in page["items"]]

    async def list_sessions(
        self, workspace: str, *, query: str = "", limit: int
    ) -> list[SessionChoice]:
        page = await self._api.get(
            f"workspaces/{quote(workspace, safe='')}/sessions",
            q=query,
            limit=limit,
            archived="false",
            expired="false",
        )
        return [
            SessionChoice(
                uuid=UUID(one["uuid"]),
                title=one["title"] or one["preview"] or "",
                turn_count=one["turns"],
                last_active_at=datetime.fromisoformat(one["last_active_at"]),
                model=one["model"],
                state=one["state"],
            )
            for one in page["items"]
        ]

    async def open_session(self, uuid: UUID) -> OpenSession:
        return self._as_open(await self._api.get(f"sessions/{uuid}"))

    async def open_by_key(self, workspace: str, key: str) -> OpenSession:
        return self._as_open(await self._api.send("PUT", _path_of_key(workspace, key)))

    async def begin_session(self, workspace: str, *, key: str = "") -> OpenSession:
        once = uuid4().hex
        if key:
            path = _path_of_key(workspace, key)
            return self._as_open(await self._api.send("POST", path, key=once))
        path = f"workspaces/{quote(workspace, safe='')}/sessions"
        return self._as_open(await self._api.send("POST", path, {}, key=once))

    async def read_history(
        self, session: UUID, *, before: int | None = None, limit: int
    ) -> list[ShownTurn]:
        page = await self._api.get(
            f"sessions/{session}/turns", before=before or BEYOND_ALL, limit=limit, active="true"
        )
        return [
            ShownTurn(number=one["number"], role=one["role"], rows=_rows_of(one))
            for one in page["items"]
        ]

    async def find_words(self, session: UUID, query: str, *, limit: int) -> list[TurnMatch]:
        found = await self._api.get(f"sessions/{session}/recall", q=query, limit=limit)
        return [
            TurnMatch(
                number=hit["turn"],
                role=hit["tool_name"] or hit["role"],
                created_at=datetime.fromisoformat(hit["created_at"]),
                snippet=hit["snippet"],
            )
            for hit in found["hits"]
            if not hit["is_near"]
        ]

    async def ask(
        self, session: OpenSession, text: str, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]:
        async for row in self._rows(session.uuid, after):
            after = row.seq
            yield row
        path = f"sessions/{session.uuid}/messages"
        run = await self._api.send("POST", path, {"text": text}, key=client_id)
        async for happening in self._follow(session.uuid, run, after=after):
            yield happening

    async def compact(
        self, session: OpenSession, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]:
        path = f"sessions/{session.uuid}/runs"
        run = await self._api.send("POST", path, {"kind": "compact"}, key=client_id)
        async for happening in self._follow(session.uuid, run, after=after):
            yield happening

    async def watch(self, session: OpenSession, *, after: int) -> AsyncIterator[Happening]:
        standing = await self._api.get(f"sessions/{session.uuid}")
        if standing["state"] not in ACTIVE_STATES:
            return
        page = await self._api.get(f"sessions/{session.uuid}/runs", limit=PAGE)
        running = next((run for run in page["items"] if run["state"] in ACTIVE_STATES), None)
        if running is None:
            return
        calls = await self._api.get(f"sessions/{session.uuid}/calls", open="true", limit=PAGE)
        for call in calls["items"]:
            if call["state"] == WAITING and call["asked"] and not call["decision"]:
                data = _read_asked(call).as_data()
                notice = Info(text="", kind=APPROVAL, code=APPROVAL_ASKED, data=data)
                yield Seen(seq=after, payload=notice)
        async for happening in self._follow(session.uuid, running, after=after, at=str(after)):
            yield happening

    async def stop(self, session: UUID) -> None:
        await self._api.send("POST", f"sessions/{session}/stop")

    async def decide(self, session: UUID, call: UUID, *, decision: str, reason: str = "") -> None:
        path = f"sessions/{session}/calls/{call}"
        if decision == DENY:
            await self._api.send("POST", f"{path}/deny", {"reason": reason})
        else:
            await self._api.send("POST", f"{path}/approve", {"always": decision == ALWAYS})

    async def rename(self, session: UUID, title: str) -> str:
        kept = await self._api.send("PATCH", f"sessions/{session}", {"title": title})
        return str(kept["title"])

    async def choose_model(self, session: UUID, model: str) -> str:
        offered = await self._api.get("models")
        names = ("id", "name", "max_input_tokens", "max_output_tokens")
        models = [ModelInfo(**{name: one[name] for name in names}) for one in offered["items"]]
        found = find_model(model, models)
        await self._api.send("PATCH", f"sessions/{session}", {"model": found.id})
        return found.name

    async def _follow(
        self, session: UUID, run: dict[str, Any], *, after: int, at: str = ""
    ) -> AsyncIterator[Happening]:
        """The run's rows and deltas after the event ``at``, but for the rows up to the
        seq ``after``."""
        yield Doing(state=run["state"], text="")
        path = f"sessions/{session}/runs/{run['run']}/stream"
        async for event in self._api.stream(path, after=at):
            happening = _read_event(event)
            if happening is not None and not (
                isinstance(happening, Seen) and happening.seq <= after
            ):
                yield happening

    async def _rows(self, session: UUID, after: int) -> AsyncIterator[Seen]:
        """What others have said meanwhile."""
        while True:
            page = await self._api.get(f"sessions/{session}/events", after=after, limit=PAGE)
            for row in page["items"]:
                yield _read_row(row)
            if not page["next"]:
                return
            after = page["items"][-1]["seq"]

    def _as_open(self, found: dict[str, Any]) -> OpenSession:
        return OpenSession(
            uuid=UUID(found["uuid"]),
            workspace=found["workspace"],
            key=found["key"] or "",
            title=found["title"],
            turn_count=found["turns"],
            last_seq=found["events"],
            url=urljoin(self._api.server, found["page"]),
        )


def _path_of_key(workspace: str, key: str) -> str:
    return f"workspaces/{quote(workspace, safe='')}/keys/{quote(key, safe='')}"


def _read_event(event: ServerEvent) -> Happening | None:
    data = event.data
    if event.kind == "delta":
        return Delta(part=data["part"], kind=data["kind"], offset=data["offset"], text=data["text"])
    if event.kind == "row":
        return _read_row(data)
    if event.kind == LOST:
        return Doing(state=UNKNOWN, text="The server is not responding. Trying again…")
    return RunEnded(data["state"]) if event.kind == END else None


def _read_row(row: dict[str, Any]) -> Seen:
    payload: Payload | Fallback
    if row["fallback"]:
        payload = Fallback(reason=row["fallback"]["reason"], raw=row["fallback"]["raw"])
    else:
        try:
            payload = parse_payload(row["event_type"], dump_json(row["payload"]))
        except Malformed as error:  # of a newer server
            payload = Fallback(reason=str(error), raw=dump_json(row["payload"]))
    return Seen(seq=row["seq"], payload=payload)


def _rows_of(turn: dict[str, Any]) -> list[Payload | Fallback]:
    if turn["damage"]:
        return [Fallback(reason=turn["damage"], raw=turn["content"])]
    stored = StoredTurn(
        number=turn["number"],
        role=turn["role"],
        content=turn["content"],
        blocks=dump_json(turn["blocks"]) if turn["blocks"] is not None else None,
        tool_calls=dump_json(turn["tool_calls"]) if turn["tool_calls"] else None,
        tool_call_id=turn["tool_call_id"],
        tool_name=turn["tool_name"],
        token_count=turn["token_count"],
        stop_reason=turn["stop_reason"],
        complete=turn["complete"],
        metadata=dump_json(turn["metadata"]),
        created_at=datetime.fromisoformat(turn["created_at"]),
    )
    try:
        return list(synthesise_rows(stored))
    except MalformedTurn as error:
        return [Fallback(reason=str(error), raw=stored.content)]


def _read_asked(call: dict[str, Any]) -> ApprovalRequest:
    names = ("summary", "command", "diff", "note", "kind_label")
    asked = {name: call["asked"][name] for name in names}
    return ApprovalRequest(call=call["uuid"], call_id=call["call_id"], name=call["name"], **asked)
