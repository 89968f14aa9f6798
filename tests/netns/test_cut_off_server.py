"""A nats-server that is cut off from the two others, while its own clients still reach it.

The third server is in a network namespace, where packets of the routes between servers are dropped.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import Client, connect, server_of
from libs.common.transport.log import AppendRefused, AppendUnknown, Entry
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.second_connection import repeating_bus
from libs.embedded import identity, nats_config, servers
from libs.embedded.living import die_with_parent
from libs.embedded.permissions import Fleet
from tests.netns.conftest import Wire

pytestmark = pytest.mark.drill

PORT, ROUTE_PORT = 4222, 6222
LOG_BYTES = 1 << 28
LEASE_S = Settings().lease_ms / 1_000
ASK_S = 0.8
READ_S = 60.0


class Servers:
    """Two servers here, on ports of their own, and one in the namespace."""

    def __init__(self, folder: Path, wire: Wire) -> None:
        self.folder = folder
        self.wire = wire
        ports = servers.free_ports(4)
        hosts = [(wire.here, *ports[:2]), (wire.here, *ports[2:]), (wire.there, PORT, ROUTE_PORT)]
        self.urls = [f"nats://{host}:{port}" for host, port, _ in hosts]
        self.routes = [str(route) for _, _, route in hosts]
        peers = nats_config.Peers(tuple(f"{host}:{route}" for host, _, route in hosts), "p" * 32)
        self.running = []
        for index, (host, port, _) in enumerate(hosts):
            name = f"nats-{index + 1}"
            server = nats_config.Server(
                name=name,
                port=port,
                store=str(folder / name),
                log_bytes=LOG_BYTES,
                peers=peers,
                route_address=peers.addresses[index],
                listen=host,
            )
            servers.write_config(folder, server, Fleet())
            line = [servers.binary(), "-c", str(servers.config_file(folder, name))]
            inside = host == wire.there
            self.running.append(
                subprocess.Popen(
                    wire.inside(*line) if inside else line,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    preexec_fn=die_with_parent(),
                )
            )

    def cut(self) -> None:
        """Drop all packets between the third server and the others."""
        for chain in ("INPUT", "OUTPUT"):
            for side in ("--dport", "--sport"):
                for port in self.routes:
                    rule = ["iptables", "-A", chain, "-p", "tcp", side, port, "-j", "DROP"]
                    subprocess.run(self.wire.inside(*rule), check=True, capture_output=True)

    async def connect(self, *urls: str) -> Client:
        seed = identity.seed_file(self.folder / "keys", "scheduler").read_bytes().strip()
        return await connect(urls or self.urls, "scheduler", seed, within_s=30)

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def group(tmp_path: Path, wire: Wire) -> Iterator[Servers]:
    tried = subprocess.run(
        wire.inside("iptables", "-L"), check=False, capture_output=True, timeout=10
    )
    if tried.returncode:
        pytest.skip("packets can only be dropped with iptables")
    found = Servers(tmp_path, wire)
    yield found
    found.stop()


async def stored(log: JetStreamLog, data: bytes) -> None:
    """Append a commit until it is acknowledged."""
    async with asyncio.timeout(READ_S):
        while True:
            try:
                last = await log.last(subjects.SCHEDULER)
                if last is not None and last.data == data:
                    return
                await log.append(subjects.SCHEDULER, data, last.seq if last else 0)
                return
            except (Unavailable, AppendUnknown, AppendRefused):
                await asyncio.sleep(ASK_S)


async def test_heartbeats_are_answered_and_the_log_is_read_on_at_another_server(
    group: Servers,
) -> None:
    here, there = group.urls[:2], group.urls[2]
    scheduler = await group.connect(*here)
    agent, reader = await group.connect(there), await group.connect(there)
    for client in (agent, reader):  # they began at the third server, and know the others too
        client.set_server_pool(group.urls)

    async def answer(subject: str, data: bytes) -> bytes:
        return b"a lease"

    try:
        await create_stream(scheduler, 3, LOG_BYTES)
        log = JetStreamLog(scheduler)
        await NatsBus(scheduler).subscribe(subjects.ask_alive(subjects.SCHEDULER_KIND), answer)
        await stored(log, b"before")
        batches = JetStreamLog(reader).read(0)
        seen: list[Entry] = []
        async with asyncio.timeout(READ_S):
            while not seen:
                seen += await anext(batches)

        async with repeating_bus(agent, group.connect, 3) as bus:
            await asyncio.sleep(2)
            assert (
                await bus.request(subjects.ask_alive(subjects.SCHEDULER_KIND), b"", ASK_S)
                == b"a lease"
            )
            assert there.endswith(server_of(agent))
            group.cut()
            missed = 0
            async with asyncio.timeout(LEASE_S):
                while there.endswith(server_of(agent) or "-"):
                    try:
                        assert (
                            await bus.request(
                                subjects.ask_alive(subjects.SCHEDULER_KIND), b"", ASK_S
                            )
                            == b"a lease"
                        )
                    except Unavailable:
                        missed += 1
            assert missed <= 1, "a second connection answers while the first one is cut off"
        await stored(log, b"after")
        async with asyncio.timeout(READ_S):
            while seen[-1].data != b"after":
                seen += await anext(batches)
        assert [entry.data for entry in seen] == [b"before", b"after"]
        assert not there.endswith(server_of(reader) or "-")
    finally:
        for client in (scheduler, agent, reader):
            await client.close()
