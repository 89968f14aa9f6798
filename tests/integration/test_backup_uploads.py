"""Backups while gateways remove and store uploads."""

import hashlib
import io
from collections.abc import Awaitable, Callable

import pytest

from libs.common import facts as f
from libs.common import subjects as s
from libs.common.errors import Unavailable
from libs.common.model import JobId
from libs.common.transport.uploads_nats import NatsUploads
from services.audit.backup import backing_up
from services.audit.backup.backing_up import BackingUp
from services.audit.backup.places import CURRENT
from services.audit.backup.upload_check import UPLOADS
from tests.given import waiting
from tests.integration.test_backup import World, world  # noqa: F401


def meanwhile(
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[int], Awaitable[object]],
    times: int,
    *,
    after: bool = False,
) -> None:
    """Call `act` with 0, 1, ... in so many reads of the buckets, after the backup has taken its
    sequence: before its read of the uploads, or after it.
    """
    read, left = BackingUp._bucket, iter(range(times))

    async def bucket(self: BackingUp, stream: str, *given: object) -> object:
        number = next(left, None) if stream == UPLOADS else None
        if number is not None and not after:
            await act(number)
        found = await read(self, stream, *given)  # type: ignore[arg-type]
        if number is not None and after:
            await act(number)
        return found

    monkeypatch.setattr(BackingUp, "_bucket", bucket)


def sha256(number: int) -> str:
    return f"{number:064}"


async def uploads_of(cluster: World, count: int) -> NatsUploads:
    store = NatsUploads(await cluster.client("gateway-a"), 1, 16 << 20)
    for number in range(count):
        await store.put("default", sha256(number), io.BytesIO(b"x" * 100))
    return store


async def submit(cluster: World, number: int) -> int:
    """Submit a job that uses an upload."""
    job = waiting(f"j{number}", upload=sha256(number))[0]
    return await cluster.record("gateway-a", s.gateway("a"), job)


async def end(cluster: World, store: NatsUploads, number: int) -> int:
    """End a job, and remove its upload."""
    rejected = f.JobRejected(job_id=JobId(f"j{number}"), reason="no")
    seq = await cluster.record("quota", s.QUOTA, rejected)
    await store.remove("default", sha256(number))
    return seq


async def test_a_needed_upload_that_is_removed_meanwhile_moves_the_backup_to_a_later_sequence(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a restored cluster would start a job at the backup's commit without its upload."""
    store = await uploads_of(world, 2)
    begin = await submit(world, 0)
    meanwhile(monkeypatch, lambda number: end(world, store, number), times=1)
    manifest = await world.backup()
    assert manifest.seq == begin + 1


async def test_a_needed_upload_that_is_stored_again_after_the_read_repeats_the_backup(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was missing while the buckets were read."""
    store = await uploads_of(world, 1)
    await submit(world, 0)
    meanwhile(monkeypatch, lambda number: end(world, store, number), times=1)
    read = BackingUp._bucket

    async def bucket(self: BackingUp, stream: str, *given: object) -> object:
        found = await read(self, stream, *given)  # type: ignore[arg-type]
        if stream == UPLOADS:
            await store.put("default", sha256(0), io.BytesIO(b"x"))
        return found

    monkeypatch.setattr(BackingUp, "_bucket", bucket)
    monkeypatch.setattr(backing_up, "CONSISTENT_TRIES", 1)
    with pytest.raises(Unavailable, match="uploads that jobs or models use were removed"):
        await world.backup()


async def test_needed_uploads_that_are_removed_during_every_read_stop_a_backup(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backing_up, "CONSISTENT_TRIES", 2)
    store = await uploads_of(world, 2)
    for number in range(2):
        await submit(world, number)
    meanwhile(monkeypatch, lambda number: end(world, store, number), times=2)
    with pytest.raises(Unavailable, match="were removed, during each of 2 reads"):
        await world.backup()
    assert await world.place.get(CURRENT) is None


@pytest.mark.parametrize("after", [False, True], ids=["before the read", "after the read"])
async def test_uploads_that_no_job_needs_are_replaced_all_the_time_without_repeating_a_backup(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
) -> None:
    """As those of a tenant at its share, whose jobs of a moment ago have ended."""
    monkeypatch.setattr(backing_up, "CONSISTENT_TRIES", 1)
    store = await uploads_of(world, 3)
    for number in range(2):
        await submit(world, number)
    rejected = f.JobRejected(job_id=JobId("j1"), reason="no")
    begin = await world.record("quota", s.QUOTA, rejected)

    async def replace(number: int) -> None:
        await store.remove("default", sha256(1))
        await store.put("default", sha256(3), io.BytesIO(b"new"))
        await submit(world, 3)
        await store.put("default", sha256(1), io.BytesIO(b"again"))
        await store.remove("default", sha256(2))

    meanwhile(monkeypatch, replace, times=1, after=after)
    assert (await world.backup()).seq == begin


async def test_a_needed_upload_that_was_missing_before_does_not_stop_backups(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backing_up, "CONSISTENT_TRIES", 1)
    store = await uploads_of(world, 2)
    begin = await submit(world, 0)
    await store.remove("default", sha256(0))
    meanwhile(monkeypatch, lambda number: store.remove("default", sha256(1)), times=1)
    assert (await world.backup()).seq == begin


async def test_uploads_that_are_sent_meanwhile_do_not_repeat_a_backup(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backing_up, "CONSISTENT_TRIES", 1)
    store = await uploads_of(world, 1)
    begin = await world.submit("j1")
    read = BackingUp._bucket

    async def bucket(self: BackingUp, stream: str, *given: object) -> object:
        await store.put("default", hashlib.sha256(stream.encode()).hexdigest(), io.BytesIO(b"new"))
        return await read(self, stream, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BackingUp, "_bucket", bucket)
    assert (await world.backup()).seq == begin
