"""What administrators ask the audit log for."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms

from conversations.archive.audit_log import ACT_ANY, READ_ANY, Wanted
from conversations.domain.audit import ACTS, READINGS
from conversations.domain.text import storable

from .fields import PersonField, date_field, midnight


def _named(actions: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((action, did[0].upper() + did[1:]) for action, did in actions.items())


ACTIONS = (
    ("", "Everything"),
    (READ_ANY, "All readings"),
    (ACT_ANY, "All decisions"),
    ("Readings", _named(READINGS)),
    ("Decisions", _named(ACTS)),
)


class AuditForm(forms.Form):
    """Filters; each stays in the address."""

    person = PersonField()
    action = forms.ChoiceField(choices=ACTIONS, required=False, label="What")
    workspace = forms.ChoiceField(
        required=False, error_messages={"invalid_choice": "There is no such workspace."}
    )
    session = forms.UUIDField(
        required=False, error_messages={"invalid": "A session is named by its uuid."}
    )
    after = date_field("From")
    before = date_field("Before")

    use_required_attribute = False

    def __init__(self, data: Mapping[str, str], *, workspaces: Iterable[tuple[str, str]]) -> None:
        super().__init__({name: storable(value).strip() for name, value in data.items()})
        workspace = self.fields["workspace"]
        assert isinstance(workspace, forms.ChoiceField)
        workspace.choices = [("", "All workspaces"), *workspaces]
        plain = {"autocomplete": "off", "spellcheck": "false"}
        self.fields["person"].widget.attrs |= plain | {"placeholder": "Account"}
        self.fields["session"].widget.attrs |= plain | {"placeholder": "uuid"}

    @property
    def wanted(self) -> Wanted:
        """What a valid form asks for. Days begin at midnight UTC."""
        found: dict[str, Any] = dict(self.cleaned_data)
        found["after"], found["before"] = midnight(found["after"]), midnight(found["before"])
        return Wanted(**found)

    def address(self, **changes: Any) -> str:
        """The query string of these filters, with changes; empty values stay out."""
        values = {name: self[name].value() for name in self.fields} | changes
        return urlencode({name: value for name, value in values.items() if value})

    @property
    def has_filters(self) -> bool:
        return any(self[name].value() for name in self.fields)
