"""The ASGI application: the threads on which requests run."""

import asyncio
import errno
from io import BytesIO
from threading import Event
from typing import Any, Never

import pytest
from asgiref.testing import ApplicationCommunicator
from django.http import HttpResponse, UnreadablePostError

from loomweb.asgi import OneThreadHandler, django_application
from loomweb.sqlite3.base import MAX_IDLE_CONNECTIONS

SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/sign-in/",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1")],
    "client": ("127.0.0.1", 1),
}


class FullFile(BytesIO):
    def __init__(self, **_: Any) -> None:
        super().__init__()

    def write(self, _: Any) -> Never:
        raise OSError(errno.ENOSPC, "No space left on device")


async def ask(application: Any) -> ApplicationCommunicator:
    request = ApplicationCommunicator(application, dict(SCOPE))
    await request.send_input({"type": "http.request"})
    return request


@pytest.mark.django_db(transaction=True)
async def test_a_request_is_sent_to_its_thread_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    run_in_executor, sent = loop.run_in_executor, []

    def count(executor: Any, function: Any, *args: Any) -> Any:
        sent.append(function)
        return run_in_executor(executor, function, *args)

    monkeypatch.setattr(loop, "run_in_executor", count)
    request = await ask(django_application)
    answer = await request.receive_output(10)
    body = await request.receive_output(10)
    await request.wait(10)
    assert answer["status"] == 200
    assert b"Sign in" in body["body"]
    # Django also sends request_started and request_finished on the thread.
    assert len(sent) <= 3


async def test_threads_are_kept_for_later_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, go_on = OneThreadHandler(), Event()
    monkeypatch.setattr(handler, "get_response", lambda _: go_on.wait(10) and HttpResponse())
    requests = [await ask(handler) for _ in range(MAX_IDLE_CONNECTIONS + 2)]
    go_on.set()
    for request in requests:
        await request.wait(10)
    kept = list(handler.idle)
    assert len(kept) == MAX_IDLE_CONNECTIONS
    await (await ask(handler)).wait(10)
    assert set(handler.idle) == set(kept)


async def test_a_thread_that_is_still_busy_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # If the browser has left, a server waits only a limited time for the view.
    handler, begun, go_on = OneThreadHandler(), Event(), Event()

    def answer(_: Any) -> HttpResponse:
        begun.set()
        go_on.wait(10)
        return HttpResponse()

    monkeypatch.setattr(handler, "get_response", answer)
    left = await ask(handler)
    assert await asyncio.to_thread(begun.wait, 10)
    for _ in range(2):  # Django sends request_finished on the same thread, so it waits again
        left.future.cancel()
        await asyncio.sleep(0.01)
    assert left.future.done()
    assert not handler.idle
    monkeypatch.setattr(handler, "get_response", lambda _: HttpResponse())
    later = await ask(handler)
    assert (await later.receive_output(10))["status"] == 200
    go_on.set()
    await later.wait(10)


async def test_reading_a_departed_clients_body_raises_unreadable_post_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler, begun, go_on, done = OneThreadHandler(), Event(), Event(), Event()

    def answer(request: Any) -> HttpResponse:
        begun.set()
        go_on.wait(10)
        with pytest.raises(UnreadablePostError):  # logged without a traceback
            request.read()
        done.set()
        return HttpResponse()

    monkeypatch.setattr(handler, "get_response", answer)
    left = await ask(handler)
    assert await asyncio.to_thread(begun.wait, 10)
    for _ in range(2):
        left.future.cancel()
        await asyncio.sleep(0.01)
    go_on.set()
    assert await asyncio.to_thread(done.wait, 10)


async def test_a_form_without_a_length_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, forms = OneThreadHandler(), []

    def answer(request: Any) -> HttpResponse:
        forms.append(request.POST.dict())
        return HttpResponse()

    monkeypatch.setattr(handler, "get_response", answer)
    form = [(b"content-type", b"multipart/form-data; boundary=x")]
    scope = SCOPE | {"method": "POST", "headers": [*SCOPE["headers"], *form]}
    request = ApplicationCommunicator(handler, scope)
    text = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nhello\r\n--x--\r\n'
    await request.send_input({"type": "http.request", "body": text[:20], "more_body": True})
    await request.send_input({"type": "http.request", "body": text[20:]})
    await request.wait(10)
    assert forms == [{"text": "hello"}]


async def test_a_body_for_which_the_disk_has_no_room_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.SpooledTemporaryFile", FullFile)
    request = ApplicationCommunicator(OneThreadHandler(), SCOPE | {"method": "POST"})
    await request.send_input({"type": "http.request", "body": b"begun", "more_body": True})
    await request.send_input({"type": "http.request", "body": b"end"})
    answer, body = [await request.receive_output(10) for _ in range(2)]
    await request.wait(10)
    assert answer["status"] == 507
    assert "disk is full" in body["body"].decode()
