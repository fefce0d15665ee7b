"""The form for a person's choice of notices."""

from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django import forms
from django.conf import settings
from django.utils.translation import gettext, gettext_lazy

CLOCK = {"type": "time"}


class NoticeForm(forms.Form):
    asks = forms.BooleanField(label=gettext_lazy("Approvals and questions"), required=False)
    failed = forms.BooleanField(label=gettext_lazy("Failed answers"), required=False)
    finished = forms.BooleanField(label=gettext_lazy("Completed answers"), required=False)
    has_buttons = forms.BooleanField(
        label=gettext_lazy("Show Approve and Deny in notifications"),
        required=False,
        help_text=gettext_lazy(
            "Approve only appears if the notification shows everything the call would do. On "
            "some phones, anyone can press these buttons on the lock screen."
        ),
    )
    by_email = forms.BooleanField(
        label=gettext_lazy("Also send e-mail"),
        required=False,
        help_text=gettext_lazy(
            "Sent after a minute unless you have seen the notification. Contains no text "
            "from the session."
        ),
    )
    quiet_from = forms.TimeField(
        label=gettext_lazy("Quiet hours from"),
        required=False,
        widget=forms.TimeInput(attrs=CLOCK, format="%H:%M"),
    )
    quiet_until = forms.TimeField(
        label=gettext_lazy("Quiet hours until"),
        required=False,
        widget=forms.TimeInput(attrs=CLOCK, format="%H:%M"),
    )
    zone = forms.CharField(
        label=gettext_lazy("Time zone"),
        max_length=64,
        strip=True,
        help_text=gettext_lazy("For example, Europe/Berlin."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )

    use_required_attribute = False

    def __init__(self, *args: Any, email: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not (settings.LOOM.mailer and email):
            del self.fields["by_email"]

    def clean_zone(self) -> str:
        try:
            return ZoneInfo(self.cleaned_data["zone"]).key
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise forms.ValidationError(
                gettext("Enter a time zone such as Europe/Berlin.")
            ) from error

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if (data.get("quiet_from") is None) != (data.get("quiet_until") is None):
            self.add_error("quiet_until", gettext("Enter both times or neither."))
        return data
