"""Who is let in: each operation names the scope that it needs."""

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.operation import Operation
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from conversations.accounts.tokens import missing_scope
from conversations.domain.errors import NotPermitted

from .middleware import ApiCaller


class _Auth(AuthBase):
    by_token: bool

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def __call__(self, request: HttpRequest) -> User | None:
        caller = _caller(request)
        if caller is None or (caller.token_pk is not None) is not self.by_token:
            return None
        if reason := missing_scope(self.scope, caller.scopes):
            raise NotPermitted(reason, code="insufficient_scope")
        self.check(request)
        return caller.user

    def check(self, request: HttpRequest) -> None:
        """What else such a caller has to show. Raises NotPermitted."""


class TokenAuth(_Auth):
    """A personal token: ``Authorization: Bearer loom_…``."""

    openapi_type = "http"
    openapi_scheme = "bearer"
    openapi_bearerFormat = "loom_…"
    by_token = True


class BrowserAuth(_Auth):
    """A browser that is signed in; what changes something needs its CSRF token."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = "sessionid"
    by_token = False

    def check(self, request: HttpRequest) -> None:
        if check_csrf(request) is not None:
            raise NotPermitted("The CSRF token is missing or wrong.", code="csrf")


def scope_of(operation: Operation) -> str:
    """The scope that an operation needs."""
    [scope] = {one.scope for one in operation.auth_callbacks if isinstance(one, _Auth)}
    return scope


def needs(scope: str) -> list[AuthBase]:
    """For ``auth=`` of an operation."""
    return [TokenAuth(scope), BrowserAuth(scope)]


def caller_of(request: HttpRequest) -> ApiCaller:
    """In an operation that ``needs`` a scope."""
    caller = _caller(request)
    assert caller is not None
    return caller


def _caller(request: HttpRequest) -> ApiCaller | None:
    return cast("ApiCaller | None", getattr(request, "api_caller", None))
