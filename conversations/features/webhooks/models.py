"""Models of webhooks and of their outbox."""

import uuid
from urllib.parse import urlsplit

from django.conf import settings
from django.db import models
from django.utils.translation import gettext, gettext_noop

from conversations.models.sessions import Session
from conversations.models.workspaces import Workspace
from conversations.rendering.messages import translate
from conversations.runtime.outbox import describe_status

RUN_COMPLETED, RUN_FAILED = "run.completed", "run.failed"
RUN_STOPPED, RUN_INTERRUPTED = "run.stopped", "run.interrupted"
WAITING_APPROVAL = "run.waiting_approval"
TEST = "webhook.test"

EVENTS = {
    RUN_COMPLETED: gettext_noop("a run has completed"),
    RUN_FAILED: gettext_noop("a run has failed"),
    RUN_STOPPED: gettext_noop("a run was stopped"),
    RUN_INTERRUPTED: gettext_noop("a run was interrupted because its process ended"),
    WAITING_APPROVAL: gettext_noop("a run needs approval"),
}
"""Event that a webhook can subscribe to → description. :data:`TEST` is sent without that."""

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
DELIVERY_STATES = (PENDING, DELIVERED, FAILED)


class Webhook(models.Model):
    """An address that is notified of events of a workspace's runs.

    ``events`` is a JSON list of :data:`EVENTS`. ``with_text`` says whether messages include text of
    the transcript. ``site`` is the address of this server in links, as the person who saved the
    webhook reached it.

    The secret is not stored. It is derived from the uuid, the ``generation`` and the installation's
    secret key (``features.webhooks.service``). The secrets from ``oldest_generation`` on sign as
    well, until some time after ``rotated_at``. ``failing_since`` is the time of the first failure
    since the last message that arrived. ``switched_off_at`` is when the server turned the webhook
    off, because it failed for too long or the receiver wanted no more messages. ``wish_digest`` is
    a digest of the values with which a caller created the webhook under an idempotency key.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="webhooks")
    url = models.CharField(max_length=2000)
    events = models.TextField()
    with_text = models.BooleanField(default=False, db_default=False)
    site = models.CharField(max_length=300, default="", db_default="")
    generation = models.PositiveIntegerField(default=1, db_default=1)
    oldest_generation = models.PositiveIntegerField(default=1, db_default=1)
    wish_digest = models.CharField(max_length=64, null=True)
    rotated_at = models.DateTimeField(null=True)
    is_active = models.BooleanField(default=True, db_default=True)
    failing_since = models.DateTimeField(null=True)
    switched_off_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()

    class Meta:
        app_label = "conversations"
        ordering = ("id",)

    def __str__(self) -> str:
        return f"webhook to {self.host}"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def state(self) -> str:
        """``on``, ``failing``, ``off`` or, if the server turned it off, ``turned_off``."""
        if self.is_active:
            return "on" if self.failing_since is None else "failing"
        return "off" if self.switched_off_at is None else "turned_off"

    @property
    def state_word(self) -> str:
        """The state for pages, in the active language."""
        words = {"on": gettext("on"), "failing": gettext("failing")}
        return words.get(self.state) or gettext("off")


class Delivery(models.Model):
    """A message to a webhook, and the state of its delivery.

    It is saved in the transaction of the event that it reports. ``payload`` is the exact body.
    While the message is ``pending``, ``next_at`` says when it is tried next. ``attempts`` counts
    the attempts that were begun. ``session`` is null for a test.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    webhook = models.ForeignKey(
        Webhook, on_delete=models.PROTECT, related_name="deliveries", db_index=False
    )
    session = models.ForeignKey(
        Session, null=True, on_delete=models.PROTECT, related_name="deliveries"
    )
    event = models.CharField(max_length=40)
    payload = models.TextField()
    state = models.CharField(max_length=12, default=PENDING, db_default=PENDING)
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    next_at = models.DateTimeField()
    created_at = models.DateTimeField(db_index=True)
    tried_at = models.DateTimeField(null=True)
    status = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=255, default="", db_default="")

    class Meta:
        app_label = "conversations"
        ordering = ("-id",)
        verbose_name_plural = "deliveries"
        constraints = (
            models.CheckConstraint(
                condition=models.Q(state__in=DELIVERY_STATES), name="delivery_state_known"
            ),
        )
        indexes = (
            models.Index(fields=("webhook", "-id"), name="delivery_of_webhook"),
            models.Index(
                fields=("webhook", "next_at"),
                condition=models.Q(state="pending"),
                name="delivery_due",
            ),
        )

    def __str__(self) -> str:
        return f"{self.event} ({self.state})"

    @property
    def state_word(self) -> str:
        """The state for pages, in the active language."""
        words = {
            PENDING: gettext("pending"),
            DELIVERED: gettext("delivered"),
            FAILED: gettext("failed"),
        }
        return words[self.state]

    @property
    def problem(self) -> str:
        """The reason of a failure, in the active language if the receiver responded."""
        return translate(describe_status(self.status)) if self.error and self.status else self.error
