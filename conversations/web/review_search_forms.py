"""What reviewers look for among everybody's sessions."""

from typing import Any

from django import forms

from .fields import PersonField
from .search_forms import SearchForm
from .widgets import QuickSelect, QuickTextInput

SESSIONS = (("", "All sessions"), ("flagged", "Flagged"), ("unreviewed", "Not reviewed"))
OUTCOMES = (("", "Everything"), ("error", "Errors only"))


class ReviewSearchForm(SearchForm):
    """Text, and filters over the sessions of all people. Every field may be empty."""

    person = PersonField()
    model = forms.CharField(required=False, max_length=120, widget=QuickTextInput)
    outcome = forms.ChoiceField(
        choices=OUTCOMES, required=False, label="Outcome", widget=QuickSelect
    )
    queue = forms.ChoiceField(
        choices=SESSIONS, required=False, label="Sessions", widget=QuickSelect
    )

    field_order = (
        *("q", "person", "workspace", "queue", "role", "tool", "model", "outcome"),
        *("after", "before", "order"),
    )
    _FILTERS = ("role", "tool", "model", "after", "before")
    _OF_SESSIONS = ("person", "workspace", "queue")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        self.fields["person"].widget.attrs |= plain
        self.fields["model"].widget.attrs |= plain | {"list": "models"}

    def clean_model(self) -> str:
        return str(self.cleaned_data["model"]).replace('"', "")

    @property
    def query(self) -> str:
        errors = "is:error" if self._has("outcome") else ""
        return " ".join(filter(None, (super().query, errors)))

    @property
    def is_asked(self) -> bool:
        """Filters of sessions alone list all turns in them."""
        return super().is_asked or any(self._has(name) for name in self._OF_SESSIONS)

    @property
    def has_filters(self) -> bool:
        return super().has_filters or any(
            self._has(name) for name in ("outcome", *self._OF_SESSIONS)
        )

    def address(self, **changes: str) -> str:
        """With the person's name, as it was typed."""
        return super().address(**{"person": str(self["person"].value() or ""), **changes})
