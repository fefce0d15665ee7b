"""The outline of a session in the panel: a person's messages, and jumping to a turn or a day."""

from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_safe

from conversations.access import get_session_for
from conversations.accounts.languages import zone_of_browser
from conversations.archive.outline import first_turn_since, read_outline

from .forms import date_field, midnight
from .panel import render_panel

PAGE_MESSAGES = 100


class JumpForm(forms.Form):
    """The target of a jump: a turn, or the first turn of a day.

    The day is in the browser's time zone if its scripts are enabled.
    """

    turn = forms.IntegerField(
        min_value=1,
        required=False,
        label=gettext_lazy("Turn"),
        widget=forms.NumberInput(attrs={"min": 1}),
    )
    date = date_field(gettext_lazy("Day"))
    before = forms.IntegerField(min_value=1, required=False, widget=forms.HiddenInput)

    use_required_attribute = False


@login_required
@require_safe
def session_outline(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Show a person's messages, the last page first, or redirect to a ``turn`` or a ``date``."""
    session, access = get_session_for(request, uuid)
    form = JumpForm(request.GET.dict(), auto_id="jump-%s")
    is_valid = form.is_valid()
    if is_valid and session.turn_count:
        turn = form.cleaned_data["turn"]
        moment = midnight(form.cleaned_data["date"], zone_of_browser(request))
        if turn:
            return redirect("turn", uuid=uuid, number=min(turn, session.turn_count))
        if moment is not None:
            return redirect("turn", uuid=uuid, number=first_turn_since(session, moment))
    before = form.cleaned_data.get("before") if is_valid else None
    entries = read_outline(session, before=before, limit=PAGE_MESSAGES + 1)
    context = {
        "heading": gettext("Outline"),
        "form": form,
        "entries": entries[-PAGE_MESSAGES:],
        "older": entries[-PAGE_MESSAGES].turn if len(entries) > PAGE_MESSAGES else None,
        "is_first": before is None,
    }
    status = 200 if is_valid else 400
    return render_panel(request, session, access, "outline", context, status=status)
