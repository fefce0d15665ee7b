"""Requests that may be sent twice: with the header ``Idempotency-Key``, what makes
something makes it once, and the second answer is the first one again.

Who asks again is let in as whoever asks first: the token's scope, the browser's CSRF token
and the right to what the answer is about are asked for before it is given."""

import hashlib
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from ninja.operation import Operation
from ninja.utils import contribute_operation_callback

from conversations.access import get_session_for, get_workspace_for
from conversations.archive.rights import WRITE
from conversations.domain.errors import LoomError
from conversations.models import Session

from .fields import KEY_HEADER
from .problems import problem, problem_of
from .stored_responses import (
    Claim,
    KeptAnswer,
    OtherRequest,
    StillAnswering,
    claim_request,
    drop_claim,
    save_answer,
)

_KEY = re.compile(r"[\x21-\x7e]{1,255}")

PARAMETER = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[\x21-\x7e]+$"},
    "description": "Of your choice, such as a uuid: sent again with it, the same request makes"
    " nothing new and is answered as before, with `Idempotent-Replayed: true`.",
}

type Run = Callable[..., HttpResponse]


def makes_once[F: Callable[..., Any]](*, to: str = WRITE, in_one: bool = True) -> Callable[[F], F]:
    """Of an operation, below ``router.post``: it honours the header. It is not
    asynchronous. What it makes and the answer that is kept go in one transaction, unless that
    would take long (``in_one``): then a process that dies in between may make it twice.
    ``to`` is what the operation itself asks for, of the session or the workspace."""

    def honour(operation: Operation) -> None:
        wrap: Any = partial(_run_once, to=to, in_one=in_one)
        operation.run = wrap(operation.run)  # type: ignore[method-assign]
        # A router has copies of its operations, which are wrapped when they are made.
        operation._run_decorators = [wrap]  # type: ignore[attr-defined]
        extra = operation.openapi_extra or {}
        extra["parameters"] = [*extra.get("parameters", ()), PARAMETER]
        operation.openapi_extra = extra

    def honouring(function: F) -> F:
        contribute_operation_callback(function, honour)
        return function

    return honouring


def belongs_to(request: HttpRequest, session: Session) -> None:
    """The answer has something of this session, and goes when it is purged."""
    request.loom_answer_of = session.pk  # type: ignore[attr-defined]


def _run_once(run: Run, *, to: str, in_one: bool) -> Run:
    operation: Any = run.__self__  # type: ignore[attr-defined]  # whose method it is

    @wraps(run)
    def once(request: HttpRequest, **values: Any) -> HttpResponse:
        refusal: HttpResponse | None = None
        if KEY_HEADER in request.headers:
            refusal = operation._run_checks(request)
        if refusal is not None:
            return refusal
        claim = _claim(request, to, values)
        if claim is None:
            return run(request, **values)
        if isinstance(claim, HttpResponse):
            return claim
        try:
            with transaction.atomic() if in_one else nullcontext():
                response = run(request, **values)
                is_kept = _keep(request, claim, response)
                if in_one:
                    transaction.set_rollback(not is_kept)
        except BaseException:
            drop_claim(claim)
            raise
        if not is_kept:
            drop_claim(claim)
        return response

    return once


def _claim(request: HttpRequest, to: str, values: dict[str, Any]) -> Claim | HttpResponse | None:
    """None: the header is not there, or nobody who is known sent it."""
    key = request.headers.get(KEY_HEADER)
    caller = getattr(request, "api_caller", None)
    if key is None or caller is None:
        return None
    if not _KEY.fullmatch(key):
        reason = f"{KEY_HEADER} is 1 to 255 visible characters of ASCII."
        return problem(422, reason, code="idempotency_key_invalid")
    try:
        found = claim_request(caller.user, key=key, fingerprint=_fingerprint(request))
    except StillAnswering as error:
        busy = problem_of(error)
        busy["Retry-After"] = "1"
        return busy
    except OtherRequest as error:
        return problem_of(error)
    return found if isinstance(found, Claim) else _give_again(request, found, to, values)


def _give_again(
    request: HttpRequest, found: KeptAnswer, to: str, values: dict[str, Any]
) -> HttpResponse:
    """The answer, to who might be given it now."""
    try:
        if found.session is not None:
            get_session_for(request, found.session, to=to)
        elif slug := values.get("slug"):
            get_workspace_for(request, slug, to=to)
    except LoomError as error:
        return problem_of(error)
    response = HttpResponse(
        found.body, status=found.status, content_type="application/json; charset=utf-8"
    )
    if found.location:
        response["Location"] = found.location
    response["Idempotent-Replayed"] = "true"
    return response


def _keep(request: HttpRequest, claim: Claim, response: HttpResponse) -> bool:
    """False for what was refused."""
    if response.status_code >= 300:
        return False
    answer = KeptAnswer(
        status=response.status_code,
        location=response.get("Location", ""),
        body=response.content.decode(),
    )
    save_answer(claim, answer, session_pk=getattr(request, "loom_answer_of", None))
    return True


def _fingerprint(request: HttpRequest) -> str:
    """Of the method, the address and the body: of files, what is in them, since how they
    are parted differs each time."""
    parts = [f"{request.method} {request.get_full_path()}\n".encode()]
    if request.content_type != "multipart/form-data":
        parts.append(request.body)
    else:
        for name, files in sorted(request.FILES.lists()):
            for file in files:
                content: Any = file.file
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                file.seek(0)
                parts.append(f"{name} {file.name} {digest}\n".encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()
