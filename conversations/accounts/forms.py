"""What people type into the pages of accounts, checked."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib.auth.forms import UserCreationForm
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import password_validators_help_texts

from conversations.domain.people import (
    CLOCKS,
    ENTERS,
    FIGURES,
    HEARS,
    KEYS,
    LANGUAGES,
    MEMBER,
    THEMES,
    TIMES,
)
from conversations.models import Membership


class PreferencesForm(forms.Form):
    theme = forms.ChoiceField(choices=THEMES)
    language = forms.ChoiceField(choices=LANGUAGES, required=False, label="Language of dates")
    clock = forms.ChoiceField(choices=CLOCKS)
    times = forms.ChoiceField(choices=TIMES, label="Times in lists")
    enter = forms.ChoiceField(
        choices=ENTERS,
        label="Enter in a message",
        help_text="Ctrl Enter always sends. Shift Enter always starts a new line.",
    )
    keys = forms.ChoiceField(choices=KEYS, label="Keys")
    figures = forms.ChoiceField(choices=FIGURES, label="Tokens and cost of an answer")
    hears = forms.ChoiceField(choices=HEARS, label="A screen reader says of an answer")


class InvitationForm(forms.Form):
    label = forms.CharField(
        max_length=120, required=False, strip=True, label="Label", help_text="Only shown to you."
    )


class WorkspaceInvitationForm(InvitationForm):
    role = forms.ChoiceField(choices=Membership.Role.choices, initial=MEMBER)


class MemberForm(forms.Form):
    username = forms.CharField(max_length=150, strip=True)
    role = forms.ChoiceField(choices=Membership.Role.choices)


class GroupRoleForm(forms.Form):
    group = forms.ChoiceField()
    role = forms.ChoiceField(choices=Membership.Role.choices, initial=MEMBER)

    def __init__(self, *args: Any, groups: Iterable[tuple[int, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["group"].choices = list(groups)  # type: ignore[attr-defined]


class AccountForm(UserCreationForm):  # type: ignore[type-arg]
    """A stranger's new account, checked as Django checks one, and stored by the archive."""

    class Meta:
        model = User
        fields = ("username",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Django's is a list, which cannot stand in a line of help.
        self.fields["password1"].help_text = " ".join(password_validators_help_texts())
