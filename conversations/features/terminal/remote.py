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
from conversations.domain.tool_calls import ALWAYS, DENY, WAITING
from conversations.domain.tool_policy import read_asked
from conversations.domain.turns import CONTENT_COLUMNS, MalformedTurn, StoredTurn, synthesise_rows
from conversations.runtime.current import find_model

from .calling import END, LOST, Api
from .connection import (
    UNKNOWN,
    Delta,
    Doing,
    Happening,
    OpenSession,
    RunEnded,
    Seen,
    SessionChoice,
)

BEYOND_ALL = 2**53 - 1

PAGE = 500


class ServerConnection:
    """What is kept there is the same as on the data folder; who one is, the token says."""

    def __init__(self, server: str, token: str) -> None:
        self._api = Api(server, token)

    async def open(self) -> None:
        await self._api.check()

    async def close(self, *, at_once: bool = False) -> None:
        await self._api.close()

    async def list_workspaces(self) -> list[tuple[str, str]]:
        page = await self._api.get("workspaces")
        return [(one["slug"], one["name"]) for one in page["items"]]

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
    ) -> tuple[int | None, list[Payload | Fallback]]:
        page = await self._api.get(
            f"sessions/{session}/turns", before=before or BEYOND_ALL, limit=limit, active="true"
        )
        first = page["items"][0]["number"] if page["items"] else None
        return first, [row for turn in page["items"] for row in _rows_of(turn)]

    async def find_words(
        self, session: UUID, query: str, *, limit: int
    ) -> list[tuple[int, str, str]]:
        found = await self._api.get(f"sessions/{session}/recall", q=query, limit=limit)
        return [
            (hit["turn"], hit["tool_name"] or hit["role"], hit["snippet"])
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
                names = {"call": call["uuid"], "call_id": call["call_id"], "name": call["name"]}
                data = read_asked(call["asked"] | names).as_data()
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
        async for kind, data in self._api.stream(path, after=at):
            if kind == "delta":
                names = ("part", "kind", "offset", "text")
                yield Delta(**{name: data[name] for name in names})
            elif kind == "row" and data["seq"] > after:
                yield _read_row(data)
            elif kind == LOST:
                yield Doing(state=UNKNOWN, text="The server is not responding. Trying again…")
            elif kind == END:
                yield RunEnded(data["state"])

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
    columns = {name: turn[name] for name in CONTENT_COLUMNS}
    for name, value in columns.items():
        if isinstance(value, list | dict):  # the archive has it as text
            columns[name] = dump_json(value)
    created_at = datetime.fromisoformat(turn["created_at"])
    stored = StoredTurn(number=turn["number"], created_at=created_at, **columns)
    try:
        return list(synthesise_rows(stored))
    except MalformedTurn as error:
        return [Fallback(reason=str(error), raw=stored.content)]
