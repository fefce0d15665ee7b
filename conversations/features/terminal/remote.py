"""A connection to the sessions of a running server, by its API.

Runs on the server continue if the connection breaks, and events that were missed are read later.
Problem details are raised as errors. Requests are retried for a while if the server does not
respond, because it may be starting."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from time import monotonic
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from uuid import UUID, uuid4

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from conversations.domain.errors import (
    Conflict,
    LoomError,
    NotFound,
    NotPermitted,
    Rejected,
    Unavailable,
)
from conversations.domain.events import (
    APPROVAL,
    APPROVAL_ASKED,
    Fallback,
    Info,
    MalformedPayload,
    Payload,
    parse_payload,
)
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.stream import ModelInfo
from conversations.domain.text import dump_json, load_object
from conversations.domain.tool_calls import ALWAYS, DENY, WAITING, read_asked
from conversations.domain.tool_questions import DECLINE, make_asked_notice, read_question
from conversations.domain.turns import CONTENT_COLUMNS, MalformedTurn, StoredTurn, synthesise_rows
from conversations.providers.sse import SseParser
from conversations.runtime.current import find_model

from .connection import (
    UNKNOWN,
    Happening,
    OpenSession,
    RowReceived,
    RunEnded,
    SessionChoice,
    StatusChanged,
    TextDelta,
)

BEYOND_ALL = 2**53 - 1

PAGE_ROWS = 500

# The delays before each retry, and the time after the first failure when retrying ends.
RETRY_DELAYS_SECONDS = (0.2, 0.5, 1.0, *(2.0,) * 10, *(5.0,) * 8)
MAX_RETRY_SECONDS = 60.0

# The timeouts for a response, and between two pieces of a stream, which sends heartbeats.
ANSWER_SECONDS, SILENCE_SECONDS = 30.0, 90.0

# Kinds of events: the server's last event, and one that this module adds for a lost connection.
END, LOST = "end", "lost"

_ERRORS: dict[int, type[LoomError]] = {
    401: NotPermitted,
    403: NotPermitted,
    404: NotFound,
    409: Conflict,
}
NOT_OURS = "That server is not Loom Web."
_BUSY = (429, 502, 503, 504)
_HERE = re.compile(r"localhost|127\.[0-9.]+|::1")


def is_readable_on_the_way(server: str) -> bool:
    """Return whether requests go to another machine without encryption."""
    address = urlsplit(server)
    return address.scheme == "http" and not _HERE.fullmatch(address.hostname or "")


class _RetryLater(Exception):
    """The server asks for a retry after this number of seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__("busy")
        self.seconds = seconds


BROKEN = (ClientError, TimeoutError, OSError, _RetryLater)


class ApiClient:
    """A client of the API. ``server`` is a URL such as ``https://chat.example.org``.

    Redirects are not followed, because the token is only for this server."""

    def __init__(self, server: str, token: str) -> None:
        address = urlsplit(server)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise Rejected("The address of a server must begin with https:// (or http://).")
        self.server = server.rstrip("/") + "/"
        self._root = urljoin(self.server, "api/v1/")
        self._session = ClientSession(headers={"Authorization": f"Bearer {token}"})

    async def close(self) -> None:
        await self._session.close()

    async def check(self) -> None:
        """Check that the server responds and accepts the token. Raise without retrying if not."""
        page = await self._ask("GET", "workspaces", params={"limit": 1}, waits=iter(()))
        if not isinstance(page.get("items"), list):
            raise Rejected(NOT_OURS)

    async def get(self, path: str, **query: str | int) -> dict[str, Any]:
        return await self._ask("GET", path, params=query)

    async def send(
        self, method: str, path: str, body: Any = None, *, key: str = ""
    ) -> dict[str, Any]:
        """Send a request with a body.

        A request that must be executed only once needs ``key``, which is the same for all
        retries."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        data = dump_json(body or {}).encode()
        return await self._ask(method, path, data=data, headers=headers)

    async def stream(
        self, path: str, *, after: str = ""
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the kind and data of the events after the id ``after``, up to the kind ``end``."""
        timeout = ClientTimeout(connect=ANSWER_SECONDS, sock_read=SILENCE_SECONDS)
        url = urljoin(self._root, path)
        waits = _waits()
        while True:
            broken: Exception | None = None
            headers = {"Accept": "text/event-stream"}
            if after:
                headers["Last-Event-ID"] = after
            try:
                async with self._session.get(
                    url, headers=headers, timeout=timeout, allow_redirects=False
                ) as response:
                    await _check(response)
                    if response.status == 204:
                        return
                    parser = SseParser()
                    async for chunk in response.content.iter_any():
                        for name, data, last_id in parser.feed(chunk):
                            waits, after = _waits(), last_id or after
                            yield name, load_object(data)  # may be no JSON if it is another server
                            if name == END:
                                return
            except BROKEN as error:
                broken = error
            yield LOST, {}  # also if the stream ended without its last event
            await _wait(waits, broken)

    async def _ask(
        self, method: str, path: str, *, waits: Iterator[float] | None = None, **options: Any
    ) -> dict[str, Any]:
        pauses = _waits() if waits is None else waits
        url = urljoin(self._root, path)
        timeout = ClientTimeout(total=ANSWER_SECONDS)
        while True:
            try:
                async with self._session.request(
                    method, url, timeout=timeout, allow_redirects=False, **options
                ) as response:
                    await _check(response)
                    text = await response.text()
                if not text:
                    return {}
                data = load_object(text)
                if not data:
                    raise Rejected(NOT_OURS)
                return data
            except BROKEN as error:
                await _wait(pauses, error)


def _waits() -> Iterator[float]:
    """Yield the delay before each retry. The time limit begins with the first failure."""
    deadline = monotonic() + MAX_RETRY_SECONDS
    for seconds in RETRY_DELAYS_SECONDS:
        if monotonic() + seconds > deadline:
            return
        yield seconds


async def _wait(waits: Iterator[float], error: Exception | None) -> None:
    """Wait before the next retry. Raise Unavailable if there are no more retries."""
    seconds = next(waits, None)
    if seconds is None:
        raise Unavailable("The server is not responding.") from error
    await asyncio.sleep(max(seconds, error.seconds if isinstance(error, _RetryLater) else 0))


async def _check(response: ClientResponse) -> None:
    if response.status < 300:
        return
    if response.status in _BUSY:
        wait = response.headers.get("Retry-After", "")
        raise _RetryLater(min(60.0, float(wait)) if wait.isdigit() else 0.0)
    problem = load_object(await response.text(errors="replace"))
    detail = problem.get("detail")
    message = detail if isinstance(detail, str) else f"The server answered {response.status}."
    code = problem.get("code")
    kind = _ERRORS.get(response.status, Rejected)
    raise kind(message, code=code if isinstance(code, str) else None)


class ServerConnection:
    """A connection to a server, as the owner of the token."""

    def __init__(self, server: str, token: str) -> None:
        self._api = ApiClient(server, token)

    async def open(self) -> None:
        await self._api.check()

    async def close(self, *, at_once: bool = False) -> None:
        await self._api.close()

    async def list_workspaces(self) -> list[tuple[str, str]]:
        page = await self._api.get("workspaces")
        return [(workspace["slug"], workspace["name"]) for workspace in page["items"]]

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
                uuid=UUID(item["uuid"]),
                title=item["title"] or item["preview"] or "",
                turn_count=item["turns"],
                last_active_at=datetime.fromisoformat(item["last_active_at"]),
                model=item["model"],
            )
            for item in page["items"]
        ]

    async def open_session(self, uuid: UUID) -> OpenSession:
        return self._as_open(await self._api.get(f"sessions/{uuid}"))

    async def open_by_key(self, workspace: str, key: str) -> OpenSession:
        return self._as_open(await self._api.send("PUT", _path_of_key(workspace, key)))

    async def begin_session(self, workspace: str, *, key: str = "") -> OpenSession:
        path = f"workspaces/{quote(workspace, safe='')}/sessions"
        if key:
            path = _path_of_key(workspace, key)
        return self._as_open(await self._api.send("POST", path, key=uuid4().hex))

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
        result = await self._api.get(f"sessions/{session}/recall", q=query, limit=limit)
        return [
            (hit["turn"], hit["tool_name"] or hit["role"], hit["snippet"])
            for hit in result["hits"]
            if not hit["is_near"]
        ]

    async def ask(
        self, session: OpenSession, text: str, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]:
        page: dict[str, Any] = {"next": True}  # first read the rows that were added meanwhile
        while page["next"]:
            page = await self._api.get(
                f"sessions/{session.uuid}/events", after=after, limit=PAGE_ROWS
            )
            for row in page["items"]:
                after = row["seq"]
                yield _read_row(row)
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
        page = await self._api.get(f"sessions/{session.uuid}/runs", limit=PAGE_ROWS)
        running = next((run for run in page["items"] if run["state"] in ACTIVE_STATES), None)
        if running is None:
            return
        calls = await self._api.get(f"sessions/{session.uuid}/calls", open="true", limit=PAGE_ROWS)
        for call in calls["items"]:
            if call["state"] == WAITING and call["asked"] and not call["decision"]:
                names = {"call": call["uuid"], "call_id": call["call_id"], "name": call["name"]}
                data = read_asked(call["asked"] | names).as_data()
                notice = Info(text="", kind=APPROVAL, code=APPROVAL_ASKED, data=data)
                yield RowReceived(seq=after, payload=notice)
            question = read_question((call["question"] or {}) | {"call": call["uuid"]})
            if question is not None:
                yield RowReceived(seq=after, payload=make_asked_notice(question))
        last_event = str(after)
        async for happening in self._follow(
            session.uuid, running, after=after, last_event=last_event
        ):
            yield happening

    async def stop(self, session: UUID) -> None:
        await self._api.send("POST", f"sessions/{session}/stop")

    async def decide(self, session: UUID, call: UUID, *, decision: str, reason: str = "") -> None:
        path = f"sessions/{session}/calls/{call}"
        if decision == DENY:
            await self._api.send("POST", f"{path}/deny", {"reason": reason})
        else:
            await self._api.send("POST", f"{path}/approve", {"always": decision == ALWAYS})

    async def decline(self, session: UUID, call: UUID, *, question: str) -> None:
        answer = {"question": question, "action": DECLINE}
        await self._api.send("POST", f"sessions/{session}/calls/{call}/answer", answer)

    async def rename(self, session: UUID, title: str) -> str:
        saved = await self._api.send("PATCH", f"sessions/{session}", {"title": title})
        return str(saved["title"])

    async def choose_model(self, session: UUID, model: str) -> str:
        offered = await self._api.get("models")
        names = ("id", "name", "max_input_tokens", "max_output_tokens")
        models = [ModelInfo(**{name: item[name] for name in names}) for item in offered["items"]]
        model_info = find_model(model, models)
        await self._api.send("PATCH", f"sessions/{session}", {"model": model_info.id})
        return model_info.name

    async def _follow(
        self, session: UUID, run: dict[str, Any], *, after: int, last_event: str = ""
    ) -> AsyncIterator[Happening]:
        """Yield the run's deltas after the event ``last_event``, and its rows after ``after``."""
        yield StatusChanged(state=run["state"], text="")
        path = f"sessions/{session}/runs/{run['run']}/stream"
        async for kind, data in self._api.stream(path, after=last_event):
            if kind == "delta":
                names = ("part", "kind", "offset", "text")
                yield TextDelta(**{name: data[name] for name in names})
            elif kind == "row" and data["seq"] > after:
                yield _read_row(data)
            elif kind == LOST:
                yield StatusChanged(
                    state=UNKNOWN, text="The server is not responding. Trying again…"
                )
            elif kind == END:
                yield RunEnded(data["state"])

    def _as_open(self, data: dict[str, Any]) -> OpenSession:
        return OpenSession(
            uuid=UUID(data["uuid"]),
            workspace=data["workspace"],
            key=data["key"] or "",
            title=data["title"],
            turn_count=data["turns"],
            last_seq=data["events"],
            url=urljoin(self._api.server, data["page"]),
        )


def _path_of_key(workspace: str, key: str) -> str:
    return f"workspaces/{quote(workspace, safe='')}/keys/{quote(key, safe='')}"


def _read_row(row: dict[str, Any]) -> RowReceived:
    payload: Payload | Fallback
    if row["fallback"]:
        payload = Fallback(reason=row["fallback"]["reason"], raw=row["fallback"]["raw"])
    else:
        try:
            payload = parse_payload(row["event_type"], dump_json(row["payload"]))
        except MalformedPayload as error:  # from a newer server
            payload = Fallback(reason=str(error), raw=dump_json(row["payload"]))
    return RowReceived(seq=row["seq"], payload=payload)


def _rows_of(turn: dict[str, Any]) -> list[Payload | Fallback]:
    if turn["damage"]:
        return [Fallback(reason=turn["damage"], raw=turn["content"])]
    columns = {name: turn[name] for name in CONTENT_COLUMNS}
    for name, value in columns.items():
        if isinstance(value, list | dict):  # StoredTurn has it as JSON text
            columns[name] = dump_json(value)
    created_at = datetime.fromisoformat(turn["created_at"])
    stored = StoredTurn(number=turn["number"], created_at=created_at, **columns)
    try:
        return list(synthesise_rows(stored))
    except MalformedTurn as error:
        return [Fallback(reason=str(error), raw=stored.content)]
