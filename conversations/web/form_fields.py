"""Fields that several forms have."""

from datetime import UTC, date, datetime, time
from html import escape
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.forms.utils import flatatt
from django.forms.widgets import Input
from django.utils.safestring import SafeString

from conversations.archive.workspaces import find_user
from conversations.domain.errors import Rejected

# Controls of forms that render without templates.


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


def date_field(label: str) -> forms.DateField:
    """A day that may be left out, as the browser's own calendar gives it."""
    return forms.DateField(
        label=label,
        required=False,
        input_formats=["%Y-%m-%d"],
        widget=QuickDateInput(format="%Y-%m-%d"),
        error_messages={"invalid": "A date looks like 2026-01-31."},
    )


def midnight(day: date | None) -> datetime | None:
    """When the day begins: days are those of UTC."""
    return datetime.combine(day, time.min, tzinfo=UTC) if day else None


class PersonField(forms.CharField):
    """The name of an account, which may be closed, or nothing."""

    def __init__(self) -> None:
        super().__init__(required=False, max_length=150, widget=QuickTextInput)

    def clean(self, value: Any) -> User | None:
        name = super().clean(value)
        try:
            return find_user(name, even_closed=True) if name else None
        except Rejected as error:
            raise forms.ValidationError("Nobody here has this name.") from error


class LinesField(forms.CharField):
    """Text of several lines. The end of one counts as a browser counts it, which says how
    much fits: as one character, though it sends two."""

    def to_python(self, value: Any) -> str | None:
        return super().to_python(value.replace("\r\n", "\n") if value else value)
