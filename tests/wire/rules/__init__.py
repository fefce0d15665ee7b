"""Rules of the Messages API for requests.

They are known from the API's documentation and from public reports of its messages. Each
``check_*`` raises :class:`~tests.wire.rules.errors.ApiError` with the API's status, error type
and wording. If the wording of a message is not known, it is modelled on the other messages.
"""
