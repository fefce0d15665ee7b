"""Builders of files for attachments: valid, damaged and hostile ones."""

import struct
import zlib
from io import BytesIO
from typing import Any

from PIL import Image
from pypdf import PdfWriter

from conversations.archive.messages import accept_message
from conversations.archive.runs import finish_run
from conversations.models import Attachment, Session


def send_file(session: Session, file: Attachment, *, client_id: str = "client-1") -> None:
    """Send the file in a message of the session's owner and end the run without an answer."""
    accepted = accept_message(
        session,
        client_id=client_id,
        text="Look",
        user_pk=session.owner_id,
        max_queued=3,
        owner="me",
        attachments=[str(file.uuid)],
    )
    assert accepted.claimed is not None
    finish_run(accepted.claimed, state="completed", payloads=[])


def image_bytes(
    kind: str = "PNG", size: tuple[int, int] = (40, 30), *, mode: str = "RGB", **options: Any
) -> bytes:
    file = BytesIO()
    Image.new(mode, size, "teal" if mode in ("RGB", "RGBA") else 0).save(file, kind, **options)
    return file.getvalue()


def photo_with_place(*, orientation: int = 6) -> bytes:
    """Return a JPEG whose EXIF data holds a place and says that the picture lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010E] = "GPS-SECRET-PLACE"
    exif.get_ifd(0x8825)[1] = "N"
    return image_bytes("JPEG", (60, 20), exif=exif)


def animated_gif() -> bytes:
    frames = [Image.new("RGB", (30, 20), colour) for colour in ("red", "green", "blue")]
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """Return a small PNG whose header claims ``width`` by ``height`` pixels."""
    row = b"\x00" * (width // 8 + 2)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * min(height, 64))),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def png_with_bomb_of_text() -> bytes:
    """Return a small PNG with a compressed text that unpacks to 100 MB."""
    whole = image_bytes()
    bomb = _chunk(b"zTXt", b"Comment\x00\x00" + zlib.compress(b"A" * 100_000_000, 9))
    return whole[:33] + bomb + whole[33:]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pdf_bytes(pages: int = 2, *, password: str = "") -> bytes:
    writer = PdfWriter()
    for _ in range(pages):
        writer.add_blank_page(width=200, height=200)
    if password:
        writer.encrypt(password)
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def pdf_that_names_pages_twice(levels: int = 40) -> bytes:
    """Return a PDF whose page nodes each name the next node twice: 2^40 pages in 3 KB."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    objects += [
        b"<< /Type /Pages /Count 2 /Kids [%d 0 R %d 0 R] >>" % (number + 1, number + 1)
        for number in range(2, levels + 2)
    ]
    objects.append(b"<< /Type /Page /MediaBox [0 0 9 9] >>")
    return _pdf_of(objects)


def pdf_with_script() -> bytes:
    """Return a PDF that runs a script when it is opened."""
    action = b"<< /S /JavaScript /JS (app.alert\\(1\\)) >>"
    return _pdf_of(
        [
            b"<< /Type /Catalog /Pages 2 0 R /OpenAction %s >>" % action,
            b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>",
        ]
    )


def _pdf_of(objects: list[bytes]) -> bytes:
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"trailer << /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    return data + b"startxref\n%d\n%%%%EOF\n" % start
