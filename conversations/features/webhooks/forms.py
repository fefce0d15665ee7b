"""A webhook as a person writes it down."""

from django import forms

from conversations.domain.errors import Rejected
from conversations.domain.text import storable

from .models import EVENTS, RUN_COMPLETED, RUN_FAILED, WAITING_APPROVAL
from .worker import check_webhook_url

USUAL = [RUN_COMPLETED, RUN_FAILED, WAITING_APPROVAL]


class WebhookForm(forms.Form):
    url = forms.CharField(
        label="Address",
        max_length=2000,
        strip=True,
        help_text="Messages are sent here by POST. Only visible to owners of this workspace.",
        widget=forms.TextInput(
            attrs={"inputmode": "url", "autocomplete": "off", "placeholder": "https://"}
        ),
    )
    events = forms.MultipleChoiceField(
        label="Events",
        choices=list(EVENTS.items()),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one."},
    )
    with_text = forms.BooleanField(
        label="Include transcript text",
        required=False,
        help_text="The title, the answer and what a call would do. Otherwise only IDs and states.",
    )

    use_required_attribute = False

    def clean_url(self) -> str:
        try:
            return check_webhook_url(storable(self.cleaned_data["url"]))
        except Rejected as error:
            raise forms.ValidationError(error.message) from error


class ChangeForm(WebhookForm):
    is_active = forms.BooleanField(label="On", required=False)
