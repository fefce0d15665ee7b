"""The OpenID Connect protocol: discovery, the authorisation code with PKCE, and the tokens."""

import hashlib
from hmac import compare_digest
from typing import Any

import jwt
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.models import SocialLogin, SocialToken
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.crypto import salted_hmac

from conversations.domain.text import is_storable, storable

# Algorithms that sign with a private key. ``none`` and algorithms with a shared secret are not
# accepted, because anybody with the public key could use it as the secret.
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

LEEWAY_SECONDS = 60  # allowed difference between the provider's clock and the server's

MAX_SUBJECT_CHARS = 255

MAX_UID_CHARS = 191  # longest subject in allauth's table; OpenID Connect allows 255 characters


class OidcError(OAuth2Error):  # type: ignore[misc]
    """The provider's response lacks a required value. The text does not quote the response."""


class VerificationError(OAuth2Error):  # type: ignore[misc]
    """The provider's response is invalid or belongs to another sign-in. Its text is not quoted."""


def verify_id_token(
    token: str, *, keys: Any, issuer: str, client_id: str, nonce: str
) -> dict[str, Any]:
    """Return the claims of an ID token that the provider issued for this sign-in.

    The checks follow OpenID Connect Core, 3.1.3.7. ``keys`` is the provider's JSON Web Key Set
    as received. Raise VerificationError.
    """
    try:
        header = jwt.get_unverified_header(token)
        claims: dict[str, Any] = jwt.decode(
            token,
            key=_find_key(keys, header),
            algorithms=[header["alg"]],
            audience=client_id,
            issuer=issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["iss", "sub", "aud", "exp", "iat", "nonce"]},
        )
    except jwt.PyJWTError as error:
        raise VerificationError(type(error).__name__) from error
    if not compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
        raise VerificationError("nonce")
    has_several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if has_several else client_id) != client_id:
        raise VerificationError("azp")
    subject = claims["sub"]
    if not (
        isinstance(subject, str) and 0 < len(subject) <= MAX_SUBJECT_CHARS and is_storable(subject)
    ):
        raise VerificationError("sub")
    return claims


def _find_key(keys: Any, header: dict[str, Any]) -> jwt.PyJWK:
    # Return the key that the header names. Without a name, exactly one key must fit.
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise VerificationError("algorithm")
    offered = keys.get("keys") if isinstance(keys, dict) else None
    fitting = [
        key
        for key in offered or ()
        if isinstance(key, dict)
        and key.get("kty") in ("RSA", "EC", "OKP")
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and ("kid" not in header or key.get("kid") == header["kid"])
    ]
    if len(fitting) != 1:
        raise VerificationError("key")
    return jwt.PyJWK(fitting[0], algorithm=algorithm)


def nonce_of(state: str) -> str:
    """Return the nonce that ties an ID token to the sign-in that requested it.

    It is derived from the state, which is random, belongs to this browser and is valid once.
    """
    return salted_hmac("loom.oidc.nonce", state, algorithm="sha256").hexdigest()


class OidcAdapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    def __init__(self, request: HttpRequest, provider_id: str | None = None) -> None:
        super().__init__(request, provider_id or settings.LOOM.oidc_issuer)
        self._config: Any = None

    @property
    def openid_config(self) -> dict[str, Any]:
        """The provider's configuration, read once per sign-in. It must name the same issuer."""
        if self._config is None:
            self._config = self._read(self.get_provider().server_url)
        if (
            not isinstance(self._config, dict)
            or self._config.get("issuer") != settings.LOOM.oidc_issuer
        ):
            raise OidcError("issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not isinstance(self._config.get(name), str):
                raise OidcError(name)
        return self._config

    def get_callback_url(self, request: HttpRequest, app: Any) -> str:
        return request.build_absolute_uri(reverse("oidc_callback"))

    def parse_token(self, data: dict[str, Any]) -> SocialToken:
        return SocialToken(token=str(data["access_token"]))

    def complete_login(
        self, request: HttpRequest, app: Any, token: SocialToken, **kwargs: Any
    ) -> SocialLogin:
        """Identify the person by the ID token. Userinfo adds claims that the token leaves out."""
        claims = verify_id_token(
            str(kwargs["response"].get("id_token")),
            keys=self._read(self.openid_config["jwks_uri"]),
            issuer=settings.LOOM.oidc_issuer,
            client_id=app.client_id,
            nonce=nonce_of(request.GET["state"]),
        )
        more: dict[str, Any] = {}
        if address := self.openid_config.get("userinfo_endpoint"):
            more = self._read(address, headers={"Authorization": f"Bearer {token.token}"})
            if not isinstance(more, dict) or more.get("sub") != claims["sub"]:
                raise VerificationError("userinfo")  # may be another person's (Core, 5.3.2)
        more.pop("amr", None)  # only the signed token can say how the person signed in
        login = self.get_provider().sociallogin_from_response(request, more | claims)
        login.verified_email = login.user.email  # a known account replaces this user
        return login

    def _read(self, address: str, **more: Any) -> Any:
        with get_adapter().get_requests_session() as session:
            response = session.get(address, **more)
            response.raise_for_status()
            return response.json()


class OidcProvider(OpenIDConnectProvider):  # type: ignore[misc]
    """The only provider of this installation.

    Accounts are stored under the issuer's URL, so an account at another provider counts as a
    different account.
    """

    id = "oidc"
    oauth2_adapter_class = OidcAdapter
    pkce_enabled_default = True

    def get_callback_url(self) -> str:
        return reverse("oidc_callback")

    def get_scope(self) -> list[str]:
        return list(settings.LOOM.oidc_scopes)

    def extract_uid(self, data: dict[str, Any]) -> str:
        subject: str = data["sub"]
        if len(subject) <= MAX_UID_CHARS:
            return subject
        return "sha256:" + hashlib.sha256(subject.encode()).hexdigest()

    def extract_common_fields(self, data: dict[str, Any]) -> dict[str, Any]:
        names = {
            "username": "preferred_username",
            "name": "name",
            "first_name": "given_name",
            "last_name": "family_name",
        }
        fields = {ours: data.get(theirs) for ours, theirs in names.items()}
        return fields | {"email": verified_email(data)}

    def extract_email_addresses(self, data: dict[str, Any]) -> list[Any]:
        return []

    def extract_extra_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data to store: the account's name, its groups and ``amr``, but no token."""
        called = (data.get(name) for name in ("preferred_username", "email", "name", "sub"))
        groups = data.get(settings.LOOM.oidc_groups_claim)
        return {
            "name": next(storable(str(name))[:200] for name in called if name),
            "groups": [name for name in _texts(groups) if name in settings.LOOM.oidc_groups],
            "amr": _texts(data.get("amr")),
        }


def verified_email(data: dict[str, Any]) -> str:
    """Return the email address if the provider has verified it, otherwise an empty string."""
    email = data.get("email")
    is_verified = data.get("email_verified") in (True, "true")
    return email if is_verified and isinstance(email, str) else ""


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [storable(text) for text in values if isinstance(text, str)][:1000]
