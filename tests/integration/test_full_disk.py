"""A nats-server of three whose disk fills up: nothing acknowledged is lost, the others go on, and
the server stores again by itself when its disk has room.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.transport.connection_nats import Client
from libs.common.transport.log import AppendRefused, AppendUnknown
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.compose import containers as c
from tests.integration.servers_world import LOG_BYTES, Group, running

FULL = c.SERVERS[1]
DISK = "size=160m"
COMMIT = b"x" * 60_000
APPENDED_S = 40.0
HEALED_S = 90.0
LOOK_S = 0.5


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path)
    store = found.store(FULL)
    store.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", store], check=False)
    if mounted.returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield found
    finally:
        subprocess.run(["umount", "-l", store], check=True)


async def stored(log: JetStreamLog, data: bytes) -> int:
    """Append one commit as a writer does, until it is acknowledged."""
    async with asyncio.timeout(APPENDED_S):
        while True:
            try:
                last = await log.last(subjects.SCHEDULER)
                if last is not None and last.data == data:
                    return last.seq
                return await log.append(subjects.SCHEDULER, data, last.seq if last else 0)
            except (Unavailable, AppendUnknown, AppendRefused):
                await asyncio.sleep(LOOK_S)


async def current(client: Client) -> set[str]:
    """Return the servers that hold the whole log."""
    try:
        info = await client.jetstream(timeout=2).stream_info(subjects.STREAM)
    except (NatsError, TimeoutError, OSError):  # no leader now
        return set()
    cluster = info.cluster
    if cluster is None:
        return set()
    followers = [peer for peer in cluster.replicas or [] if peer.current and not peer.offline]
    return {str(cluster.leader), *(str(peer.name) for peer in followers)}


async def until_current(client: Client, wanted: set[str]) -> None:
    async with asyncio.timeout(HEALED_S):
        while await current(client) != wanted:
            await asyncio.sleep(LOOK_S)


async def test_server_with_a_full_disk_is_restarted_when_it_has_room_and_loses_nothing(
    group: Group,
) -> None:
    everyone = set(c.SERVERS)
    async with running(group):
        client = await group.connect("scheduler")
        await create_stream(client, len(everyone), LOG_BYTES)
        log = JetStreamLog(client)
        await until_current(client, everyone)
        kept = [await stored(log, b"first")]
        free = group.store(FULL) / "filler"
        with free.open("wb") as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        for number in range(40):
            kept.append(await stored(log, b"%d " % number + COMMIT))
        async with asyncio.timeout(HEALED_S):
            while "stores nothing after a failed write" not in group.said(FULL):
                await asyncio.sleep(LOOK_S)
        assert group.lives[FULL] == 1

        free.unlink()
        await until_current(client, everyone)
        assert group.lives[FULL] == 2
        assert group.lives[c.SERVERS[0]] == group.lives[c.SERVERS[2]] == 1
        assert [(await log.get(seq)) is not None for seq in kept] == [True] * len(kept)
        await client.close()
