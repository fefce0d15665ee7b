"""Answers other than 200, in the API's terms."""


class ApiError(Exception):
    """An answer other than 200, in the API's terms."""

    def __init__(self, status: int, type_: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message


def refuse(message: str) -> ApiError:
    return ApiError(400, "invalid_request_error", message)
