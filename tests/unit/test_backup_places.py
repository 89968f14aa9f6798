"""A directory as a place: whole objects, replaced at once, and clear refusals."""

import os
from pathlib import Path

import pytest

from libs.common.errors import Refused, Unavailable
from services.audit.backup.commands import _check_outside
from services.audit.backup.places import DirectoryPlace, place_of
from services.audit.backup.s3 import S3Place, s3_place

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


async def test_an_object_is_read_as_it_was_put_and_replaced_at_once(tmp_path: Path) -> None:
    place = DirectoryPlace(tmp_path / "place")
    assert await place.get("segments/x") is None
    await place.put("segments/x", b"1")
    await place.put("segments/x", b"2")
    assert await place.get("segments/x") == b"2"
    assert os.listdir(tmp_path / "place" / "segments") == ["x"]
    await place.delete("segments/x")
    await place.delete("segments/x")
    assert await place.get("segments/x") is None
    await place.close()


async def test_only_old_objects_are_listed(tmp_path: Path) -> None:
    place = DirectoryPlace(tmp_path)
    assert await place.old_names("segments", 0.0) == []
    await place.put("segments/x", b"1")
    assert await place.old_names("segments", 60.0) == []
    assert await place.old_names("segments", -60.0) == ["segments/x"]


async def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = DirectoryPlace(tmp_path / "file")
    with pytest.raises(Unavailable, match="cannot be written"):
        await place.put("current", b"")
    with pytest.raises(Unavailable, match="cannot be read"):
        await DirectoryPlace(tmp_path).get("")


def test_a_file_or_another_scheme_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="is a file"):
        place_of(str(tmp_path / "file"))
    with pytest.raises(Refused, match="is not a place"):
        place_of("ftp://host/x")
    assert isinstance(place_of(str(tmp_path)), DirectoryPlace)


def test_a_prefix_in_s3_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    assert isinstance(place_of("s3://bucket/a/b"), S3Place)
    found = s3_place("s3://bucket/a/b/", {**KEYS, "AWS_REGION": "eu-north-1"})
    assert (found.bucket, found.prefix) == ("bucket", "a/b/")
    assert found.endpoint == "https://s3.eu-north-1.amazonaws.com"
    own = s3_place("s3://bucket", {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9000/"})
    assert (own.endpoint, own.host, own.prefix) == ("http://127.0.0.1:9000", "127.0.0.1:9000", "")


def test_s3_needs_a_bucket_credentials_and_an_address() -> None:
    with pytest.raises(Refused, match="names no bucket"):
        s3_place("s3://", KEYS)
    with pytest.raises(Refused, match="no credentials"):
        s3_place("s3://bucket", {})
    with pytest.raises(Refused, match="AWS_ENDPOINT_URL"):
        s3_place("s3://bucket", {**KEYS, "AWS_ENDPOINT_URL": "host:9000"})


def test_a_place_inside_the_state_directory_is_refused(tmp_path: Path) -> None:
    _check_outside("s3://bucket/x", tmp_path)
    _check_outside(str(tmp_path / "b"), tmp_path / "state")
    with pytest.raises(Refused, match="is inside the state directory"):
        _check_outside(str(tmp_path / "state" / "b"), tmp_path / "state")
