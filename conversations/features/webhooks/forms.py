"""The forms for creating and changing a webhook."""

from django import forms
from django.utils.translation import gettext_lazy

from conversations.accounts.forms import choices_of
from conversations.domain.errors import Rejected
from conversations.domain.text import storable
from conversations.rendering.messages import translate
from conversations.web.forms import SharedForm

from .models import EVENTS, RUN_COMPLETED, RUN_FAILED, WAITING_APPROVAL
from .worker import check_webhook_url

USUAL = [RUN_COMPLETED, RUN_FAILED, WAITING_APPROVAL]


class WebhookForm(forms.Form):
    url = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=2000,
        strip=True,
        help_text=gettext_lazy(
            "Messages are sent here by POST. Only visible to owners of this workspace."
        ),
        widget=forms.TextInput(
            attrs={"inputmode": "url", "autocomplete": "off", "placeholder": "https://"}
        ),
    )
    events = forms.MultipleChoiceField(
        label=gettext_lazy("Events"),
        choices=choices_of(EVENTS),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": gettext_lazy("Choose at least one.")},
    )
    with_text = forms.BooleanField(
        label=gettext_lazy("Include transcript text"),
        required=False,
        help_text=gettext_lazy(
            "Includes the title, the answer and what a call would do. Without it, only IDs "
            "and states are sent."
        ),
    )

    use_required_attribute = False

    def clean_url(self) -> str:
        try:
            return check_webhook_url(storable(self.cleaned_data["url"]))
        except Rejected as error:
            raise forms.ValidationError(translate(error.message)) from error


class ChangeForm(SharedForm, WebhookForm):
    is_active = forms.BooleanField(label=gettext_lazy("On"), required=False)
