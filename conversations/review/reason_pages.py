"""The form that asks a reviewer for the reason for reading."""

from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_http_methods

from conversations.domain.text import storable
from conversations.web.forms import LinesField

from .reasons import MAX_REASON_CHARS, REQUIRED, SITTING, ReasonNeeded, find_reason, save_reason

FOR_SESSION, FOR_SITTING = "session", "sitting"


class ReasonForm(forms.Form):
    reason = LinesField(
        label=gettext_lazy("Why are you reading this?"),
        max_length=MAX_REASON_CHARS,
        required=False,
        strip=True,
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    covers = forms.ChoiceField(
        label=gettext_lazy("This reason applies to"),
        choices=(
            (FOR_SESSION, gettext_lazy("This session")),
            (FOR_SITTING, gettext_lazy("Everything I read")),
        ),
        widget=forms.RadioSelect,
        required=False,
    )
    session = forms.UUIDField(required=False, widget=forms.HiddenInput)
    next = forms.CharField(required=False, widget=forms.HiddenInput)

    def clean_reason(self) -> str:
        reason: str = storable(self.cleaned_data["reason"])
        if not reason and settings.LOOM.review_reason == REQUIRED:
            raise forms.ValidationError(gettext("A reason is required."))
        return reason

    @property
    def covered(self) -> UUID | None:
        """The session that the reason is for, or None for the whole sitting."""
        is_for_all = self.cleaned_data["covers"] == FOR_SITTING
        session: UUID | None = self.cleaned_data["session"]
        return None if is_for_all else session


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def review_reason(request: HttpRequest) -> HttpResponse:
    """Show the form, or save a reason. An empty reason removes the saved one."""
    if request.method != "POST":  # for the session of the query string, or for the sitting
        named = ReasonForm({"session": request.GET.get("session", "")})
        named.full_clean()  # may be invalid, because the reason is missing
        session = named.cleaned_data.get("session")
        initial = _initial(session, back=request.GET.get("next", ""))
        reason = find_reason(request.session, session)
        return _page(request, ReasonForm(initial=initial | {"reason": reason}))
    form = ReasonForm(request.POST)
    if not form.is_valid():
        return _page(request, form, status=400)
    save_reason(request.session, form.covered, form.cleaned_data["reason"])
    back = form.cleaned_data["next"]
    is_ours = back.startswith("/") and url_has_allowed_host_and_scheme(
        back, allowed_hosts=None, require_https=request.is_secure()
    )
    return redirect(back if is_ours else reverse("home"))


def ask_reason(request: HttpRequest, error: ReasonNeeded) -> HttpResponse:
    """Return the form in place of the page that needs a reason."""
    form = ReasonForm(initial=_initial(error.session, back=request.get_full_path()))
    return _page(request, form, status=error.status)


def _initial(session: UUID | None, *, back: str) -> dict[str, str]:
    return {
        "session": str(session or SITTING),
        "covers": FOR_SESSION if session else FOR_SITTING,
        "next": back,
    }


def _page(request: HttpRequest, form: ReasonForm, *, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "asks_for_session": bool(form["session"].value()),
        "hours": settings.LOOM.review_reason_hours,
        "is_required": settings.LOOM.review_reason == REQUIRED,
    }
    return render(request, "review_reason.html", context, status=status)
