"""Atom feeds (RFC 4287), in pages (RFC 5005)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from xml.etree import ElementTree

NAMESPACE = "http://www.w3.org/2005/Atom"

MEDIA_TYPE = "application/atom+xml; charset=utf-8"

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot say, not even escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """``summary`` is plain text; ``states`` become categories."""

    id: str
    title: str
    link: str
    author: str
    published: datetime
    updated: datetime
    summary: str = ""
    states: Iterable[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A page of a feed. All pages have the same ``id``; ``links`` are relation → address."""

    id: str
    title: str
    updated: datetime
    links: Mapping[str, str]
    entries: list[FeedEntry] = field(default_factory=list)


def render_feed(feed: Feed) -> bytes:
    root = ElementTree.Element("feed", xmlns=NAMESPACE)
    _add(root, "id", feed.id)
    _add(root, "title", feed.title)
    _add(root, "updated", feed.updated.isoformat())
    _add(root, "generator", "Loom Web")
    for relation, address in feed.links.items():
        kind = "text/html" if relation == "alternate" else "application/atom+xml"
        _add(root, "link", rel=relation, href=address, type=kind)
    for entry in feed.entries:
        _add_entry(root, entry)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _add_entry(root: ElementTree.Element, entry: FeedEntry) -> None:
    element = _add(root, "entry")
    _add(element, "id", entry.id)
    _add(element, "title", entry.title)
    _add(element, "link", rel="alternate", href=entry.link, type="text/html")
    _add(_add(element, "author"), "name", entry.author)
    _add(element, "published", entry.published.isoformat())
    _add(element, "updated", entry.updated.isoformat())
    for state in entry.states:
        _add(element, "category", term=state)
    if entry.summary:
        _add(element, "summary", entry.summary)


def _add(
    parent: ElementTree.Element, name: str, text: str = "", **attributes: str
) -> ElementTree.Element:
    said = {key: _sayable(value) for key, value in attributes.items()}
    element = ElementTree.SubElement(parent, name, said)
    element.text = _sayable(text) or None
    return element


def _sayable(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
