"""A public nkey is taken only if nats-server takes it: anything else would make the server refuse
its whole file.
"""

import nkeys
import pytest

from libs.common.safety import public_nkey


def made(prefix: int = nkeys.PREFIX_BYTE_USER) -> str:
    seed = nkeys.encode_seed(bytes(range(32)), prefix)  # type: ignore[no-untyped-call]
    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())  # type: ignore[no-untyped-call]


def test_a_user_s_public_key_is_taken() -> None:
    key = made()
    assert len(public_nkey.raw(key)) == public_nkey.KEY_BYTES
    assert public_nkey.fault(key) == ""


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "0 characters"),
        ("U" + "A" * 55, "checksum"),
        ("U" + "A" * 54, "55 characters"),
        ("U" + "A" * 55 + "\n", "57 characters"),
        ("U" + "a" * 55, "base 32"),
        ("U" + "\u00e9" * 55, "base 32"),
        ("U" + "1" * 55, "base 32"),
        ("U" + "A" * 54 + "=", "base 32"),
        ("A" * 56, "begins with U"),
        (made(nkeys.PREFIX_BYTE_ACCOUNT), "begins with U"),
    ],
)
def test_any_other_text_is_refused_with_the_reason(bad: str, why: str) -> None:
    assert why in public_nkey.fault(bad)


def test_a_key_with_one_changed_letter_is_refused() -> None:
    key = made()
    changed = key[:20] + ("A" if key[20] != "A" else "B") + key[21:]
    assert "checksum" in public_nkey.fault(changed)
