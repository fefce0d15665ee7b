"""What is known of the places of another service where people talk to the model.

Nothing that was said is here: what was taken is in the archive.
"""

from django.db import models

from conversations.domain.text import load_json
from conversations.models.runs import Run
from conversations.models.sessions import Session
from conversations.models.workspaces import Workspace


class ChannelPlace(models.Model):
    """A direct message, channel or thread, whose session has the key ``key``. ``address`` is its id
    in the service, ``guild`` and ``parent`` those of the server and the channel that it belongs to,
    if any. ``taken`` is the newest message there that was dealt with: after a time away, those that
    follow it are read."""

    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="+")
    key = models.CharField(max_length=255)
    address = models.BigIntegerField()
    guild = models.BigIntegerField(null=True, blank=True)
    parent = models.BigIntegerField(null=True, blank=True)
    taken = models.BigIntegerField()
    updated_at = models.DateTimeField()

    class Meta:
        app_label = "conversations"
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(fields=("workspace", "key"), name="channel_place_unique"),
        )

    def __str__(self) -> str:
        return self.key


class ChannelReply(models.Model):
    """A message that was taken there, and the messages that answer it.

    ``source`` is its id, ``author`` and ``author_name`` who wrote it, or pressed a button of it.
    ``posted`` is a JSON list of the ids of the messages that show the run, in order, so that they
    are edited and not posted again. ``done_at`` is null while there is more to show."""

    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="channel_replies")
    run = models.OneToOneField(Run, on_delete=models.PROTECT, related_name="channel_reply")
    address = models.BigIntegerField()
    source = models.BigIntegerField()
    author = models.BigIntegerField(default=0, db_default=0)
    author_name = models.CharField(max_length=100, default="", db_default="")
    posted = models.TextField(default="[]", db_default="[]")
    created_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "conversations"
        ordering = ("id",)
        verbose_name_plural = "channel replies"
        indexes = (
            models.Index(
                fields=("id",), condition=models.Q(done_at=None), name="channel_reply_open"
            ),
        )

    def __str__(self) -> str:
        return f"reply to {self.source}"

    @property
    def posted_ids(self) -> list[int]:
        posted = load_json(self.posted, default=[])
        return [int(number) for number in posted] if isinstance(posted, list) else []
