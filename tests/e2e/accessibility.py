"""Checks of pages with axe, in both colour schemes and at both widths.

A rule is run again only where its answer can change. Most rules check the role, the name and the
place of an element in the document. Their answer is the same in both schemes, and at both widths
for elements that both widths show. The scheme changes only colours. The width changes which
elements are shown and where they are.
"""

from collections.abc import Sequence
from typing import Literal

from playwright.sync_api import Page

from .conftest import NARROW, WIDE, take_picture

# axe is loaded from the server, because the browser then caches it with its compiled code.
LOAD_AXE = "'axe' in window || import('/static/axe.min.js').then(() => true)"

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
"""The tags of all rules."""

OF_COLOURS = ["color-contrast", "link-in-text-block"]

OF_PLACES = [
    "bypass",
    "heading-order",
    "landmark-one-main",
    "page-has-heading-one",
    "region",
    "scrollable-region-focusable",
    "skip-link",
    "target-size",
]
"""Rules that check where an element is, or all elements that are shown together."""

FIND_VIOLATIONS = """
async ([runOnly, within, part]) => {
  const all = within ? [...document.querySelectorAll(within)] : [document];
  const include = part ? window[part].filter((one) => all.some((of) => of.contains(one))) : all;
  if (!include.length) return [];
  const { violations } = await axe.run(
    // Frames here have no origin, and answer nobody.
    { include }, { runOnly, resultTypes: ["violations"], iframes: false }
  );
  // axe looks only for those of two elements with one id that a label or ARIA refers to.
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  const twice = new Set(ids.filter((id, place) => ids.indexOf(id) !== place));
  return [...twice].map((id) => `duplicate-id: #${id}`).concat(
    violations.flatMap(({ id, nodes }) => nodes.slice(0, 3).map(
      ({ target, failureSummary }) => `${id}: ${target} ${failureSummary.slice(0, 200)}`
    ))
  );
}
"""

NOTE_WHAT_IS_SHOWN = """
() => {
  window.findShown = () => new Set([...document.body.querySelectorAll("*")].filter(
    (one) => one.checkVisibility({ visibilityProperty: true })
  ));
  window.shown = findShown();
}
"""

NOTE_WHAT_CHANGED = """
() => {
  const now = findShown();
  const outermost = (some) => [...some].filter((one) => !some.has(one.parentElement));
  window.nowShown = outermost(now.difference(window.shown));
  window.nowHidden = outermost(window.shown.difference(now));
}
"""


def violations(
    page: Page, rules: Sequence[str] = RULES, *, within: str = "", part: str = ""
) -> list[str]:
    """Return the violations that axe finds, and the ids that the page has twice.

    ``within`` is a selector that limits the check to some elements. ``part`` names a variable of
    the page with a list of elements that limits it further. The full report of axe is megabytes
    and stays in the browser.
    """
    page.evaluate(LOAD_AXE)
    found: list[str] = page.evaluate(FIND_VIOLATIONS, [list(rules), within, part])
    return found


def violations_light_and_dark(page: Page, picture: str = "", within: str = "") -> list[str]:
    """Return the violations in both schemes at the current width.

    Pictures of both schemes are saved under the name ``picture``, unless it is empty.
    """
    return [
        *_violations_in(page, "light", picture, within),
        *_violations_in(page, "dark", picture, within, OF_COLOURS),
    ]


def violations_everywhere(page: Page, picture: str, within: str = "") -> list[str]:
    """Return the violations in both schemes and at both widths, and sideways scrolling.

    Elements that only one width shows are checked there by all rules in both schemes. ``within``
    limits the check to a part of the page, if the rest was checked without that part.
    """
    wide, narrow = f"{picture}-wide", f"{picture}-narrow"
    page.set_viewport_size(WIDE)
    found = _violations_in(page, "light", wide, within)
    found += sizes_that_scroll_sideways(page, wide)
    page.evaluate(NOTE_WHAT_IS_SHOWN)
    page.set_viewport_size(NARROW)
    page.evaluate(NOTE_WHAT_CHANGED)
    found += _violations_in(page, "light", narrow, within, RULES, "nowShown")
    found += _violations_in(page, "dark", narrow, within, OF_COLOURS + OF_PLACES)
    found += sizes_that_scroll_sideways(page, narrow)
    page.set_viewport_size(WIDE)
    found += _violations_in(page, "dark", wide, within, OF_COLOURS, "nowHidden")
    return found


def _violations_in(
    page: Page,
    scheme: Literal["light", "dark"],
    picture: str,
    within: str = "",
    rules: Sequence[str] = RULES,
    part: str = "",
) -> list[str]:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    if picture:
        take_picture(page, f"{picture}-{scheme}")
    found = violations(page, rules, within=within, part=part)
    return [f"{scheme}: {violation}" for violation in found]


def marks_unseen_in_forced_colours(page: Page) -> list[str]:
    """Return the current, selected or pressed elements whose mark is invisible in forced colours.

    Forced colours are set by the system, as in the high contrast mode of Windows.
    """
    page.emulate_media(forced_colors="active")
    found = []
    for attribute in ("aria-current", "aria-selected", "aria-pressed"):
        # Use handles, because locators would search again after an attribute was removed.
        for one in page.query_selector_all(f"[{attribute}]:not([{attribute}=false])"):
            if not one.is_visible():
                continue
            marked, value = one.screenshot(), one.get_attribute(attribute)
            one.evaluate("(one, name) => one.removeAttribute(name)", attribute)
            if one.screenshot() == marked:
                found.append(f"{attribute} of {one.inner_text()!r}")
            put_back = "(one, [name, value]) => one.setAttribute(name, value)"
            one.evaluate(put_back, [attribute, value])
    page.emulate_media(forced_colors="none")
    return found


SCROLLS_SIDEWAYS = """
(size) => {
  const root = document.documentElement;
  root.style.fontSize = size;
  return root.scrollWidth > innerWidth;
}
"""


def sizes_that_scroll_sideways(page: Page, picture: str) -> list[str]:
    """Return the text sizes at which the page is wider than its window.

    A picture of the largest size is saved under a name that begins with ``picture``.
    """
    found = [size for size in ("100%", "200%") if page.evaluate(SCROLLS_SIDEWAYS, size)]
    take_picture(page, f"{picture}-large")
    page.evaluate(SCROLLS_SIDEWAYS, "")
    return [f"it scrolls sideways with text of {size}" for size in found]
