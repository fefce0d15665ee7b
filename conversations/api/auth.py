"""Authentication of API operations, each of which names the scope that it needs."""

from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.operation import Operation
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from conversations.access import get_session_for
from conversations.accounts.tokens import Caller, missing_scope
from conversations.archive.rights import WRITE
from conversations.domain.errors import NotPermitted
from conversations.models import Session
from conversations.runtime.current import current_runtime
from conversations.runtime.service import Runtime


class ScopeAuth(AuthBase):
    """Authentication of callers who have a scope, either by a token or in a browser."""

    by_token: bool

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def __call__(self, request: HttpRequest) -> User | None:
        caller: Caller | None = getattr(request, "api_caller", None)
        if caller is None or (caller.token_pk is not None) is not self.by_token:
            return None
        if reason := missing_scope(self.scope, caller.scopes):
            raise NotPermitted(reason, code="insufficient_scope")
        # Any other site can make a browser send its cookie, but not a token.
        if not self.by_token and check_csrf(request) is not None:
            raise NotPermitted("The CSRF token is missing or wrong.", code="csrf")
        return caller.user


class TokenAuth(ScopeAuth):
    """Authentication by a personal token: ``Authorization: Bearer loom_…``."""

    openapi_type = "http"
    openapi_scheme = "bearer"
    openapi_bearerFormat = "loom_…"
    by_token = True


class BrowserAuth(ScopeAuth):
    """Authentication of a signed-in browser, with its CSRF token for requests that change data."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME
    by_token = False


def scope_of(operation: Operation) -> str:
    """Return the scope that an operation needs."""
    callbacks = [auth for auth in operation.auth_callbacks if isinstance(auth, ScopeAuth)]
    [scope] = {callback.scope for callback in callbacks}
    return scope


def needs(scope: str) -> list[AuthBase]:
    """Return the value for ``auth=`` of an operation that needs a scope."""
    return [TokenAuth(scope), BrowserAuth(scope)]


def caller_of(request: HttpRequest) -> Caller:
    """Return the caller, in an operation that ``needs`` a scope."""
    caller: Caller = request.api_caller  # type: ignore[attr-defined]
    return caller


async def open_for_writing(request: HttpRequest, uuid: UUID) -> tuple[Session, Runtime, int]:
    """Return the session, the runtime and the caller's primary key for an asynchronous operation.

    Raise the errors of ``get_session_for``.
    """
    session, _ = await sync_to_async(get_session_for)(request, uuid, to=WRITE)
    return session, await current_runtime(), caller_of(request).user.pk
