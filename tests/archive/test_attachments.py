"""Attachments: recognised types, stored content and access."""

from contextlib import suppress
from datetime import timedelta
from io import BytesIO

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from conversations.archive.attachments import (
    attachment_block,
    check_attachments,
    get_attachment,
    remove_attachment,
    remove_unsent,
    save_attachment,
    upload_attachment,
)
from conversations.archive.blobs import read_blob
from conversations.archive.file_types import examine
from conversations.domain.attachments import clean_name, shown_attachment
from conversations.domain.errors import Conflict, NotFound, Rejected, TooLarge
from conversations.models import (
    Attachment,
    Run,
    Session,
)

from . import files


@pytest.mark.parametrize(
    ("kind", "media_type"),
    [
        ("PNG", "image/png"),
        ("JPEG", "image/jpeg"),
        ("GIF", "image/gif"),
        ("WEBP", "image/webp"),
    ],
)
def test_image_is_recognised_by_its_content(kind: str, media_type: str) -> None:
    content = examine(files.image_bytes(kind), "notes.txt")
    assert (content.kind, content.media_type) == ("image", media_type)
    assert (content.width, content.height) == (40, 30)
    assert content.sent is None
    assert content.sent_type == media_type


def test_pdf_is_recognised_and_its_pages_are_counted() -> None:
    content = examine(files.pdf_bytes(3), "report")
    assert (content.kind, content.media_type, content.pages) == ("document", "application/pdf", 3)
    assert content.tokens == 7_500
    assert examine(files.pdf_with_script(), "report").pages == 1


def test_pdf_may_have_bytes_before_its_beginning() -> None:
    data = files.pdf_with_script()
    content = examine(b"\r\n" + data, "report.PDF")
    assert (content.kind, content.pages, content.sent) == ("document", 1, data)
    assert examine(b"These bytes begin a PDF: %PDF-", "notes").kind == "text"


@pytest.mark.parametrize(
    "data",
    [
        b"plain words",
        "Grüße, 世界 🎉".encode(),
        "﻿with a mark".encode(),
        "sixteen bits".encode("utf-16"),
        b"<!doctype html><script>alert(1)</script>",
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        b"MZ is how it begins, and it is still text",
    ],
)
def test_any_readable_text_is_treated_as_plain_text(data: bytes) -> None:
    content = examine(data, "page.png")
    assert (content.kind, content.media_type) == ("text", "text/plain")
    assert content.thumbnail == b""


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", "attachment_empty", "is empty"),
        (b" \n ", "attachment_empty", "no text"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "attachment_type", "PNG, JPEG, GIF, WebP"),
        (b"PK\x03\x04\x14\x00\x00\x00\xff\xfe", "attachment_type", "PDF and text"),
        (b"PK\x03\x04\n\x00a.pdf" + files.pdf_bytes(1), "attachment_type", "PDF and text"),
        (b"text with a \x00 in it", "attachment_type", "can be attached"),
        ("Äpfel;3\r\n".encode("cp1252"), "attachment_type", "is not encoded in UTF-8"),
        (b"\xff\xfe\x00", "attachment_type", "can be attached"),
        (files.image_bytes("JPEG", (400, 400))[:-400], "attachment_damaged", "damaged image"),
        (b"GIF89a/*\xff*/=alert(1)", "attachment_damaged", "damaged image"),
        (b"RIFF\x24\x00\x00\x00WEBPVP8 ", "attachment_damaged", "damaged image"),
        (files.png_of_size(60_000, 60_000), "attachment_too_large", "too many pixels"),
        (files.png_of_size(9_000, 9_000), "attachment_too_large", "too many pixels"),
        (files.png_of_size(12_000, 4_000), "attachment_damaged", "damaged image"),
        (b"%PDF-1.7\nnothing of the kind", "attachment_damaged", "damaged PDF"),
        (files.pdf_bytes(1, password="x"), "attachment_encrypted", "protected"),
        (files.pdf_bytes(101), "attachment_too_large", "more than 100 pages"),
        (b"x" * 10_000_001, "attachment_too_large", "The limit is 10.0 MB"),
        (b"x" * 400_001, "attachment_too_large", "the workspace's folder"),
    ],
)
def test_invalid_file_is_refused_with_a_code_and_a_message(
    data: bytes, code: str, words: str
) -> None:
    with pytest.raises(Rejected) as caught:
        examine(data, "a.bin")
    assert caught.value.code == code
    assert words in caught.value.message
    assert caught.value.message.startswith("a.bin")


def test_image_with_a_decompression_bomb_is_refused() -> None:
    with pytest.raises(Rejected, match="damaged image"):
        examine(files.png_with_bomb_of_text(), "bomb.png")


def test_pdf_pages_that_are_named_repeatedly_are_counted_once() -> None:
    content = examine(files.pdf_that_names_pages_twice(), "tree.pdf")
    assert content.pages == 1


def test_pdf_that_takes_too_long_to_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = b"%PDF-1.4\ntrailer\n" + b"<<" * 4_000_000 + b"\nstartxref\n9\n%%EOF"
    monkeypatch.setattr("conversations.archive.file_types.READING_SECONDS", 0.3)
    with pytest.raises(TooLarge, match=r"nested\.pdf takes too much time or memory to read\."):
        examine(nested, "nested.pdf")


@given(st.binary(max_size=400), st.sampled_from(["", "GIF89a", "PNG", "WEBP"]))
@settings(max_examples=50)
def test_random_data_raises_no_error_but_rejected(data: bytes, start: str) -> None:
    starts = {"PNG": files.image_bytes()[:40], "WEBP": files.image_bytes("WEBP")[:24]}
    with suppress(Rejected):
        examine(starts.get(start, start.encode()) + data, "x")


def test_large_image_gets_a_smaller_copy_for_the_model() -> None:
    content = examine(files.image_bytes("PNG", (3136, 1000)), "wide.png")
    assert (content.width, content.height) == (3136, 1000)
    assert content.sent is not None
    sent = Image.open(BytesIO(content.sent))
    assert (sent.size, sent.format, content.sent_type) == ((1568, 500), "PNG", "image/png")
    assert content.tokens == 1568 * 500 // 750


def test_photo_is_sent_upright_and_without_exif_data() -> None:
    content = examine(files.photo_with_place(), "IMG_1.jpg")
    assert (content.width, content.height) == (20, 60)
    assert content.sent is not None
    for data in (content.sent, content.thumbnail):
        image = Image.open(BytesIO(data))
        assert image.size == (20, 60)
        assert not image.getexif()
        assert b"GPS-SECRET-PLACE" not in data


def test_animation_is_sent_as_a_png() -> None:
    content = examine(files.animated_gif(), "a.gif")
    assert content.media_type == "image/gif"
    assert content.sent_type == "image/png"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_every_colour_mode_gives_a_thumbnail(mode: str) -> None:
    content = examine(files.image_bytes("PNG", (900, 600), mode=mode), "a.png")
    thumbnail = Image.open(BytesIO(content.thumbnail))
    assert (thumbnail.format, thumbnail.size) == ("WEBP", (320, 213))


def test_sixteen_bit_grey_keeps_its_brightness() -> None:
    large = Image.frombytes("I;16", (2_000, 4), b"\x00\x40" * 8_000)
    drawn = BytesIO()
    large.save(drawn, "PNG")
    content = examine(drawn.getvalue(), "scan.png")
    assert content.sent
    for data in (content.sent, content.thumbnail):
        grey = Image.open(BytesIO(data)).convert("L").getpixel((0, 0))
        assert grey == pytest.approx(0x40, abs=3)


def test_cmyk_image_is_sent_as_rgb() -> None:
    content = examine(files.image_bytes("JPEG", mode="CMYK"), "a.jpg")
    assert content.sent is not None
    assert Image.open(BytesIO(content.sent)).mode == "RGB"


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("photo.png", "photo.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ann\\a b.pdf", "a b.pdf"),
        ("a\r\nSet-Cookie: x=1.txt", "aSet-Cookie: x=1.txt"),
        ("evil\u202egnp.exe", "evilgnp.exe"),
        ("\x00\x1b[31mred.txt", "[31mred.txt"),
        ("", "file"),
        ("...", "file"),
        ("x" * 300 + ".png", "x" * 251 + ".png"),
        ("世" * 200 + ".txt", "世" * 83 + ".txt"),
        ("\ud800.txt", "txt"),
    ],
)
def test_file_names_are_cleaned(name: str, clean: str) -> None:
    assert clean_name(name) == clean
    assert len(clean.encode()) <= 255


def test_same_file_content_is_stored_once(session: Session, user: User) -> None:
    data = files.photo_with_place()
    first = save_attachment(session.pk, data=data, name="a/b/one.jpg", user_pk=user.pk)
    second = save_attachment(session.pk, data=data, name="two.jpg", user_pk=user.pk)
    assert first.digest == second.digest
    assert first.uuid != second.uuid
    assert first.name == "one.jpg"
    assert read_blob(first.digest) == data
    assert read_blob(first.sent) != data
    assert Image.open(BytesIO(read_blob(first.thumbnail))).format == "WEBP"


def test_attachment_block_refers_to_the_sent_copy(session: Session, user: User) -> None:
    kept = save_attachment(
        session.pk, data=files.photo_with_place(), name="one.jpg", user_pk=user.pk
    )
    assert attachment_block(kept) == {
        "type": "image",
        "source": {
            "type": "attachment",
            "digest": kept.sent,
            "media_type": "image/webp" if kept.sent_type == "image/webp" else kept.sent_type,
            "tokens": 1,
        },
        "title": "one.jpg",
        "attachment": str(kept.uuid),
        "size": kept.size,
        "media_type": "image/jpeg",
        "width": 20,
        "height": 60,
    }
    assert shown_attachment(attachment_block(kept)) == {
        "uuid": str(kept.uuid),
        "name": "one.jpg",
        "kind": "image",
        "media_type": "image/jpeg",
        "size": kept.size,
        "width": 20,
        "height": 60,
    }


def test_only_the_uploader_sees_a_file_before_it_is_sent(
    session: Session, user: User, other_user: User
) -> None:
    kept = upload_attachment(session.pk, data=b"words", name="a.txt", user_pk=user.pk)
    assert get_attachment(session.pk, kept.uuid, user_pk=user.pk) == kept
    with pytest.raises(NotFound):
        get_attachment(session.pk, kept.uuid, user_pk=other_user.pk)
    with pytest.raises(NotFound):
        remove_attachment(session.pk, kept.uuid, user_pk=other_user.pk)
    with pytest.raises(Rejected, match="no longer exists"):
        check_attachments(session.pk, [str(kept.uuid)], user_pk=other_user.pk)
    Attachment.objects.update(turn_number=1)
    assert get_attachment(session.pk, kept.uuid, user_pk=other_user.pk) == kept
    with pytest.raises(Conflict):
        remove_attachment(session.pk, kept.uuid, user_pk=user.pk)


def test_file_of_a_queued_message_is_not_removed(session: Session, user: User) -> None:
    kept = upload_attachment(session.pk, data=b"words", name="a.txt", user_pk=user.pk)
    free = upload_attachment(session.pk, data=b"other", name="b.txt", user_pk=user.pk)
    Run.objects.create(
        session=session,
        client_id="client-0001",
        state="queued",
        attachments=f'["{kept.uuid}"]',
        created_at=timezone.now(),
    )
    with pytest.raises(Conflict):
        remove_attachment(session.pk, kept.uuid, user_pk=user.pk)
    assert remove_unsent() == 0
    Attachment.objects.update(created_at=timezone.now() - timedelta(days=2))
    assert remove_unsent() == 1
    assert list(Attachment.objects.values_list("uuid", flat=True)) == [kept.uuid]
    assert free.uuid != kept.uuid


def test_more_than_100_unsent_files_are_refused(session: Session, user: User) -> None:
    kept = upload_attachment(session.pk, data=b"words", name="a.txt", user_pk=user.pk)
    Attachment.objects.bulk_create(
        Attachment(
            session=session,
            name="x",
            kind="text",
            media_type="text/plain",
            digest=kept.digest,
            size=5,
            added_by=user,
            created_at=kept.created_at,
        )
        for _ in range(99)
    )
    with pytest.raises(Conflict, match="100 files are already waiting"):
        upload_attachment(session.pk, data=b"words", name="a.txt", user_pk=user.pk)
