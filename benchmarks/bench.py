"""The object that every group of measurements receives."""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.contrib.auth.models import User

from conversations.archive.sessions import create_session
from conversations.archive.workspaces import get_workspace
from conversations.models import Session

WORKSPACE = "example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The options of a run.

    ``data_dir`` is a temporary folder that a first start has prepared. ``is_quick`` asks for fewer
    repetitions.
    """

    data_dir: Path
    is_quick: bool

    def new_session(self) -> Session:
        owner = User.objects.filter(is_superuser=True).order_by("pk").get()
        return create_session(get_workspace(WORKSPACE), owner=owner)

    def new_sessions(self, count: int) -> list[UUID]:
        return [self.new_session().uuid for _ in range(count)]
