"""Every error that the product raises on purpose, as one tree.

::

    LoomError
    ├── NotFound              404  the object is missing, or not this person's
    ├── NotPermitted          403  seen, but not to be changed by this person
    ├── Rejected              400  the request cannot be carried out as it is
    │   ├── TooLarge          413
    │   ├── NotEncodable      422  a text that UTF-8 has no form for
    │   └── Conflict          409  the state has moved on meanwhile
    ├── TooMany               429  more at a time than one person may have
    ├── BudgetReached         402  what may be used in this period is used up
    ├── Unavailable           503  a part of the installation does not answer
    ├── StorageFull           507  there is no room left to store anything
    └── ProviderError         502  the model's provider failed

Each error has a stable ``code`` for programs, a ``message`` that is safe to
show to a person, and the HTTP ``status`` that an entry point answers with.
"""


class LoomError(Exception):
    """Base of all deliberate errors. ``message`` never holds a secret."""

    code = "error"
    status = 500

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class NotFound(LoomError):
    code, status = "not_found", 404


def require_found[T](found: T | None, message: str) -> T:
    """What was looked for. Raises NotFound where it is None."""
    if found is None:
        raise NotFound(message)
    return found


class NotPermitted(LoomError):
    code, status = "not_permitted", 403


class Rejected(LoomError):
    code, status = "rejected", 400


class TooLarge(Rejected):
    code, status = "too_large", 413


class NotEncodable(Rejected):
    code, status = "invalid", 422


class Conflict(Rejected):
    code, status = "conflict", 409


class TooMany(LoomError):
    code, status = "too_many_requests", 429


class BudgetReached(LoomError):
    code, status = "budget_reached", 402


DATABASE_UNAVAILABLE = "database_unavailable"
DATABASE_RETRY_AFTER_SECONDS = 2  # When to try again where the database did not answer.


class Unavailable(LoomError):
    """``retry_after`` is in seconds, where it is known when to try again."""

    code = "unavailable"
    status = 503
    may_be_done = False  # What was asked for may have been committed: its answer is lost.

    def __init__(
        self, message: str, *, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class StorageFull(LoomError):
    code, status = "storage_full", 507


class ProviderError(LoomError):
    """The provider failed to answer. ``code`` is one of :data:`PROVIDER_ERROR_CODES`.
    ``transient`` says that the same request may succeed later. ``retry_after`` is in seconds,
    where the provider named it. ``http_status`` and ``request_id`` are the provider's."""

    code = "provider_error"
    status = 502

    def __init__(
        self,
        message: str,
        *,
        code: str,
        transient: bool = False,
        retry_after: float | None = None,
        http_status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.transient = transient
        self.retry_after = retry_after
        self.http_status = http_status
        self.request_id = request_id


PROVIDER_ERROR_CODES = (
    *("no_key", "bad_key", "permission", "billing", "unknown_model", "invalid_request"),
    *("request_too_large", "context_window_exceeded", "rate_limited", "overloaded"),
    *("server_error", "timeout", "connection_failed", "connection_lost", "stream_error"),
    *("incomplete_stream", "bad_response"),
)
