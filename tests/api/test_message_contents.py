"""Content of a message in the shapes of other programs."""

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
