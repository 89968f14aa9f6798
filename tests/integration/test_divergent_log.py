"""A reader of the log that subscribes again, at a server that holds another history.

Two real nats-servers that take turns on one port stand for two replicas that differ.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.errors import Corrupt
from libs.common.transport.connection_nats import Client, connect
from libs.common.transport.feed_nats import SHORT_S
from libs.common.transport.log import Entry
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from tests.natsserver import NatsServer

LOG_BYTES = 16 << 20
READ_S = 20.0
SUBJECT = subjects.QUOTA


async def filled(client: Client, *commits: bytes) -> JetStreamLog:
    await create_stream(client, 1, LOG_BYTES)
    log = JetStreamLog(client)
    for commit in commits:
        last = await log.last(SUBJECT)
        await log.append(SUBJECT, commit, last.seq if last is not None else 0)
    return log


async def taken(batches: AsyncIterator[list[Entry]], count: int) -> list[Entry]:
    """Return the next `count` entries."""
    found: list[Entry] = []
    async with asyncio.timeout(READ_S):
        while len(found) < count:
            found += await anext(batches)
    return found


def exchanged(server: NatsServer, folder: Path, kept: Path) -> None:
    """Give the server the store that was kept, as the server of another history would have it."""
    server.kill()
    shutil.rmtree(folder / "jetstream")
    if kept.exists():
        shutil.copytree(kept, folder / "jetstream")
    server.start()


async def test_reader_stops_where_the_log_holds_another_commit_than_it_has_read(
    tmp_path: Path,
) -> None:
    folder, kept = tmp_path / "server", tmp_path / "kept"
    folder.mkdir()
    server = NatsServer(folder)
    server.start()
    client = await connect([server.url], "test")
    try:
        log = await filled(client, b"1", b"2", b"other")
        server.kill()
        shutil.copytree(folder / "jetstream", kept)
        shutil.rmtree(folder / "jetstream")
        server.start()

        await filled(client, b"1", b"2", b"3")
        batches = log.read(0)
        assert [entry.data for entry in await taken(batches, 3)] == [b"1", b"2", b"3"]
        await asyncio.to_thread(exchanged, server, folder, kept)
        with pytest.raises(Corrupt, match=f"commit 3 .{SUBJECT}. is another one"):
            await taken(batches, 1)
    finally:
        await client.close()
        server.kill()


async def test_reader_goes_on_at_a_server_with_the_same_history(tmp_path: Path) -> None:
    folder, kept = tmp_path / "server", tmp_path / "kept"
    folder.mkdir()
    server = NatsServer(folder)
    server.start()
    client = await connect([server.url], "test")
    try:
        log = await filled(client, b"1", b"2")
        batches = log.read(0)
        assert len(await taken(batches, 2)) == 2
        server.kill()
        shutil.copytree(folder / "jetstream", kept)
        await asyncio.to_thread(exchanged, server, folder, kept)
        await filled(client, b"3")
        (entry,) = await taken(batches, 1)
        assert (entry.seq, entry.data) == (3, b"3")
    finally:
        await client.close()
        server.kill()


async def test_reader_stops_where_the_log_ends_before_what_it_has_read(tmp_path: Path) -> None:
    folder, kept = tmp_path / "server", tmp_path / "kept"
    folder.mkdir()
    server = NatsServer(folder)
    server.start()
    client = await connect([server.url], "test")
    try:
        await filled(client, b"1", b"2")
        server.kill()
        shutil.copytree(folder / "jetstream", kept)
        server.start()
        log = await filled(client, b"3")
        batches = log.read(0)
        assert len(await taken(batches, 3)) == 3
        await asyncio.to_thread(exchanged, server, folder, kept)
        with pytest.raises(Corrupt, match="the log ends at 2, before 3"):
            async with asyncio.timeout(2 * SHORT_S + READ_S):
                while True:
                    await anext(batches)
    finally:
        await client.close()
        server.kill()


async def test_reader_does_not_need_the_consumer_that_the_server_keeps_for_it(
    tmp_path: Path,
) -> None:
    server = NatsServer(tmp_path)
    server.start()
    client = await connect([server.url], "test")
    try:
        log = await filled(client, b"1", b"2")
        batches = log.read(0)
        assert len(await taken(batches, 2)) == 2
        js = client.jetstream()
        for consumer in await js.consumers_info(subjects.STREAM):
            assert not consumer.config.durable_name
            await js.delete_consumer(subjects.STREAM, consumer.name)
        await filled(client, b"3")
        (entry,) = await taken(batches, 1)
        assert (entry.seq, entry.data) == (3, b"3")
    finally:
        await client.close()
        server.kill()
