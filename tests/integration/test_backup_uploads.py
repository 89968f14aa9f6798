"""Backups while gateways remove and store uploads."""

import hashlib
import io

import pytest

from libs.common.errors import Unavailable
from libs.common.transport.uploads_nats import NatsUploads
from services.audit.backup import backing_up
from services.audit.backup.backing_up import BackingUp
from services.audit.backup.places import CURRENT
from tests.integration.test_backup import World, world  # noqa: F401


def removing(
    cluster: World, monkeypatch: pytest.MonkeyPatch, store: NatsUploads, times: int
) -> None:
    """Remove another upload when a backup has taken its sequence, for so many reads of buckets."""
    read, left = BackingUp._bucket, iter(range(times))

    async def bucket(self: BackingUp, stream: str, *given: object) -> object:
        if stream == backing_up.BUCKETS[0] and (number := next(left, None)) is not None:
            await cluster.submit(f"late{number}")
            await store.remove("default", f"{number:064}")
        return await read(self, stream, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BackingUp, "_bucket", bucket)


async def uploads_of(cluster: World, count: int) -> NatsUploads:
    store = NatsUploads(await cluster.client("gateway-a"), 1, 16 << 20)
    for number in range(count):
        await store.put("default", f"{number:064}", io.BytesIO(b"x" * 100))
    return store


async def test_an_upload_that_is_removed_meanwhile_moves_the_backup_to_a_later_sequence(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a restored cluster would start a job at the backup's commit without its upload."""
    store = await uploads_of(world, 2)
    begin = await world.submit("j1")
    removing(world, monkeypatch, store, times=1)
    manifest = await world.backup()
    assert manifest.seq == begin + 1


async def test_uploads_that_are_removed_during_every_read_stop_a_backup(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backing_up, "CONSISTENT_TRIES", 2)
    store = await uploads_of(world, 2)
    await world.submit("j1")
    removing(world, monkeypatch, store, times=2)
    with pytest.raises(Unavailable, match="uploads were removed during each of 2 reads"):
        await world.backup()
    assert await world.place.get(CURRENT) is None


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
