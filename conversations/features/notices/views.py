"""The page of a person's notices, and requests of the service worker and of a session's page."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.forms.models import model_to_dict
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from conversations.access import (
    Access,
    access_context_of,
    get_session_for,
    person,
    post_by_person,
    post_to_session,
    sign_in_first,
)
from conversations.accounts.devices import name_of_agent
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.messages import say
from conversations.domain.text import an_object, load_json, one_line
from conversations.domain.tool_calls import DENY, ONCE, read_asked
from conversations.models import Session, ToolCall
from conversations.rendering.messages import translate
from conversations.runtime.current import current_runtime
from conversations.runtime.outbox import check_receiver_url
from conversations.web.addresses import site_of

from . import deliveries, service, vapid
from .forms import NoticeForm
from .models import ASKS, BROKEN, FINISHED, Notice, PushSubscription
from .worker import push

MAX_BODY_BYTES = 10_000

# The length of text that a notice shows on any system. A longer call is approved on the page.
MAX_SHOWN_CHARS = 200


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def notifications(request: HttpRequest) -> HttpResponse:
    user = person(request)
    choice = service.read_choice(user.pk)
    form = NoticeForm(
        request.POST if request.method == "POST" else None,
        initial=model_to_dict(choice),
        email=user.email,
    )
    if form.is_valid():
        service.save_choice(user.pk, site=site_of(request), **form.cleaned_data)
        messages.success(request, gettext("Saved."))
        return redirect("notifications")
    subscriptions = [
        {
            "uuid": subscription.uuid,
            "name": name_of_agent(subscription.device.agent),
            "created_at": subscription.created_at,
            "is_current": subscription.device.session_key == request.session.session_key,
        }
        for subscription in service.list_subscriptions(user.pk)
    ]
    context = {
        "form": form,
        "key": vapid.public_key(),
        "subscriptions": subscriptions,
        "current": next(
            (subscription for subscription in subscriptions if subscription["is_current"]), None
        ),
        "muted": service.list_muted(user),
        "is_saved": choice.pk is not None,
    }
    return render(
        request, "notices/notifications.html", context, status=400 if form.errors else 200
    )


# Requests of the service worker, which carry the person's cookie. After a sign-out, the response
# is 401, which tells the worker to forget everything that it has stored.


def _by_worker(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def checked(request: HttpRequest, **url_kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return _json({"error": gettext("Signed out.")}, status=401)
        return view(request, **url_kwargs)

    return checked


def _json(data: dict[str, Any], *, status: int = 200) -> JsonResponse:
    response = JsonResponse(data, status=status)
    response["Cache-Control"] = "no-store"
    return response


def _read_json(request: HttpRequest) -> dict[str, Any]:
    """Return the JSON object in the body. Raise Rejected if it is too large or invalid."""
    try:
        data = json.loads(request.body) if len(request.body) <= MAX_BODY_BYTES else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise Rejected("This must be a short JSON object.", code="bad_json")
    return data


@_by_worker
@require_safe
def waiting(request: HttpRequest) -> HttpResponse:
    """Return the notices that this browser is to show, and those that it may go on showing."""
    user = person(request)
    subscription = service.find_subscription(user.pk, request.session.session_key)
    notices = deliveries.WaitingNotices(new=[], still=[])
    if subscription is not None:
        notices = deliveries.read_waiting(user.pk, subscription_pk=subscription.pk)
    has_buttons = service.read_choice(user.pk).has_buttons
    new = [_describe(request, notice, has_buttons=has_buttons) for notice in notices.new]
    still = [str(notice.uuid) for notice in notices.still]
    if subscription is not None:
        # A test stays until the person closes it: a push that follows must not take it away.
        still.append(str(subscription.uuid))
        if subscription.is_tested:
            new.append(_describe_test(subscription))
    return _json(
        {
            "new": new,
            "still": still,
            "csrf": get_token(request),
        }
    )


def _describe(request: HttpRequest, notice: Notice, *, has_buttons: bool) -> dict[str, Any]:
    session = notice.session
    data = {
        "id": str(notice.uuid),
        "event": notice.event,
        "title": session.title or gettext("Untitled session"),
        "url": reverse("session", args=[session.uuid]),
        "at": int(notice.created_at.timestamp() * 1000),
    }
    if notice.event != ASKS:
        bodies = {
            FINISHED: gettext("The answer is complete."),
            BROKEN: gettext("The answer has failed."),
        }
        return data | {"body": bodies[notice.event]}
    calls = list(deliveries.waiting_calls(notice))
    if len(calls) != 1:
        body = ngettext(
            "%(count)s call waits for your approval.",
            "%(count)s calls wait for your approval.",
            len(calls),
        )
        return data | {"body": body % {"count": len(calls)}}
    if calls[0].question:
        return data | {"body": gettext("A tool has a question for you.")}
    body, is_whole = _question_text(calls[0])
    data |= {"body": body}
    _, access = get_session_for(request, session.uuid)
    if has_buttons and access.can_write:
        actions = ["approve", "deny"] if is_whole else ["deny"]
        decide = reverse("session_decide", args=[session.uuid])
        data |= {"decide": decide, "call": str(calls[0].uuid), "actions": actions}
    return data


def _describe_test(subscription: PushSubscription) -> dict[str, Any]:
    return {
        "id": str(subscription.uuid),
        "event": "test",
        "title": "Loom Web",
        "body": gettext("Notifications work on this device."),
        "url": reverse("notifications"),
        "at": int(timezone.now().timestamp() * 1000),
    }


def _question_text(call: ToolCall) -> tuple[str, bool]:
    """Return what a call would do, and whether that text is enough to approve the call."""
    question = read_asked(load_json(call.asked, default={}))
    # Only the summary names the folder of a command, and the tool and its server.
    summary = translate(question.summary or call.name)
    lines = [
        summary,
        "" if question.command in summary else question.command,
        translate(question.note),
    ]
    is_whole = (
        not question.diff
        and "…" not in summary  # the text was not cut off
        and all(line.isprintable() for line in lines)
        and sum(map(len, lines)) <= MAX_SHOWN_CHARS
    )
    shown = "\n".join(filter(None, lines)) if is_whole else one_line(summary, limit=MAX_SHOWN_CHARS)
    # Unprintable characters could make a text look like another one.
    shown = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in shown)
    return gettext("Needs your approval: %(call)s") % {"call": shown}, is_whole


@_by_worker
@require_POST
def shown(request: HttpRequest) -> HttpResponse:
    user = person(request)
    submitted = _read_json(request).get("notices")
    try:
        uuids = [UUID(str(text)) for text in submitted] if isinstance(submitted, list) else []
    except ValueError as error:
        raise Rejected("Notices must be given by their UUIDs.", code="bad_notice") from error
    subscription = service.find_subscription(user.pk, request.session.session_key)
    if subscription is not None:
        deliveries.record_shown(user.pk, subscription_pk=subscription.pk, notices=uuids)
        if subscription.uuid in uuids:
            service.end_test(subscription)
    return _json({})


@_by_worker
@require_POST
def subscribe(request: HttpRequest) -> HttpResponse:
    """Subscribe this browser to notices."""
    data = _read_json(request)
    endpoint = check_receiver_url(
        str(data.get("endpoint") or ""),
        what=say("The address of a push service"),
        private=settings.LOOM.push_private_addresses,
    )
    service.subscribe(
        person(request).pk,
        session_key=request.session.session_key or "",
        endpoint=endpoint,
        keys=an_object(data.get("keys")),
        site=site_of(request),
        zone=str(data.get("zone")),
    )
    messages.success(request, gettext("Notifications are on for this device."))
    return _json({}, status=201)


@post_by_person
def unsubscribe(request: HttpRequest, device: UUID) -> HttpResponse:
    service.unsubscribe(person(request).pk, uuid=device)
    messages.success(request, gettext("Notifications are off for that device."))
    return redirect("notifications")


async def test(request: HttpRequest, device: UUID) -> HttpResponse:
    """Wake the browser to show a test, and report how the push service responded."""
    user = await request.auser()
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not isinstance(user, User):
        return sign_in_first()
    subscription = await sync_to_async(service.begin_test)(user.pk, uuid=device)
    attempt = await push(subscription, is_urgent=True)
    if attempt.is_final:
        await sync_to_async(service.remove_subscription)(subscription.pk)
    if attempt.arrived:
        messages.success(request, gettext("Test notification sent."))
    else:
        problem = gettext("The test notification could not be sent. %(reason)s")
        messages.error(request, problem % {"reason": translate(attempt.error)})
    return redirect("notifications")


# Requests of a session's page and of its notices.


def _find_session(request: HttpRequest, uuid: UUID) -> Session:
    # No part of the transcript is shown, so this does not count as reading by a reviewer.
    session, _ = get_session_for(replace(access_context_of(request), action=""), uuid)
    return session


@post_by_person
def mute(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Mute the session or, with ``unmute``, end that; then redirect to the page before."""
    user_pk = person(request).pk
    if request.POST.get("unmute"):  # allowed even if the person may no longer read the session
        service.unmute(user_pk, uuid)
    else:
        service.mute(user_pk, _find_session(request, uuid))
    if request.POST.get("next") == "notifications":
        return redirect("notifications")
    return redirect("session", uuid=uuid)


@post_by_person
def watch(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Record that the person has the session in view or, without ``open``, has left it."""
    session = _find_session(request, uuid)
    service.record_view(person(request).pk, session, is_open=bool(request.POST.get("open")))
    return HttpResponse(status=204)


def _refusals_as_json(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    async def checked(request: HttpRequest, **url_kwargs: Any) -> HttpResponse:
        try:
            response: HttpResponse = await view(request, **url_kwargs)
        except LoomError as error:
            return _json({"error": translate(error.message)}, status=error.status)
        return response

    return checked


@_refusals_as_json
@post_to_session
async def decide(
    request: HttpRequest, session: Session, access: Access, user: User
) -> HttpResponse:
    """Answer a call from a notice."""
    try:
        call = UUID(str(request.POST.get("call")))
    except ValueError:
        return _json({"error": gettext("Name the call by its UUID.")}, status=400)
    decision = {"approve": ONCE, "deny": DENY}.get(request.POST.get("act", ""))
    if decision is None:
        return _json({"error": gettext("Approve or deny.")}, status=400)
    runtime = await current_runtime()
    await runtime.decide_call(session, call=call, decision=decision, user_pk=user.pk, reason="")
    return _json({})
