"""A person's hand in a browser, which counts what it does."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page


class Hand:
    """``counts``: task to what it took, such as "1 click, 1 key". Text that is typed is not
    counted, nor a file that is chosen."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.counts: dict[str, str] = {}
        self._clicks = self._keys = 0

    def click(self, target: Locator) -> None:
        self._clicks += 1
        target.click()

    def count_click(self, target: Locator) -> None:
        """One that is there, and is not made."""
        target.wait_for(state="attached")
        self._clicks += 1

    def press(self, keys: str) -> None:
        """One key, perhaps with others held."""
        self._keys += 1
        self.page.keyboard.press(keys)

    def write(self, target: Locator, text: str) -> None:
        """Into a field that has the focus already, or gets it by a click."""
        if not target.evaluate("(it) => it === document.activeElement"):
            self._clicks += 1
        target.fill(text)

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        self._clicks = self._keys = 0
        yield
        parts = [
            f"{count} {word}{'' if count == 1 else 's'}"
            for count, word in ((self._clicks, "click"), (self._keys, "key"))
            if count
        ]
        self.counts[name] = ", ".join(parts) or "none"
