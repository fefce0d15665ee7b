"""What axe finds on a page: in both schemes, at both widths, each rule no more often than
its answer can change.

Most rules look at what an element is: its role, its name, its place in the document.
Their answer is the same in either scheme, and at either width for whatever both show.
The scheme changes colours and nothing else. The width changes which elements are shown
and where they are.
"""

from collections.abc import Sequence
from typing import Literal

from playwright.sync_api import Page

from .conftest import NARROW, WIDE, take_picture

# From the server: the browser keeps it, and what it has compiled of it.
LOAD_AXE = "'axe' in window || import('/static/axe.min.js').then(() => true)"

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
"""All rules, by their tags."""

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
"""Rules that look at where something is, or at all that is shown together."""

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
    """What axe finds on the page, or in what the selector ``within`` finds, and of either
    in the elements that the page's variable ``part`` holds; and which ids the page has
    twice. Only this leaves the browser: all that axe tells is megabytes."""
    page.evaluate(LOAD_AXE)
    found: list[str] = page.evaluate(FIND_VIOLATIONS, [list(rules), within, part])
    return found


def violations_light_and_dark(page: Page, picture: str = "", within: str = "") -> list[str]:
    """In both schemes, as wide as the page is; ``picture`` names the pictures that are
    kept of them."""
    return [
        *_violations_in(page, "light", picture, within),
        *_violations_in(page, "dark", picture, within, OF_COLOURS),
    ]


def violations_everywhere(page: Page, picture: str, within: str = "") -> list[str]:
    """In both schemes and at both widths, and where it scrolls sideways. What is shown
    at one width only is looked at there by all rules, in both schemes. ``within`` selects
    what is looked at where the rest of the page was looked at without it."""
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
    """What is chosen, current or pressed, and looks as if it were not where the system sets all
    colours, as in the high contrast of Windows."""
    page.emulate_media(forced_colors="active")
    found = []
    for attribute in ("aria-current", "aria-selected", "aria-pressed"):
        # Handles: locators would count anew once an attribute is gone.
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
    """At which of these sizes of text the page is wider than its window; ``picture`` names
    the one that is kept of the largest."""
    found = [size for size in ("100%", "200%") if page.evaluate(SCROLLS_SIDEWAYS, size)]
    take_picture(page, f"{picture}-large")
    page.evaluate(SCROLLS_SIDEWAYS, "")
    return [f"it scrolls sideways with text of {size}" for size in found]
