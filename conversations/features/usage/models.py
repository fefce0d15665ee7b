"""Models of usage and budgets: sums of what model calls used, and limits on them."""

import uuid
from datetime import date
from typing import Any

from django.conf import settings
from django.db import models
from django.utils.translation import gettext

from conversations.domain.text import number_text
from conversations.models.sessions import Session
from conversations.models.workspaces import Workspace
from conversations.rendering.messages import translate

from . import figures


def _count() -> Any:
    return models.BigIntegerField(default=0, db_default=0)


class UsageDay(models.Model):
    """The usage of one model on one day (UTC) in one session for one person.

    The transaction that stores the record of a model call updates these sums, too. ``session`` is
    null for the usage of the workspace's purged sessions. The tokens are counted as in
    ``features.usage.figures.UsageSums``. ``first_token_00`` and the following fields count calls by
    the time to their first token, in the ranges of ``features.usage.figures.FIRST_TOKEN_MS``.
    """

    day = models.DateField()
    workspace = models.ForeignKey(
        Workspace, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    session = models.ForeignKey(
        Session, null=True, on_delete=models.PROTECT, related_name="usage", db_index=False
    )
    person = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    model = models.CharField(max_length=120)
    calls = _count()
    failed = _count()
    unpriced = _count()
    input_tokens = _count()
    cache_read_tokens = _count()
    cache_write_tokens = _count()
    output_tokens = _count()
    cost_microusd = _count()
    first_token_00 = _count()
    first_token_01 = _count()
    first_token_02 = _count()
    first_token_03 = _count()
    first_token_04 = _count()
    first_token_05 = _count()
    first_token_06 = _count()
    first_token_07 = _count()
    first_token_08 = _count()
    first_token_09 = _count()
    first_token_10 = _count()
    first_token_11 = _count()
    first_token_12 = _count()
    first_token_13 = _count()
    first_token_14 = _count()
    first_token_15 = _count()

    class Meta:
        app_label = "conversations"
        ordering = ("-day", "-id")
        constraints = (
            models.UniqueConstraint(
                fields=("session", "day", "person", "model"),
                condition=models.Q(session__isnull=False),
                name="usage_of_session",
            ),
            models.UniqueConstraint(
                fields=("workspace", "day", "person", "model"),
                condition=models.Q(session__isnull=True),
                name="usage_without_session",
            ),
        )
        indexes = (
            models.Index(fields=("day",), name="usage_by_day"),
            models.Index(fields=("workspace", "day"), name="usage_of_workspace"),
            models.Index(fields=("person", "day"), name="usage_of_person"),
        )

    def __str__(self) -> str:
        return f"{self.model} on {self.day}"


class UsageTotal(models.Model):
    """The total usage of the installation, a workspace or a person on one day (UTC).

    Budgets are compared with these totals, so that a comparison costs the same however many calls
    were made. ``target`` is the primary key of the workspace or the person, and 0 for the
    installation.
    """

    scope = models.CharField(max_length=12)
    target = models.BigIntegerField()
    day = models.DateField()
    tokens = _count()
    cost_microusd = _count()

    class Meta:
        app_label = "conversations"
        ordering = ("-day", "-id")
        constraints = (
            models.UniqueConstraint(fields=("scope", "target", "day"), name="usage_total_unique"),
            models.CheckConstraint(
                condition=models.Q(scope__in=figures.SCOPES), name="usage_total_scope_known"
            ),
        )
        indexes = (models.Index(fields=("day",), name="usage_total_by_day"),)

    def __str__(self) -> str:
        return f"{self.scope} {self.target} on {self.day}"


class Budget(models.Model):
    """A limit on the usage of a workspace, a person or, with neither, the installation.

    ``limit`` is in millionths of a US dollar or in tokens, and applies to each period. At
    ``warn_percent`` of the limit, a warning is given. When the limit is reached, no further model
    call is made. To change a budget, it is ended and another one is created.

    ``budgets.read_budgets`` sets further attributes: the ``name`` of the workspace or person, the
    amount ``spent`` in the period that began on ``starts_on``, and ``is_warned``, which says that
    the warning was already given in this period.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    workspace = models.ForeignKey(
        Workspace, null=True, on_delete=models.PROTECT, related_name="budgets"
    )
    person = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="budgets"
    )
    period = models.CharField(max_length=8)
    unit = models.CharField(max_length=8)
    limit = models.BigIntegerField()
    warn_percent = models.PositiveSmallIntegerField(default=80, db_default=80)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    ended_at = models.DateTimeField(null=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    name: str
    spent: int
    starts_on: date
    is_warned: bool

    class Meta:
        app_label = "conversations"
        ordering = ("id",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(workspace=None) | models.Q(person=None), name="budget_of_one"
            ),
            models.CheckConstraint(
                condition=models.Q(period__in=figures.PERIODS), name="budget_period_known"
            ),
            models.CheckConstraint(
                condition=models.Q(unit__in=figures.UNITS), name="budget_unit_known"
            ),
            models.CheckConstraint(
                condition=models.Q(limit__gte=0, warn_percent__range=(1, 100)),
                name="budget_numbers",
            ),
        )
        indexes = (
            models.Index(
                fields=("workspace", "person"),
                condition=models.Q(ended_at=None),
                name="budget_in_force",
            ),
        )

    def __str__(self) -> str:
        return f"{self.limit} {self.unit} a {self.period}"

    @property
    def scope(self) -> str:
        if self.workspace_id is not None:
            return figures.WORKSPACE
        return figures.INSTALLATION if self.person_id is None else figures.PERSON

    @property
    def percent(self) -> int:
        """The spent share of the limit, rounded down, so that 100 means that nothing is left."""
        return 100 * self.spent // self.limit if self.limit else 100

    @property
    def is_used_up(self) -> bool:
        return self.spent >= self.limit

    @property
    def is_near(self) -> bool:
        return self.percent >= self.warn_percent

    @property
    def renews_on(self) -> date:
        return figures.next_start(self.period, self.starts_on)

    # Texts for pages, in the active language.

    @property
    def of(self) -> str:
        """The name of the installation, workspace or person that the budget limits."""
        if self.scope == figures.INSTALLATION:
            return gettext("the installation")
        if self.scope == figures.WORKSPACE:
            return gettext("the workspace %(name)s") % {"name": self.name}
        return self.name

    @property
    def scope_word(self) -> str:
        words = {
            figures.INSTALLATION: gettext("installation"),
            figures.WORKSPACE: gettext("workspace"),
            figures.PERSON: gettext("person"),
        }
        return words[self.scope]

    @property
    def period_word(self) -> str:
        return gettext("day") if self.period == figures.DAY else gettext("month")

    @property
    def limit_text(self) -> str:
        return translate(figures.amount_text(self.limit, self.unit))

    @property
    def spent_text(self) -> str:
        return translate(figures.amount_text(self.spent, self.unit))

    @property
    def percent_text(self) -> str:
        return number_text(self.percent)

    @property
    def period_text(self) -> str:
        return translate(figures.PERIOD_WORDS[self.period])


class BudgetWarning(models.Model):
    """A record that the warning of a budget was given in the period that began on a day."""

    budget = models.ForeignKey(Budget, on_delete=models.PROTECT, related_name="warnings")
    starts_on = models.DateField()
    at = models.DateTimeField()

    class Meta:
        app_label = "conversations"
        ordering = ("-id",)
        constraints = (
            models.UniqueConstraint(fields=("budget", "starts_on"), name="budget_warning_once"),
        )

    def __str__(self) -> str:
        return f"{self.budget} from {self.starts_on}"
