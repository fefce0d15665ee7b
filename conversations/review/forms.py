"""Forms of reviewers: filters for lists of sessions, samples, notes and flags."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy, pgettext

from conversations.domain.text import storable
from conversations.models.review import LABELS, MAX_TEXT_CHARS
from conversations.web.addresses import query_of
from conversations.web.forms import (
    FilterForm,
    LinesField,
    PersonField,
    check_year,
    date_field,
    midnight,
)

from .queue import QueueFilters

QUEUES = {
    "unreviewed": gettext_lazy("Not reviewed"),
    "flagged": gettext_lazy("Flagged"),
    "all": gettext_lazy("All sessions"),
}

# Query parameters that identify the list of sessions that a reviewer works through.
CARRIED = ("queue", "person", "workspace", "channel", "since", "until", "with_errors")

MAX_FIELD_CHARS = 200  # longest value that is carried over in a query string


def carried_filters(data: Mapping[str, str], **extra: Any) -> str:
    """Return a query string that identifies the list from which a session was opened.

    ``extra`` adds parameters. The result begins with a question mark or is empty.
    """
    parameters = {name: storable(data.get(name, ""))[:MAX_FIELD_CHARS] for name in CARRIED} | extra
    query = query_of(parameters)
    return f"?{query}" if query else ""


class SessionFilterForm(FilterForm):
    """A filter of sessions. Every field may be empty."""

    person = PersonField()
    workspace = forms.ChoiceField(required=False, label=gettext_lazy("Workspace"))

    def __init__(self, data: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(data, **kwargs)
        self.fields["person"].widget.attrs |= {"autocomplete": "off", "spellcheck": "false"}


class QueueForm(SessionFilterForm):
    """The filters of the queue. ``until`` is the last day that is included."""

    queue = forms.ChoiceField(
        required=False, choices=tuple(QUEUES.items()), widget=forms.HiddenInput
    )
    channel = forms.CharField(required=False, max_length=32, label=gettext_lazy("Channel"))
    since = date_field(gettext_lazy("Active from"))
    until = date_field(gettext_lazy("Active to"))
    with_errors = forms.BooleanField(required=False, label=gettext_lazy("With errors only"))

    field_order = ("queue", "person", "workspace", "channel", "since", "until", "with_errors")

    def clean_queue(self) -> str:
        return self.cleaned_data["queue"] or "unreviewed"

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        since, until = data.get("since"), data.get("until")
        if since and until and since > until:
            message = gettext("This is before the other date, so nothing can match.")
            self.add_error("until", message)
        return data

    @property
    def filters(self) -> QueueFilters:
        data = dict(self.cleaned_data)
        data["person"] = getattr(data["person"], "pk", None)
        data["since"] = midnight(data["since"])
        if data["until"]:
            data["until"] = midnight(data["until"] + timedelta(days=1))
        return QueueFilters(**data)

    @property
    def is_narrowed(self) -> bool:
        return any(self.data.get(name) for name in self.field_order if name != "queue")

    @property
    def controls(self) -> list[forms.BoundField]:
        return [field for field in self.visible_fields() if field.name != "with_errors"]


class SampleForm(SessionFilterForm):
    """A request for a sample of the sessions of the last ``days`` days before ``until``.

    Without a ``seed`` the sample is different each time.
    """

    n = forms.IntegerField(label=gettext_lazy("Sessions"), min_value=1, max_value=100, initial=10)
    days = forms.IntegerField(
        label=gettext_lazy("Period (days)"), min_value=1, max_value=366, initial=7
    )
    seed = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    until = forms.CharField(required=False, max_length=40, widget=forms.HiddenInput)

    field_order = ("n", "days", "person", "workspace")

    def clean_until(self) -> datetime | None:
        text = self.cleaned_data["until"]
        try:
            moment = datetime.fromisoformat(text) if text else None
        except ValueError as error:
            raise forms.ValidationError(gettext("This is not a valid time.")) from error
        if moment is None:
            return None
        check_year(moment)
        return moment.replace(tzinfo=moment.tzinfo or UTC)

    @property
    def filters(self) -> QueueFilters:
        data = self.cleaned_data
        return QueueFilters(
            queue="all",
            person=getattr(data["person"], "pk", None),
            workspace=data["workspace"],
            since=data["until"] - timedelta(days=data["days"]),
            until=data["until"],
        )


def flag_name(label: str) -> str:
    """Return the name of a kind of flag, as pages show it."""
    return capfirst(gettext(label))


def _remark_kinds() -> list[tuple[str, str]]:
    flags = [(name, gettext("Flag: %(kind)s") % {"kind": flag_name(name)}) for name in LABELS]
    return [("", pgettext("of a reviewer", "Note")), *flags]


class RemarkForm(forms.Form):
    label = forms.ChoiceField(required=False, choices=_remark_kinds)
    text = LinesField(required=False, strip=True, max_length=MAX_TEXT_CHARS)
    turn = forms.IntegerField(required=False, min_value=1, max_value=2**62)

    def clean_text(self) -> str:
        return storable(self.cleaned_data["text"])
