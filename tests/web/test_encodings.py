"""Requests cannot bring in text that UTF-8 cannot encode."""

import pytest
from django.test import AsyncClient, Client
from django.urls import reverse

from conversations.archive.sessions import get_session
from conversations.models import Session

pytestmark = pytest.mark.django_db

PART = b'--x\r\nContent-Disposition: form-data; name="title"\r\n\r\n%b\r\n--x--\r\n'


def rename(owner: Client, session: Session, title: bytes, *, charset: str) -> int:
    return owner.generic(
        "POST",
        reverse("session_rename", args=[session.uuid]),
        PART % title,
        content_type=f"multipart/form-data; boundary=x; charset={charset}",
    ).status_code


@pytest.mark.parametrize("charset", ["unicode_escape", "utf-7", "utf-16", "raw-unicode-escape"])
def test_charset_that_can_decode_to_surrogates_is_refused(
    owner: Client, session: Session, charset: str
) -> None:
    assert rename(owner, session, rb"Beans \ud800", charset=charset) == 400
    assert get_session(session.uuid).title == ""


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "latin-1", "us-ascii", "none-of-that-name"])
def test_invalid_bytes_are_replaced(owner: Client, session: Session, charset: str) -> None:
    assert rename(owner, session, b"Beans \xed\xa0\x80", charset=charset) == 302
    assert get_session(session.uuid).title.encode().startswith(b"Beans ")


def test_charset_of_a_get_request_is_checked(owner: Client, session: Session) -> None:
    query = {"q": "\\ud800"}
    answer = owner.get("/search/", query, headers={"Content-Type": "text/plain; charset=utf-7"})
    assert answer.status_code == 400


async def test_charset_is_checked_in_async_views(
    async_client: AsyncClient, session: Session
) -> None:
    answer = await async_client.generic(
        "POST",
        reverse("session_send", args=[session.uuid]),
        PART % rb"\ud800",
        content_type="multipart/form-data; boundary=x; charset=unicode_escape",
    )
    assert answer.status_code == 400
