"""A web page as text that a model reads: headings, paragraphs, lists, code, links."""

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

import nh3

_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BLOCKS = {
    *_HEADINGS,
    *("article", "aside", "blockquote", "dd", "div", "dl", "dt", "figcaption", "figure", "footer"),
    *("header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tr", "ul"),
}
_INLINE = {"a", "br", "code", "img", "td", "th", "title"}
_LEFT_OUT = {"iframe", "math", "noscript", "object", "script", "style", "svg", "template"}
_SPACE = re.compile(r"\s+")
_GAPS = re.compile(r"\n(?:[ \t]*\n){2,}")
_ENDS = re.compile(r"[ \t]+\n")


def html_to_text(html: str, *, base: str) -> str:
    """The page's readable text. Links are written as ``[text](address)``, addresses in full. nh3
    repairs the page first, so that no page is hard to parse."""
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
            self._end_link(*self._links.pop())
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
            self.pieces.append("\n```")
        elif tag in ("td", "th"):
            self.pieces.append(" | ")
        if (tag in _BLOCKS and tag not in ("li", "tr", "dt", "dd")) or tag == "title":
            self.pieces.append("\n\n")

    def handle_data(self, data: str) -> None:
        self.pieces.append(data if self._verbatim else _SPACE.sub(" ", data))

    def _end_link(self, address: str, begin: int) -> None:
        text = "".join(self.pieces[begin:]).strip()
        if not text or not address or address.startswith("#"):
            return
        try:
            target = urljoin(self._base, address)
        except ValueError:
            return
        self.pieces[begin:] = [f"[{_SPACE.sub(' ', text)}]({target})"]
