"""Failures of model servers as errors with the product's own messages.

The codes and shapes of the Messages API and of OpenAI's API are in their references under "Errors".
Similar servers answer with other bodies, so this code requires no more than the HTTP status. A
person reads one of our sentences. The provider's own message follows if there is one, shortened and
without anything that looks like a key.
"""

import math
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from conversations.domain.errors import ProviderError
from conversations.domain.messages import say
from conversations.domain.stream import DOCUMENTS, IMAGES, TOOLS
from conversations.domain.text import load_json
from conversations.providers.window_errors import NOT_NAMED, WindowFigures, read_limit

MAX_DETAIL_CHARS = 300
MAX_RETRY_AFTER_SECONDS = 300.0

MESSAGES = {
    "no_key": say("No API key for the provider is set."),
    "bad_key": say("The provider refused the API key."),
    "permission": say("The API key does not permit this."),
    "billing": say("The provider's account has no credit."),
    "unknown_model": say("The provider does not know this model, or the address is wrong."),
    "no_list": say(
        "The provider did not return a list of models. Check its address, or list its models "
        "in the configuration."
    ),
    "invalid_request": say("The provider refused the request."),
    "request_too_large": say("The request is too large for the provider."),
    "context_window_exceeded": say("The request does not fit into the model's context window."),
    "rate_limited": say("The provider's rate limit was reached."),
    "overloaded": say("The provider is overloaded."),
    "server_error": say("The provider had an internal error."),
    "timeout": say("The provider did not respond in time."),
    "connection_failed": say("The provider is unreachable."),
    "connection_lost": say("The connection to the provider was lost."),
    "stream_error": say("The provider ended its answer with an error."),
    "incomplete_stream": say("The provider's answer is incomplete."),
    "bad_response": say("The provider's answer could not be read."),
}

# Failures after which the same request may succeed
TRANSIENT_CODES = {"rate_limited", "overloaded", "server_error", "timeout"}
TRANSIENT_CODES |= {"connection_failed", "connection_lost", "stream_error", "incomplete_stream"}

STATUS_CODES = {
    401: "bad_key",
    402: "billing",
    403: "permission",
    404: "unknown_model",
    408: "timeout",
    409: "server_error",
    413: "request_too_large",
    429: "rate_limited",
    529: "overloaded",
}

# Error types that say more than the status. In the middle of a stream they are the only
# information, because the status was 200.
ERROR_TYPES = {
    "authentication_error": "bad_key",
    "billing_error": "billing",
    "permission_error": "permission",
    "not_found_error": "unknown_model",
    "invalid_request_error": "invalid_request",
    "request_too_large": "request_too_large",
    "rate_limit_error": "rate_limited",
    "overloaded_error": "overloaded",
    "timeout_error": "timeout",
    "api_error": "server_error",
    # OpenAI's codes
    "server_error": "server_error",
    "rate_limit_exceeded": "rate_limited",
    "insufficient_quota": "billing",
    "invalid_api_key": "bad_key",
    "model_not_found": "unknown_model",
    "context_length_exceeded": "context_window_exceeded",
}

# Messages without a figure, of the API, llama.cpp, vLLM, Bedrock, Z.ai and gateways. Messages with
# a figure are in ``window_errors``.
WINDOW_EXCEEDED = re.compile(
    r"(prompt|input) is too long|context[ _]?(length|size|window)|exceed_context|maximum context"
    r"|input length and `?max_tokens`? exceed|prompt exceeds max length",
    re.IGNORECASE,
)
# Error messages of Ollama, llama.cpp, vLLM and gateways for input that a model does not support
UNSUPPORTED_INPUT = {
    TOOLS: re.compile(
        r"(not|n't) support (tools|tool use|tool calling|function calling)"
        r"|no endpoints found that support tool use"
        r"|tools? (param|use|choice|calling)?\W*(requires?|is not supported|are not supported)"
        r"|requires --(jinja|enable-auto-tool-choice)",
        re.IGNORECASE,
    ),
    IMAGES: re.compile(
        r"image input is not supported|(not|n't) support (images?|image input|vision)"
        r"|not a multimodal model|mmproj|no endpoints found that support image",
        re.IGNORECASE,
    ),
    DOCUMENTS: re.compile(
        r"(not|n't) support (files?|pdfs?|documents?)|file input is not supported", re.IGNORECASE
    ),
}
# Error messages of Mistral and of templates for an order of messages that they do not accept
ROLES_REFUSED = r"after role 'tool'|roles must alternate"
NOT_PAID = re.compile(r"credit balance|spend_limit|spend limit|insufficient_quota", re.IGNORECASE)
KEY_LIKE = re.compile(r"\bsk-[\w*.-]{6,}|\bBearer\s+\S+", re.IGNORECASE)
MARKUP = re.compile(r"^\s*<(!doctype|html|\?xml|head|body)", re.IGNORECASE)


class ErrorBody(NamedTuple):
    """The values in an error's body, whatever its shape."""

    type: str
    message: str
    code: str


def make_error(
    code: str,
    detail: str = "",
    *,
    secret: str = "",
    transient: bool | None = None,
    retry_after: float | None = None,
    http_status: int | None = None,
    request_id: str | None = None,
    figures: WindowFigures = NOT_NAMED,
    refused: str = "",
) -> ProviderError:
    details = clean_detail(detail, secret=secret)
    # The empty string is in this text, too, so an empty message stays empty.
    if details.rstrip("\"'”’»)`")[-1:] not in ".!?…:。！？":
        details += "."  # another sentence may follow: what happens next
    return ProviderError(
        say("%(problem)s Details: %(details)s", problem=MESSAGES[code], details=details)
        if details
        else MESSAGES[code],
        code=code,
        transient=code in TRANSIENT_CODES if transient is None else transient,
        retry_after=retry_after,
        http_status=http_status,
        request_id=request_id,
        limit=figures.limit,
        prompt_tokens=figures.prompt,
        refused=refused,
    )


def clean_detail(detail: str, *, secret: str = "") -> str:
    """Return ``detail`` on one line, shortened, without markup and without keys."""
    if MARKUP.match(detail):
        return ""
    if secret:
        detail = detail.replace(secret, "[key]")
    text = " ".join(KEY_LIKE.sub("[key]", detail).split())
    return text if len(text) <= MAX_DETAIL_CHARS else text[: MAX_DETAIL_CHARS - 1].rstrip() + "…"


def error_from_status(
    *, status: int, body: object, headers: Mapping[str, str], secret: str = ""
) -> ProviderError:
    parsed = read_error_body(body)
    refused = find_unsupported(parsed.message)
    if NOT_PAID.search(parsed.code) or parsed.type == "billing_error":
        code = "billing"
    elif refused or re.search(ROLES_REFUSED, parsed.message):  # status 500 from llama.cpp
        code = "invalid_request"
    elif (status == 413 or status >= 500) and is_too_long(parsed):
        code = "context_window_exceeded"
    elif status in STATUS_CODES:
        code = STATUS_CODES[status]
    elif status >= 500:
        code = "overloaded" if parsed.type == "overloaded_error" else "server_error"
    else:
        code = "bad_response" if status < 400 else code_of_refusal(parsed)
    gives_up = headers.get("x-should-retry") == "false"
    return make_error(
        code,
        parsed.message,
        secret=secret,
        transient=False if gives_up else None,
        retry_after=read_retry_after(headers),
        http_status=status,
        request_id=headers.get("request-id") or headers.get("x-request-id"),
        figures=figures_of(code, parsed, body),
        refused=refused,
    )


def find_unsupported(message: str) -> str:
    """Return the capability that the message says the model lacks, or an empty string."""
    for capability, pattern in UNSUPPORTED_INPUT.items():
        if pattern.search(message):
            return capability
    return ""


def is_too_long(parsed: ErrorBody) -> bool:
    return any(map(WINDOW_EXCEEDED.search, parsed)) or read_limit(parsed.message).limit is not None


def figures_of(code: str, parsed: ErrorBody, body: object) -> WindowFigures:
    return read_limit(parsed.message, body) if code == "context_window_exceeded" else NOT_NAMED


def code_of_refusal(parsed: ErrorBody) -> str:
    """Return the code for a 400, or for another 4xx without a meaning of its own."""
    if is_too_long(parsed):
        return "context_window_exceeded"
    if NOT_PAID.search(parsed.message):
        return "billing"
    return "invalid_request"


def error_from_event(
    body: object, *, headers: Mapping[str, str], secret: str = ""
) -> ProviderError:
    parsed = read_error_body(body)
    code = ERROR_TYPES.get(parsed.type) or ERROR_TYPES.get(parsed.code, "stream_error")
    if code == "invalid_request":
        code = code_of_refusal(parsed)
    elif code in ("stream_error", "server_error") and is_too_long(parsed):
        code = "context_window_exceeded"
    return make_error(
        code,
        parsed.message,
        secret=secret,
        http_status=200,
        request_id=headers.get("request-id"),
        figures=figures_of(code, parsed, body),
    )


def error_from_document(body: bytes, *, headers: Mapping[str, str], secret: str) -> ProviderError:
    """Return the error for an answer with status 200 that is no stream; it may hold a message."""
    with suppress(ValueError):
        value = load_json(body)
        if isinstance(value, dict) and "error" in value:
            return error_from_event(value, headers=headers, secret=secret)
    return make_error("bad_response", http_status=200, request_id=headers.get("request-id"))


def read_error_body(body: object) -> ErrorBody:
    """Return type, message and stable code of an error's body.

    Reads ``{"error": {"type", "message", "details": {"error_code"}}}``, and the forms of other
    servers: ``{"error": "…"}``, ``{"message": "…"}``, ``{"detail": "…"}``, a list of one of these
    (Gemini) and plain text. OpenRouter's own message is followed by the message of the provider
    that it called ("Errors" in its reference).
    """
    if isinstance(body, (str, bytes)):
        text = body if isinstance(body, str) else body.decode(errors="replace")
        try:
            body = load_json(text)
        except ValueError:
            return ErrorBody("", text, "")
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return ErrorBody("", "", "")
    inner = body.get("error", body)
    if not isinstance(inner, dict):
        return ErrorBody("", text_of(inner), "")
    details = inner.get("details")
    code = details.get("error_code") if isinstance(details, dict) else inner.get("code")
    message = text_of(inner.get("message") or inner.get("detail"))
    metadata = inner.get("metadata")
    raw = text_of(metadata.get("raw")) if isinstance(metadata, dict) else ""
    passed_on = "" if MARKUP.match(raw) else read_error_body(raw).message
    if passed_on and passed_on != message:
        message = f"{message}: {passed_on}" if message else passed_on
    return ErrorBody(text_of(inner.get("type")), message, text_of(code))


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait by ``retry-after-ms`` or ``retry-after``.

    Return at most MAX_RETRY_AFTER_SECONDS, or None if neither header is usable."""
    value = headers.get("retry-after", "")
    if (milliseconds := read_number(headers.get("retry-after-ms", ""))) is not None:
        seconds = milliseconds / 1000
    elif (number := read_number(value)) is not None:
        seconds = number
    else:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def read_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def list_causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    return causes


def is_disconnect(error: BaseException) -> bool:
    """Return whether the server closed the connection before it answered."""
    import aiohttp

    kinds = (aiohttp.ServerDisconnectedError, ConnectionResetError)
    return any(isinstance(cause, kinds) for cause in list_causes(error))


def error_from_transport(error: BaseException) -> ProviderError:
    """Return the error for a connection that could not be made, or that broke."""
    import aiohttp
    import httpx2

    causes = list_causes(error)

    def has_cause(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    # One of the SDKs reports a refused or closed connection as a timeout.
    is_refused = has_cause(aiohttp.ClientConnectorError) and not has_cause(TimeoutError)
    if has_cause(httpx2.TimeoutException) and not (is_refused or is_disconnect(error)):
        return make_error("timeout")
    if has_cause(httpx2.DecodingError):
        return make_error("bad_response")
    reason = ""
    if has_cause(ssl.SSLCertVerificationError):
        reason = say("Its certificate is not valid.")
    elif has_cause(httpx2.UnsupportedProtocol, httpx2.InvalidURL):
        reason = say("Its address is not valid.")
    if reason:  # the error will come again until the settings change
        message = say(
            "%(problem)s %(reason)s", problem=MESSAGES["connection_failed"], reason=reason
        )
        return ProviderError(message, code="connection_failed")
    is_broken = has_cause(httpx2.ReadError, httpx2.WriteError, httpx2.ProtocolError)
    is_broken |= is_disconnect(error)
    return make_error("connection_lost" if is_broken else "connection_failed")
