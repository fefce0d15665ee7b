"""Every error that the product raises on purpose, as one tree.

Each error has a stable ``code`` for programs, a ``message`` that is safe to
show to a person, and the HTTP ``status`` that an entry point answers with.
"""

from typing import Any

from .messages import Message, say


class LoomError(Exception):
    """Base of all deliberate errors. ``message`` never holds a secret. It is given as
    ``domain.messages.say`` takes it: a sentence, and its ``values`` where it has any."""

    code, status = "error", 500

    def __init__(self, message: str, *, code: str | None = None, **values: Any) -> None:
        self.message = message if isinstance(message, Message) else say(message, **values)
        super().__init__(self.message)
        if code is not None:
            self.code = code


class NotFound(LoomError):
    code, status = "not_found", 404  # It is missing, or not this person's.


def require_found[T](found: T | None, message: str, **values: Any) -> T:
    """What was looked for. Raises NotFound where it is None."""
    if found is None:
        raise NotFound(message, **values)
    return found


class NotPermitted(LoomError):
    code, status = "not_permitted", 403  # Seen, but not to be changed by this person.


class Rejected(LoomError):
    code, status = "rejected", 400  # It cannot be carried out as it is.


class TooLarge(Rejected):
    code, status = "too_large", 413


class NotEncodable(Rejected):
    code, status = "invalid", 422  # A text that UTF-8 has no form for.


class Conflict(Rejected):
    code, status = "conflict", 409  # The state has moved on meanwhile.


class TooManyRequests(LoomError):
    code, status = "too_many_requests", 429  # More at a time than one person may have.


class BudgetReached(LoomError):
    code, status = "budget_reached", 402  # What may be used in this period is used up.


DATABASE_UNAVAILABLE = "database_unavailable"
DATABASE_RETRY_AFTER_SECONDS = 2  # When to try again where the database did not answer.


class Unavailable(LoomError):
    """A part of the installation does not answer. ``retry_after`` is in seconds, where it is
    known when to try again."""

    code, status = "unavailable", 503
    may_be_done = False  # What was asked for may have been committed: its answer is lost.

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
    code, status = "storage_full", 507  # There is no room left to store anything.


class ProviderError(LoomError):
    """The provider failed to answer. ``code`` is one of ``providers.provider_errors.MESSAGES``.
    ``transient`` says that the same request may succeed later. ``retry_after`` is in seconds,
    where the provider named it. ``http_status`` and ``request_id`` are the provider's.
    ``limit`` is the number of tokens that the model takes and ``prompt_tokens`` what it was
    sent, where the provider named them, and ``refused`` what it does not take (one of
    :data:`~conversations.domain.stream.CAPABILITIES`)."""

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
