"""Controls that render without templates say what Django's own say."""

from datetime import date
from html.parser import HTMLParser
from typing import Any

import pytest
from django import forms

from conversations.web.form_fields import (
    QuickDateInput,
    QuickSearchInput,
    QuickSelect,
    QuickTextInput,
)

CHOICES = [("", "All"), ("a&b", 'A "quoted" <one>'), ("c", "C")]
ATTRS = {"id": "id_it", "maxlength": 9, "autofocus": True, "hidden": False, "title": '"<&'}


class _Parts(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[object] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.parts.append(data.strip())


@pytest.mark.parametrize("value", [None, "", "c", "a&b", '"><script>', "missing"])
@pytest.mark.parametrize(
    ("quick", "usual"),
    [
        (QuickTextInput(), forms.TextInput()),
        (QuickSearchInput(), forms.SearchInput()),
        (QuickSelect(choices=CHOICES), forms.Select(choices=CHOICES)),
    ],
)
def test_a_control_is_the_same(quick: forms.Widget, usual: forms.Widget, value: Any) -> None:
    ours, theirs = (widget.render("it", value, attrs=ATTRS) for widget in (quick, usual))
    assert _Parts(ours).parts == _Parts(theirs).parts


@pytest.mark.parametrize("value", [None, date(2026, 1, 31), "no day"])
def test_a_day_is_the_same(value: Any) -> None:
    usual = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d").render("it", value)
    assert (
        _Parts(QuickDateInput(format="%Y-%m-%d").render("it", value)).parts == _Parts(usual).parts
    )
