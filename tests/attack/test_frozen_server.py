"""A nats-server that is frozen or cut off closes no connection, and its clients must leave it."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import (
    LEAVES_SILENT_SERVER_S,
    Client,
    connect,
    connect_as,
    server_of,
)
from libs.common.transport.second_connection import repeating_bus
from libs.embedded import servers
from libs.embedded.permissions import Fleet
from tests.integration.tls_world import Cluster

LEASE_S = Settings().lease_ms / 1_000
ASK_S = 0.8
SUBJECT = subjects.ask_alive(subjects.SCHEDULER_KIND)


def test_client_leaves_a_silent_server_within_a_third_of_a_lease() -> None:
    assert LEASE_S / 3 > LEAVES_SILENT_SERVER_S


async def changes(
    client: Client, urls: Sequence[str], running: Sequence["subprocess.Popen[bytes]"]
) -> None:
    """Freeze the client's server, and wait until the client uses another one."""
    own = server_of(client)
    (frozen,) = [process for url, process in zip(urls, running, strict=True) if url.endswith(own)]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(LEASE_S / 2):
            while server_of(client) in ("", own):
                await asyncio.sleep(0.1)
            await client.flush()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)


async def test_client_of_a_frozen_server_is_connected_to_another_before_its_lease_ends(
    tmp_path: Path,
) -> None:
    group = servers.start_servers(tmp_path, count=3, fleet=Fleet(nodes=("1",), gateways=("a",)))
    client = await connect(group.urls, "gateway-a", group.seed("gateway-a"))
    try:
        for _ in range(2):
            await changes(client, group.urls, group.running)
    finally:
        await client.close()
        group.stop()


async def test_client_of_a_frozen_server_does_not_wait_for_the_end_of_its_tls_session(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    client = await connect_as(cluster.settings(), "scheduler")
    try:
        await changes(client, cluster.urls, cluster.running)
    finally:
        await client.close()
        cluster.stop()


async def test_request_is_answered_although_the_first_server_is_cut_off_from_the_others(
    tmp_path: Path,
) -> None:
    """Two servers without a route between them stand for a server that is cut off."""
    groups = [servers.start_servers(tmp_path / "a")]
    shutil.copytree(tmp_path / "a" / "keys", tmp_path / "b" / "keys")
    groups.append(servers.start_servers(tmp_path / "b"))
    urls = [group.urls[0] for group in groups]
    seed = groups[0].seed("scheduler")
    first = await connect(urls, "scheduler", seed)
    (other,) = [url for url in urls if not url.endswith(server_of(first))]
    scheduler = await connect([other], "scheduler", seed)

    answers: list[bytes] = []

    async def answer(subject: str, data: bytes) -> bytes:
        return b"alive"

    try:
        await NatsBus(scheduler).subscribe(SUBJECT, answer)
        async with (
            repeating_bus(first, lambda: connect(urls, "scheduler", seed), len(urls)) as bus,
            asyncio.timeout(LEASE_S),
        ):
            while not other.endswith(server_of(first) or "none"):
                await asyncio.sleep(0.1)
                # Refused at first, until the second connection is at the other server.
                with contextlib.suppress(Unavailable):
                    answers.append(await bus.request(SUBJECT, b"", ASK_S))
        assert set(answers) == {b"alive"}
    finally:
        for client in (first, scheduler):
            await client.close()
        for group in groups:
            group.stop()
