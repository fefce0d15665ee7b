"""Models of notices: people's choices, their browsers, and the outbox."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import CheckConstraint, Index, Q, UniqueConstraint

from conversations.models import Device, Run, Session

FINISHED, BROKEN, ASKS = "finished", "failed", "asks"
NOTICE_EVENTS = (FINISHED, BROKEN, ASKS)

PENDING, SENT, DROPPED, FAILED = "pending", "sent", "dropped", "failed"
MESSAGE_STATES = (PENDING, SENT, DROPPED, FAILED)


class NoticeChoice(models.Model):
    """A person's choice of notices. A person without such a row gets no notices.

    ``zone`` is the time zone of the quiet hours, in which no notices are sent. ``site`` is the
    address by which the person reached this server, and the start of the links in e-mails.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notice_choice"
    )
    finished = models.BooleanField(default=True, db_default=True)
    failed = models.BooleanField(default=True, db_default=True)
    asks = models.BooleanField(default=True, db_default=True)
    has_buttons = models.BooleanField(default=True, db_default=True)
    by_email = models.BooleanField(default=False, db_default=False)
    quiet_from = models.TimeField(null=True)
    quiet_until = models.TimeField(null=True)
    zone = models.CharField(max_length=64, default="UTC", db_default="UTC")
    site = models.CharField(max_length=300, default="", db_default="")

    class Meta:
        app_label = "conversations"

    def __str__(self) -> str:
        return f"notices of {self.user}"


class PushSubscription(models.Model):
    """The address of a browser at a push service, and the keys for sending to it.

    A subscription ends when its device is signed out. ``endpoint_digest`` makes the address
    unique, because an index of the address itself would be too wide. ``is_tested`` says that the
    browser is to show a test.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    device = models.OneToOneField(
        Device, on_delete=models.CASCADE, related_name="push_subscription"
    )
    endpoint = models.CharField(max_length=2000)
    endpoint_digest = models.CharField(max_length=64, unique=True)
    p256dh = models.CharField(max_length=88)
    auth = models.CharField(max_length=24)
    site = models.CharField(max_length=300)
    is_tested = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()

    class Meta:
        app_label = "conversations"
        ordering = ("id",)

    def __str__(self) -> str:
        return f"push subscription {self.uuid}"


class MutedSession(models.Model):
    """A session of which a person gets no notices."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+")

    class Meta:
        app_label = "conversations"
        ordering = ("id",)
        constraints = (UniqueConstraint(fields=("user", "session"), name="muted_session_unique"),)

    def __str__(self) -> str:
        return f"{self.session} is muted for {self.user}"


class SessionView(models.Model):
    """The times at which a person has the page of a session in view.

    ``seen_at`` is when the page last reported that it is in view. ``watched_until`` is until when
    it counts as in view if it does not report again.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+")
    seen_at = models.DateTimeField()
    watched_until = models.DateTimeField()

    class Meta:
        app_label = "conversations"
        ordering = ("id",)
        constraints = (UniqueConstraint(fields=("user", "session"), name="session_view_unique"),)

    def __str__(self) -> str:
        return f"{self.user} has seen {self.session}"


class Notice(models.Model):
    """An event that a person is told about once.

    ``subject`` is the UUID of the run that ended, or of the call or the question that waits. Each
    person has at most one notice of a subject, however often the event is recorded.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="+", db_index=False)
    event = models.CharField(max_length=8)
    subject = models.UUIDField()
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        app_label = "conversations"
        ordering = ("-id",)
        constraints = (
            UniqueConstraint(fields=("user", "subject"), name="notice_unique"),
            CheckConstraint(condition=Q(event__in=NOTICE_EVENTS), name="notice_event_known"),
        )

    def __str__(self) -> str:
        return f"notice {self.uuid} ({self.event})"


class NoticeMessage(models.Model):
    """A notice on its way to a device, or by e-mail if ``subscription`` is null.

    While the message is ``pending``, ``next_at`` says when it is processed next. ``attempts``
    counts the attempts that were begun. ``shown_at`` is when the device reported that it has
    shown the notice.
    """

    notice = models.ForeignKey(Notice, on_delete=models.CASCADE, related_name="messages")
    subscription = models.ForeignKey(
        PushSubscription, null=True, on_delete=models.CASCADE, related_name="messages"
    )
    state = models.CharField(max_length=8, default=PENDING, db_default=PENDING)
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    next_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    shown_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "conversations"
        ordering = ("-id",)
        constraints = (
            CheckConstraint(condition=Q(state__in=MESSAGE_STATES), name="notice_message_state"),
        )
        indexes = (
            Index(fields=("next_at",), condition=Q(state=PENDING), name="notice_message_due"),
        )

    def __str__(self) -> str:
        return f"message {self.pk} ({self.state})"
