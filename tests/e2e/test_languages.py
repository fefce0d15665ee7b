"""A chat in several languages: the same rows in each reader's language, live and stored."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.accessibility import sizes_that_scroll_sideways, violations
from tests.e2e.conftest import NARROW, Chat, Server, long_session, settle
from tests.e2e.test_search import import_turns, reading
from tests.e2e.test_tools import card, done, same_after_reload, writing
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

ANSWER = """\
> [!NOTE]
> As noted[^1], and once more.

- one
- two[^1]

  with a paragraph

| a | b |
|---|---|
| 1 | 2 |

![alt](https://example.com/a.png)

```python
x = 1
```

[^1]: A footnote.
"""

LINES = """
(element) => {
  const range = new Range();
  range.selectNodeContents(element);
  return range.getClientRects().length;
}
"""


def words(page: Page) -> str:
    return " ".join(page.locator("#rows").inner_text().split())


def test_two_people_see_the_same_chat_in_their_own_languages(
    wire: WireThread, open_chat: Callable[..., Chat]
) -> None:
    german = open_chat(locale="de-DE").new()
    page = german.page
    english = open_chat().open(german.uuid).wait_connected()
    wire.enqueue(writing("beans.md"), Scenario(text=ANSWER, chunk=3))
    page.locator("#message").fill("Schreib es")
    page.get_by_role("button", name="Senden").click()
    expect(card(page)).to_contain_text("beans.md anlegen")
    expect(card(english.page)).to_contain_text("Create beans.md")
    card(page).get_by_role("button", name="Freigeben", exact=True).click()
    expect(done(page)).to_contain_text("Fertig")
    expect(done(english.page)).to_contain_text("Done")
    same_after_reload(german)
    same_after_reload(english)
    for text in ("Als CSV kopieren", "Umbrechen", "Hinweis", "Bild: alt (example.com)"):
        assert text in words(page)
    assert "Copy as CSV" in words(english.page)
    expect(page.get_by_role("button", name="Fußnote 1").first).to_be_visible()
    assert violations(page) == []
    page.set_viewport_size(NARROW)
    assert sizes_that_scroll_sideways(page, "german-chat") == []


def test_a_folded_group_of_calls_is_named_in_the_persons_language(
    server: Server, open_chat: Callable[..., Chat]
) -> None:
    calls = [turn for number in range(5) for turn in reading(f"row_{number}.txt", number)]
    uuid = import_turns(server, {"role": "user", "content": "Lies"}, *calls, title="Lesen")
    page = open_chat(locale="de-DE").open(uuid).page
    expect(page.get_by_role("button", name="5 Werkzeugaufrufe")).to_be_visible()


def test_a_long_message_is_shown_in_full_by_keyboard(
    wire: WireThread, open_chat: Callable[..., Chat]
) -> None:
    page = open_chat(locale="de-DE").new().page
    page.locator("#message").fill("\n".join(f"Zeile {number}" for number in range(90)))
    page.get_by_role("button", name="Senden").click()
    page.get_by_role("button", name="Alles anzeigen").press("Enter")
    expect(page.get_by_role("button", name="Alles anzeigen")).to_have_count(0)
    expect(page.locator("#rows > .row-user")).to_be_focused()


def test_a_long_name_of_a_button_is_not_broken_on_a_phone(open_chat: Callable[..., Chat]) -> None:
    phone = {"viewport": NARROW, "has_touch": True, "is_mobile": True}
    page = open_chat(locale="de-DE", **phone).new().page
    page.locator(".bar .menu summary").click()
    assert page.get_by_role("button", name="Umbenennen").evaluate(LINES) == 1


def test_older_rows_and_the_panel_are_in_the_persons_language(
    server: Server, open_chat: Callable[..., Chat]
) -> None:
    uuid = long_session(server, turns=60)
    chat = open_chat(locale="de-DE").open(uuid)
    page = chat.page
    first = page.locator("[data-seq='1']")
    chat.load("Ältere laden", lambda: first.count() > 0)
    expect(first).to_be_visible()
    page.locator("#meter, .bar [data-action=panel]").first.click()
    expect(page.locator("#panel")).to_contain_text("Kontext")
    settle()
    assert violations(page, within="#panel") == []
    page.set_viewport_size(NARROW)
    assert sizes_that_scroll_sideways(page, "german-panel") == []

    # A person chooses the language in the account's preferences.
    page.goto(f"{server.url}/account/preferences/")
    page.get_by_label("Sprache", exact=True).select_option("en")
    page.get_by_role("button", name="Speichern").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Preferences")
    page.get_by_label("Language", exact=True).select_option("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Einstellungen")


@pytest.mark.noisy
def test_the_page_works_in_english_if_its_translations_cannot_be_loaded(
    wire: WireThread, open_chat: Callable[..., Chat]
) -> None:
    chat = open_chat(locale="de-DE").new()
    page = chat.page
    page.route("**/js/words/de*.js", lambda route: route.abort())
    wire.enqueue(Scenario(text="Hallo"))
    page.locator("#message").fill("Hallo")
    page.get_by_role("button", name="Senden").click()
    answer = page.locator(".row-assistant[data-seq]")
    answer.hover()
    answer.get_by_role("button", name="Antwort neu erzeugen").click()
    expect(answer.get_by_role("group", name="Versions")).to_be_visible()
