"""The model of imports that were started on the page or by the API."""

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext

from conversations.models.workspaces import Workspace

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"

STATES = (WAITING, RUNNING, DONE, FAILED, STOPPED)
OPEN_STATES = (WAITING, RUNNING)


class Import(models.Model):
    """An uploaded file that is imported as sessions of ``user`` in ``workspace``.

    The file is stored in the data folder under ``uuid`` until the import ends. ``counts`` is
    ``ImportCounts`` as JSON. ``report`` is JSON as the module ``reports`` writes it;
    ``report_left`` counts the notes that did not fit. ``attempts`` counts the starts: an import
    that is interrupted by a server stop is started again.
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
        """Return the name of the state in the active language."""
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
