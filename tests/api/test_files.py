"""Files by the API: attached, fetched and removed."""

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from conversations.archive.workspaces import add_member
from conversations.models import Attachment, Session
from tests.archive.files import image_bytes

from .conftest import caller_of
from .test_sessions import address_of


def upload(client: Client, session: Session, *files: SimpleUploadedFile) -> Any:
    return client.post(address_of(session, "/attachments"), {"files": list(files)})


@pytest.mark.django_db
class TestAttachments:
    def test_an_attached_file_is_returned_unchanged(
        self, session: Session, owner: Client, other_user: User
    ) -> None:
        data = image_bytes()
        answer = upload(owner, session, SimpleUploadedFile("bed.png", data))
        assert answer.status_code == 201, answer.content
        [kept] = answer.json()["items"]
        assert (kept["name"], kept["kind"], kept["size"]) == ("bed.png", "image", len(data))
        address = address_of(session, f"/attachments/{kept['uuid']}")
        fetched = owner.get(address)
        assert (fetched.content, fetched["Content-Type"]) == (data, "image/png")
        assert owner.get(address, headers={"If-None-Match": fetched["ETag"]}).status_code == 304
        add_member(session.workspace, user_pk=other_user.pk, role="member")
        assert caller_of(other_user).get(address).status_code == 404  # not sent yet
        assert owner.delete(address).status_code == 204
        assert owner.delete(address).status_code == 404

    def test_the_response_says_why_a_file_is_refused(self, session: Session, owner: Client) -> None:
        answer = upload(
            owner,
            session,
            SimpleUploadedFile("notes.txt", b"Plant the beans"),
            SimpleUploadedFile("x.bin", b"\x00\x01\x02"),
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "attachment_refused")
        kept, refused = answer.json()["files"]
        assert kept["attachment"]["name"] == "notes.txt"
        assert refused["reason"] in answer.json()["detail"]

    def test_an_upload_of_no_file_or_too_many_is_refused(
        self, session: Session, owner: Client
    ) -> None:
        assert upload(owner, session).status_code == 422
        many = [
            SimpleUploadedFile(f"{n}.txt", b"x") for n in range(settings.LOOM.max_attachments + 1)
        ]
        answer = upload(owner, session, *many)
        assert answer.json()["code"] == "too_many_attachments"
        assert not Attachment.objects.exists()
