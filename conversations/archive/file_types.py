"""Detection of a file's type by its content, never by its name or by the sender's claim."""

import codecs
import logging
import subprocess
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from django.conf import settings

from conversations.domain.attachments import (
    ACCEPTED,
    DOCUMENT,
    IMAGE,
    PDF_TYPE,
    TEXT,
    TEXT_TYPE,
    find_pdf,
    is_pdf,
)
from conversations.domain.errors import Rejected, TooLarge
from conversations.domain.messages import Message, say
from conversations.domain.text import estimate_tokens, number_text
from conversations.rendering.programs import ask_program

if TYPE_CHECKING:
    from PIL import Image

logger = logging.getLogger(__name__)

FORMATS = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",
    "GIF": "image/gif",
    "WEBP": "image/webp",
}

MAX_PIXELS = 50_000_000

# The provider scales images down to this size (see its documentation on vision), so larger images
# are scaled down before they are sent. It refuses images of more than 8,000 pixels.
MAX_SENT_EDGE_PIXELS = 1568

# The provider accepts 5 MB of an image in base64, which is a third longer than the bytes.
MAX_SENT_BYTES = 3_700_000

THUMBNAIL_EDGE_PIXELS = 320

PIXELS_PER_TOKEN = 750

TOKENS_PER_PAGE = 2_500  # A page costs 1,500 to 3,000 tokens, for its text and a picture of it.

MAX_PAGES = 100  # The provider's limit for all PDFs of one request

READING_SECONDS = 20  # Wall-clock limit for reading a PDF; ``pdf_pages`` has further limits

_decoding_lock = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileType:
    """The type of a file and the facts that depend on its type.

    ``sent`` is the content that the model gets instead of the file; None means the file itself.
    ``sent_type`` is the media type of ``sent``. ``thumbnail`` is a WebP image, or empty if there is
    none. ``tokens`` is the estimated size in the window.
    """

    kind: str
    media_type: str
    tokens: int
    width: int | None = None
    height: int | None = None
    pages: int | None = None
    sent: bytes | None = None
    sent_type: str = ""
    thumbnail: bytes = b""


def examine(data: bytes, name: str) -> FileType:
    """Detect the type of the content.

    Raise Rejected, or TooLarge if the content is too large, with a message for the person. This can
    take seconds of CPU time, so do not call it on the writer's thread.
    """
    if not data:
        raise Rejected("%(name)s is empty.", name=name, code="attachment_empty")
    check_size(len(data), name)
    if data.startswith(b"%PDF-"):
        return _examine_pdf(data, name)
    starts = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
    if data.startswith(starts) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        return _examine_image(data, name)
    text = decode_text(data)
    if is_pdf(data, name, is_text=text is not None):
        sent = data[find_pdf(data) :]
        return replace(_examine_pdf(sent, name), sent=sent)
    if text is None and b"\x00" not in data:  # text in any other encoding has no zero bytes
        raise Rejected(
            "%(name)s is not encoded in UTF-8. Save it as UTF-8, then attach it again.",
            name=name,
            code="attachment_type",
        )
    if text is None:
        raise Rejected(
            "%(name)s can’t be attached. %(accepted)s",
            name=name,
            accepted=ACCEPTED,
            code="attachment_type",
        )
    if not text.strip():
        raise Rejected("%(name)s contains no text.", name=name, code="attachment_empty")
    limit = settings.LOOM.max_message_chars
    if len(text) > limit:
        raise TooLarge(
            "%(name)s has %(count)s characters; the limit is %(limit)s. Put it into the "
            "workspace's folder, where the model can read it in parts.",
            name=name,
            count=number_text(len(text)),
            limit=number_text(limit),
            code="attachment_too_large",
        )
    return FileType(kind=TEXT, media_type=TEXT_TYPE, tokens=estimate_tokens(text))


def check_size(size: int, name: str) -> None:
    """Raise TooLarge if the size exceeds the limit for attachments."""
    limit = settings.LOOM.max_attachment_bytes
    if size > limit:
        raise TooLarge(
            "%(name)s is too large (%(size)s). The limit is %(limit)s.",
            name=name,
            size=_megabytes(size),
            limit=_megabytes(limit),
            code="attachment_too_large",
        )


# The longer byte order marks come first, because UTF-32's mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def decode_text(data: bytes) -> str | None:
    """Return the content as text, or None if it is not text."""
    encodings = (name for mark, name in _MARKS if data.startswith(mark))
    try:
        text = data.decode(next(encodings, "utf-8-sig"))
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def _megabytes(size: int) -> str:
    if size >= 100_000:
        return f"{size / 1_000_000:.1f} MB"
    return say("%(count)s bytes", count=number_text(size))


def _examine_pdf(data: bytes, name: str) -> FileType:
    output = _ask_for_pages(data, name)
    if output == "encrypted":
        raise Rejected(
            "%(name)s is protected, so the model cannot read it. Save it without protection.",
            name=name,
            code="attachment_encrypted",
        )
    pages = int(output) if output.isdigit() else 0
    if not pages:
        raise _damaged(say("%(name)s is a damaged PDF and cannot be read.", name=name))
    if pages > MAX_PAGES:
        raise TooLarge(
            "%(name)s has more than %(limit)s pages. Attach only the relevant part.",
            name=name,
            limit=MAX_PAGES,
            code="attachment_too_large",
        )
    return FileType(kind=DOCUMENT, media_type=PDF_TYPE, pages=pages, tokens=pages * TOKENS_PER_PAGE)


def _ask_for_pages(data: bytes, name: str) -> str:
    program = Path(__file__).with_name("pdf_pages.py")
    try:
        answer = ask_program(program, MAX_PAGES, data=data, seconds=READING_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("attachment_unreadable", extra={"fields": {"error": type(error).__name__}})
        if isinstance(error, subprocess.TimeoutExpired):
            raise TooLarge(
                "%(name)s takes too much time or memory to read.",
                name=name,
                code="attachment_too_large",
            ) from error
        return ""
    return answer.decode("ascii", "replace").strip()


def _damaged(message: Message) -> Rejected:
    return Rejected(message, code="attachment_damaged")


def _damaged_image(name: str) -> Rejected:
    return _damaged(say("%(name)s is a damaged image and cannot be read.", name=name))


def _examine_image(data: bytes, name: str) -> FileType:
    from PIL import Image, UnidentifiedImageError  # 2 MB that a server without images does not need

    with _decoding_lock:
        try:
            return _read_image(data, name)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise _too_many_pixels(name) from error
        except Rejected:
            raise
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError) as error:
            raise _damaged_image(name) from error
        except Exception as error:  # Pillow's plug-ins raise many kinds of errors for damaged files
            logger.info("attachment_unreadable", extra={"fields": {"error": type(error).__name__}})
            raise _damaged_image(name) from error


def _too_many_pixels(name: str) -> TooLarge:
    return TooLarge(
        "%(name)s has too many pixels; the limit is %(limit)s million.",
        name=name,
        limit=MAX_PIXELS // 1_000_000,
        code="attachment_too_large",
    )


def _read_image(data: bytes, name: str) -> FileType:
    from PIL import Image, ImageOps

    with Image.open(BytesIO(data), formats=("PNG", "JPEG", "GIF", "WEBP")) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise _too_many_pixels(name)
        media_type = FORMATS[image.format or ""]
        # Only send an image unchanged if every reader supports it: one picture, not in CMYK.
        is_usual = image.mode != "CMYK" and image.format != "MPO"
        is_single = is_usual and not getattr(image, "is_animated", False)
        orientation = image.getexif().get(0x0112, 1)
        # Do not decode a JPEG at a larger size than needed.
        image.draft("RGB", (MAX_SENT_EDGE_PIXELS, MAX_SENT_EDGE_PIXELS))
        # Keep only the pixels of the first picture, turned upright.
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):
            # Scale 16-bit grey values, because Pillow's conversion would clip them.
            upright = upright.convert("I").point(lambda grey: grey / 256).convert("L")
        has_alpha = "A" in upright.getbands() or "transparency" in upright.info
        picture = upright.convert("RGBA" if has_alpha else "RGB")
        picture.info = {}
    if orientation in (5, 6, 7, 8):
        width, height = height, width
    picture.thumbnail((MAX_SENT_EDGE_PIXELS, MAX_SENT_EDGE_PIXELS))
    is_sendable = (
        is_single
        and orientation in (0, 1)
        and max(width, height) <= MAX_SENT_EDGE_PIXELS
        and len(data) <= MAX_SENT_BYTES
    )
    sent, sent_type = (None, media_type) if is_sendable else _encode(picture, media_type)
    tokens = max(1, picture.width * picture.height // PIXELS_PER_TOKEN)
    picture.thumbnail((THUMBNAIL_EDGE_PIXELS, THUMBNAIL_EDGE_PIXELS))
    return FileType(
        kind=IMAGE,
        media_type=media_type,
        tokens=tokens,
        width=width,
        height=height,
        sent=sent,
        sent_type=sent_type,
        thumbnail=_save(picture, "WEBP", quality=80),
    )


def _encode(image: "Image.Image", media_type: str) -> tuple[bytes, str]:
    # Store images other than JPEG without loss if they are small enough.
    if media_type != "image/jpeg":
        data = _save(image, "PNG", optimize=True)
        if len(data) <= MAX_SENT_BYTES:
            return data, "image/png"
    return _save(image, "WEBP", quality=85), "image/webp"


def _save(image: "Image.Image", kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
