"""Who is let in: each operation names the scope that it needs."""

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
    """Lets in who has the scope, by the one way or the other."""

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
        # No other site can make a browser send a token, but any can make it send its cookie.
        if not self.by_token and check_csrf(request) is not None:
            raise NotPermitted("The CSRF token is missing or wrong.", code="csrf")
        return caller.user


class TokenAuth(ScopeAuth):
    """A personal token: ``Authorization: Bearer loom_…``."""

    openapi_type = "http"
    openapi_scheme = "bearer"
    openapi_bearerFormat = "loom_…"
    by_token = True


class BrowserAuth(ScopeAuth):
    """A browser that is signed in; what changes something needs its CSRF token."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME
    by_token = False


def scope_of(operation: Operation) -> str:
    """The scope that an operation needs."""
    [scope] = {one.scope for one in operation.auth_callbacks if isinstance(one, ScopeAuth)}
    return scope


def needs(scope: str) -> list[AuthBase]:
    """For ``auth=`` of an operation."""
    return [TokenAuth(scope), BrowserAuth(scope)]


def caller_of(request: HttpRequest) -> Caller:
    """In an operation that ``needs`` a scope."""
    caller: Caller = request.api_caller  # type: ignore[attr-defined]
    return caller


async def open_for_writing(request: HttpRequest, uuid: UUID) -> tuple[Session, Runtime, int]:
    """For an asynchronous operation: the session, what changes it, and who asks for that.
    Raises as ``get_session_for``."""
    session, _ = await sync_to_async(get_session_for)(request, uuid, to=WRITE)
    return session, await current_runtime(), caller_of(request).user.pk
