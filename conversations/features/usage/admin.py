from django.utils.translation import gettext_lazy

from conversations.admin import Table, choice_filter, show_tables

from .figures import SCOPES

show_tables(
    {
        "conversations.UsageDay": Table(
            "day workspace session person model calls cost_microusd", says_something=False
        ),
        "conversations.UsageTotal": Table(
            "day scope target tokens cost_microusd",
            filters=(choice_filter("scope", gettext_lazy("scope"), SCOPES),),
        ),
        "conversations.Budget": Table("workspace person period unit limit created_at ended_at"),
        "conversations.BudgetWarning": Table("budget starts_on at"),
    }
)
