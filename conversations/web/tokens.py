"""A person's tokens: by which programs act as them."""

from datetime import timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.validators import MaxValueValidator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from conversations.archive.tokens import create_token, list_tokens, revoke_token
from conversations.domain.errors import Rejected
from conversations.domain.tokens import READ, SCOPES, WRITE

from .access import post_by_person
from .pages import person

MAX_TOKEN_DAYS = 3650
"""Days of a token where the installation sets no end."""


class TokenForm(forms.Form):
    name = forms.CharField(
        max_length=120, strip=True, label="For what", help_text="To know it by: shown to you alone."
    )
    scopes = forms.MultipleChoiceField(
        choices=list(SCOPES.items()),
        widget=forms.CheckboxSelectMultiple,
        label="It may",
        initial=[READ, WRITE],
        error_messages={"required": "Choose at least one."},
    )
    days = forms.IntegerField(min_value=1, label="Days that it works")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        most = settings.LOOM.token_days
        days = self.fields["days"]
        assert isinstance(days, forms.IntegerField)
        days.initial = most or None
        days.required = bool(most)
        days.help_text = f"At most {most}." if most else "Empty: without an end."
        days.validators.append(MaxValueValidator(most or MAX_TOKEN_DAYS))
        days.widget.attrs["max"] = most or MAX_TOKEN_DAYS

    @property
    def lifetime(self) -> timedelta | None:
        days = self.cleaned_data["days"]
        return timedelta(days=days) if days else None


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """Those that work; a new one is shown once, in the answer that makes it."""
    form = TokenForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            token = create_token(
                person(request),
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                lifetime=form.lifetime,
            )
        except Rejected as error:
            form.add_error(None, error.message)
        else:
            context = {"token": token, "name": form.cleaned_data["name"]}
            response = render(request, "account/token.html", context)
            response["Cache-Control"] = "no-store"
            return response
    context = {"tokens": list_tokens(person(request).pk), "form": form}
    return render(request, "account/tokens.html", context, status=400 if form.errors else 200)


@post_by_person
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    revoke_token(person(request).pk, token_pk=pk)
    messages.success(request, "Revoked. The token works no more.")
    return redirect("tokens")
