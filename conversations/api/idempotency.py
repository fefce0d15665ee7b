"""The header ``Idempotency-Key``: a repeated request is executed once and gets the first response.

A key of a person has no row in ``ApiAnswer``, or one of two kinds:

- without ``status``: a claim. The request is being executed, or its process has died meanwhile.
- with ``status``: the response, which every repetition gets.

A claim is committed before its request is executed. The response is stored in one transaction with
the request's changes, if that is possible, so a process that dies leaves the claim alone, and the
next request takes it over. A process holds a lock on the claim's file for as long as it executes
the request: the claim 7 has ``run/answer-7.lock``. A file that can be locked therefore belongs to a
dead process. If there is no file, the claim may belong to another host, and expires after a while.
A request that is refused gives its claim up.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial, wraps
from http import HTTPStatus
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja.operation import Operation
from ninja.utils import contribute_operation_callback

from conversations.access import access_context_of, get_session_for, get_workspace_for
from conversations.archive.purge import oldest_answer
from conversations.archive.rights import WRITE
from conversations.domain.errors import Conflict, KeyMismatch, LoomError
from conversations.domain.secrets import decrypt_secret, encrypt_secret
from conversations.models import ApiAnswer, Session
from conversations.runtime.ownership import ANSWER_LOCKS, try_lock

from .auth import caller_of
from .fields import KEY_HEADER, KEY_PATTERN
from .problems import problem, problem_of

# How long a request counts as running on another host, whose file locks are not visible here.
LEASE = timedelta(minutes=10)


class RequestInProgress(Conflict):
    """The same request is being executed at the moment."""

    code = "idempotency_busy"

    def __init__(self) -> None:
        super().__init__("The same request is still running. Try again in a moment.")


def claim_request(user: User, *, key: str, fingerprint: str) -> ApiAnswer:
    """Return the stored response to the same request, or a claim to execute it.

    A claim has no ``status``. Raise RequestInProgress if the same request is being executed, and
    KeyMismatch if the key was used for another request.
    """
    now = timezone.now()
    stored = ApiAnswer.objects.select_related("session").filter(user=user, key=key)
    try:
        with transaction.atomic():
            stored.filter(created_at__lt=oldest_answer(now)).delete()
            answer = stored.first()
            if answer is None:
                return ApiAnswer.objects.create(
                    user=user, key=key, fingerprint=fingerprint, created_at=now
                )
    except IntegrityError:  # another request was a moment earlier
        answer = stored.get()
    if answer.fingerprint != fingerprint:
        raise KeyMismatch("This Idempotency-Key was already used for another request.")
    if answer.status is None:
        expired = ApiAnswer.objects.filter(pk=answer.pk, status=None, created_at__lt=now - LEASE)
        if not _lock_of(answer).exists() and not expired.update(created_at=now):
            raise RequestInProgress
    return answer


def _lock_of(claim: ApiAnswer) -> Path:
    folder: Path = settings.LOOM.data_dir / "run"
    return folder / f"{ANSWER_LOCKS}{claim.pk}.lock"


@contextmanager
def hold_claim(claim: ApiAnswer) -> Iterator[None]:
    """Hold the lock of a claim. Raise RequestInProgress if another request executes or did it."""
    lock = _lock_of(claim)
    with try_lock(lock) as is_ours:
        if not is_ours:
            raise RequestInProgress
        try:
            # The other request may have ended after this one has read the claim.
            if not ApiAnswer.objects.filter(pk=claim.pk, status=None).exists():
                raise RequestInProgress
            yield
        finally:
            lock.unlink(missing_ok=True)


PARAMETER = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": KEY_PATTERN},
    "description": "A value of your choice, such as a UUID. Repeating the same request with it "
    "creates nothing new and returns the first response, with `Idempotent-Replayed: true`.",
}

type Run = Callable[..., HttpResponse]


def idempotent[F: Callable[..., Any]](*, to: str = WRITE, in_one: bool = True) -> Callable[[F], F]:
    """Decorate an operation, below ``router.post``, to honour the header with other settings.

    Operations without this decorator get the settings that ``main`` chooses.
    """

    def decorate(function: F) -> F:
        contribute_operation_callback(function, partial(apply_idempotency, to=to, in_one=in_one))
        return function

    return decorate


def apply_idempotency(operation: Operation, *, to: str, in_one: bool = True) -> None:
    """Make a synchronous operation honour the header.

    The operation's changes and the stored response are committed in one transaction, unless
    ``in_one`` is false, because that would take long. In that case, the changes may be made twice
    if the process dies before the response is stored. ``to`` is the permission on the session or
    the workspace that the operation itself requires.
    """
    assert not operation.is_async, operation.path
    wrap: Any = partial(_run_once, to=to, in_one=in_one)
    operation.run = wrap(operation.run)  # type: ignore[method-assign]
    # A router copies its operations. Copies are wrapped when they are made.
    operation._run_decorators = [wrap]  # type: ignore[attr-defined]
    extra = operation.openapi_extra or {}
    extra["parameters"] = [*extra.get("parameters", ()), PARAMETER]
    operation.openapi_extra = extra


def lacks_key(operation: Operation) -> bool:
    """Return whether an operation creates something but does not honour the header yet."""
    names = {field.alias for model in operation.models for field in model.model_fields.values()}
    is_creating = "POST" in operation.methods and HTTPStatus.CREATED in operation.response_models
    return is_creating and KEY_HEADER not in names and not hasattr(operation, "_run_decorators")


def belongs_to(request: HttpRequest, session: Session) -> None:
    """Declare that the response belongs to this session, and is removed when that is purged.

    By default, the response belongs to the session in the address.
    """
    request.loom_answer_of = session.pk  # type: ignore[attr-defined]


def _run_once(run: Run, *, to: str, in_one: bool) -> Run:
    operation: Any = run.__self__  # type: ignore[attr-defined]  # whose method it is
    takes_json = any(model.__ninja_param_source__ == "body" for model in operation.models)

    @wraps(run)
    def run_once(request: HttpRequest, **values: Any) -> HttpResponse:
        key = request.headers.get(KEY_HEADER)
        if key is None:
            return run(request, **values)
        # A repeated request is authenticated like the first one before it gets any response.
        refusal: HttpResponse | None = operation._run_checks(request)
        if refusal is not None:
            return refusal
        if not re.fullmatch(KEY_PATTERN, key):
            reason = f"{KEY_HEADER} must have 1 to 255 visible ASCII characters."
            return problem(422, reason, code="idempotency_key_invalid")
        try:
            user = caller_of(request).user
            fingerprint = _fingerprint(request, takes_json=takes_json)
            claimed = claim_request(user, key=key, fingerprint=fingerprint)
            if claimed.status is not None:
                return _send_stored_answer(request, claimed, to, values)
            with hold_claim(claimed):
                return _execute(run, request, values, claimed, in_one=in_one)
        except LoomError as error:
            response = problem_of(error)
            if isinstance(error, RequestInProgress):
                response["Retry-After"] = "1"
            return response

    return run_once


def _execute(
    run: Run, request: HttpRequest, values: dict[str, Any], claimed: ApiAnswer, *, in_one: bool
) -> HttpResponse:
    claim = ApiAnswer.objects.filter(pk=claimed.pk, status=None)
    try:
        with transaction.atomic() if in_one else nullcontext():
            response = run(request, **values)
            if response.status_code < 300:
                claim.update(
                    status=response.status_code,
                    location=response.get("Location", ""),
                    body=encrypt_secret(response.content.decode(), **_secret()),
                    session=_session_of(request, values),
                )
                return response
            if in_one:
                transaction.set_rollback(True)
    except BaseException:
        claim.delete()
        raise
    claim.delete()
    return response


def _secret() -> dict[str, str]:
    # A response may contain an invitation's link, of which the database has only a digest.
    return {"purpose": "idempotency", "secret_key": settings.SECRET_KEY}


def _session_of(request: HttpRequest, values: dict[str, Any]) -> int | None:
    session_pk: int | None = getattr(request, "loom_answer_of", None)
    if session_pk or "uuid" not in values:
        return session_pk
    return Session.objects.values_list("pk", flat=True).get(uuid=values["uuid"])


def _send_stored_answer(
    request: HttpRequest, answer: ApiAnswer, to: str, values: dict[str, Any]
) -> HttpResponse:
    """Return the stored response. Raise the errors of ``access`` if it may no longer be given."""
    if answer.session is not None:
        # The audit log recorded the reading, if it was one, for the first response already.
        get_session_for(replace(access_context_of(request), action=""), answer.session.uuid, to=to)
    elif slug := values.get("slug"):
        get_workspace_for(request, slug, to=to)
    body = decrypt_secret(answer.body, **_secret())
    if body is None:
        raise Conflict("The first response can no longer be read.")
    response = HttpResponse(
        body, status=answer.status, content_type="application/json; charset=utf-8"
    )
    if answer.location:
        response["Location"] = answer.location
    response["Idempotent-Replayed"] = "true"
    return response


def _fingerprint(request: HttpRequest, *, takes_json: bool) -> str:
    # The fingerprint covers the method, the address and the body. For a form, it covers the fields
    # and files, because the boundary in the body differs each time. An operation that takes JSON
    # reads the body after this, so its body must not be parsed as a form.
    parts = [f"{request.method} {request.get_full_path()}\n".encode()]
    if takes_json or request.content_type != "multipart/form-data":
        parts.append(request.body)
    else:
        fields = sorted((n, v) for n, v in request.POST.lists() if n != "csrfmiddlewaretoken")
        parts.append(f"{fields}\n".encode("utf-8", "surrogatepass"))
        for name, files in sorted(request.FILES.lists()):
            for file in files:
                content: Any = file.file
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                file.seek(0)
                parts.append(f"{name} {file.name} {digest}\n".encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()
