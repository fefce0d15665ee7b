"""How people want their pages."""

from dataclasses import asdict, dataclass

from conversations.models import Preferences


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a person has chosen, or what holds while they have not. The values are those
    of ``domain.preferences``."""

    theme: str = "auto"
    keys: str = "all"
    enter: str = "send"
    language: str = ""
    clock: str = "h23"
    times: str = "relative"


DEFAULTS = Chosen()


def read_preferences(user_pk: int | None) -> Chosen:
    found = Preferences.objects.filter(user=user_pk).values(*asdict(DEFAULTS)).first()
    return Chosen(**found) if found else DEFAULTS


def write_preferences(user_pk: int, chosen: Chosen) -> None:
    Preferences.objects.update_or_create(user_id=user_pk, defaults=asdict(chosen))
