"""Models of links by which anybody may read a part of a session, or one file."""

import uuid

from django.conf import settings
from django.db import models

from conversations.models.sessions import Session
from conversations.models.workspaces import Workspace


class PublicLink(models.Model):
    """A link that anybody may open until ``expires_at``, unless it is revoked.

    The link's address contains a signature besides the uuid (``features.sharing.service``).
    ``opened_count`` says how often the link was opened. Who opened it is not recorded.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    opened_count = models.BigIntegerField(default=0, db_default=0)
    last_opened_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True
        ordering = ("-id",)


class ShareLink(PublicLink):
    """A read-only link to the turns ``from_turn`` to ``to_turn``.

    ``with_tools`` says whether thinking, tool calls and their output are shown, too.
    """

    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="share_links")
    from_turn = models.BigIntegerField()
    to_turn = models.BigIntegerField()
    with_tools = models.BooleanField(default=False, db_default=False)

    class Meta(PublicLink.Meta):
        app_label = "conversations"
        constraints = (
            models.CheckConstraint(
                condition=models.Q(from_turn__gte=1, to_turn__gte=models.F("from_turn")),
                name="share_turns_in_order",
            ),
        )

    def __str__(self) -> str:
        return f"link to turns {self.from_turn}–{self.to_turn}"


class FileLink(PublicLink):
    """A link to one file as it was when it was shared.

    ``digest`` names the blob with the content. ``path`` is relative to the workspace's folder, and
    quoted if it is not UTF-8.
    """

    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="file_links")
    path = models.CharField(max_length=4096)
    digest = models.CharField(max_length=64)

    class Meta(PublicLink.Meta):
        app_label = "conversations"

    def __str__(self) -> str:
        return f"link to {self.path}"
