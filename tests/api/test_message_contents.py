"""Message content in the formats of other programs."""

import asyncio
from typing import Any

import pytest

from conversations.models import Attachment, Session
from tests.domain.formats import samples
from tests.wire.server import WireThread

from .conftest import Program

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    "image",
    [
        samples.IMAGE,
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{samples.PNG}"},
        },
    ],
)
async def test_images_are_sent_within_a_message(
    program: Program, session: Session, provider: WireThread, image: dict[str, Any]
) -> None:
    body = {"content": [{"type": "text", "text": "Look."}, image]}
    address = f"/api/v1/sessions/{session.uuid}/messages?wait=20"
    key = {"Idempotency-Key": "order-4711"}
    answers = [
        await program.post(address, body, content_type="application/json", headers=key)
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["run"] == answers[1].json()["run"]
    attached = await Attachment.objects.aget()
    assert (attached.turn_number, attached.media_type) == (1, "image/png")
    kinds = [block["type"] for block in provider.requests[-1]["messages"][0]["content"]]
    assert "image" in kinds


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_repeated_message_with_duplicate_files_is_recognised(
    program: Program, session: Session, provider: WireThread, *, at_once: bool
) -> None:
    body = {"content": [{"type": "text", "text": "Look."}, samples.IMAGE, samples.IMAGE]}
    address = f"/api/v1/sessions/{session.uuid}/messages?wait=20"

    async def send() -> Any:
        headers = {"Idempotency-Key": "order-4711"}
        return await program.post(address, body, content_type="application/json", headers=headers)

    answers = await asyncio.gather(send(), send()) if at_once else [await send(), await send()]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["run"] == answers[1].json()["run"]
    assert await Attachment.objects.filter(turn_number=1).acount() == 2
    other = {"content": [{"type": "text", "text": "Look."}, samples.IMAGE]}
    headers = {"Idempotency-Key": "order-4711"}
    answer = await program.post(address, other, content_type="application/json", headers=headers)
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"context": "From the almanac"}, "context of a document is not stored"),
        ({"citations": {"enabled": True}}, "Citations are not supported"),
        ({"title": "beds.txt", "context": None, "citations": {"enabled": False}}, ""),
    ],
)
async def test_document_fields_that_are_not_stored_are_refused(
    program: Program, session: Session, provider: WireThread, more: Any, reason: str
) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Two beds."}
    body = {"content": [{"type": "document", "source": source} | more]}
    address = f"/api/v1/sessions/{session.uuid}/messages?wait=20"
    answer = await program.post(address, body, content_type="application/json")
    if reason:
        assert (answer.status_code, reason in answer.json()["detail"]) == (400, True)
        assert not await Attachment.objects.aexists()
    else:
        assert answer.status_code == 200
        sent = provider.requests[-1]["messages"][0]["content"][0]
        assert (sent["title"], sent["source"]["data"]) == ("beds.txt", "Two beds.")
