"""Sealed objects of backups: they open with the operator's key only, and only unchanged."""

import os
from pathlib import Path

import pytest

from libs.common.errors import Corrupt, Refused
from services.audit.backup import sealing

KEY = bytes(range(32))
OTHER = bytes(32)


@pytest.mark.parametrize("size", [0, 1, sealing.FRAME_BYTES - 1, 2 * sealing.FRAME_BYTES + 7])
def test_a_sealed_object_opens_with_its_key(size: int) -> None:
    data = os.urandom(size)
    sealed = sealing.seal(KEY, sealing.SEGMENT, data)
    assert len(data) < 32 or data not in sealed
    assert sealing.opened(KEY, sealing.SEGMENT, sealed, "it") == data


def test_an_object_does_not_open_with_another_key() -> None:
    sealed = sealing.seal(KEY, sealing.SEGMENT, b"x")
    with pytest.raises(Refused, match="sealed with the key"):
        sealing.opened(OTHER, sealing.SEGMENT, sealed, "it")


def test_an_object_does_not_open_for_another_purpose() -> None:
    sealed = sealing.seal(KEY, sealing.SEGMENT, b"x")
    with pytest.raises(Corrupt, match="was changed"):
        sealing.opened(KEY, sealing.MANIFEST, sealed, "it")


def test_every_changed_byte_is_noticed() -> None:
    sealed = sealing.seal(KEY, sealing.SEGMENT, b"some facts")
    for place in range(len(sealed)):
        wrong = bytearray(sealed)
        wrong[place] ^= 1
        with pytest.raises((Corrupt, Refused)):
            sealing.opened(KEY, sealing.SEGMENT, bytes(wrong), "it")


def test_a_frame_can_be_neither_cut_off_nor_moved_nor_repeated() -> None:
    sealed = sealing.seal(KEY, sealing.SEGMENT, os.urandom(3 * sealing.FRAME_BYTES))
    step = sealing.FRAME_BYTES + sealing.TAG_BYTES
    head, frames = sealed[: sealing.HEAD_BYTES], sealed[sealing.HEAD_BYTES :]
    first, second, rest = frames[:step], frames[step : 2 * step], frames[2 * step :]
    for wrong in (first + second, second + first + rest, first + first + second + rest, b""):
        with pytest.raises(Corrupt):
            sealing.opened(KEY, sealing.SEGMENT, head + wrong, "it")


def test_other_bytes_are_no_object() -> None:
    with pytest.raises(Corrupt, match="is not an object"):
        sealing.opened(KEY, sealing.SEGMENT, b"hello", "it")


def test_a_new_key_is_private_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "backup.key"
    sealing.new_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(sealing.read_key(path)) == sealing.KEY_BYTES
    with pytest.raises(Refused, match="exists"):
        sealing.new_key(path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup.key"
    sealing.new_key(path)
    path.chmod(0o644)
    with pytest.raises(Refused, match="chmod 600"):
        sealing.read_key(path)


@pytest.mark.parametrize("text", ["", "no key at all!", "AAAA", "\u00e9"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "backup.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(Refused, match=r"backup\.key"):
        sealing.read_key(path)


def test_a_missing_key_file_is_refused_with_what_creates_one(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--new-key"):
        sealing.read_key(tmp_path / "none")
