"""One node for the tests of clocks: the agent's traces on a real bus, and a process that traces.

`python -m tests.traces_agent NODE RANK SERVER STATE`. A shim that is preloaded may shift its wall
clock.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect_as
from libs.embedded.living import die_with_parent
from services.node_agent.tracing.tracing import Tracing
from tests.integration.peer_uploads_world import start_order
from tests.integration.test_pulled_agent import launch_of


def start(env: dict[str, str]) -> None:
    """Start the process that traces."""
    line = [sys.executable, str(Path(__file__).with_name("traced.py"))]
    subprocess.Popen(line, env=env, preexec_fn=die_with_parent(), stdout=subprocess.DEVNULL)


async def main(node: str, rank: int, server: str, state: Path) -> None:
    """Serve until this process is killed."""
    tracing = Tracing(state, 1 << 24, 1 << 24)
    await tracing.adopt({})
    client = await connect_as(Settings(nats=server), node)
    await tracing.listen(NatsBus(client), node)
    wish = start_order("j")
    env = {**os.environ, **tracing.hold(launch_of(wish), wish).env, "RANK": str(rank)}
    start(env)
    while not tracing.doors["j.1"].living():
        await asyncio.sleep(0.05)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, node, rank, server, state = sys.argv
    asyncio.run(main(node, int(rank), server, Path(state)))
