"""`python -m services.node_agent`: the agent of this machine, with what MUSTER_* says about it."""

import asyncio
import importlib.metadata
import os
from pathlib import Path

from libs.common import service
from libs.common.bus_nats import NatsBus
from libs.common.cancellation import before
from libs.common.clock import SystemClock
from libs.common.errors import Refused
from libs.common.kv_nats import KvOutputs
from libs.common.log_jetstream import JetStreamLog, connect
from libs.common.model import GPUS_PER_NODE_MAX, ID_PATTERN
from libs.common.settings import Settings
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.environment import passed_on
from services.node_agent.incarnation import IncarnationFile
from services.node_agent.job_directories import JobDirectories
from services.node_agent.service import Agent
from services.node_agent.supervision.processes import boot_id
from services.node_agent.supervision_protocol import Machine


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Raises Refused for settings that cannot be, and what `Agent.run` raises."""
    _check(settings)
    state_dir = Path(settings.state)
    machine = Machine(
        node_id=settings.node_id,
        address=settings.node_address,
        boot_id=boot_id(),
        version=importlib.metadata.version("muster-gpu"),
        heartbeat_ms=settings.heartbeat_ms,
        environment=passed_on(os.environ),
    )
    driver = SimulatedDriver(settings.node_id, settings.simulated_gpus, settings.simulated_model, settings.simulated_memory_gib)
    jobs = JobDirectories(state_dir)
    client = await before(stop, connect(settings.servers, f"node-{settings.node_id}", settings.nkey_seed))
    outputs, memory = KvOutputs(client), IncarnationFile(state_dir)
    agent = Agent(machine, JetStreamLog(client), NatsBus(client), SystemClock(), jobs, driver, outputs, memory)
    try:
        await agent.run(stop)
    finally:
        await client.close()


def _check(settings: Settings) -> None:
    if ID_PATTERN.fullmatch(settings.node_id) is None:
        raise Refused(f"MUSTER_NODE_ID={settings.node_id!r} must match {ID_PATTERN.pattern}: name this node")
    if not 0 <= settings.simulated_gpus <= GPUS_PER_NODE_MAX:
        raise Refused(f"MUSTER_SIMULATED_GPUS={settings.simulated_gpus} must be from 0 to {GPUS_PER_NODE_MAX}")


if __name__ == "__main__":
    service.run("node_agent", main)
