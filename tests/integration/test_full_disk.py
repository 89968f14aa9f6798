"""A nats-server of three whose disk fills up is ended before a write fails: nothing acknowledged is
lost, the others go on, and the server is back by itself when its disk has space.
"""

import asyncio
import os
import signal
import subprocess
import time
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

pytestmark = pytest.mark.drill

# The server whose disk fills up, and the second one where two do.
FULL, SECOND, LAST = c.SERVERS[1], c.SERVERS[2], c.SERVERS[0]
DISK = "size=160m"
COMMIT = b"x" * 60_000
APPENDED_S = 40.0
HEALED_S = 90.0
# Commits are tried for this long while two disks are full.
UNSTORED_S = 20.0
LOOK_S = 0.5
# A disk fills with 200 MB in a second.
MIB_S = 0.005
ENDED = "is ended: only"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path)
    stores = [found.store(FULL), found.store(SECOND)]
    try:
        for store in stores:
            store.mkdir(parents=True)
            line = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", store]
            if subprocess.run(line, check=False).returncode:
                pytest.skip("a small disk needs the right to mount one")
        yield found
    finally:
        for store in filter(os.path.ismount, stores):
            subprocess.run(["umount", "-l", store], check=True)


def filled(store: Path, every_s: float = MIB_S) -> Path:
    """Fill the disk of a store, a MiB in `every_s`, and return the file to remove."""
    filler = store / "filler"
    with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(every_s)
    return filler


async def until_said(group: Group, server: str, words: str) -> None:
    async with asyncio.timeout(HEALED_S):
        while words not in group.said(server):
            await asyncio.sleep(LOOK_S)


def without_a_failed_write(group: Group) -> bool:
    return not any("no space left" in group.said(server) for server in c.SERVERS)


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


async def test_server_is_ended_before_its_disk_is_full_and_is_back_when_there_is_space(
    group: Group,
) -> None:
    everyone = set(c.SERVERS)
    async with running(group):
        client = await group.connect("scheduler")
        await create_stream(client, len(everyone), LOG_BYTES)
        log = JetStreamLog(client)
        await until_current(client, everyone)
        kept = [await stored(log, b"first")]
        free = await asyncio.to_thread(filled, group.store(FULL))
        await until_said(group, FULL, ENDED)
        for number in range(40):
            kept.append(await stored(log, b"%d " % number + COMMIT))
        await until_said(group, FULL, "is not started")

        free.unlink()
        await until_current(client, everyone)
        assert without_a_failed_write(group)
        assert group.lives[FULL] == 2
        assert group.lives[LAST] == group.lives[SECOND] == 1
        assert [(await log.get(seq)) is not None for seq in kept] == [True] * len(kept)
        await client.close()


async def test_writes_go_on_by_themselves_after_two_disks_were_full(group: Group) -> None:
    everyone = set(c.SERVERS)
    async with running(group):
        client = await group.connect("scheduler")
        await create_stream(client, len(everyone), LOG_BYTES)
        log = JetStreamLog(client)
        await until_current(client, everyone)
        kept = [await stored(log, b"first")]
        stores = [group.store(server) for server in (FULL, SECOND)]
        fillers = await asyncio.gather(*(asyncio.to_thread(filled, store) for store in stores))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(UNSTORED_S):
                for number in range(1_000):
                    kept.append(await stored(log, b"%d " % number + COMMIT))
        for server in (FULL, SECOND):
            await until_said(group, server, "is not started")
        assert without_a_failed_write(group)

        for filler in fillers:
            filler.unlink()
        kept.append(await stored(log, b"last"))
        await until_current(client, everyone)
        assert [(await log.get(seq)) is not None for seq in kept] == [True] * len(kept)
        await client.close()


async def test_server_whose_write_failed_stores_again_when_its_disk_has_space(
    group: Group,
) -> None:
    everyone = set(c.SERVERS)
    async with running(group):
        client = await group.connect("scheduler")
        await create_stream(client, len(everyone), LOG_BYTES)
        log = JetStreamLog(client)
        await until_current(client, everyone)
        kept = [await stored(log, b"first")]
        # No process watches the disk while it fills.
        group.running[FULL].send_signal(signal.SIGSTOP)
        free = await asyncio.to_thread(filled, group.store(FULL), 0.0)
        for number in range(40):
            kept.append(await stored(log, b"%d " % number + COMMIT))
        await until_said(group, FULL, "no space left")
        group.running[FULL].send_signal(signal.SIGCONT)
        await until_said(group, FULL, ENDED)

        free.unlink()
        await until_current(client, everyone)
        assert [(await log.get(seq)) is not None for seq in kept] == [True] * len(kept)
        await client.close()
