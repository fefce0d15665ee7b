"""What a request takes beside its middleware and its view."""

import asyncio
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from loomweb.asgi import django_application


@pytest.mark.django_db(transaction=True)
async def test_a_request_goes_to_its_thread_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    run_in_executor, sent = loop.run_in_executor, []

    def count(executor: Any, function: Any, *args: Any) -> Any:
        sent.append(function)
        return run_in_executor(executor, function, *args)

    monkeypatch.setattr(loop, "run_in_executor", count)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/sign-in/",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
    }
    request = ApplicationCommunicator(django_application, scope)
    await request.send_input({"type": "http.request"})
    answer = await request.receive_output(10)
    body = await request.receive_output(10)
    await request.wait(10)
    assert answer["status"] == 200
    assert b"Sign in" in body["body"]
    # Django sends its signals there too: that the request begins, and that it has ended.
    assert len(sent) <= 3
