"""What people type into the pages of accounts, checked."""

from django import forms

from conversations.domain.preferences import CLOCKS, ENTERS, KEYS, LANGUAGES, THEMES, TIMES


class PreferencesForm(forms.Form):
    theme = forms.ChoiceField(choices=THEMES)
    language = forms.ChoiceField(choices=LANGUAGES, required=False, label="Dates in")
    clock = forms.ChoiceField(choices=CLOCKS)
    times = forms.ChoiceField(choices=TIMES, label="Times in lists")
    enter = forms.ChoiceField(choices=ENTERS, label="Enter in a message")
    keys = forms.ChoiceField(choices=KEYS, label="Keys")
