"""Models of a person's account: sign-in links, invitations, devices and preferences.

The account's programs have tokens, and stored answers to requests with an idempotency key.
"""

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
    """A sign-in link that was printed in the terminal.

    A row can also stand for a sign-in that waits for its second step. The token of such a row is
    never given out as a link.
    """

    # Only the SHA-256 digest is stored, so that a copy of the database does not allow signing in.
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

    ``session_key`` names the device's row in Django's table of sessions. It is null after the
    device was signed out. If the row no longer exists, the device is signed out as well.
    """

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
    """A person's preferences for pages. An empty value stands for the browser's setting."""

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
    """A link with which one person joins a workspace in a role, or only the installation.

    An invitation to the installation alone has no workspace and no role. A link works once. Only
    its SHA-256 digest is stored. ``label`` says for whom it was created.
    """

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
    """A personal API token, of which only the SHA-256 digest is stored.

    ``hint`` is the beginning of the token, by which its person recognises it. ``scopes`` is a list
    separated by spaces (see ``accounts.tokens``).
    """

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
    """The stored response to a request with an idempotency key, for repetitions of the request.

    There is one row for each person and key. ``fingerprint`` is a digest of the request.
    ``status`` is null until the request is answered. ``session`` is the session that the request
    created or belongs to. ``body`` is encrypted with the server's secret key.
    """

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
