"""What the Messages API refuses, as far as it is known from its documentation and
from public reports of its messages.

Each ``check_*`` raises :class:`~tests.wire.rules.errors.ApiError` with the API's
status, error type and wording. Where the wording is not on record, it is modelled
on the others.
"""
