"""Requests that may be sent twice: with the header ``Idempotency-Key``, what makes
something makes it once, and the second answer is the first one again."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from ninja.operation import AsyncOperation, Operation
from ninja.utils import contribute_operation_callback

from conversations.archive.api_answers import (
    Claim,
    KeptAnswer,
    OtherRequest,
    StillAnswering,
    claim_request,
    drop_claim,
    keep_answer,
)
from conversations.models import Session

from .problems import problem, problem_of

HEADER = "Idempotency-Key"

_KEY = re.compile(r"[\x21-\x7e]{1,255}")

PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[\x21-\x7e]+$"},
    "description": "Of your choice, such as a uuid: sent again with it, the same request makes"
    " nothing new and is answered as before, with `Idempotent-Replayed: true`.",
}

type Run = Callable[..., HttpResponse]


def makes_once[F: Callable[..., Any]](*, in_one: bool = True) -> Callable[[F], F]:
    """Of an operation, below ``router.post``: it honours the header. What it makes and the
    answer that is kept go in one transaction, unless that would take long (``in_one``) or
    the operation is asynchronous: then a process that dies in between may make it twice."""

    def honouring(operation: F) -> F:
        contribute_operation_callback(operation, partial(_honour, in_one=in_one))
        return operation

    return honouring


def belongs_to(request: HttpRequest, session: Session) -> None:
    """The answer has something of this session, and goes when it is purged."""
    request.loom_answer_of = session.pk  # type: ignore[attr-defined]


def _honour(operation: Operation, *, in_one: bool) -> None:
    wrap: Any = partial(_synchronous, in_one=in_one)
    if isinstance(operation, AsyncOperation):
        wrap = _asynchronous
    operation.run = wrap(operation.run)  # type: ignore[method-assign]
    operation._run_decorators = [wrap]  # type: ignore[attr-defined]
    extra = operation.openapi_extra or {}
    extra["parameters"] = [*extra.get("parameters", ()), PARAMETER]
    operation.openapi_extra = extra


def _synchronous(run: Run, *, in_one: bool) -> Run:
    @wraps(run)
    def once(request: HttpRequest, **values: Any) -> HttpResponse:
        claim = _claim(request)
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


def _asynchronous(run: Callable[..., Awaitable[HttpResponse]]) -> Any:
    @wraps(run)
    async def once(request: HttpRequest, **values: Any) -> HttpResponse:
        claim = await sync_to_async(_claim)(request)
        if claim is None:
            return await run(request, **values)
        if isinstance(claim, HttpResponse):
            return claim
        try:
            response = await run(request, **values)
        except BaseException:
            await sync_to_async(drop_claim)(claim)
            raise
        if not await sync_to_async(_keep)(request, claim, response):
            await sync_to_async(drop_claim)(claim)
        return response

    return once


def _claim(request: HttpRequest) -> Claim | HttpResponse | None:
    """None: the header is not there, or nobody who is known sent it."""
    key = request.headers.get(HEADER)
    caller = getattr(request, "api_caller", None)
    if key is None or caller is None:
        return None
    if not _KEY.fullmatch(key):
        reason = f"{HEADER} is 1 to 255 visible characters of ASCII."
        return problem(422, reason, code="idempotency_key_invalid")
    try:
        found = _settled(caller.user, key, _fingerprint(request))
    except StillAnswering as error:
        busy = problem_of(error)
        busy["Retry-After"] = "1"
        return busy
    except OtherRequest as error:
        return problem_of(error)
    return found


def _settled(user: User, key: str, fingerprint: str) -> Claim | HttpResponse:
    found = claim_request(user, key=key, fingerprint=fingerprint)
    if isinstance(found, Claim):
        return found
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
    keep_answer(claim, answer, session_pk=getattr(request, "loom_answer_of", None))
    return True


def _fingerprint(request: HttpRequest) -> str:
    """Of the method, the address and the body: of files, what is in them, since how they
    are parted differs each time."""
    is_form = request.content_type == "multipart/form-data"
    parts = list(_file_lines(request)) if is_form else [request.body]
    first = f"{request.method} {request.get_full_path()}\n".encode()
    return hashlib.sha256(b"".join([first, *parts])).hexdigest()


def _file_lines(request: HttpRequest) -> Iterator[bytes]:
    for name, files in sorted(request.FILES.lists()):
        for file in files:
            digest = hashlib.file_digest(file.file, "sha256").hexdigest()  # type: ignore[arg-type]
            file.seek(0)
            yield f"{name} {file.name} {digest}\n".encode()
