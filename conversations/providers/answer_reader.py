"""Reading the bytes of one answer as stream items, for all protocols.

Each protocol other than the Messages API has a translator that turns its events into events of the
Messages API. ``message_assembly`` assembles the events of all protocols.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from conversations.domain.errors import ProviderError
from conversations.domain.stream import StreamItem
from conversations.domain.text import load_json

from .message_assembly import Event, MessageAssembly, StreamOutOfOrder
from .provider_errors import error_from_event, make_error
from .sse import DEFAULT_EVENT, SseParser

END_MARK = "[DONE]"  # The data that ends streams of OpenAI's protocol


class StreamTranslator(Protocol):
    """Translates the events of another protocol into events of the Messages API.

    Raises KeyError, TypeError, ValueError or AttributeError for events that it cannot read."""

    def translate(self, event: Event, kind: str) -> Iterable[Event]: ...

    def translate_document(self, document: Event) -> Iterable[Event]:
        """Translate an answer that came as one document, from a server that does not stream."""
        ...

    def end(self, *, is_marked: bool) -> Iterable[Event]:
        """Yield the last events, at the mark that ends a stream or at the end of the bytes.

        Yield no event if the answer is incomplete."""
        ...


class AnswerReader:
    """Turns the bytes of one answer into items, one chunk at a time.

    A chunk may hold good events before a bad one. :meth:`read` returns the items of the good
    events, and keeps the failure for :meth:`raise_failure`.
    """

    def __init__(
        self, *, headers: Mapping[str, str], secret: str, translator: StreamTranslator | None = None
    ) -> None:
        self._headers = headers
        self._secret = secret
        self._translator = translator
        self._parser = SseParser()
        self._assembly = MessageAssembly()
        self._failure: ProviderError | None = None

    @property
    def has_ended(self) -> bool:
        return self._assembly.has_ended

    def read(self, chunk: bytes) -> list[StreamItem]:
        items: list[StreamItem] = []
        try:
            for sse in self._parser.feed(chunk):
                event = load_event(sse.data)
                if event is not None:
                    kind = event.get("type") or (sse.name if sse.name != DEFAULT_EVENT else "")
                    self._handle(event, kind, items)
                elif self._translator is not None and sse.data == END_MARK:
                    self._assemble(self._translator.end(is_marked=True), items)
                if self._assembly.has_ended:
                    break
        except ProviderError as error:
            self._failure = error
        except (StreamOutOfOrder, KeyError, TypeError, ValueError, AttributeError) as error:
            self._failure = make_error("bad_response")
            self._failure.__cause__ = error
        return items

    def read_document(self, document: dict[str, Any]) -> list[StreamItem]:
        """Return the items of an answer that came as one document."""
        items: list[StreamItem] = []
        try:
            if self._translator is None:
                events: Iterable[Event] = events_of_message(document)
            else:
                events = self._translator.translate_document(document)
            self._assemble(events, items)
        except (StreamOutOfOrder, KeyError, TypeError, ValueError, AttributeError) as error:
            self._failure = make_error("bad_response", http_status=200)
            self._failure.__cause__ = error
        return items

    def end(self) -> list[StreamItem]:
        """Return the items that the end of the bytes adds."""
        items: list[StreamItem] = []
        if self._translator is not None and not self._assembly.has_ended:
            self._assemble(self._translator.end(is_marked=False), items)
        return items

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def require_end(self) -> None:
        """Raise ProviderError if the stream ended without its last event or a stop reason."""
        if not self._assembly.has_ended or self._assembly.stop_reason is None:
            raise make_error("incomplete_stream" if self._assembly.has_started else "bad_response")

    def _handle(self, event: Event, kind: str, items: list[StreamItem]) -> None:
        if kind == "error" or (self._translator is not None and event.get("error")):
            raise error_from_event(event, headers=self._headers, secret=self._secret)
        if self._translator is None:
            self._assembly.feed(event, kind, items)
        else:
            self._assemble(self._translator.translate(event, kind), items)

    def _assemble(self, events: Iterable[Event], items: list[StreamItem]) -> None:
        for event in events:
            self._assembly.feed(event, event["type"], items)


def load_event(data: str) -> Event | None:
    """Return the object in an event's data.

    Return None for empty data and for the end mark, which servers of the Messages API may send as
    well. Raise ValueError if the data is not a JSON object."""
    if not data or data == END_MARK:
        return None
    event = load_json(data)
    if not isinstance(event, dict):
        raise ValueError("an event that is no object")
    if "\\ud" in data.lower():
        # JSON can contain half of a surrogate pair, but no database or socket accepts it.
        text = json.dumps(event, ensure_ascii=False)
        return dict(json.loads(text.encode("utf-8", "replace")))
    return event


def events_of_message(message: dict[str, Any]) -> Iterable[Event]:
    """Yield the events with which the Messages API would have streamed this message."""
    blocks = message["content"]
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    ended = {name: message.get(name) for name in ("stop_reason", "stop_sequence", "stop_details")}
    yield {"type": "message_delta", "delta": ended, "usage": message.get("usage")}
    yield {"type": "message_stop"}
