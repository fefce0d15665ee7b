"""What programs leave behind: personal tokens, by which they sign in, and answers that
are given again."""

from django.conf import settings
from django.db import models
from django.db.models import Index, UniqueConstraint

from .sessions import Session


class ApiToken(models.Model):
    """A personal token. Only its SHA-256 digest is kept; ``hint`` is how it begins, by
    which its person knows it again. ``scopes`` is a list parted by spaces (see
    ``accounts.tokens``)."""

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
    until it is answered. ``session`` is what it made, or what it belongs to."""

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
