"""A webhook as a person writes it down."""

from typing import Any

from django import forms

from conversations.domain.errors import Rejected
from conversations.domain.text import storable

from .events import EVENTS, RUN_COMPLETED, RUN_FAILED, WAITING_APPROVAL
from .models import Webhook
from .service import WebhookWish, read_events
from .worker import check_webhook_url

USUAL = [RUN_COMPLETED, RUN_FAILED, WAITING_APPROVAL]


class WebhookForm(forms.Form):
    """Where to, of what, and how much is told."""

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
        choices=[(event, text) for event, text in EVENTS.items()],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one."},
    )
    with_text = forms.BooleanField(
        label="Include transcript text",
        required=False,
        help_text="The title, the answer and what a call would do. Otherwise only ids and states.",
    )

    use_required_attribute = False

    def clean_url(self) -> str:
        try:
            return check_webhook_url(storable(self.cleaned_data["url"]))
        except Rejected as error:
            raise forms.ValidationError(error.message) from error

    def wish(self, *, is_active: bool = True) -> WebhookWish:
        """What the valid form asks for."""
        return WebhookWish(**self.cleaned_data, is_active=is_active)


class ChangeForm(WebhookForm):
    """Of one that there is: it can be turned off, too."""

    is_active = forms.BooleanField(label="On", required=False)

    def wish(self, **_: Any) -> WebhookWish:
        return WebhookWish(**self.cleaned_data)


def form_of(webhook: Webhook, data: Any = None) -> ChangeForm:
    initial = {
        "url": webhook.url,
        "events": read_events(webhook),
        "with_text": webhook.with_text,
        "is_active": webhook.is_active,
    }
    return ChangeForm(data, initial=initial)
