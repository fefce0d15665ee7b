"""Signing in at the authorization server of a tool server, by the SDK's OAuth client.

As :mod:`.session` it is imported only when it is needed. A grant is used without a person; where a
person is needed, SignInNeeded ends the connection, and :func:`sign_in` begins anew.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from time import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import (
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from conversations.domain.messages import say
from conversations.domain.text import one_line, storable

from .config import GrantStore, McpError, ServerConfig, ServerFailed, SignInNeeded
from .http import EVENTS, ServerTransport, require_secure

RESPONSE_TIMEOUT_SECONDS = 20.0
SIGN_IN_TIMEOUT_SECONDS = 60.0  # Before the person is sent away, and after they are back
CLIENT_NAME = "Loom Web"
NOWHERE = "http://127.0.0.1/"  # The way back where nobody is sent away

OAUTH_ERRORS = (OAuthFlowError, OAuthRegistrationError, OAuthTokenError)

# Unsigned: whoever answers it asks for a sign-in first.
_PROBE = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
_REFUSALS = (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN)
_ACCEPT = {"Accept": f"application/json, {EVENTS}"}


class GrantStorage:
    """The SDK's ``TokenStorage``. ``expires_at`` is in seconds since 1970. With ``redirect_uri``
    a person signs in: what was granted before does not count."""

    def __init__(self, config: ServerConfig, grants: GrantStore, redirect_uri: str = "") -> None:
        self._config = config
        self._grants = grants
        self._redirect_uri = redirect_uri

    async def get_tokens(self) -> OAuthToken | None:
        kept = None if self._redirect_uri else (await self._grants.read()).get("tokens")
        return OAuthToken.model_validate(kept) if kept else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        lasts = tokens.expires_in
        await self._grants.save(
            tokens=tokens.model_dump(mode="json"), expires_at=lasts and time() + lasts
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        oauth = self._config.oauth
        if oauth.client_id:
            return OAuthClientInformationFull(
                client_id=oauth.client_id,
                client_secret=oauth.client_secret or None,
                redirect_uris=[AnyUrl(self._redirect_uri or NOWHERE)],
                token_endpoint_auth_method="client_secret_basic" if oauth.client_secret else "none",
            )
        kept = (await self._grants.read()).get("client")
        found = OAuthClientInformationFull.model_validate(kept) if kept else None
        is_known = found is None or self._redirect_uri in ("", *map(str, found.redirect_uris or ()))
        return found if is_known else None  # it was registered for another address of ours

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._grants.save(client=client_info.model_dump(mode="json"))


class _UnlockedProvider(OAuthClientProvider):
    """The SDK holds its lock until the server's response begins, which may be at the end of a call.
    Here it is held for the work on tokens only."""

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
                        break  # with a token; after a refusal with one that has come meanwhile
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


class _ClientCredentialsProvider(_UnlockedProvider, ClientCredentialsOAuthProvider):
    pass


class _AuthorizationCodeProvider(_UnlockedProvider):
    """With what the SDK keeps in memory only, without which a grant could not be refreshed after a
    restart: when it expires, and where it was given. ``scopes`` are asked for beside those that
    the server names."""

    def __init__(self, grants: GrantStore, scopes: str, **fields: Any) -> None:
        super().__init__(**fields)
        self._grants = grants
        self._scopes = scopes

    async def _initialize(self) -> None:
        await super()._initialize()
        kept = await self._grants.read()
        self.context.token_expiry_time = kept.get("expires_at")
        self.context.auth_server_url = kept.get("auth_server_url")
        self._scopes = union_scopes(self._scopes or None, kept.get("scopes")) or ""
        if metadata := kept.get("oauth_metadata"):
            self.context.oauth_metadata = OAuthMetadata.model_validate(metadata)
        if resource := kept.get("resource_metadata"):
            found = ProtectedResourceMetadata.model_validate(resource)
            self.context.protected_resource_metadata = found

    async def _perform_authorization(self) -> httpx2.Request:
        metadata = self.context.client_metadata
        metadata.scope = union_scopes(metadata.scope, self._scopes or None)
        return await super()._perform_authorization()

    async def save_scopes(self) -> None:
        """What has turned out to be needed, for the next sign-in."""
        await self._grants.save(scopes=self.context.client_metadata.scope)

    async def save_endpoints(self) -> None:
        context = self.context
        metadata, resource = context.oauth_metadata, context.protected_resource_metadata
        await self._grants.save(
            auth_server_url=context.auth_server_url,
            oauth_metadata=metadata and metadata.model_dump(mode="json"),
            resource_metadata=resource and resource.model_dump(mode="json"),
        )


def make_auth(
    config: ServerConfig, grants: GrantStore, on_needed: Callable[[], None]
) -> httpx2.Auth:
    """For requests without a person: ``on_needed`` is called where one is needed."""
    if config.oauth.is_own_account:
        return _ClientCredentialsProvider(
            server_url=config.url,
            storage=GrantStorage(config, grants),
            client_id=config.oauth.client_id,
            client_secret=config.oauth.client_secret,
            scope=config.oauth.scopes or None,
            issuer=config.oauth.issuer,
        )

    async def refuse(_: str) -> None:
        await provider.save_scopes()
        on_needed()
        raise SignInNeeded

    async def wait() -> AuthorizationCodeResult:
        raise SignInNeeded

    provider = _make_provider(config, grants, "", refuse, wait)
    return provider


def _make_provider(
    config: ServerConfig,
    grants: GrantStore,
    redirect_uri: str,
    redirect: Callable[[str], Awaitable[None]],
    wait: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> _AuthorizationCodeProvider:
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": CLIENT_NAME,
            "redirect_uris": [redirect_uri or NOWHERE],
        }
    )
    return _AuthorizationCodeProvider(
        grants,
        config.oauth.scopes,
        server_url=config.url,
        client_metadata=metadata,
        storage=GrantStorage(config, grants, redirect_uri),
        redirect_handler=redirect,
        callback_handler=wait,
    )


async def sign_in(
    config: ServerConfig,
    grants: GrantStore,
    *,
    redirect_uri: str,
    show: Callable[[str, str], Awaitable[None]],
    wait_for_answer: Callable[[str], Awaitable[Mapping[str, str]]],
) -> None:
    """Have a person sign in. ``show`` is given the address to go to and the state that its answer
    has; ``wait_for_answer`` gives that answer. Raises ServerFailed with a sentence."""
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
        given = {name: answer.get(name) for name in ("code", "state", "iss")}
        return AuthorizationCodeResult.model_validate(given)

    provider = _make_provider(config, grants, redirect_uri, redirect, wait)
    try:
        async with (
            asyncio.timeout(SIGN_IN_TIMEOUT_SECONDS) as limit,
            make_client(config, auth=provider) as client,
        ):
            probe = client.stream("POST", config.url, json=_PROBE, headers=_ACCEPT)
            async with probe as response:  # its body does not matter
                pass
        if not states:
            raise ServerFailed(say("It does not ask for a sign-in."))
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            raise ServerFailed(say("It does not accept what the authorization server granted."))
        await provider.save_endpoints()
    except OAUTH_ERRORS as error:
        raise ServerFailed(explain(error)) from error
    except TimeoutError as error:
        if not limit.expired():
            raise  # it was the person's
        raise ServerFailed(say("It did not respond in time.")) from error
    except (httpx2.HTTPError, ValueError, OSError) as error:
        words = one_line(str(error), limit=200) or type(error).__name__
        raise ServerFailed(say("The sign-in failed (%(reason)s).", reason=words)) from error


def explain(error: BaseException) -> str:
    if isinstance(error.__context__, ValidationError):  # its words quote the response: tokens
        return say("The authorization server gave a response that cannot be read.")
    reason = one_line(storable(str(error)), limit=300)
    return say("The sign-in failed: %(reason)s", reason=reason)


async def revoke(config: ServerConfig, kept: Mapping[str, Any]) -> None:
    """Tell the authorization server that a grant is not needed any more, if it wants to know.
    Its answer does not matter: the grant is forgotten here."""
    endpoint = (kept.get("oauth_metadata") or {}).get("revocation_endpoint")
    tokens, client_info = kept.get("tokens") or {}, kept.get("client") or {}
    token = tokens.get("refresh_token") or tokens.get("access_token")
    if not endpoint or not token:
        return
    data = {"token": token, "client_id": client_info.get("client_id") or config.oauth.client_id}
    if secret := client_info.get("client_secret") or config.oauth.client_secret:
        data["client_secret"] = secret
    with suppress(McpError, httpx2.HTTPError, OSError, ValueError):
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS), make_client(config) as client:
            await client.post(endpoint, data=data)


def make_client(config: ServerConfig, *, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
    """For the server and what it names: those addresses must be public, unless its own is not."""
    return httpx2.AsyncClient(
        auth=auth,
        timeout=RESPONSE_TIMEOUT_SECONDS,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
        transport=ServerTransport(config),
    )


async def poll(read: Callable[[], Awaitable[Any]], seconds: float, *, pause: float = 0.3) -> Any:
    """What ``read`` gives, once it gives something. Raises TimeoutError."""
    async with asyncio.timeout(seconds):  # another process may write it
        while (found := await read()) is None:  # noqa: ASYNC110
            await asyncio.sleep(pause)
    return found
