"""Single-use links that sign a person in."""

from django.conf import settings
from django.db import models


class SignInLink(models.Model):
    """A link printed in the terminal. Only its SHA-256 digest is kept, so that a
    copy of the database signs nobody in."""

    digest = models.CharField(max_length=64, unique=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"sign-in link {self.pk} of {self.user}"
