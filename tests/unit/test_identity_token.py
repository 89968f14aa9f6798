"""Identity tokens: only the provider's own asymmetric keys count, for this client and sign-on.

tests/attack/test_sign_on.py has more lies, of a provider in another process.
"""

from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from services.api_gateway.problems import Denied
from services.api_gateway.sign_on.identity_token import (
    KEYS_MAX,
    LEEWAY_S,
    TOKEN_CHARS_MAX,
    UnknownKey,
    claims_of,
    usable_keys,
)

ISSUER, CLIENT, NOW = "https://id.example.org", "muster", 1_000_000
SIGNER = ECKey.generate_key("P-256", {"kid": "k1", "use": "sig"})
KEYS = usable_keys({"keys": [SIGNER.as_dict(private=False)]})
GOOD = {"iss": ISSUER, "aud": CLIENT, "sub": "1", "iat": NOW, "exp": NOW + 60, "nonce": "n"}


def token(claims: dict[str, Any], key: ECKey = SIGNER, kid: str = "k1") -> str:
    return jwt.encode({"alg": "ES256", "kid": kid}, claims, key)


def read(text: str, keys: KeySet = KEYS, now_s: int = NOW, nonce: str | None = "n") -> Any:
    return claims_of(text, keys, issuer=ISSUER, client_id=CLIENT, now_s=now_s, nonce=nonce)


def test_a_good_token_has_its_claims() -> None:
    assert read(token(GOOD))["sub"] == "1"
    assert read(token({**GOOD, "aud": [CLIENT]}))["aud"] == [CLIENT]
    assert read(token({**GOOD, "aud": [CLIENT, "other"], "azp": CLIENT}))
    assert read(token({**GOOD, "nonce": "x"}), nonce=None), "device codes have no nonce"


def test_a_token_holds_until_its_end_and_the_leeway_of_clocks() -> None:
    assert read(token(GOOD), now_s=NOW + 60 + LEEWAY_S - 1)
    with pytest.raises(Denied):
        read(token(GOOD), now_s=NOW + 60 + LEEWAY_S)


@pytest.mark.parametrize("text", ["", "a.b.c", "a.b", "....", "x" * (TOKEN_CHARS_MAX + 1)])
def test_text_that_is_no_token_is_denied(text: str) -> None:
    with pytest.raises(Denied, match="identity token is not accepted"):
        read(text)


def test_a_token_of_an_unknown_key_asks_for_new_keys() -> None:
    other = ECKey.generate_key("P-256", {"kid": "k2"})
    with pytest.raises(UnknownKey):
        read(token(GOOD, other, "k2"))


def test_keys_that_are_shared_or_not_for_signatures_are_left_out() -> None:
    encrypting = RSAKey.generate_key(2048, {"kid": "e", "use": "enc"}).as_dict(private=False)
    shared = OctKey.generate_key(256, {"kid": "s"}).as_dict()
    own = SIGNER.as_dict(private=False)
    assert [key.kid for key in usable_keys({"keys": [shared, encrypting, "x", own]}).keys] == ["k1"]


@pytest.mark.parametrize(
    "broken",
    [
        {"kty": "RSA"},
        {"kty": "EC", "crv": "unheard of", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": ["RSA"], "n": "AA", "e": "AA"},
    ],
)
def test_a_key_that_cannot_be_used_does_not_spoil_the_others(broken: dict[str, Any]) -> None:
    own = SIGNER.as_dict(private=False)
    assert [key.kid for key in usable_keys({"keys": [broken, own]}).keys] == ["k1"]


@pytest.mark.parametrize("document", [None, [], {}, {"keys": 5}, {"keys": [{}] * (KEYS_MAX + 1)}])
def test_a_document_without_a_bounded_list_of_keys_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="list of at most"):
        usable_keys(document)


@pytest.mark.parametrize(
    "claims",
    [
        {"azp": "other"},
        {"aud": [CLIENT, "other"]},
        {"aud": [CLIENT, "other"], "azp": "other"},
        {"nonce": "other"},
        {"nonce": None},
    ],
    ids=str,
)
def test_a_token_for_another_client_or_sign_on_is_denied(claims: dict[str, Any]) -> None:
    with pytest.raises(Denied, match=r"another client|nonce is not that"):
        read(token({**GOOD, **claims}))
