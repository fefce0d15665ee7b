"""The forms for retention policies, purges and holds."""

from typing import Any

from django import forms
from django.forms import model_to_dict
from django.utils.translation import gettext, gettext_lazy

from conversations.domain.errors import LoomError
from conversations.models import Session, Workspace
from conversations.web.forms import SharedForm

from .service import MAX_REASON_CHARS, find_for_hold

MAX_RETENTION_DAYS = 36_500


class PoliciesForm(SharedForm):
    expire_after_hours = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=24 * MAX_RETENTION_DAYS,
        label=gettext_lazy("Expire new sessions after (hours)"),
        help_text=gettext_lazy("Expired sessions are read-only. Leave empty to never expire."),
    )
    retention_days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_RETENTION_DAYS,
        label=gettext_lazy("Permanently delete sessions idle for (days)"),
        help_text=gettext_lazy("They are deleted after a grace period. Leave empty to keep them."),
    )
    members_may_purge = forms.BooleanField(
        required=False,
        label=gettext_lazy("Members may permanently delete their own sessions"),
        help_text=gettext_lazy("Owners of the workspace may delete any of its sessions."),
    )

    def __init__(self, workspace: Workspace, data: Any = None) -> None:
        super().__init__(data, initial=model_to_dict(workspace, self.base_fields))


class PurgeForm(forms.Form):
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS,
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Kept on record with the receipt. Do not quote the session here."),
    )


class HoldForm(forms.Form):
    what = forms.CharField(
        max_length=120,
        strip=True,
        label=gettext_lazy("Session or workspace"),
        help_text=gettext_lazy(
            "The UUID of a session, or the short name of a workspace from its URL."
        ),
    )
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS,
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Kept on record."),
    )

    def clean_what(self) -> Session | Workspace:
        try:
            return find_for_hold(self.cleaned_data["what"])
        except LoomError as error:
            # A mistyped UUID is looked up as a workspace.
            message = gettext("No session has this UUID, and no workspace has this short name.")
            raise forms.ValidationError(message) from error
