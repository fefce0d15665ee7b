"""Rules for documents."""

from io import BytesIO
from typing import Any

from pypdf import PdfReader

from tests.wire.rules.errors import refuse
from tests.wire.rules.images import read_base64

SOURCE_KEYS = {
    "base64": {"type", "media_type", "data"},
    "text": {"type", "media_type", "data"},
    "url": {"type", "url"},
    "content": {"type", "content"},
}
MAX_PAGES = 100


def check_document(block: dict[str, Any], where: str) -> None:
    source = block.get("source")
    where = f"{where}.document"
    if not isinstance(source, dict):
        raise refuse(f"{where}.source: Field required")
    kind = source.get("type")
    if kind not in SOURCE_KEYS:
        raise refuse(f"{where}.source: Input tag does not match any of the expected tags")
    if set(source) - SOURCE_KEYS[kind]:
        raise refuse(f"{where}.source.{kind}: Extra inputs are not permitted")
    title = block.get("title")
    if title is not None and (not isinstance(title, str) or not 1 <= len(title) <= 500):
        raise refuse(f"{where}.title: String should have 1 to 500 characters")
    if kind == "base64":
        check_pdf(source, f"{where}.source.base64")
    elif kind == "text":
        check_plain_text(source, f"{where}.source.text")


def check_pdf(source: dict[str, Any], where: str) -> None:
    if source.get("media_type") != "application/pdf":
        raise refuse(f"{where}.media_type: Input should be 'application/pdf'")
    data = read_base64(source.get("data"), where)
    try:
        reader = PdfReader(BytesIO(data))
        pages = 0 if reader.is_encrypted else len(reader.pages)
    except Exception as error:
        raise refuse(f"{where}.data: The PDF specified was not valid.") from error
    if not pages:
        raise refuse(f"{where}.data: The PDF specified is password protected or empty.")
    if pages > MAX_PAGES:
        raise refuse(f"{where}.data: A maximum of {MAX_PAGES} PDF pages may be provided.")


def check_plain_text(source: dict[str, Any], where: str) -> None:
    if source.get("media_type") != "text/plain":
        raise refuse(f"{where}.media_type: Input should be 'text/plain'")
    if not isinstance(source.get("data"), str) or not source["data"]:
        raise refuse(f"{where}.data: text must be non-empty")
