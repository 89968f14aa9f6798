"""A nats-server runs only while its disk has space."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from libs.embedded import space_watch
from libs.embedded.space_watch import MIB, START_BYTES, STOP_BYTES, until_scarce, until_space


def disk(*free: int | None) -> Callable[[], int | None]:
    """Return a disk whose free bytes are these, one after the other."""
    left = list(free)
    return lambda: left.pop(0)


def test_server_starts_at_once_on_a_disk_with_space() -> None:
    said: list[str] = []
    asyncio.run(until_space(disk(START_BYTES), said.append))
    assert said == []


def test_server_is_not_started_on_a_full_disk_and_this_is_said_once() -> None:
    said: list[str] = []
    asyncio.run(until_space(disk(3 * MIB, STOP_BYTES, START_BYTES - 1, START_BYTES), said.append))
    assert len(said) == 1
    assert "only 3 MiB are free" in said[0] and "128 MiB are free" in said[0]


def test_server_is_ended_when_its_disk_is_nearly_full() -> None:
    found = asyncio.run(until_scarce(disk(START_BYTES, STOP_BYTES, STOP_BYTES - 1)))
    assert found == STOP_BYTES - 1


def test_disk_whose_space_is_unknown_neither_keeps_a_server_from_starting_nor_ends_it() -> None:
    said: list[str] = []
    asyncio.run(until_space(disk(None), said.append))
    assert said == []
    assert asyncio.run(until_scarce(disk(None, None, 0))) == 0


def test_free_space_of_a_folder_that_does_not_exist_is_unknown(tmp_path: Path) -> None:
    assert space_watch.free_bytes(tmp_path / "missing") is None
    assert (space_watch.free_bytes(tmp_path) or 0) > 0
