"""Rules for images."""

import base64
import binascii
from typing import Any

from tests.wire.rules.errors import refuse

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


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
    try:
        data = base64.b64decode(source["data"], validate=True)
    except (TypeError, binascii.Error):
        data = b""
    if not data:
        raise refuse(f"{where}.data: invalid base64 data")
