"""A nats-server that is frozen: it answers nothing and closes nothing, and its clients must leave
it by themselves.
"""

import asyncio
import os
import signal
from pathlib import Path

from libs.common.settings.settings import Settings
from libs.common.transport.connection_nats import LEAVES_SILENT_SERVER_S, connect
from libs.embedded.permissions import Fleet
from libs.embedded.servers import start_servers


def test_client_leaves_a_silent_server_within_a_third_of_a_lease() -> None:
    assert Settings().lease_ms / 3 > LEAVES_SILENT_SERVER_S * 1_000


async def test_client_of_a_frozen_server_is_connected_to_another_before_its_lease_ends(
    tmp_path: Path,
) -> None:
    servers = start_servers(tmp_path, count=3, fleet=Fleet(nodes=("1",), gateways=("a",)))
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    own = client.connected_url.netloc
    (frozen,) = [
        process
        for url, process in zip(servers.urls, servers.running, strict=True)
        if url.endswith(own)
    ]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(Settings().lease_ms / 1_000):
            while not client.is_connected or client.connected_url.netloc == own:
                await asyncio.sleep(0.1)
            await client.flush()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
        await client.close()
        servers.stop()
