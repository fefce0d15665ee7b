"""A program that removes scripts, links and external resources from untrusted HTML.

It is a separate process because the cleaner is native code whose time and memory are quadratic in
the nesting depth of elements.

It reads a JSON list of HTML texts from standard input and writes a JSON list of the cleaned texts.
It imports no module of the product, so that it starts fast.
"""

import json
import re
import resource
import sys

import nh3

MAX_CPU_SECONDS, MAX_MEMORY_BYTES = 5, 1_000_000_000

# The policy of the frame forbids running scripts and loading resources. These elements are removed
# all the same, because browsers look up names and open connections before they check the policy
# (``<link rel=preconnect>``, frames).

_SHAPES = {
    *("svg", "g", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon"),
    *("text", "tspan", "defs", "clipPath", "linearGradient", "radialGradient", "stop", "marker"),
}
_CONTROLS = {"button", "fieldset", "input", "label", "legend", "meter", "progress", "textarea"}
_DRAWN = {
    *("viewBox", "preserveAspectRatio", "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r"),
    *("rx", "ry", "dx", "dy", "points", "fill", "fill-opacity", "fill-rule", "stroke"),
    *("stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "opacity"),
    *("stroke-linejoin", "transform", "text-anchor", "font-size", "font-family", "font-weight"),
    *("offset", "stop-color", "stop-opacity", "gradientUnits", "gradientTransform"),
    *("clip-path", "dominant-baseline", "marker-end", "marker-start", "markerWidth"),
    *("markerHeight", "refX", "refY", "orient"),
}
_ANYWHERE = {
    *("class", "style", "id", "title", "lang", "dir", "role", "width", "height", "align", "valign"),
    *("bgcolor", "border", "cellpadding", "cellspacing", "color", "face", "size"),
}
_OWN = {
    "a": {"href"},
    "img": {"src", "alt"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan", "scope"},
    "col": {"span"},
    "ol": {"start", "reversed", "type"},
    "li": {"value"},
    "details": {"open"},
    "input": {"type", "value", "checked", "disabled", "placeholder", "min", "max"},
    "meter": {"value", "min", "max", "low", "high"},
    "progress": {"value", "max"},
}
_INSIDE_ONLY = {"href": re.compile(r"#.*"), "src": re.compile(r"data:image/.*", re.DOTALL)}


def _keep_attribute(tag: str, name: str, value: str) -> str | None:
    """Drop a link or source that points outside the file."""
    allowed = _INSIDE_ONLY.get(name)
    return value if allowed is None or allowed.fullmatch(value.strip()) else None


_TAGS = nh3.ALLOWED_TAGS | _SHAPES | _CONTROLS | {"font", "main", "section", "style"}
_CLEANER = nh3.Cleaner(
    tags=_TAGS,
    clean_content_tags={
        *("script", "noscript", "template", "iframe", "object", "title", "noembed", "noframes"),
    },
    attributes={"*": _ANYWHERE}
    | {tag: set(_DRAWN) for tag in _SHAPES}
    | {tag: set(names) for tag, names in _OWN.items()},
    attribute_filter=_keep_attribute,
    generic_attribute_prefixes={"aria-"},
    url_schemes={"data"},
    link_rel=None,
)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = json.loads(sys.stdin.buffer.read())
    print(json.dumps([_CLEANER.clean(page) for page in pages]))


if __name__ == "__main__":
    main()
