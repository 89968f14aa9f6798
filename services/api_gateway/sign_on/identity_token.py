"""Verification of identity tokens (OpenID Connect Core 3.1.3.7), with the library joserfc.

Pure. Only signatures by the provider's own asymmetric keys count: no algorithm `none`, and no
symmetric one, whose key would be known to others. Tests: tests/unit/test_identity_token.py.
"""

from collections.abc import Mapping
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import Key, KeySet, import_key

from services.api_gateway.problems import Denied

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
KEY_TYPES: Final = ("RSA", "EC", "OKP")
KEYS_MAX: Final = 64
TOKEN_CHARS_MAX: Final = 65_536
# Clocks of the provider and of the gateway may differ by so much.
LEEWAY_S: Final = 60


class UnknownKey(Exception):
    """No known key signed the token: the provider may have new keys."""


def usable_keys(document: object) -> KeySet:
    """Return the keys for signatures in a JWKS document.

    Raises ValueError for another document. A key that cannot be used, for example on an unknown
    curve, is left out (RFC 7517, section 5).
    """
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise ValueError(f"the document is not a list of at most {KEYS_MAX} keys")
    return KeySet([usable for key in keys if (usable := _usable(key)) is not None])


def _usable(key: object) -> Key | None:
    if not isinstance(key, dict):
        return None
    if key.get("kty") not in KEY_TYPES or key.get("use", "sig") != "sig":
        return None
    try:
        return import_key(key)
    except (JoseError, ValueError, KeyError):
        return None


def claims_of(
    token: str, keys: KeySet, issuer: str, client_id: str, now_s: int, nonce: str | None
) -> Mapping[str, Any]:
    """Return the claims of a valid token. `nonce`: None if the flow has none.

    Raises UnknownKey, or Denied 401 with the reason.
    """
    if len(token) > TOKEN_CHARS_MAX:
        raise _denied("it is too long")
    try:
        claims = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
        jwt.JWTClaimsRegistry(
            now=now_s,
            leeway=LEEWAY_S,
            iss={"essential": True, "value": issuer},
            sub={"essential": True},
            aud={"essential": True, "value": client_id},
            exp={"essential": True},
            iat={"essential": True},
        ).validate(claims)
    except InvalidKeyIdError as error:
        raise UnknownKey from error
    except (JoseError, ValueError) as error:
        raise _denied(str(error)) from error
    audience = claims["aud"]
    party = claims.get("azp")
    if (isinstance(audience, list) and len(audience) > 1 and party is None) or party not in (
        None,
        client_id,
    ):
        raise _denied("it was issued for another client")
    if nonce is not None and claims.get("nonce") != nonce:
        raise _denied("its nonce is not that of this sign-on")
    return claims


def _denied(reason: str) -> Denied:
    return Denied(401, f"the identity token is not accepted: {reason[:256]}: sign in again")
