"""Rules for images."""

import base64
import binascii
from io import BytesIO
from typing import Any

from PIL import Image

from tests.wire.rules.errors import refuse

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MAX_IMAGE_BYTES = 5 * 1024 * 1024
MAX_EDGE, MAX_EDGE_OF_MANY, MANY = 8_000, 2_000, 20


def check_image(block: dict[str, Any], where: str) -> None:
    source = block.get("source")
    where = f"{where}.image.source"
    if not isinstance(source, dict):
        raise refuse(f"{where}: Field required")
    if source.get("type") == "url":
        if not str(source.get("url", "")).startswith("https://"):
            raise refuse("Only HTTPS URLs are supported.")
        return
    if source.get("type") != "base64":
        raise refuse(f"{where}: Input tag does not match any of the expected tags: 'base64', 'url'")
    check_image_data(source, f"{where}.base64")


def check_image_data(source: dict[str, Any], where: str) -> None:
    if set(source) != {"type", "media_type", "data"}:
        raise refuse(f"{where}: fields are exactly type, media_type and data")
    if source["media_type"] not in IMAGE_TYPES:
        expected = ", ".join(repr(name) for name in IMAGE_TYPES)
        raise refuse(f"{where}.media_type: Input should be {expected}")
    data = read_base64(source["data"], where)
    if len(source["data"]) > MAX_IMAGE_BYTES:
        raise refuse(
            f"{where}: image exceeds 5 MB maximum:"
            f" {len(source['data'])} bytes > {MAX_IMAGE_BYTES} bytes"
        )
    try:
        with Image.open(BytesIO(data)) as image:
            image.load()
            kind, size = f"image/{(image.format or '').lower()}", image.size
    except Exception as error:
        raise refuse("Could not process image") from error
    if kind != source["media_type"]:
        raise refuse(
            f"{where}.media_type: Image does not match the provided media type"
            f" {source['media_type']}"
        )
    if max(size) > MAX_EDGE:
        raise refuse(f"{where}: At least one of the image dimensions exceed max allowed size: 8000")


def read_base64(data: Any, where: str) -> bytes:
    try:
        found = base64.b64decode(data, validate=True)
    except (TypeError, binascii.Error):
        found = b""
    if not found:
        raise refuse(f"{where}.data: invalid base64 data")
    return found
