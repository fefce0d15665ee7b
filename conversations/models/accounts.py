"""What belongs to people: links to sign in and to join, devices, preferences; and what their
programs leave behind: tokens, and answers that are given again."""

from django.conf import settings
from django.db import models
from django.db.models import CheckConstraint, Index, Q, UniqueConstraint

from conversations.domain.people import (
    CLOCKS,
    ENTERS,
    FIGURES,
    HEARS,
    KEYS,
    LANGUAGES,
    PAGE_LANGUAGES,
    ROLES,
    THEMES,
    TIMES,
)

from .sessions import Session
from .workspaces import Workspace


class SignInLink(models.Model):
    """A link printed in the terminal; or, under a digest of which nobody has the link, a sign-in
    that waits for its second step."""

    # Only the SHA-256 digest is kept, so that a copy of the database signs nobody in.
    digest = models.CharField(max_length=64, unique=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"sign-in link {self.pk} of {self.user}"


class Device(models.Model):
    """A browser in which a person has signed in.

    ``session_key`` names its row in Django's table of sessions, and is null when the
    device was signed out; where that row is gone, the device is signed out as well."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="devices"
    )
    session_key = models.CharField(max_length=40, unique=True, null=True)
    agent = models.CharField(max_length=400, default="", db_default="")
    address = models.CharField(max_length=45, default="", db_default="")
    created_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-last_seen_at", "-id")
        indexes = (Index(fields=("user", "-last_seen_at", "-id"), name="device_of_person"),)

    def __str__(self) -> str:
        return f"device {self.pk} of {self.user}"


class Preferences(models.Model):
    """How a person wants the pages. Empty: as the browser does."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="preferences"
    )
    theme = models.CharField(max_length=5, default="auto", db_default="auto")
    keys = models.CharField(max_length=10, default="all", db_default="all")
    enter = models.CharField(max_length=5, default="send", db_default="send")
    page_language = models.CharField(max_length=8, default="", db_default="")
    language = models.CharField(max_length=8, default="", db_default="")
    clock = models.CharField(max_length=3, default="h23", db_default="h23")
    times = models.CharField(max_length=8, default="relative", db_default="relative")
    figures = models.CharField(max_length=6, default="folded", db_default="folded")
    hears = models.CharField(max_length=7, default="end", db_default="end")

    class Meta:
        verbose_name_plural = "preferences"
        constraints = (
            CheckConstraint(
                condition=Q(
                    theme__in=tuple(THEMES),
                    keys__in=tuple(KEYS),
                    enter__in=tuple(ENTERS),
                    page_language__in=tuple(PAGE_LANGUAGES),
                    language__in=tuple(LANGUAGES),
                    clock__in=tuple(CLOCKS),
                    times__in=tuple(TIMES),
                    figures__in=tuple(FIGURES),
                    hears__in=tuple(HEARS),
                ),
                name="preferences_known",
            ),
        )

    def __str__(self) -> str:
        return f"preferences of {self.user}"


class Invitation(models.Model):
    """A link by which one person joins: a workspace in a role, or the installation
    alone (no workspace, no role). It works once. Only its SHA-256 digest is kept;
    ``label`` says for whom it was made."""

    digest = models.CharField(max_length=64, unique=True)
    label = models.CharField(max_length=120, default="", db_default="")
    workspace = models.ForeignKey(
        Workspace, null=True, on_delete=models.CASCADE, related_name="invitations"
    )
    role = models.CharField(max_length=8, default="", db_default="")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+"
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        constraints = (
            CheckConstraint(
                condition=Q(workspace__isnull=True, role="")
                | Q(workspace__isnull=False, role__in=ROLES),
                name="invitation_role_known",
            ),
        )

    def __str__(self) -> str:
        return f"invitation {self.pk} to {self.workspace or 'the installation'}"


class ApiToken(models.Model):
    """A personal token. Only its SHA-256 digest is kept; ``hint`` is how it begins, by which its
    person knows it again. ``scopes`` is a list parted by spaces (see ``accounts.tokens``)."""

    digest = models.CharField(max_length=64, unique=True)
    hint = models.CharField(max_length=16)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=120)
    scopes = models.CharField(max_length=120)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    last_address = models.CharField(max_length=45, default="", db_default="")
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        indexes = (Index(fields=("user", "-id"), name="token_of_person"),)

    def __str__(self) -> str:
        return f"token {self.hint}… of {self.user}"


class ApiAnswer(models.Model):
    """What a request with an idempotency key was answered, to be given again: once for
    each person and key. ``fingerprint`` is a digest of the request; ``status`` is null
    until it is answered. ``session`` is what it made, or what it belongs to. ``body`` is unreadable
    without the server's secret key."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    session = models.ForeignKey(Session, null=True, on_delete=models.PROTECT, related_name="+")
    status = models.PositiveSmallIntegerField(null=True)
    location = models.CharField(max_length=400, default="", db_default="")
    body = models.TextField(default="", db_default="")
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ("id",)
        constraints = (UniqueConstraint(fields=("user", "key"), name="api_answer_unique"),)

    def __str__(self) -> str:
        return f"answer to a request of {self.user}"
