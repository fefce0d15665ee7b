"""Every error that the product raises on purpose, as one tree.

Each error has a stable ``code`` for programs, a ``message`` that is safe to show to a person, and
the HTTP ``status`` of the response.
"""

from typing import Any

from .messages import Message, say


class LoomError(Exception):
    """The base class of all deliberate errors. ``message`` never holds a secret.

    The arguments are those of ``domain.messages.say``: a sentence, and its ``values`` if it has
    any.
    """

    code, status = "error", 500

    def __init__(self, message: str, *, code: str | None = None, **values: Any) -> None:
        self.message = message if isinstance(message, Message) else say(message, **values)
        super().__init__(self.message)
        if code is not None:
            self.code = code


class NotFound(LoomError):
    code, status = "not_found", 404  # The object does not exist, or the person may not know of it.


def require_found[T](found: T | None, message: str, **values: Any) -> T:
    """Return the object that was looked for. Raises NotFound if it is None."""
    if found is None:
        raise NotFound(message, **values)
    return found


class NotPermitted(LoomError):
    code, status = "not_permitted", 403  # The person may see the object but not change it.


class Rejected(LoomError):
    code, status = "rejected", 400  # The request cannot be executed as it is.


class TooLarge(Rejected):
    code, status = "too_large", 413


class NotEncodable(Rejected):
    code, status = "invalid", 422  # A text cannot be encoded as UTF-8.


class Conflict(Rejected):
    code, status = "conflict", 409  # The state has changed meanwhile.


class KeyMismatch(Rejected):
    # The key of a repeated request was used for another request.
    code, status = "idempotency_mismatch", 422


class TooManyRequests(LoomError):
    code, status = "too_many_requests", 429  # A person has too many connections open.


class BudgetReached(LoomError):
    code, status = "budget_reached", 402  # The budget of this period is used up.


DATABASE_UNAVAILABLE = "database_unavailable"
DATABASE_RETRY_AFTER_SECONDS = 2  # When to retry if the database did not answer.


class Unavailable(LoomError):
    """A part of the installation does not answer.

    ``retry_after`` is in seconds, and None if it is not known when to retry.
    """

    code, status = "unavailable", 503
    may_be_done = False  # Whether the write may have been committed although its answer is lost.

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after: int | None = None,
        **values: Any,
    ) -> None:
        super().__init__(message, code=code, **values)
        self.retry_after = retry_after


class StorageFull(LoomError):
    code, status = "storage_full", 507  # There is no space left.


class ProviderError(LoomError):
    """The provider failed to answer.

    ``code`` is one of ``providers.provider_errors.MESSAGES``. ``transient`` means that the same
    request may succeed later. ``http_status`` and ``request_id`` are the provider's.

    The provider may also have named the following values. ``retry_after`` is in seconds. ``limit``
    is the number of tokens that the model accepts, and ``prompt_tokens`` is the number that it was
    sent. ``refused`` is a kind of input that it does not support (one of
    :data:`~conversations.domain.stream.CAPABILITIES`).
    """

    code, status = "provider_error", 502

    def __init__(
        self,
        message: str,
        *,
        code: str,
        transient: bool = False,
        retry_after: float | None = None,
        http_status: int | None = None,
        request_id: str | None = None,
        limit: int | None = None,
        prompt_tokens: int | None = None,
        refused: str = "",
        **values: Any,
    ) -> None:
        super().__init__(message, code=code, **values)
        self.limit = limit
        self.prompt_tokens = prompt_tokens
        self.refused = refused
        self.transient = transient
        self.retry_after = retry_after
        self.http_status = http_status
        self.request_id = request_id
