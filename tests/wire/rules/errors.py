"""The exception for error responses of the API."""


class ApiError(Exception):
    """An error response with the API's status, error type and message."""

    def __init__(self, status: int, type_: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message


def refuse(message: str) -> ApiError:
    return ApiError(400, "invalid_request_error", message)
