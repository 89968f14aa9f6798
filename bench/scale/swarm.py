"""`python -m bench.scale.swarm FIRST COUNT GPUS KEYS SERVERS`: many agents in one process.

Each is a real agent with a connection of its own, under its own key. The process prints a line when
all have registered, and ends at SIGTERM. The agents have no peers: nothing here extends a lease.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

import uvloop

from bench.scale.jobs import Remembered, TimedJobs
from libs.common.process.clock import SystemClock
from libs.common.transport import connection_nats
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.kv_nats import KvOutputs
from libs.common.transport.log_jetstream import JetStreamLog
from libs.embedded import identity, permissions
from services.node_agent.directories.protocol import Machine
from services.node_agent.drivers.simulated import SOCKETS, SimulatedDriver
from services.node_agent.service import Agent

# Connections that are opened at once; more would time out on a busy machine.
OPENING_MAX: Final = 32
CONNECT_S: Final = 60.0
RACK_NODES: Final = 16
SPINE_RACKS: Final = 8


class Swarm:
    """The agents `first` ... `first + count - 1`, counted from 1."""

    def __init__(self, first: int, count: int, gpus: int, keys: Path, servers: list[str]) -> None:
        self.names = [f"node-{number}" for number in range(first, first + count)]
        self.first, self.gpus, self.keys, self.servers = first, gpus, keys, servers
        self.opening = asyncio.Semaphore(OPENING_MAX)
        self.clock = SystemClock()
        self.left = count

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.gather(*(self._run_one(name, stop) for name in self.names))

    async def _run_one(self, name: str, stop: asyncio.Event) -> None:
        key = permissions.node_name(name)
        seed = identity.seed_file(self.keys, key).read_bytes().strip()
        async with self.opening:
            client = await connection_nats.connect(self.servers, key, seed, within_s=CONNECT_S)
        rack = (int(name.rpartition("-")[2]) - 1) // RACK_NODES
        driver = SimulatedDriver(name, self.gpus)
        machine = Machine(
            node_id=name,
            address="127.0.0.1",
            cpus_milli=driver.cpus_milli,
            memory_bytes=driver.memory_bytes,
            rack=f"rack-{rack + 1}",
            spine=f"spine-{rack // SPINE_RACKS + 1}",
            sockets=SOCKETS,
        )
        agent = Agent(
            machine,
            log=JetStreamLog(client),
            bus=NatsBus(client),
            clock=self.clock,
            jobs=TimedJobs(self.clock.boot_ns),
            driver=driver,
            outputs=KvOutputs(client),
            memory=Remembered(name),
            probe=_ready,
        )
        announcing = asyncio.create_task(self._announce(agent))
        try:
            await agent.run(stop)
        finally:
            announcing.cancel()
            await client.close()

    async def _announce(self, agent: Agent) -> None:
        await agent.registered.wait()
        self.left -= 1
        if not self.left:
            print(f"{len(self.names)} agents are registered", flush=True)


async def _ready(address: str, port: int, path: str, within_s: float, key: str | None) -> str:
    return ""


async def main(arguments: list[str]) -> None:
    first, count, gpus = map(int, arguments[:3])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Swarm(first, count, gpus, Path(arguments[3]), arguments[4].split(",")).run(stop)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1:]))
