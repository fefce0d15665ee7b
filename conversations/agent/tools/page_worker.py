"""The process that converts a web page to text.

It is a process of its own because a small page can fill the memory or keep the parser busy for
minutes, and because the page chooses the encoding by which it is decoded.

It is started as a script and imports nothing of this project. The input is a line of JSON with
``charset``, ``is_html``, ``base`` (the page's address), ``offset`` and ``limit`` (in characters),
followed by the page's bytes. The output is JSON with ``chars``, the length of the text, and
``part``, the requested part of it.
"""

import codecs
import json
import re
import resource
import sys
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import urljoin

import nh3

MAX_MEMORY_BYTES = 512 * 2**20
MAX_CPU_SECONDS = 20  # In case the server dies before it can end this process

# The beginning of a page, where it may declare its encoding (HTML Standard, 4.2.5.4)
CHARSET_HEAD_BYTES = 1024
_DECLARED = re.compile(rb"<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)

_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    options = json.loads(sys.stdin.buffer.readline())
    data, charset = sys.stdin.buffer.read(), options["charset"]
    if options["is_html"] and not charset:
        charset = declared_encoding(data)
    text = decode(data, charset)
    if options["is_html"]:
        text = html_to_text(text, base=options["base"])
    part = text[options["offset"] : options["offset"] + options["limit"]]
    print(json.dumps({"chars": len(text), "part": part}))


def declared_encoding(data: bytes) -> str:
    match = _DECLARED.search(data[:CHARSET_HEAD_BYTES])
    name = match[1].decode().lower() if match and not data.startswith(_MARKS) else ""
    # A declaration that can be read as ASCII cannot be in UTF-16 (13.2.3.2)
    return "" if name.startswith("utf-16") else name


def decode(data: bytes, charset: str) -> str:
    try:
        return data.decode(codecs.lookup(charset or "utf-8").name, errors="replace")
    except (LookupError, ValueError):
        return data.decode(errors="replace")


# A web page as text for a model: headings, paragraphs, lists, code and links.

_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BLOCKS = {
    *_HEADINGS,
    *("article", "aside", "blockquote", "dd", "div", "dl", "dt", "figcaption", "figure", "footer"),
    *("header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tr", "ul"),
}
_INLINE = {"a", "br", "code", "img", "td", "th", "title"}
_LEFT_OUT = {"iframe", "math", "noscript", "object", "script", "style", "svg", "template"}
_SPACE = re.compile(r"\s+")
_GAPS = re.compile(r"\n{3,}")
# Matches only from the start of a run of spaces, not from each of them
_ENDS = re.compile(r"(?<![ \t])[ \t]+\n")


def html_to_text(html: str, *, base: str) -> str:
    """Return the page's readable text.

    Links are written as ``[text](address)`` with full addresses. nh3 repairs the page first.
    """
    clean = nh3.clean(
        html,
        tags=_BLOCKS | _INLINE,
        clean_content_tags=_LEFT_OUT,
        attributes={"a": {"href"}, "img": {"alt"}},
        link_rel=None,
        strip_comments=True,
    )
    reader = _Reader(base)
    reader.feed(clean)
    reader.close()
    return _GAPS.sub("\n\n", _ENDS.sub("\n", "".join(reader.pieces))).strip()


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._base = base
        self._verbatim = 0
        self._links: list[tuple[str, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _BLOCKS or tag == "title":
            self.pieces.append("\n" if tag in ("li", "tr", "dt", "dd") else "\n\n")
        if tag in _HEADINGS:
            self.pieces.append(f"{_HEADINGS[tag]} ")
        elif tag == "li":
            self.pieces.append("- ")
        elif tag == "pre":
            self._verbatim += 1
            self.pieces.append("```\n")
        elif tag == "br":
            self.pieces.append("\n")
        elif tag == "a":
            self._links.append((values.get("href") or "", len(self.pieces)))
        elif tag == "img" and values.get("alt"):
            self.pieces.append(f"[{values['alt']}]")

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._links:
            address, begin = self._links.pop()
            text = _SPACE.sub(" ", "".join(self.pieces[begin:]).strip())
            if text and address and not address.startswith("#"):
                with suppress(ValueError):  # The link is not a valid address
                    self.pieces[begin:] = [f"[{text}]({urljoin(self._base, address)})"]
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
            self.pieces.append("\n```")
        elif tag in ("td", "th"):
            self.pieces.append(" | ")
        if (tag in _BLOCKS and tag not in ("li", "tr", "dt", "dd")) or tag == "title":
            self.pieces.append("\n\n")

    def handle_data(self, data: str) -> None:
        self.pieces.append(data if self._verbatim else _SPACE.sub(" ", data))


if __name__ == "__main__":
    main()
