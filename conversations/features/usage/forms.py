"""Forms of the pages of usage and budgets."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy

from conversations.domain.text import storable
from conversations.models import Workspace
from conversations.web.addresses import query_of
from conversations.web.forms import FilterForm, date_field

from .figures import DAY, INSTALLATION, MONTH, PERSON, TOKENS, USD, WORKSPACE
from .report import UsageRights, workspaces_with_usage

MICRO = 1_000_000
MAX_AMOUNT = 10**12


class BudgetForm(forms.Form):
    of = forms.ChoiceField(
        label=gettext_lazy("Scope"),
        error_messages={"invalid_choice": gettext_lazy("You cannot set a budget for this.")},
    )
    person = forms.CharField(
        label=gettext_lazy("Username"),
        required=False,
        max_length=150,
        help_text=gettext_lazy("Only for “One person”."),
    )
    period = forms.ChoiceField(
        label=gettext_lazy("Period"),
        choices=((MONTH, gettext_lazy("Per month")), (DAY, gettext_lazy("Per day"))),
    )
    limit = forms.DecimalField(
        label=gettext_lazy("Limit"), min_value=Decimal(0), max_value=Decimal(MAX_AMOUNT)
    )
    unit = forms.ChoiceField(
        label=gettext_lazy("Unit"),
        choices=((USD, gettext_lazy("US dollars")), (TOKENS, gettext_lazy("Tokens"))),
    )
    warn_percent = forms.IntegerField(
        label=gettext_lazy("Warn at (%)"), min_value=1, max_value=100, initial=80
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
        self._workspaces = {f"{WORKSPACE}:{workspace.slug}": workspace for workspace in workspaces}
        choices = [
            (key, gettext("Workspace %(name)s") % {"name": workspace.name})
            for key, workspace in self._workspaces.items()
        ]
        if may_limit_all:
            choices = [
                (INSTALLATION, gettext("The installation")),
                (PERSON, gettext("One person")),
                *choices,
            ]
        else:
            del self.fields["person"]
        field = self.fields["of"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        if data.get("of") == PERSON:
            data["user"] = User.objects.filter(username=data.get("person", "")).first()
            if data["user"] is None:
                self.add_error("person", gettext("This person does not exist."))
        elif data.get("person") and "of" in data:
            self.add_error("of", gettext("Enter a username only with “One person”."))
        limit, unit = data.get("limit"), data.get("unit")
        if limit is not None and unit == TOKENS and limit != int(limit):
            self.add_error("limit", gettext("Tokens must be a whole number."))
        return data

    @property
    def budget_values(self) -> dict[str, Any]:
        """The keyword arguments of the valid form for ``set_budget``."""
        data = self.cleaned_data
        return {
            "workspace": self._workspaces.get(data["of"]),
            "person": data.get("user"),
            "period": data["period"],
            "unit": data["unit"],
            "limit": int(data["limit"] * (MICRO if data["unit"] == USD else 1)),
            "warn_percent": data["warn_percent"],
        }


MAX_PERIOD_DAYS = 366
DEFAULT_PERIOD_DAYS = 30


class UsageForm(FilterForm):
    """The filters of usage: days, a workspace, a person and a model.

    The default is the last thirty days. ``of`` sets the workspace.
    """

    first = date_field(gettext_lazy("From"))
    last = date_field(gettext_lazy("To"))
    workspace = forms.ChoiceField(
        label=gettext_lazy("Workspace"),
        required=False,
        error_messages={
            "invalid_choice": gettext_lazy("This workspace does not exist, or you have no access.")
        },
    )
    person = forms.CharField(required=False, max_length=150, widget=forms.HiddenInput)
    model = forms.CharField(required=False, max_length=120, widget=forms.HiddenInput)

    def __init__(
        self, rights: UsageRights, data: Mapping[str, str], workspace: Workspace | None = None
    ) -> None:
        self.today = today = timezone.now().date()
        text = {"first": f"{today - timedelta(days=DEFAULT_PERIOD_DAYS - 1)}", "last": f"{today}"}
        text |= {name: value for name, value in data.items() if value.strip()}
        workspaces = dict(workspaces_with_usage(rights).values_list("slug", "name"))
        if workspace is not None:
            workspaces[workspace.slug] = workspace.name
            text["workspace"] = workspace.slug
        super().__init__(text, workspaces=workspaces.items())

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        first, last = data.get("first"), data.get("last")
        if first and last and first > last:
            self.add_error("last", gettext("This date must not be before the first date."))
        elif first and last and (last - first).days >= MAX_PERIOD_DAYS:
            problem = gettext("At most %(limit)s days can be shown at once.")
            self.add_error("last", problem % {"limit": MAX_PERIOD_DAYS})
        return data

    def address(self, **changes: Any) -> str:
        """Return the query string of this page with some values changed, without empty values."""
        values = {**self.cleaned_data, **changes}
        return query_of(values)

    def spans(self) -> list[tuple[str, str, bool]]:
        """Return common ranges of days: name, query string, and whether the range is chosen."""
        today = self.today
        month = today.replace(day=1)
        before = (month - timedelta(days=1)).replace(day=1)
        spans = (
            (gettext("7 days"), today - timedelta(days=6), today),
            (gettext("30 days"), today - timedelta(days=DEFAULT_PERIOD_DAYS - 1), today),
            (gettext("This month"), month, today),
            (gettext("Last month"), before, month - timedelta(days=1)),
            (gettext("Year"), today - timedelta(days=MAX_PERIOD_DAYS - 2), today),
        )
        now = (self.cleaned_data["first"], self.cleaned_data["last"])
        return [
            (name, self.address(first=first, last=last), (first, last) == now)
            for name, first, last in spans
        ]

    def chosen(self) -> list[tuple[str, str, str]]:
        """Return the filters in use that have no control: label, value, and query without it."""
        return [
            (word, self.cleaned_data[name], self.address(**{name: ""}))
            for name, word in (("person", gettext("person")), ("model", gettext("model")))
            if self.cleaned_data[name]
        ]
