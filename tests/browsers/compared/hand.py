"""Counting the clicks and keys that tasks take in a browser."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page


class Hand:
    """A person's hand, which counts its clicks and keys.

    ``counts`` maps a task to its clicks and keys, such as "1 click, 1 key". Typing text and
    choosing a file are not counted.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.counts: dict[str, str] = {}
        self._clicks = self._keys = 0

    def click(self, target: Locator) -> None:
        self._clicks += 1
        target.click()

    def count_click(self, target: Locator) -> None:
        """Count a click on an existing element without clicking it."""
        target.wait_for(state="attached")
        self._clicks += 1

    def press(self, keys: str) -> None:
        """Press one key, perhaps with modifier keys."""
        self._keys += 1
        self.page.keyboard.press(keys)

    def write(self, target: Locator, text: str) -> None:
        """Write text into a field. Count a click if the field does not have the focus yet."""
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
