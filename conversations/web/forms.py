"""What people type into the pages, checked."""

import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings

from conversations.domain.errors import Rejected, TooLarge
from conversations.models import Membership

_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


class WorkspaceForm(forms.Form):
    name = forms.CharField(max_length=120, required=False, strip=True)
    root = forms.CharField(max_length=1024, label="Folder", strip=True)


class WorkspaceSettingsForm(forms.Form):
    name = forms.CharField(max_length=120, strip=True)
    instructions = forms.CharField(
        required=False, max_length=100_000, widget=forms.Textarea, strip=False
    )
    default_model = forms.CharField(max_length=120, required=False, strip=True)

    def __init__(self, *args: Any, models: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._models = models

    def clean_default_model(self) -> str:
        """Empty: the server's default."""
        chosen: str = self.cleaned_data["default_model"]
        if chosen and chosen not in self._models:
            raise forms.ValidationError("This model is not on offer.")
        return chosen


class MemberForm(forms.Form):
    username = forms.CharField(max_length=150, strip=True)
    role = forms.ChoiceField(choices=Membership.Role.choices)


def check_client_id(value: Any) -> str:
    """Raises Rejected unless it is 8 to 64 characters of ``A-Z a-z 0-9 _ -``."""
    if not isinstance(value, str) or not _CLIENT_ID.fullmatch(value):
        raise Rejected("client_id is 8 to 64 characters of A-Z a-z 0-9 _ -.", code="bad_client_id")
    return value


def check_message_text(value: Any) -> str:
    """Raises Rejected for no text, TooLarge for one over the limit."""
    if not isinstance(value, str) or not value.strip():
        raise Rejected("A message needs at least one character.", code="message_empty")
    limit = settings.LOOM.max_message_chars
    if len(value) > limit:
        raise TooLarge(
            f"This message has {len(value):,} characters; at most {limit:,} can be sent. "
            "Put long material into a file of the workspace.",
            code="message_too_long",
        )
    return value
