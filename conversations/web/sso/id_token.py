"""Is this ID token what the provider said about this sign-in? (OpenID Connect Core, 3.1.3.7)

allauth leaves the signature unchecked for a token that came straight from the provider,
as the standard allows, and knows no nonce. Here every token is checked in full.
"""

from hmac import compare_digest
from typing import Any

import jwt

from conversations.domain.text import is_storable

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures by a private key. Never ``none``, and none by a shared secret: whoever has
the public key could make one with it."""

LEEWAY = 60
"""Seconds by which the provider's clock may differ from ours."""

MAX_SUBJECT_CHARS = 255


class NotVerified(Exception):
    """Its text says what was wrong, and quotes nothing of the token."""


def verify_id_token(
    token: str, *, keys: Any, issuer: str, client_id: str, nonce: str
) -> dict[str, Any]:
    """The claims. ``keys`` is the provider's JSON Web Key Set as it came. Raises
    :class:`NotVerified`."""
    try:
        header = jwt.get_unverified_header(token)
        claims: dict[str, Any] = jwt.decode(
            token,
            key=_find_key(keys, header),
            algorithms=[header["alg"]],
            audience=client_id,
            issuer=issuer,
            leeway=LEEWAY,
            options={"require": ["iss", "sub", "aud", "exp", "iat", "nonce"]},
        )
    except jwt.PyJWTError as error:
        raise NotVerified(type(error).__name__) from error
    _check_claims(claims, client_id=client_id, nonce=nonce)
    return claims


def _find_key(keys: Any, header: dict[str, Any]) -> jwt.PyJWK:
    """The key that the header names; of a set of one, that one."""
    if header.get("alg") not in ALGORITHMS:
        raise NotVerified("algorithm")
    given = keys.get("keys") if isinstance(keys, dict) else None
    fitting = [key for key in given or () if _may_sign(key, header)]
    if len(fitting) != 1:
        raise NotVerified("key")
    return jwt.PyJWK(fitting[0], algorithm=header["alg"])


def _may_sign(key: Any, header: dict[str, Any]) -> bool:
    return (
        isinstance(key, dict)
        and key.get("kty") in ("RSA", "EC", "OKP")
        and key.get("use", "sig") == "sig"
        and key.get("alg", header["alg"]) == header["alg"]
        and ("kid" not in header or key.get("kid") == header["kid"])
    )


def _check_claims(claims: dict[str, Any], *, client_id: str, nonce: str) -> None:
    if not compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
        raise NotVerified("nonce")
    has_several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if has_several else client_id) != client_id:
        raise NotVerified("azp")
    subject = claims["sub"]
    if not (
        isinstance(subject, str) and 0 < len(subject) <= MAX_SUBJECT_CHARS and is_storable(subject)
    ):
        raise NotVerified("sub")
