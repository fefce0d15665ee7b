"""What people ask the search for: text, and filters that say the same as the words
of the query language."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms

from conversations.domain.text import storable
from conversations.web.forms import date_field

MAX_QUERY_CHARS = 1000  # Characters of a query that count.

SAID_BY = (("", "Anybody"), ("user", "People"), ("assistant", "Assistant"), ("tool", "Tools"))
ORDERS = (("best", "Best match"), ("newest", "Newest first"))


class FindForm(forms.Form):
    """Text and an order: what finding in one session takes."""

    q = forms.CharField(required=False, label="Search for", widget=forms.SearchInput)
    order = forms.ChoiceField(choices=ORDERS, required=False, label="Order", widget=forms.Select)

    use_required_attribute = False

    def __init__(self, data: Mapping[str, str], *, autofocus: bool = False, **kwargs: Any) -> None:
        """Any text is a query: what no database can hold is replaced first."""
        text = {name: storable(value).strip() for name, value in data.items()}
        text["q"] = text.get("q", "")[:MAX_QUERY_CHARS]
        super().__init__(text, **kwargs)
        self.fields["q"].widget.attrs |= {
            "maxlength": MAX_QUERY_CHARS,
            "autocomplete": "off",
            "enterkeyhint": "search",
            "autofocus": autofocus,
        }

    def clean_order(self) -> str:
        return self.cleaned_data["order"] or ORDERS[0][0]

    @property
    def query(self) -> str:
        """What is asked for, in the query language."""
        return str(self.cleaned_data["q"])

    @property
    def is_asked(self) -> bool:
        """There is something to look for."""
        return bool(self.query)

    @property
    def asked(self) -> str:
        """The query string of this search, empty for none."""
        return self.address() if self.is_valid() else ""

    def address(self, **changes: str) -> str:
        """The query string of this search, with changes; empty values stay out."""
        values = {**self.cleaned_data, **changes}
        if values["order"] == ORDERS[0][0]:
            values["order"] = ""
        return urlencode({name: value for name, value in values.items() if value})


class SearchForm(FindForm):
    """Filters over all that a person may read."""

    workspace = forms.ChoiceField(
        required=False,
        widget=forms.Select,
        error_messages={"invalid_choice": "There is no such workspace, or it is not yours."},
    )
    role = forms.ChoiceField(choices=SAID_BY, required=False, label="Said by", widget=forms.Select)
    tool = forms.CharField(required=False, max_length=128, widget=forms.TextInput)
    after = date_field("From")
    before = date_field("Before")

    field_order: tuple[str, ...] = ("q", "workspace", "role", "tool", "after", "before", "order")
    _FILTERS: tuple[str, ...] = ("role", "tool", "after", "before")

    def __init__(
        self, data: Mapping[str, str], *, workspaces: Iterable[tuple[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(data, **kwargs)
        workspace = self.fields["workspace"]
        assert isinstance(workspace, forms.ChoiceField)
        workspace.choices = [("", "All workspaces"), *workspaces]
        for name in ("after", "before"):
            self.fields[name].error_messages["invalid"] = "A date looks like 2026-01-31."

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cleaned_data
        after, before = found.get("after"), found.get("before")
        if after and before and after >= before:
            self.add_error("before", "This lies before the other date, so nothing can match.")
        return found

    def clean_tool(self) -> str:
        return str(self.cleaned_data["tool"]).replace('"', "")

    @property
    def query(self) -> str:
        """The text with the filters as words of the query language."""
        filters = [
            f'{name}:"{self.cleaned_data[name]}"' for name in self._FILTERS if self._has(name)
        ]
        return " ".join([*filter(None, [super().query]), *filters])

    @property
    def filters(self) -> list[forms.BoundField]:
        """The controls beside the text, as the page shows them."""
        return [self[name] for name in self.field_order if name != "q"]

    @property
    def has_filters(self) -> bool:
        return any(self._has(name) for name in ("workspace", *self._FILTERS))

    @property
    def without_filters(self) -> str:
        """The query string of the text alone."""
        return urlencode({"q": self.cleaned_data["q"]})

    def _has(self, name: str) -> bool:
        return bool(self.cleaned_data[name])
