"""Only correctly signed heads count."""

import os

import msgspec
import nkeys
import pytest

from libs.common.errors import Corrupt, Refused
from services.audit.chain.heads import Signer, decode, encode, problem


def signer() -> Signer:
    return Signer(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))


HASH = "ab" * 32
AT = "2026-01-31T12:00:00.000Z"


def test_a_head_proves_itself_and_its_signer() -> None:
    pen = signer()
    head = decode(encode(pen.sign("c1", 7, HASH, AT)))
    assert (head.cluster, head.sequence, head.hash, head.at, head.key) == (
        "c1",
        7,
        HASH,
        AT,
        pen.key,
    )
    assert problem(head) == "" and problem(head, pen.key) == ""


@pytest.mark.parametrize(
    "edit",
    [{"cluster": "c2"}, {"sequence": 8}, {"hash": "cd" * 32}, {"at": AT.replace("12", "13")}],
)
def test_a_head_that_was_changed_does_not_count(edit: dict[str, object]) -> None:
    assert "was changed" in problem(
        msgspec.structs.replace(signer().sign("c1", 7, HASH, AT), **edit)
    )


@pytest.mark.parametrize("signature", ["", "!", "QUJD", "A" * 88])
def test_a_head_without_a_right_signature_does_not_count(signature: str) -> None:
    assert "its signature is not right" in problem(
        msgspec.structs.replace(signer().sign("c1", 7, HASH, AT), signature=signature)
    )


def test_a_head_by_another_key_does_not_count_where_one_is_named() -> None:
    head, known = signer().sign("c1", 7, HASH, AT), signer().key
    assert "not by" in problem(head, known)
    assert "its signature is not right" in problem(msgspec.structs.replace(head, key=known), known)


@pytest.mark.parametrize("key", ["", "U", "UAAA", "é" * 56, "U" + "A" * 55])
def test_invalid_key_proves_nothing(key: str) -> None:
    assert problem(msgspec.structs.replace(signer().sign("c1", 7, HASH, AT), key=key)) != ""


@pytest.mark.parametrize("line", [b"", b"{}", b"\xff", b'{"sequence":"7"}'])
def test_line_without_a_head_is_corrupt(line: bytes) -> None:
    with pytest.raises(Corrupt, match="is not a head"):
        decode(line)


def test_invalid_seed_is_refused() -> None:
    with pytest.raises(Refused, match="MUSTER_AUDIT_KEY_FILE"):
        Signer(b"no seed")
