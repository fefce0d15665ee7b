"""Models of the places in Discord where people talk to the bot, and of the bot's replies.

They do not store the text of messages: handled messages are in the archive.
"""

from django.db import models

from conversations.domain.text import load_json
from conversations.models.runs import Run
from conversations.models.sessions import Session
from conversations.models.workspaces import Workspace


class ChannelPlace(models.Model):
    """A direct message, channel or thread whose session has the key ``key``.

    ``address`` is the place's id in Discord. ``guild`` and ``parent`` are the ids of its Discord
    server and parent channel, if it has them. ``taken`` is the id of the newest message that was
    handled there. After the bot was offline, the messages after ``taken`` are read."""

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
    """The bot's reply to a message: the run, and the messages in Discord that show it.

    ``source`` is the id of the message. ``author`` and ``author_name`` are the person who wrote it,
    or who pressed a button of it. ``posted`` is a JSON list of the ids of the messages that show
    the run, in order, so that they are edited instead of posted again. ``done_at`` is null until
    the whole run is shown."""

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
        ids: list[int] = load_json(self.posted)
        return ids
