"""What people type about how long sessions are kept, checked."""

from typing import Any

from django import forms

from conversations.domain.errors import LoomError
from conversations.models import Session, Workspace

from .service import MAX_REASON_CHARS, find_for_hold

MAX_RETENTION_DAYS = 36_500


class PoliciesForm(forms.Form):
    expire_after_hours = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=24 * MAX_RETENTION_DAYS,
        label="New sessions expire after hours",
        help_text="From then on nobody goes on with them; they stay readable. Empty: never.",
    )
    retention_days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_RETENTION_DAYS,
        label="Purge sessions that are idle for days",
        help_text="They are removed for good after a grace period. Empty: never.",
    )
    members_may_purge = forms.BooleanField(
        required=False,
        label="Members may purge sessions of their own",
        help_text="Owners of the workspace may purge every session of it.",
    )
    uses_cold_storage = forms.BooleanField(
        required=False,
        label="Keep a copy of what is purged",
        help_text="There is no cold storage any more: nothing is purged here until this is off."
        " Export what you want to keep.",
    )

    def __init__(self, *args: Any, workspace: Workspace, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not workspace.uses_cold_storage:
            del self.fields["uses_cold_storage"]

    @property
    def policies(self) -> dict[str, Any]:
        """All of them; a field that is not shown stays off."""
        return {"uses_cold_storage": False} | self.cleaned_data


class PurgeForm(forms.Form):
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS,
        label="Why",
        help_text="It stays on record with the receipt. Nothing of what was said belongs here.",
    )


class HoldForm(forms.Form):
    what = forms.CharField(
        max_length=120,
        strip=True,
        label="Session or workspace",
        help_text="The uuid of a session, or the short name of a workspace in its address.",
    )
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS, label="Why", help_text="It stays on record."
    )

    def clean_what(self) -> Session | Workspace:
        try:
            return find_for_hold(self.cleaned_data["what"])
        except LoomError as error:
            raise forms.ValidationError(error.message) from error
