"""A budget as a person writes it down."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.models import User

from conversations.domain.text import storable
from conversations.domain.usage import (
    DAY,
    INSTALLATION,
    MONTH,
    PERSON,
    TOKENS,
    USD,
    WORKSPACE,
)
from conversations.models import Workspace

MICRO = 1_000_000
MAX_AMOUNT = 10**12


class BudgetForm(forms.Form):
    """Of what, how much, in which period, and when to warn."""

    of = forms.ChoiceField(
        label="Of", error_messages={"invalid_choice": "That is not yours to limit."}
    )
    person = forms.CharField(
        label="Username", required=False, max_length=150, help_text="For one person only."
    )
    period = forms.ChoiceField(choices=((MONTH, "Each month"), (DAY, "Each day")))
    limit = forms.DecimalField(min_value=Decimal(0), max_value=Decimal(MAX_AMOUNT))
    unit = forms.ChoiceField(choices=((USD, "US dollars"), (TOKENS, "Tokens")), label="In")
    warn_percent = forms.IntegerField(
        label="Warn at percent", min_value=1, max_value=100, initial=80
    )

    use_required_attribute = False

    def __init__(
        self,
        data: Mapping[str, str] | None,
        *,
        workspaces: Iterable[Workspace],
        may_limit_all: bool,
    ) -> None:
        text = None if data is None else {key: storable(value) for key, value in data.items()}
        super().__init__(text)
        self._workspaces = {f"{WORKSPACE}:{found.slug}": found for found in workspaces}
        choices = [(key, f"Workspace {found.name}") for key, found in self._workspaces.items()]
        if may_limit_all:
            choices = [(INSTALLATION, "The installation"), (PERSON, "One person"), *choices]
        else:
            del self.fields["person"]
        of = self.fields["of"]
        assert isinstance(of, forms.ChoiceField)
        of.choices = choices

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cleaned_data
        if found.get("of") == PERSON:
            found["user"] = User.objects.filter(username=found.get("person", "")).first()
            if found["user"] is None:
                self.add_error("person", "There is no such person.")
        elif found.get("person") and "of" in found:
            self.add_error("of", "A username goes with “One person”.")
        limit, unit = found.get("limit"), found.get("unit")
        if limit is not None and unit == TOKENS and limit != int(limit):
            self.add_error("limit", "Tokens are whole.")
        return found

    @property
    def wish(self) -> dict[str, Any]:
        """What the valid form asks for, as ``archive.budgets.set_budget`` takes it."""
        found = self.cleaned_data
        return {
            "workspace": self._workspaces.get(found["of"]),
            "person": found.get("user"),
            "period": found["period"],
            "unit": found["unit"],
            "limit": int(found["limit"] * (MICRO if found["unit"] == USD else 1)),
            "warn_percent": found["warn_percent"],
        }
