"""Budgets in a run: a warning when one is nearly used up, and the end when one is.

They are looked at before each model call. What is under way goes on: calls that run at
the same time can pass a budget, by what they use.
"""

from collections.abc import Sequence

from conversations.archive.budgets import read_budgets
from conversations.domain.budgets import BudgetState
from conversations.domain.errors import BudgetReached
from conversations.domain.events import Info
from conversations.domain.usage import WORKSPACE

from .failures import KEPT

WARNED, REACHED = "budget_warning", "budget_reached"


def check_budgets(session_pk: int, *, person_pk: int | None) -> list[BudgetState]:
    """The budgets of which a warning is due. Raises BudgetReached where one is used up."""
    states = read_budgets(session_pk, person_pk=person_pk)
    for state in states:
        if state.is_used_up:
            raise BudgetReached(describe_reached(state))
    return [state for state in states if state.is_near and not state.is_warned]


def describe_reached(state: BudgetState) -> str:
    """What is used up, and what can be done."""
    who = "An owner of the workspace" if state.scope == WORKSPACE else "An administrator"
    return (
        f"The budget of {state.of} for {state.period_text} is used up:"
        f" {state.spent_text} of {state.limit_text}. {who} can raise it;"
        f" a new one begins on {state.renews_on} (UTC)."
    )


def describe_warnings(states: Sequence[BudgetState]) -> list[tuple[BudgetState, Info]]:
    """The rows that say so."""
    return [
        (
            state,
            Info(
                text=f"{state.percent} % of the budget of {state.of} for {state.period_text} is"
                f" used: {state.spent_text} of {state.limit_text}. When it is used up, the model"
                f" is not asked again before {state.renews_on} (UTC).",
                code=WARNED,
            ),
        )
        for state in states
    ]


def describe_stop(error: BudgetReached, *, run: str, has_answered: bool) -> Info:
    """The row for a run that a budget ended, before its first model call or later."""
    kept = "What there is is kept; continue then." if has_answered else f"{KEPT} Retry then."
    return Info(
        text=f"{error.message} {kept}",
        kind="notice" if has_answered else "error",
        code=REACHED,
        action="continue" if has_answered else "retry",
        run=run,
    )
