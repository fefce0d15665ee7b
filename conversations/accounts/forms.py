"""Forms of the account pages."""

from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.contrib.auth.forms import UserCreationForm
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import password_validators_help_texts
from django.utils.translation import gettext_lazy

from conversations.domain.people import (
    CLOCKS,
    ENTERS,
    FIGURES,
    HEARS,
    KEYS,
    LANGUAGES,
    MEMBER,
    PAGE_LANGUAGES,
    ROLE_NAMES,
    THEMES,
    TIMES,
)


def choices_of(words: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return a field's choices. The labels are marked for translation with ``say``."""
    return [(value, gettext_lazy(label)) for value, label in words.items()]


class PreferencesForm(forms.Form):
    theme = forms.ChoiceField(choices=choices_of(THEMES), label=gettext_lazy("Theme"))
    page_language = forms.ChoiceField(
        choices=choices_of(PAGE_LANGUAGES), required=False, label=gettext_lazy("Language")
    )
    language = forms.ChoiceField(
        choices=choices_of(LANGUAGES), required=False, label=gettext_lazy("Date format")
    )
    clock = forms.ChoiceField(choices=choices_of(CLOCKS), label=gettext_lazy("Time format"))
    times = forms.ChoiceField(choices=choices_of(TIMES), label=gettext_lazy("Times in lists"))
    enter = forms.ChoiceField(
        choices=choices_of(ENTERS),
        label=gettext_lazy("Enter key"),
        help_text=gettext_lazy(
            "Ctrl+Enter always sends the message. Shift+Enter always starts a new line."
        ),
    )
    keys = forms.ChoiceField(choices=choices_of(KEYS), label=gettext_lazy("Keyboard shortcuts"))
    figures = forms.ChoiceField(
        choices=choices_of(FIGURES), label=gettext_lazy("Tokens and cost of answers")
    )
    hears = forms.ChoiceField(
        choices=choices_of(HEARS), label=gettext_lazy("Screen reader announces")
    )


class InvitationForm(forms.Form):
    label = forms.CharField(
        max_length=120,
        required=False,
        strip=True,
        label=gettext_lazy("Label"),
        help_text=gettext_lazy("Only shown to you."),
    )


class WorkspaceInvitationForm(InvitationForm):
    role = forms.ChoiceField(
        choices=choices_of(ROLE_NAMES), initial=MEMBER, label=gettext_lazy("Role")
    )


class MemberForm(forms.Form):
    username = forms.CharField(max_length=150, strip=True, label=gettext_lazy("Username"))
    role = forms.ChoiceField(choices=choices_of(ROLE_NAMES), label=gettext_lazy("Role"))


class GroupRoleForm(forms.Form):
    group = forms.ChoiceField(label=gettext_lazy("Group"))
    role = forms.ChoiceField(
        choices=choices_of(ROLE_NAMES), initial=MEMBER, label=gettext_lazy("Role")
    )

    def __init__(self, *args: Any, groups: Iterable[tuple[int, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["group"].choices = list(groups)  # type: ignore[attr-defined]


class AccountForm(UserCreationForm):  # type: ignore[type-arg]
    """The form in which an invited stranger creates an account, with Django's checks."""

    class Meta:
        model = User
        fields = ("username",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Django's own help text is a list, which does not fit on a line of help.
        self.fields["password1"].help_text = " ".join(password_validators_help_texts())
