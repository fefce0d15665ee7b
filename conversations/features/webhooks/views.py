"""The pages on which owners of a workspace manage its webhooks."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.forms.models import model_to_dict
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_http_methods

from conversations.access import access_context_of, get_workspace_for, post_by_person
from conversations.archive.rights import MANAGE
from conversations.archive.workspaces import lock_workspace
from conversations.domain.errors import Rejected
from conversations.models import Workspace
from conversations.rendering.messages import translate
from conversations.web.addresses import site_of
from conversations.web.errors import refusal_as_message

from . import deliveries, service
from .forms import USUAL, ChangeForm, WebhookForm
from .models import Webhook

STATES = {
    "failing": gettext_lazy("Deliveries are failing and are retried."),
    "turned_off": gettext_lazy(
        "The server turned this webhook off because deliveries failed for too long, or "
        "because the recipient accepts no more messages. To turn it on again, check “On” in its "
        "settings and save."
    ),
}
"""State → explanation of the trouble."""


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def workspace_webhooks(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    form = WebhookForm(
        request.POST if request.method == "POST" else None, initial={"events": USUAL}
    )
    if form.is_valid():
        try:
            webhook = service.create_webhook(
                workspace,
                **form.cleaned_data,
                site=site_of(request),
                origin=access_context_of(request).origin,
            )
        except Rejected as error:
            form.add_error(None, translate(error.message))
        else:
            return _show_secret(request, webhook)
    context = {"workspace": workspace, "form": form, "webhooks": service.list_webhooks(workspace)}
    return render(request, "webhooks/list.html", context, status=400 if form.errors else 200)


def _show_secret(request: HttpRequest, webhook: Webhook) -> HttpResponse:
    context = {
        "workspace": webhook.workspace,
        "webhook": webhook,
        "secret": service.read_secret(webhook),
        "is_rotated": webhook.rotated_at is not None,
    }
    response = render(request, "webhooks/secret.html", context)
    response["Cache-Control"] = "no-store"
    return response


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def workspace_webhook(request: HttpRequest, slug: str, webhook: UUID) -> HttpResponse:
    workspace, found = _find(request, slug, webhook)
    form = ChangeForm(initial=_as_shown(found))
    if request.method == "POST":
        with transaction.atomic():
            lock_workspace(workspace)
            found = service.get_webhook(workspace, webhook)
            form = ChangeForm(request.POST, initial=_as_shown(found))
            if form.is_valid():
                site, origin = site_of(request), access_context_of(request).origin
                service.change_webhook(found, **form.cleaned_data, site=site, origin=origin)
                messages.success(request, gettext("Saved."))
                return redirect("workspace_webhook", slug=slug, webhook=webhook)
    context = {
        "workspace": workspace,
        "webhook": found,
        "trouble": STATES.get(found.state, ""),
        "form": form,
        "deliveries": deliveries.walk_deliveries(found),
    }
    return render(request, "webhooks/one.html", context, status=400 if form.errors else 200)


def _as_shown(webhook: Webhook) -> dict[str, Any]:
    return model_to_dict(webhook) | {"events": service.read_events(webhook)}


def _find(request: HttpRequest, slug: str, uuid: UUID) -> tuple[Workspace, Webhook]:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    return workspace, service.get_webhook(workspace, uuid)


@post_by_person
def workspace_webhook_test(request: HttpRequest, slug: str, webhook: UUID) -> HttpResponse:
    _, found = _find(request, slug, webhook)
    with refusal_as_message(request):
        deliveries.send_test(found)
        messages.success(request, gettext("A test message is being sent. Refresh in a moment."))
    return redirect("workspace_webhook", slug=slug, webhook=webhook)


@post_by_person
def workspace_webhook_rotate(request: HttpRequest, slug: str, webhook: UUID) -> HttpResponse:
    """Change the secret and show the new one, which is not shown again."""
    _, found = _find(request, slug, webhook)
    with refusal_as_message(request):
        service.rotate_secret(found, origin=access_context_of(request).origin)
        return _show_secret(request, found)
    return redirect("workspace_webhook", slug=slug, webhook=webhook)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def workspace_webhook_remove(request: HttpRequest, slug: str, webhook: UUID) -> HttpResponse:
    _, found = _find(request, slug, webhook)
    if request.method != "POST":
        context = {
            "heading": gettext("Delete the webhook to %(host)s") % {"host": found.host},
            "says": gettext(
                "The recipient gets no more messages. The list of deliveries and the secret are "
                "deleted. This cannot be undone."
            ),
            "act": gettext("Delete webhook"),
            "back": reverse("workspace_webhook", args=[slug, webhook]),
        }
        return render(request, "ask.html", context)
    service.remove_webhook(found, origin=access_context_of(request).origin)
    messages.success(request, gettext("Webhook deleted."))
    return redirect("workspace_webhooks", slug=slug)


@post_by_person
def workspace_webhook_again(
    request: HttpRequest, slug: str, webhook: UUID, delivery: UUID
) -> HttpResponse:
    _, found = _find(request, slug, webhook)
    with refusal_as_message(request):
        deliveries.deliver_again(found, delivery)
        messages.success(request, gettext("The message is being sent again. Refresh in a moment."))
    return redirect("workspace_webhook", slug=slug, webhook=webhook)
