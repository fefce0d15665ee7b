"""Sign-in at the authorization server of a tool server, by the SDK's OAuth client.

Like :mod:`.session`, this module is imported only when it is needed. A grant is used without a
person. If a person is needed, SignInNeeded ends the connection, and :func:`sign_in` starts anew.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp.client.auth import (
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    union_scopes,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import AnyUrl, BaseModel, ValidationError

from conversations.domain.messages import say
from conversations.domain.text import one_line, storable

from .config import GrantStore, McpError, ServerConfig, ServerFailed, SignInNeeded
from .http import EVENTS, ServerTransport, require_secure

RESPONSE_TIMEOUT_SECONDS = 20.0
SIGN_IN_TIMEOUT_SECONDS = 60.0  # Before the person is redirected, and after the person is back
CLIENT_NAME = "Loom Web"
NOWHERE = "http://127.0.0.1/"  # Redirect address for clients that redirect no person

OAUTH_ERRORS = (OAuthFlowError, OAuthRegistrationError, OAuthTokenError)

# A call of a tool that does not exist, sent without tokens, because some servers require a sign-in
# only for calls.
_PROBE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "no-tool-of-this-name", "arguments": {}},
}
_REFUSALS = (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN)
_PASSING = (httpx2.codes.REQUEST_TIMEOUT, httpx2.codes.TOO_MANY_REQUESTS)
_ACCEPT = {"Accept": f"application/json, {EVENTS}"}


class _MemoryStorage:
    """The SDK's ``TokenStorage`` for callers that store the whole grant themselves."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


class _OwnTokenStorage(_MemoryStorage):
    """A storage for tokens that the client can renew without a person."""

    def __init__(self, grants: GrantStore) -> None:
        super().__init__()
        self._grants = grants

    async def get_tokens(self) -> OAuthToken | None:
        tokens = (await self._grants.read()).get("tokens")
        return OAuthToken.model_validate(tokens) if tokens else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        await self._grants.save(tokens=tokens.model_dump(mode="json"))


class _ClientCredentialsProvider(ClientCredentialsOAuthProvider):
    """A provider that holds the SDK's lock only while it works on tokens.

    The SDK would hold its lock until the server's response begins, which may be at the end of a
    call.
    """

    async def _auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused: httpx2.Response | None = None
        is_renewed = False
        while not is_renewed:
            before = request.headers.get("Authorization")
            flow = super()._auth_flow(request)
            try:
                outgoing = await anext(flow)
                while True:
                    if outgoing is not request:
                        response = yield outgoing
                    elif refused is None or request.headers.get("Authorization") != before:
                        break  # The request has a token, which after a refusal is a newer one
                    else:
                        response, refused, is_renewed = refused, None, True
                    outgoing = await flow.asend(response)
            except StopAsyncIteration:
                return
            finally:
                await flow.aclose()
            refused = yield request
            if refused.status_code not in _REFUSALS:
                return


class _GrantProvider(OAuthClientProvider):
    """A provider for requests without a person, which uses the current grant.

    It reads the stored grant for every request, because another process may have refreshed the
    grant, and a person may have signed out or signed in as somebody else.
    """

    def __init__(
        self, config: ServerConfig, grants: GrantStore, on_failed: Callable[[str], None]
    ) -> None:
        super().__init__(
            server_url=config.url,
            client_metadata=_describe_client(NOWHERE),
            storage=_MemoryStorage(),
        )
        self._config = config
        self._grants = grants
        self._on_failed = on_failed

    async def _auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context = self.context
        context.protocol_version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        response: httpx2.Response | None = None
        for _ in range(2):
            await self._read()
            if self._is_expired():
                async with self._grants.refresh_lock():
                    before = await self._read()
                    if self._is_expired():  # The previous holder of the lock has not refreshed it
                        await self._refresh(before)
                await self._read()
            used = request.headers.pop("Authorization", None)
            if context.current_tokens is not None:
                self._add_auth_header(request)
            if response is not None and request.headers.get("Authorization") == used:
                break  # No other token was stored meanwhile
            response = yield request
            is_step_up = _needs_more(response)
            if response.status_code != httpx2.codes.UNAUTHORIZED and not is_step_up:
                return
            if is_step_up:
                await self._save_scopes(response)
        raise self._fail(SignInNeeded())

    async def _read(self) -> Any:
        """Copy the stored grant to the context and return its tokens."""
        grant, context = await self._grants.read(), self.context
        tokens = grant.get("tokens")
        metadata, resource = grant.get("oauth_metadata"), grant.get("resource_metadata")
        context.current_tokens = OAuthToken.model_validate(tokens) if tokens else None
        context.token_expiry_time = grant.get("expires_at")
        context.client_info = _find_client(self._config, grant)
        # Otherwise a refresh after a restart would be sent to a guessed address.
        context.auth_server_url = grant.get("auth_server_url")
        context.oauth_metadata = OAuthMetadata.model_validate(metadata) if metadata else None
        context.protected_resource_metadata = (
            ProtectedResourceMetadata.model_validate(resource) if resource else None
        )
        return tokens

    def _is_expired(self) -> bool:
        return self.context.can_refresh_token() and not self.context.is_token_valid()

    async def _refresh(self, before: Any) -> None:
        # A refresh token is often valid only once, so the grant would be lost if this was
        # cancelled.
        with anyio.fail_after(RESPONSE_TIMEOUT_SECONDS, shield=True):
            async with make_client(self._config) as client:
                response = await client.send(await self._refresh_token())
            if (status := response.status_code) >= 500 or status in _PASSING:
                words = say("The authorization server failed (HTTP %(status)s).", status=status)
                raise self._fail(ServerFailed(words))
            if not await self._handle_refresh_response(response):
                raise self._fail(SignInNeeded())
            context = self.context
            assert context.current_tokens is not None
            tokens = context.current_tokens.model_dump(mode="json")
            await self._grants.replace(before, tokens=tokens, expires_at=context.token_expiry_time)

    async def _save_scopes(self, response: httpx2.Response) -> None:
        """Save the scopes that a call turned out to need, for the next sign-in."""
        context, grant = self.context, await self._grants.read()
        needed_scopes = get_client_metadata_scopes(
            extract_scope_from_www_auth(response),
            context.protected_resource_metadata,
            context.oauth_metadata,
            context.client_metadata.grant_types,
        )
        granted = context.current_tokens.scope if context.current_tokens is not None else None
        scopes = union_scopes(union_scopes(grant.get("scopes"), granted), needed_scopes)
        await self._grants.replace(grant.get("tokens"), scopes=scopes)

    def _fail(self, error: ServerFailed) -> ServerFailed:
        self._on_failed(error.message)
        return error


def _needs_more(response: httpx2.Response) -> bool:
    """Return whether a call needs more scopes than were granted."""
    is_refused = response.status_code == httpx2.codes.FORBIDDEN
    error = extract_field_from_www_auth(response, "error")
    return is_refused and error == "insufficient_scope"


class _SignInProvider(OAuthClientProvider):
    """A provider that requests ``scopes`` in addition to those that the server names."""

    def __init__(self, scopes: str | None, **fields: Any) -> None:
        super().__init__(**fields)
        self._scopes = scopes

    async def _perform_authorization(self) -> httpx2.Request:
        metadata = self.context.client_metadata
        metadata.scope = union_scopes(metadata.scope, self._scopes)
        return await super()._perform_authorization()


def _describe_client(redirect_uri: str) -> OAuthClientMetadata:
    fields = {"client_name": CLIENT_NAME, "redirect_uris": [redirect_uri]}
    return OAuthClientMetadata.model_validate(fields)


def _find_client(
    config: ServerConfig, grant: Mapping[str, Any], redirect_uri: str = NOWHERE
) -> OAuthClientInformationFull | None:
    """Return the client that the configuration names, or the registered one."""
    oauth = config.oauth
    if oauth.client_id:
        return OAuthClientInformationFull(
            client_id=oauth.client_id,
            client_secret=oauth.client_secret or None,
            redirect_uris=[AnyUrl(redirect_uri)],
            token_endpoint_auth_method="client_secret_basic" if oauth.client_secret else "none",
        )
    client = grant.get("client")
    return OAuthClientInformationFull.model_validate(client) if client else None


def make_auth(
    config: ServerConfig, grants: GrantStore, on_failed: Callable[[str], None]
) -> httpx2.Auth:
    """Return the authentication for requests without a person.

    ``on_failed`` is called with the reason if requests cannot be authenticated.
    """
    if not config.oauth.is_own_account:
        return _GrantProvider(config, grants, on_failed)
    return _ClientCredentialsProvider(
        server_url=config.url,
        storage=_OwnTokenStorage(grants),
        client_id=config.oauth.client_id,
        client_secret=config.oauth.client_secret,
        scope=config.oauth.scopes or None,
        issuer=config.oauth.issuer,
    )


async def sign_in(
    config: ServerConfig,
    grant: Mapping[str, Any],
    *,
    redirect_uri: str,
    show: Callable[[str, str], Awaitable[None]],
    wait_for_answer: Callable[[str], Awaitable[Mapping[str, str]]],
) -> dict[str, Any]:
    """Have a person sign in, and return the data of the grant, which replaces ``grant``.

    ``show`` is called with the address for the person and with the state that identifies the
    answer. ``wait_for_answer`` is called with that state and returns the answer. Raise ServerFailed
    with a sentence.
    """
    states: list[str] = []

    async def redirect(url: str) -> None:
        require_secure(url, config)
        states[:] = parse_qs(urlsplit(url).query)["state"]
        limit.reschedule(None)
        await show(url, states[0])

    async def wait() -> AuthorizationCodeResult:
        answer = await wait_for_answer(states[0])
        limit.reschedule(asyncio.get_running_loop().time() + SIGN_IN_TIMEOUT_SECONDS)
        if error := answer.get("error"):
            words = one_line(storable(answer.get("error_description") or error), limit=200)
            raise ServerFailed(say("The authorization server refused: %(reason)s.", reason=words))
        parameters = {name: answer.get(name) for name in ("code", "state", "iss")}
        return AuthorizationCodeResult.model_validate(parameters)

    provider = _SignInProvider(
        union_scopes(config.oauth.scopes or None, grant.get("scopes")),
        server_url=config.url,
        client_metadata=_describe_client(redirect_uri),
        # A client that was registered earlier is not used, because the authorization server may
        # have forgotten it, or it may have another redirect address.
        storage=_MemoryStorage(_find_client(config, {}, redirect_uri)),
        redirect_handler=redirect,
        callback_handler=wait,
    )
    try:
        async with (
            asyncio.timeout(SIGN_IN_TIMEOUT_SECONDS) as limit,
            make_client(config, auth=provider) as client,
        ):
            probe = client.stream("POST", config.url, json=_PROBE, headers=_ACCEPT)
            async with probe as response:  # The body is not needed
                pass
        if not states:
            raise ServerFailed(say("The tool server does not require a sign-in."))
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            raise ServerFailed(
                say(
                    "The tool server does not accept the access that the authorization server "
                    "granted."
                )
            )
        return _describe_grant(config, provider)
    except OAUTH_ERRORS as error:
        raise ServerFailed(explain(error)) from error
    except TimeoutError as error:
        if not limit.expired():
            raise  # The person took too long
        raise ServerFailed(say("It did not respond in time.")) from error
    except (httpx2.HTTPError, ValueError, OSError) as error:
        words = one_line(str(error), limit=200) or type(error).__name__
        raise ServerFailed(say("The sign-in failed (%(reason)s).", reason=words)) from error


def _describe_grant(config: ServerConfig, provider: OAuthClientProvider) -> dict[str, Any]:
    """Return the data of a grant that has to be stored.

    It includes data that the SDK keeps only in memory, and that is needed for a refresh after a
    restart: the expiry time and the authorization server.
    """

    def plain(model: BaseModel | None) -> Any:
        return model and model.model_dump(mode="json")

    context = provider.context
    return {
        "client": None if config.oauth.client_id else plain(context.client_info),
        "tokens": plain(context.current_tokens),
        "expires_at": context.token_expiry_time,
        "auth_server_url": context.auth_server_url,
        "oauth_metadata": plain(context.oauth_metadata),
        "resource_metadata": plain(context.protected_resource_metadata),
    }


def explain(error: BaseException) -> str:
    # The message would quote the response with its tokens
    if isinstance(error.__context__, ValidationError):
        return say("The authorization server sent an unreadable response.")
    reason = one_line(storable(str(error)), limit=300)
    return say("The sign-in failed: %(reason)s", reason=reason)


async def revoke(config: ServerConfig, grant: Mapping[str, Any]) -> None:
    """Revoke a grant at its authorization server, if the server supports that.

    Errors are ignored because the grant is deleted here anyway.
    """
    endpoint = (grant.get("oauth_metadata") or {}).get("revocation_endpoint")
    tokens = grant.get("tokens") or {}
    token = tokens.get("refresh_token") or tokens.get("access_token")
    if not endpoint or not token:
        return
    with suppress(McpError, httpx2.HTTPError, OSError, ValueError):
        context = OAuthContext(config.url, _describe_client(NOWHERE), _MemoryStorage(), None, None)
        context.client_info = _find_client(config, grant)
        data = {"token": token}
        if context.client_info is not None:
            data["client_id"] = context.client_info.client_id
        # The client authenticates itself as in a request for tokens.
        data, headers = context.prepare_token_auth(data, {})
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS), make_client(config) as client:
            await client.post(endpoint, data=data, headers=headers)


def make_client(config: ServerConfig, *, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
    """Return a client for requests to the server and to addresses that it names.

    Those addresses must be public, unless the server's own address is not.
    """
    return httpx2.AsyncClient(
        auth=auth,
        timeout=RESPONSE_TIMEOUT_SECONDS,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
        transport=ServerTransport(config),
    )
