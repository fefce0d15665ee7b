"""Personal tokens, by which programs sign in."""

from django.conf import settings
from django.db import models


class ApiToken(models.Model):
    """A personal token. Only its SHA-256 digest is kept; ``hint`` is how it begins, by
    which its person knows it again. ``scopes`` is a list parted by spaces (see
    ``domain.tokens``)."""

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
        indexes = (models.Index(fields=("user", "-id"), name="token_of_person"),)

    def __str__(self) -> str:
        return f"token {self.hint}… of {self.user}"
