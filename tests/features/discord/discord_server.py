"""A local server that plays Discord: its gateway and the part of REST that the bot uses.

It refuses what Discord refuses: long messages, wrong tokens and too many requests. For a nonce
that it knows, it returns the first message. It replays missed events to a resumed connection, but
not to a new one.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import WSMsgType, web

TOKEN = "discord-token"
BOT, ANN, BOB, EVE = 9001, 101, 102, 103
NAMES = {BOT: "loom", ANN: "Ann", BOB: "Bob", EVE: "Eve"}
GUILD, GENERAL, OTHER, THREAD = 5001, 6001, 6002, 6003
DM_OF = {ANN: 7001, BOB: 7002, EVE: 7003}
FIRST_MESSAGE = 100_000
MOMENT = "2026-01-01T00:00:00+00:00"
FIRST_MOMENT = "2015-01-01T00:00:00+00:00"  # Before every message, because the ids hold times

MESSAGE_CONTENT = 1 << 15  # One of the intents with which a bot connects

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID, HELLO, ACK = 0, 1, 2, 6, 7, 9, 10, 11

type Json = dict[str, Any]


def user(number: int) -> Json:
    name = NAMES[number]
    return {
        "id": str(number),
        "username": name.lower(),
        "global_name": name,
        "discriminator": "0",
        "avatar": None,
        "bot": number == BOT,
    }


@dataclass
class GatewaySession:
    """A connection that can be resumed, with the events sent over it by sequence number."""

    events: list[Json] = field(default_factory=list)
    socket: web.WebSocketResponse | None = None


@dataclass
class Request:
    method: str
    path: str
    body: Json


class DiscordServer:
    """A server whose state tests read and change.

    ``messages`` holds the messages of each channel, oldest first. ``requests`` holds the requests
    that were received. ``refused`` counts the responses with status 429, ``identified`` the new
    connections and ``resumed`` the resumed ones.
    """

    def __init__(self) -> None:
        self.messages: dict[int, list[Json]] = {
            number: [] for number in (GENERAL, OTHER, THREAD, *DM_OF.values())
        }
        self.requests: list[Request] = []
        self.responses: list[Json] = []
        self.files: dict[int, bytes] = {}
        self.threads = [THREAD]
        self.guilds = {GENERAL: GUILD, OTHER: GUILD}
        self.refused = self.identified = self.resumed = 0
        self.refused_connections = 0  # how many of the next ones are refused
        self.intents = 0
        self.per_window = 0
        self.window = 0.2
        self.fail: Callable[[Request], int] | None = None
        self._sessions: dict[str, GatewaySession] = {}
        self._ids = count(FIRST_MESSAGE)
        self._nonces: dict[str, Json] = {}
        self._used: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None
        self.url = ""

    # -- actions of tests ------------------------------------------------------------

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/gateway/", self._gateway)
        app.router.add_get("/files/{id}/{name}", self._file)
        app.router.add_route("*", "/api/v10/{path:.*}", self._rest)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        for session in self._sessions.values():
            if session.socket is not None:
                await session.socket.close()
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def gateway_url(self) -> str:
        return self.url.replace("http", "ws") + "/gateway/"

    async def say(
        self,
        channel: int,
        text: str,
        *,
        author: int = ANN,
        files: dict[str, bytes] | None = None,
        unheard: bool = False,
        **more: Any,
    ) -> int:
        """Write a message as a person; if ``unheard``, the gateway never sends its event."""
        message = self._make(channel, author, text) | more
        if f"<@{BOT}>" in text:
            message["mentions"] = [user(BOT)]
        message["attachments"] = [self._attach(name, data) for name, data in (files or {}).items()]
        self.messages[channel].append(message)
        if not unheard:
            await self.dispatch("MESSAGE_CREATE", self._as_told(message))
        return int(message["id"])

    async def begin_thread(self) -> int:
        """Create a thread in the channel and send its event."""
        number = next(self._ids)
        self.messages[number] = []
        self.threads.append(number)
        await self.dispatch("THREAD_CREATE", self.channel(number) | {"newly_created": True})
        return number

    def make_channel(self, guild: int) -> int:
        """Create the first channel of another server."""
        number = next(self._ids)
        self.messages[number] = []
        self.guilds[number] = guild
        return number

    async def let_in(self, guild: int, *, joined_at: str) -> None:
        """Invite the bot to the server."""
        await self.dispatch("GUILD_CREATE", self._guild(guild, joined_at=joined_at))

    async def again(self, channel: int, message: int) -> None:
        """Send the event of a message once more."""
        [found] = [m for m in self.messages[channel] if m["id"] == str(message)]
        await self.dispatch("MESSAGE_CREATE", self._as_told(found))

    async def press(self, message: Json, label: str, *, person: int = ANN) -> None:
        [button] = [b for b in self.buttons(message) if b["label"].startswith(label)]
        data = {"custom_id": button["custom_id"], "component_type": 2}
        await self._interact(3, int(message["channel_id"]), person, data, message=message)

    async def choose(self, channel: int, command: str, *, person: int = ANN) -> None:
        data = {"id": "1", "name": command, "type": 1, "options": []}
        await self._interact(2, channel, person, data)

    def of_bot(self, channel: int) -> list[Json]:
        return [m for m in self.messages[channel] if m["author"]["id"] == str(BOT)]

    def said(self, channel: int) -> list[str]:
        return [m["content"] for m in self.of_bot(channel)]

    @staticmethod
    def buttons(message: Json) -> list[Json]:
        return [button for row in message["components"] for button in row["components"]]

    async def drop(self) -> None:
        """Break the connections. They can be resumed."""
        for session in self._sessions.values():
            if session.socket is not None:
                socket, session.socket = session.socket, None
                transport = socket._req.transport if socket._req is not None else None
                if transport is not None:
                    transport.abort()

    async def close_connections(self, *, code: int) -> None:
        for session in self._sessions.values():
            if session.socket is not None:
                await session.socket.close(code=code)

    async def lose_connections(self) -> None:
        """Break the connections and forget them, as when the bot's process has ended."""
        await self.drop()
        self._sessions = {}

    def forget(self) -> None:
        """Forget the session ids, so that no connection can be resumed."""
        self._sessions = {"": next(iter(self._sessions.values()))} if self._sessions else {}

    async def send(self, payload: Json) -> None:
        """Send a payload to the open connections."""
        for session in self._sessions.values():
            if session.socket is not None:
                await session.socket.send_str(json.dumps(payload))

    async def dispatch(self, event: str, data: Json) -> None:
        for session in self._sessions.values():
            await self._tell(session, event, data)

    # -- the gateway -----------------------------------------------------------------

    async def _tell(self, session: GatewaySession, event: str, data: Json) -> None:
        payload = {"op": DISPATCH, "t": event, "s": len(session.events) + 1, "d": data}
        session.events.append(payload)
        if session.socket is not None:
            await session.socket.send_str(json.dumps(payload))

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        if self.refused_connections:
            self.refused_connections -= 1
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"op": HELLO, "d": {"heartbeat_interval": 41_250}})
        async for received in socket:
            if received.type is WSMsgType.TEXT:
                await self._hear(socket, json.loads(received.data))
        for session in self._sessions.values():
            if session.socket is socket:
                session.socket = None
        return socket

    async def _hear(self, socket: web.WebSocketResponse, payload: Json) -> None:
        data = payload["d"]
        if payload["op"] == HEARTBEAT:
            await socket.send_json({"op": ACK})
        elif payload["op"] == IDENTIFY:
            if data["token"] != TOKEN:
                await socket.close(code=4004)
                return
            self.identified += 1
            self.intents = data["intents"]
            await self._greet(socket)
        elif payload["op"] == RESUME:
            await self._resume(socket, data)

    async def _greet(self, socket: web.WebSocketResponse) -> None:
        name = f"session-{self.identified}"
        session = GatewaySession(socket=socket)
        ready = {
            "v": 10,
            "user": user(BOT),
            "guilds": [{"id": str(GUILD), "unavailable": True}],
            "session_id": name,
            "resume_gateway_url": self.gateway_url,
            "application": {"id": "1", "flags": 0},
        }
        await self._tell(session, "READY", ready)
        await self._tell(session, "GUILD_CREATE", self._guild())
        self._sessions = {name: session}

    async def _resume(self, socket: web.WebSocketResponse, data: Json) -> None:
        session = self._sessions.get(data["session_id"])
        if session is None:
            await socket.send_json({"op": INVALID, "d": False})
            return
        self.resumed += 1
        for payload in session.events[data["seq"] :]:
            await socket.send_str(json.dumps(payload))
        session.socket = socket
        await self._tell(session, "RESUMED", {})

    def _guild(self, number: int = GUILD, *, joined_at: str = FIRST_MOMENT) -> Json:
        channels = [one for one, guild in self.guilds.items() if guild == number]
        everyone = {
            "id": str(number),
            "name": "@everyone",
            "permissions": "1024",
            "position": 0,
            "color": 0,
            "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
            "hoist": False,
            "managed": False,
            "mentionable": False,
            "flags": 0,
        }
        threads = self.threads if number == GUILD else []
        return {
            "id": str(number),
            "name": "Garden club",
            "roles": [everyone],
            "channels": [self.channel(one) for one in channels],
            "threads": [self.channel(one) for one in threads],
            "members": [_member() | {"user": user(BOT), "joined_at": joined_at}],
            "emojis": [],
            "features": [],
            "unavailable": False,
            "owner_id": str(ANN),
            "member_count": 3,
        }

    def channel(self, number: int) -> Json:
        if number in DM_OF.values():
            return {"id": str(number), "type": 1, "recipients": []}
        told = self.messages.get(number, [])
        base = {
            "id": str(number),
            "guild_id": str(self.guilds.get(number, GUILD)),
            "name": f"channel-{number}",
            "last_message_id": told[-1]["id"] if told else None,
        }
        if number not in self.threads:
            return base | {"type": 0, "position": 0, "permission_overwrites": []}
        metadata = {
            "archived": False,
            "auto_archive_duration": 60,
            "archive_timestamp": MOMENT,
            "locked": False,
        }
        return base | {
            "type": 11,
            "parent_id": str(GENERAL),
            "owner_id": str(ANN),
            "message_count": 0,
            "member_count": 1,
            "thread_metadata": metadata,
        }

    # -- REST ------------------------------------------------------------------------

    async def _rest(self, request: web.Request) -> web.Response:
        needs_token = not request.match_info["path"].startswith(("interactions", "webhooks"))
        if needs_token and request.headers.get("Authorization") != f"Bot {TOKEN}":
            return reply({"message": "401: Unauthorized", "code": 0}, status=401)
        body = await self._read_body(request)
        asked = Request(request.method, request.match_info["path"], body)
        self.requests.append(asked)
        status = self.fail(asked) if self.fail else 0
        if status:
            return reply({"message": "failed", "code": 0}, status=status)
        bucket = f"{asked.method} {asked.path.rpartition('/')[0]}"
        if self.per_window and asked.method in ("POST", "PATCH") and "messages" in asked.path:
            self._used[bucket] += 1
            asyncio.get_running_loop().call_later(self.window, self._release, bucket)
            if self._used[bucket] > self.per_window:
                return self._too_many()
        try:
            return reply(self._answer(asked, request.query))
        except Refusal as refusal:
            return reply({"message": str(refusal), "code": 0}, status=refusal.status)

    def _release(self, bucket: str) -> None:
        self._used[bucket] -= 1

    def _too_many(self) -> web.Response:
        self.refused += 1
        limited = {"message": "limited", "retry_after": self.window, "global": False}
        headers = {"Via": "1.1 discord", "X-RateLimit-Remaining": "0"}
        headers |= {"X-RateLimit-Limit": "5", "X-RateLimit-Reset-After": str(self.window)}
        return reply(limited, status=429, headers=headers)

    async def _read_body(self, request: web.Request) -> Json:
        if request.content_type.startswith("multipart"):
            body: Json = {}
            async for part in await request.multipart():
                name = part.name  # type: ignore[union-attr]
                data = await part.read()  # type: ignore[union-attr]
                if name == "payload_json":
                    body |= json.loads(data)
                else:
                    body.setdefault("files", []).append(data.decode())
            return body
        return await request.json() if request.can_read_body else {}

    def _answer(self, asked: Request, query: Any) -> Any:
        match [asked.method, *asked.path.split("/")]:
            case ["GET", "users", "@me"]:
                return user(BOT)
            case ["GET", "oauth2", "applications", "@me"]:
                return self._application()
            case ["PUT", "applications", _, "commands"]:
                return []
            case ["POST", "users", "@me", "channels"]:
                return self.channel(DM_OF[int(asked.body["recipient_id"])])
            case ["GET", "channels", channel]:
                return self.channel(int(channel))
            case ["POST", "channels", _, "typing"]:
                return {}
            case ["GET", "channels", channel, "messages"]:
                return self._history(int(channel), query)
            case ["POST", "channels", channel, "messages"]:
                return self._post(int(channel), asked.body)
            case ["PATCH", "channels", channel, "messages", message]:
                return self._edit(int(channel), message, asked.body)
            case ["DELETE", "channels", channel, "messages", message]:
                self.messages[int(channel)].remove(self._find(int(channel), message))
                return {}
            case ["POST", "interactions", number, _, "callback"]:
                return {"interaction": {"id": number, "type": 2}}
            case ["POST", "webhooks", *_]:
                self._check(asked.body)
                self.responses.append(asked.body)
                return self._make(GENERAL, BOT, asked.body.get("content", ""))
            case ["PATCH", "webhooks", *_, "messages", "@original"]:
                return self._make(GENERAL, BOT, "")
        raise AssertionError(f"nobody plays {asked.method} {asked.path}")

    def _application(self) -> Json:
        return {
            "id": "1",
            "name": "loom",
            "description": "",
            "icon": None,
            "bot_public": False,
            "bot_require_code_grant": False,
            "verify_key": "0" * 64,
            "flags": 0,
            "owner": user(ANN),
            "summary": "",
            "team": None,
        }

    def _history(self, channel: int, query: Any) -> list[Json]:
        after = int(query.get("after", 0))
        found = [m for m in self.messages[channel] if int(m["id"]) > after]
        limit = int(query.get("limit", 50))
        chosen = found[:limit] if "after" in query else found[-limit:]
        return [self._as_shown(message) for message in chosen[::-1]]

    def _post(self, channel: int, body: Json) -> Json:
        self._check(body)
        nonce = f"{channel} {body['nonce']}"
        if body.get("enforce_nonce") and nonce in self._nonces:
            return self._nonces[nonce]
        message = self._make(channel, BOT, body["content"]) | _shown(body)
        if reference := body.get("message_reference"):
            message["message_reference"] = reference
        self._nonces[nonce] = message
        self.messages[channel].append(message)
        return message

    def forget_nonces(self) -> None:
        """Forget the nonces, as Discord does after some minutes."""
        self._nonces = {}

    def _edit(self, channel: int, message: str, body: Json) -> Json:
        self._check(body)
        found = self._find(channel, message)
        found.update({"content": body["content"].strip()} | _shown(body))
        return found

    def _check(self, body: Json) -> None:
        content = body.get("content") or ""
        if len(content) > 2000 or not content.strip():
            raise Refusal(400, f"a content of {len(content)} characters")
        if body.get("allowed_mentions", {}).get("parse") != []:
            raise Refusal(400, "somebody could be pinged")

    def _find(self, channel: int, message: str) -> Json:
        found = next((m for m in self.messages[channel] if m["id"] == message), None)
        if found is None:
            raise Refusal(404, "unknown message")
        return found

    def _make(self, channel: int, author: int, text: str) -> Json:
        return {
            "id": str(next(self._ids)),
            "channel_id": str(channel),
            "author": user(author),
            "content": text.strip(),
            "timestamp": MOMENT,
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [],
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            "components": [],
            "pinned": False,
            "type": 0,
            "flags": 0,
        }

    def _as_told(self, message: Json) -> Json:
        shown = self._as_shown(message)
        if int(message["channel_id"]) in DM_OF.values():
            return shown
        guild = self.guilds.get(int(message["channel_id"]), GUILD)
        return shown | {"guild_id": str(guild), "member": _member()}

    def _as_shown(self, message: Json) -> Json:
        """Return the message as the bot sees it.

        Without the intent, the bot sees the content of its own messages, of direct messages and of
        messages that mention it.
        """
        people = [message["author"], *message["mentions"]]
        is_its_own = any(person["id"] == str(BOT) for person in people)
        is_direct = int(message["channel_id"]) in DM_OF.values()
        if self.intents & MESSAGE_CONTENT or is_its_own or is_direct:
            return message
        return message | {"content": "", "attachments": []}

    def _attach(self, name: str, data: bytes) -> Json:
        number = next(self._ids)
        self.files[number] = data
        url = f"{self.url}/files/{number}/{name}"
        return {
            "id": str(number),
            "filename": name,
            "size": len(data),
            "url": url,
            "proxy_url": url,
        }

    async def _file(self, request: web.Request) -> web.Response:
        asked = Request("GET", request.path, {})
        self.requests.append(asked)
        if status := self.fail(asked) if self.fail else 0:
            return web.Response(status=status)
        return web.Response(body=self.files[int(request.match_info["id"])])

    async def _interact(
        self, kind: int, channel: int, person: int, data: Json, **more: Any
    ) -> None:
        interaction = {
            "id": str(next(self._ids)),
            "application_id": "1",
            "type": kind,
            "token": "interaction-token",
            "version": 1,
            "channel_id": str(channel),
            "channel": self.channel(channel),
            "data": data,
            "entitlements": [],
            "authorizing_integration_owners": {},
            "attachment_size_limit": 10_000_000,
        }
        in_guild = channel not in DM_OF.values()
        if in_guild:
            interaction["guild_id"] = str(GUILD)
            interaction["member"] = _member() | {"user": user(person), "permissions": "0"}
        else:
            interaction["user"] = user(person)
        await self.dispatch("INTERACTION_CREATE", interaction | more)


class Refusal(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _shown(body: Json) -> Json:
    shown: Json = {"files": body.get("files", [])}
    if "components" in body:
        shown["components"] = body["components"] or []
    return shown


def _member() -> Json:
    return {"roles": [], "joined_at": MOMENT, "deaf": False, "mute": False, "flags": 0}


def reply(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a JSON response with Discord's content type, which has no charset."""
    named = {"Content-Type": "application/json"} | (headers or {})
    return web.Response(body=json.dumps(value).encode(), status=status, headers=named)
