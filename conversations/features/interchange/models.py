"""Imports that were started on the page."""

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext

from conversations.models.workspaces import Workspace

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"

STATES = (WAITING, RUNNING, DONE, FAILED, STOPPED)
OPEN_STATES = (WAITING, RUNNING)


class Import(models.Model):
    """A file that becomes sessions of ``user`` in ``workspace``. It lies in the data folder
    under its uuid until that is over. ``counts`` and ``report`` are JSON: ``ImportCounts``, and
    what was noted (``reports``), of which ``report_left`` more did not fit.
    ``attempts`` is how often it was begun: a server that stops meanwhile begins it again.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="imports")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="imports"
    )
    name = models.CharField(max_length=255)
    size = models.BigIntegerField(default=0, db_default=0)
    format = models.CharField(max_length=20, default="auto", db_default="auto")
    state = models.CharField(max_length=12, default=WAITING, db_default=WAITING)
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    counts = models.TextField(default="{}", db_default="{}")
    report = models.TextField(default="[]", db_default="[]")
    report_left = models.PositiveIntegerField(default=0, db_default=0)
    error = models.CharField(max_length=500, default="", db_default="")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "conversations"
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(condition=models.Q(state__in=STATES), name="import_state_known"),
        )
        indexes = (
            models.Index(
                fields=("id",), condition=models.Q(state__in=OPEN_STATES), name="import_open"
            ),
        )

    def __str__(self) -> str:
        return f"import of {self.name}"

    @property
    def state_word(self) -> str:
        """For pages, in the language that is active."""
        words = {
            WAITING: gettext("waiting"),
            RUNNING: gettext("running"),
            DONE: gettext("done"),
            FAILED: gettext("failed"),
            STOPPED: gettext("stopped"),
        }
        return words[self.state]

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES
