"""How much may be used, how much of it is, and how both are said."""

from dataclasses import dataclass
from datetime import date

from .usage import DAY, INSTALLATION, PERSON, USD, WORKSPACE, next_start


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A budget in one of its periods, which begins on ``starts_on``. ``name`` is that of
    the workspace or of the person. ``limit`` and ``spent`` are millionths of a US dollar,
    or tokens. ``is_warned``: it was said already that it is nearly used up."""

    pk: int
    uuid: str
    scope: str
    name: str
    period: str
    unit: str
    limit: int
    warn_percent: int
    starts_on: date
    spent: int
    is_warned: bool

    @property
    def percent(self) -> int:
        """Of the limit, rounded down, so that 100 says that nothing is left."""
        return 100 * self.spent // self.limit if self.limit else 100

    @property
    def is_used_up(self) -> bool:
        return self.spent >= self.limit

    @property
    def is_near(self) -> bool:
        return self.percent >= self.warn_percent

    @property
    def renews_on(self) -> date:
        return next_start(self.period, self.starts_on)

    @property
    def of(self) -> str:
        """Whose it is, in words."""
        return {
            INSTALLATION: "the installation",
            WORKSPACE: f"the workspace {self.name}",
            PERSON: self.name,
        }[self.scope]

    @property
    def limit_text(self) -> str:
        return amount_text(self.limit, self.unit)

    @property
    def spent_text(self) -> str:
        return amount_text(self.spent, self.unit)

    @property
    def period_text(self) -> str:
        return "today" if self.period == DAY else "this month"


def amount_text(amount: int, unit: str) -> str:
    """An amount as a person reads it."""
    text = f"${amount / 1_000_000:,.2f}" if unit == USD else f"{amount:,} tokens"
    return text.replace(",", "\u202f")
