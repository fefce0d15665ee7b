"""The accessibility checks find faults at every width and in every scheme."""

from playwright.sync_api import Page

from .accessibility import violations_everywhere
from .conftest import Server

FAULTS = """
<!doctype html><html lang="en"><title>Faults</title><style>
  body { color: #000; background: #fff; }
  .pale { color: #eee; }
  @media (prefers-color-scheme: dark) {
    body { color: #fff; background: #000; }
    .pale { color: #fff; }
    .dim, .dim-wide, .dim-narrow { color: #222; }
  }
  .near { margin-inline-end: 60px; }
  @media (max-width: 500px) { .wide { display: none; } .near { margin-inline-end: 0; } }
  @media (min-width: 501px) { .narrow { display: none; } }
  button { inline-size: 12px; block-size: 12px; padding: 0; }
</style><main><h1>Faults</h1>
  <p id="light" class="pale">Unreadable in the light</p>
  <p id="dark" class="dim">Unreadable in the dark</p>
  <p id="wide-dark" class="wide dim">Unreadable where it is wide and dark</p>
  <div class="narrow">
    <p id="narrow-light" class="pale">Unreadable where it is narrow and light</p>
    <p id="narrow-dark" class="dim">Unreadable where it is narrow and dark</p>
    <img id="nameless" src="data:,">
    <p style="inline-size: 600px">Too wide</p>
  </div>
  <p><b id="twice">One</b> <i id="twice">id</i></p>
  <p><button id="near" class="near">a</button><button id="by">b</button></p>
</main></html>
"""


def test_faults_of_one_width_or_one_scheme_are_found(tab: Page, server: Server) -> None:
    tab.route("**/faults", lambda route: route.fulfill(body=FAULTS, content_type="text/html"))
    tab.goto(f"{server.url}/faults")
    found = violations_everywhere(tab, "faults")
    for violation in (
        "light: color-contrast: #light",
        "dark: color-contrast: #dark",
        "dark: color-contrast: #wide-dark",
        "light: color-contrast: #narrow-light",
        "dark: color-contrast: #narrow-dark",
        "light: image-alt: #nameless",
        "light: duplicate-id: #twice",
        "dark: target-size: #by",
        "it scrolls sideways with text of 100%",
    ):
        assert any(one.startswith(violation) for one in found), (violation, found)
    found = violations_everywhere(tab, "", within="b, .narrow")
    assert any(one.startswith("light: image-alt: #nameless") for one in found), found
    assert not any("#light" in one or "#wide-dark" in one for one in found), found
