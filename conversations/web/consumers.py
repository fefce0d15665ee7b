"""The socket of a session: receiving and sending frames.

No work happens here. A frame from the page becomes a call of the runtime, and the answer goes on
when the socket is closed.

A socket is opened step by step: it is counted, follows the session, has its access watched, and
shows its person as present. Each step puts its undoing on the stack ``opened``, which is unwound
when the server closes the socket or the page leaves. From then on, frames of the page are ignored.
For example, a person who loses access is no longer shown as present once 4404 is sent.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError
from django.utils import translation

from conversations.access import (
    SignedOut,
    access_context_of_socket,
    get_session_for,
    recheck_access,
)
from conversations.archive.messages import AcceptedMessage
from conversations.archive.rights import READ, WRITE, OpenPage, read_snapshot
from conversations.archive.sessions import save_reading_position
from conversations.archive.storage import translate_storage_error
from conversations.domain import errors
from conversations.domain.keyset import parse_cursor
from conversations.domain.messages import restore_message
from conversations.domain.text import dump_json, has_more_values, is_storable, number_text
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.models import Session
from conversations.rendering.messages import fill_marks, translate
from conversations.rendering.source_text import MARK_START
from conversations.runtime.access_refresh import SOCKETS, WatchedAccess
from conversations.runtime.current import current_runtime
from conversations.runtime.presence import PresentPage
from conversations.runtime.publish import Frame, Subscriber
from conversations.runtime.service import Runtime

from .errors import TRY_AGAIN_LATER
from .forms import check_attachment_ids, check_client_id, check_message_text, check_reason

logger = logging.getLogger(__name__)

BAD_FRAME, SIGNED_OUT, WRONG_ORIGIN, UNKNOWN = 4400, 4401, 4403, 4404
TOO_SLOW, TOO_MANY = 4408, 4429
STOPPING = 1012


HTML_FIELDS = frozenset({"html", "line", "meter", "open", "word"})  # fields of frames and rows
MAX_FRAME_VALUES = 10_000
STATE_FRAME = '{"type":"state",'  # the beginning of a state frame's JSON


class SessionConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """The socket of one page that follows one session."""

    language = settings.LANGUAGE_CODE
    is_open = False
    opened: ExitStack
    # Set by ``connect``.
    runtime: Runtime
    session: Session
    watched_access: WatchedAccess
    subscriber: Subscriber
    present: PresentPage
    rechecking: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with ExitStack() as self.opened:
                await super().__call__(scope, receive, send)
        finally:
            if self.rechecking is not None:
                self.rechecking.cancel()

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Handle a message without closing old database connections before it, as Channels does.

        That would need the thread that all sockets share. This class uses no connection of that
        thread.
        """
        await getattr(self, get_handler_name(message))(message)

    async def connect(self) -> None:
        query = parse_qs(self.scope["query_string"].decode("latin-1"))
        # The language of the page, because its rows are in it.
        if (language := query.get("language", [""])[0]) in dict(settings.LANGUAGES):
            self.language = language
        translation.activate(self.language)
        await self.accept()
        if not self.scope["origin_is_ours"]:
            await self.close(WRONG_ORIGIN)
            return
        user = self.scope["user"]
        # If another person has signed in since the page was opened, it must not send what the first
        # person has written in it.
        is_theirs = query.get("person", [str(user.pk)])[0] == str(user.pk)
        if not (user.is_authenticated and is_theirs):
            await self.close(SIGNED_OUT)
            return
        try:
            await self._open(query)
        except errors.NotFound:
            await self.close(UNKNOWN)
        except errors.TooManyRequests:
            await self.close(TOO_MANY)
        except (errors.Unavailable, errors.StorageFull) as error:
            is_stopping = error.code not in (errors.DATABASE_UNAVAILABLE, errors.StorageFull.code)
            await self.close(STOPPING if is_stopping else TRY_AGAIN_LATER)
        except errors.LoomError as error:
            await self._send(_error(error))
            await self.close(BAD_FRAME)

    async def _open(self, query: dict[str, list[str]]) -> None:
        runtime = self.runtime = await current_runtime()
        runtime.limiter.acquire(SOCKETS, self._user_pk)
        self.opened.callback(runtime.limiter.release, SOCKETS, self._user_pk)
        self.session, access = await runtime.readers.read(
            get_session_for, access_context_of_socket(self.scope), self._uuid, to=READ
        )
        session_key = self.scope["session"].session_key or ""
        open_page = OpenPage(session_key, self._user_pk, self.session.workspace_id, self.session.pk)
        snapshot = await runtime.readers.read(read_snapshot, open_page)
        self.watched_access = WatchedAccess(open_page, snapshot, self.recheck_soon)
        self.present = PresentPage(
            session_pk=self.session.pk,
            user_pk=self._user_pk,
            name=self.scope["user"].get_username(),
            may_write=access.can_write,
        )
        self.is_open = True
        # Subscribe before the replay, so that no frame is lost in between.
        self.subscriber = Subscriber(session_pk=self.session.pk, deliver=self.deliver)
        runtime.hub.add(self.subscriber)
        self.opened.callback(runtime.hub.remove, self.subscriber)
        runtime.access_refresher.add(self.watched_access)
        self.opened.callback(runtime.access_refresher.remove, self.watched_access)
        runtime.models.prepare()
        rewinds = query.get("rewinds", [""])[0]
        await self._catch_up(
            query.get("after", [""])[0],
            hello=True,
            rewinds=int(rewinds[:18]) if rewinds.isascii() and rewinds.isdigit() else None,
        )
        if not self.is_open:  # closed during the replay
            return
        runtime.presence.join(self.present)
        self.opened.callback(runtime.presence.leave, self.present)
        await self._save_position()

    async def disconnect(self, code: int) -> None:
        # The position is saved before the person counts as gone. In between, a list would show
        # turns as unread that they have read.
        if self.is_open:
            await self._save_position()

    async def _save_position(self) -> None:
        # Without the position, only a mark in a list is wrong. That is no reason to close the page
        # if the disk is full or the server is stopping.
        with suppress(DatabaseError, errors.Unavailable, errors.StorageFull):
            await self.runtime.writer.write(
                save_reading_position, self.session.pk, user_pk=self._user_pk
            )

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if not self.is_open:  # closed, but the page sent this before it knew
            return
        frame: Any = None
        text = text_data or ""
        # Checked before parsing, because parsing holds up the frames of everybody else.
        if has_more_values(text, MAX_FRAME_VALUES):
            limit = number_text(MAX_FRAME_VALUES)
            too_large = errors.TooLarge("A frame may have at most %(limit)s values.", limit=limit)
            await self._send(_error(too_large))
        elif len(text.encode()) <= settings.LOOM.max_frame_bytes:
            with suppress(ValueError, RecursionError):  # thousands of open brackets
                frame = json.loads(text)
        if not isinstance(frame, dict):
            await self.close(BAD_FRAME)
            return
        execute = _REQUESTS.get(str(frame.get("type")))
        try:
            if execute is None:
                raise errors.Rejected("Unknown frame type.", code="unknown_type")
            await execute(self, frame)
        except Exception as exception:
            error = translate_storage_error(exception) or exception
            if not isinstance(error, errors.LoomError):
                raise
            if not self.is_open:  # another check has closed it meanwhile
                return
            await self._send(_error(error, client_id=frame.get("client_id")))
            if isinstance(error, SignedOut | errors.NotFound):
                await self._close_denied(error)

    # Requests. ``_REQUESTS`` names the types of frames.

    async def send_message(self, frame: Frame) -> None:
        client_id = check_client_id(frame.get("client_id"))
        attachments = check_attachment_ids(frame.get("attachments") or [])
        text = check_message_text(frame.get("text"), may_be_empty=bool(attachments))
        await self._begin(
            self.runtime.send,
            client_id,
            text=text,
            attachments=attachments,
            goes_first=frame.get("now") is True,
        )
        if self.present.typing_until:
            self.runtime.presence.record_typing(self.present, is_writing=False)

    async def edit_message(self, frame: Frame) -> None:
        client_id = check_client_id(frame.get("client_id"))
        text = check_message_text(frame.get("text"), may_be_empty=True)
        await self._begin(self.runtime.edit, client_id, turn=_number(frame, "turn"), text=text)

    async def regenerate(self, frame: Frame) -> None:
        client_id = check_client_id(frame.get("client_id"))
        turn = None if frame.get("turn") is None else _number(frame, "turn")
        await self._begin(self.runtime.regenerate, client_id, turn=turn)

    async def continue_run(self, frame: Frame) -> None:
        await self._begin(self.runtime.continue_run, check_client_id(frame.get("client_id")))

    async def compact(self, frame: Frame) -> None:
        await self._begin(self.runtime.compact, check_client_id(frame.get("client_id")))

    async def _begin(
        self, begin: Callable[..., Awaitable[AcceptedMessage]], client_id: str, **values: Any
    ) -> None:
        session = await self._authorised(WRITE)
        accepted = await begin(session, client_id=client_id, user_pk=self._user_pk, **values)
        await self._send(
            {
                "type": "ack",
                "client_id": accepted.client_id,
                "run": str(accepted.run),
                "seq": accepted.seq,
                "turn": accepted.turn,
                "queued": accepted.turn is None,
            }
        )

    async def stop(self, frame: Frame) -> None:
        run = _uuid(frame, "run") if frame.get("run") else None
        await self.runtime.stop_run(await self._authorised(WRITE), only=run)

    async def withdraw(self, frame: Frame) -> None:
        run = _uuid(frame, "run")
        client_id = frame.get("client_id")
        if client_id is not None:
            check_client_id(client_id)
        session = await self._authorised(WRITE)
        await self.runtime.withdraw(session, run=run, user_pk=self._user_pk)
        if client_id is not None:
            await self._send({"type": "ack", "client_id": client_id, "run": str(run)})

    async def put_first(self, frame: Frame) -> None:
        run, stops = _uuid(frame, "run"), frame.get("stop") is True
        await self.runtime.put_first(await self._authorised(WRITE), run=run, stops=stops)

    async def approve(self, frame: Frame) -> None:
        decision = ALWAYS if frame.get("always") is True else ONCE
        await self._act_on_call(frame, self.runtime.decide_call, decision=decision)

    async def deny(self, frame: Frame) -> None:
        reason = check_reason(frame.get("reason") or "")
        await self._act_on_call(frame, self.runtime.decide_call, decision=DENY, reason=reason)

    async def cancel(self, frame: Frame) -> None:
        await self._act_on_call(frame, self.runtime.cancel_call)

    async def answer(self, frame: Frame) -> None:
        await self._act_on_call(
            frame,
            self.runtime.answer_question,
            question=str(frame.get("question")),
            action=str(frame.get("action")),
            content=frame.get("content"),
        )

    async def _act_on_call(
        self, frame: Frame, act: Callable[..., Awaitable[None]], **values: Any
    ) -> None:
        call = _uuid(frame, "call")
        session = await self._authorised(WRITE)
        try:
            await act(session, call=call, user_pk=self._user_pk, **values)
        except errors.NotFound as error:
            # NotFound would close the page, but only the call is missing and not the session.
            raise errors.Rejected(error.message, code="unknown_call") from error

    async def sync(self, frame: Frame) -> None:
        await self._authorised(READ)
        await self._catch_up(str(frame.get("after") or ""), hello=False)

    async def trimmed(self, frame: Frame) -> None:
        fields = {
            "session_id": str(self._uuid),
            "trimmed_rows": _number(frame, "rows"),
            "max_rows": settings.LOOM.render_cap,
        }
        logger.info("chat_render_trimmed", extra={"fields": fields})

    async def typing(self, frame: Frame) -> None:
        if self.present.may_write:
            self.runtime.presence.record_typing(
                self.present, is_writing=frame.get("is_writing") is True
            )

    async def ping(self, _: Frame) -> None:
        await self._send({"type": "pong"})

    @property
    def _user_pk(self) -> int:
        return int(self.scope["user"].pk)

    @property
    def _uuid(self) -> UUID:
        uuid: UUID = self.scope["url_route"]["kwargs"]["uuid"]
        return uuid

    async def _authorised(self, to: str) -> Session:
        # Rights can change while a socket is open, so they are checked again. The runtime reads
        # other fields of the session again when it needs them.
        may_write = await self.runtime.readers.read(
            recheck_access,
            self.watched_access.place,
            self.session.workspace,
            to=to,
            earlier=self.watched_access.initial,
        )
        if self.present.may_write != may_write:
            self.runtime.presence.record_right(self.present, may_write=may_write)
        return self.session

    def recheck_soon(self) -> None:
        """Check the person's access again in a task.

        Close the socket if they may not read the session any more, and publish a changed right to
        write.
        """
        if self.rechecking is None or self.rechecking.done():
            self.rechecking = asyncio.create_task(self._recheck())

    async def _recheck(self) -> None:
        try:
            await self._authorised(READ)
        except (DatabaseError, errors.Unavailable) as error:
            self.watched_access.latest = self.watched_access.initial
            fields = {"error_class": type(error).__name__}
            logger.warning("session_not_rechecked", extra={"fields": fields})
        except errors.LoomError as error:
            if self.is_open:
                await self._close_denied(error)

    async def _close_denied(self, error: errors.LoomError) -> None:
        await self.close(SIGNED_OUT if isinstance(error, SignedOut) else UNKNOWN)

    async def close(self, code: int | None = None, reason: str | None = None) -> None:
        self._release()
        await super().close(code, reason)

    def _release(self) -> None:
        self.is_open = False
        self.opened.close()

    async def _catch_up(self, after: str, *, hello: bool, rewinds: int | None = None) -> None:
        cursor = parse_cursor(after) if after else None
        self.subscriber.held = True
        frames, last_seq = await self.runtime.catch_up(
            self.session.uuid, cursor=cursor, rewinds=rewinds, hello=hello
        )
        if not self.is_open:
            return
        for frame in frames:
            await self._send(frame)
        self.subscriber.reached = max(self.subscriber.reached, last_seq)
        self.subscriber.release()

    def deliver(self, text: str) -> None:
        """Pass a frame on to the server. The hub calls this on the server's loop."""
        text = self._in_words(text)
        outbound = self.scope.get("outbound")
        if outbound is None:
            asyncio.ensure_future(self.send(text_data=text))  # noqa: RUF006 (ends at once)
            return
        if outbound.write(text):
            return
        # The frames of a page that does not read them would fill the memory. The page catches up
        # when it connects again.
        fields = {"session_id": str(self._uuid)}
        logger.warning("page_reads_too_slowly", extra={"fields": fields})
        self._release()
        asyncio.ensure_future(self._close_slow())  # noqa: RUF006 (ends soon)

    async def _close_slow(self) -> None:
        with suppress(OSError):  # the page has left meanwhile
            await self.close(TOO_SLOW)

    async def _send(self, frame: Frame) -> None:
        await self.send(text_data=self._in_words(dump_json(frame)))

    def _in_words(self, text: str) -> str:
        """Translate the JSON of a frame, which the hub sends to all pages, for this page."""
        is_state = text.startswith(STATE_FRAME)
        if not is_state and MARK_START not in text:
            return text
        with translation.override(self.language):
            frame = json.loads(text)
            if is_state:
                frame["text"] = translate(restore_message(frame["text"], frame.pop("said", None)))
            else:
                _fill_frame(frame)
            return dump_json(frame)


def _fill_frame(part: Frame) -> None:
    """Translate the HTML of a frame and its rows. All other fields hold text that people wrote."""
    for name in HTML_FIELDS & part.keys():
        part[name] = fill_marks(part[name])
    if "blocks" in part:
        part["blocks"] = [fill_marks(html) for html in part["blocks"]]
    for row in part.get("rows", ()):
        _fill_frame(row)


class NoSessionConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """A socket at an address without a session."""

    async def connect(self) -> None:
        await self.accept()
        await self.close(UNKNOWN)


_REQUESTS: dict[str, Callable[[SessionConsumer, Frame], Awaitable[None]]] = {
    "send": SessionConsumer.send_message,
    "edit": SessionConsumer.edit_message,
    "regenerate": SessionConsumer.regenerate,
    "retry": SessionConsumer.regenerate,
    "continue": SessionConsumer.continue_run,
    "compact": SessionConsumer.compact,
    "stop": SessionConsumer.stop,
    "withdraw": SessionConsumer.withdraw,
    "now": SessionConsumer.put_first,
    "approve": SessionConsumer.approve,
    "deny": SessionConsumer.deny,
    "cancel": SessionConsumer.cancel,
    "answer": SessionConsumer.answer,
    "sync": SessionConsumer.sync,
    "trimmed": SessionConsumer.trimmed,
    "ping": SessionConsumer.ping,
    "typing": SessionConsumer.typing,
}


def _uuid(frame: Frame, name: str) -> UUID:
    try:
        return UUID(str(frame.get(name)))
    except ValueError as error:
        raise errors.Rejected("%(name)s must be a UUID.", code=f"bad_{name}", name=name) from error


def _number(frame: Frame, name: str) -> int:
    value = frame.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**53:
        raise errors.Rejected("%(name)s must be a positive integer.", code="bad_number", name=name)
    return value


def _error(error: errors.LoomError, *, client_id: Any = None) -> Frame:
    frame: Frame = {"type": "error", "code": error.code, "message": translate(error.message)}
    is_echoed = isinstance(client_id, str) and is_storable(client_id)
    return frame | {"client_id": client_id} if is_echoed else frame
