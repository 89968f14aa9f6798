"""The first process of a nats container, with a real server beneath it: machines that join connect,
those that were removed do not.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.errors import Unavailable
from libs.common.model import NodeId
from libs.common.transport.bus_nats import NatsBus
from libs.embedded import identity, permissions
from services.api_gateway.agents.admission import Admission
from services.api_gateway.intents.membership_intents import hash_secret
from tests.history import History
from tests.integration.keeper_world import JOINED_S, Container

REFUSED_S = 1.0
FAR = NodeId("far")


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    found = Container(tmp_path)
    yield found
    found.stop()


async def test_a_joined_machine_connects_after_a_restart_and_a_removed_one_does_not(
    container: Container,
) -> None:
    history, node = History(), permissions.node_name(FAR)
    history.cluster.timing = history.cluster.timing.__class__(100, 1_000, 100, 300)
    gateway = await container.connect(permissions.gateway_name("a"))
    admission = Admission(lambda: history.cluster, NatsBus(gateway))
    await admission.listen()
    key = identity.public_key(container.keys, node)
    with pytest.raises(Unavailable):
        await container.connect(node, REFUSED_S)

    history.say(f.NodeInvited(node_id=FAR, secret_hash=hash_secret("s"), expires_ns=1))
    history.say(f.NodeJoined(node_id=FAR, secret_hash=hash_secret("s"), public_key=key))
    assert await admission.agreed(history.cluster.seq, JOINED_S)
    await (await container.connect(node)).close()

    os.kill(container.nats_server(), signal.SIGKILL)
    assert await asyncio.to_thread(container.process.wait, 20) == signal.SIGKILL
    container.start()
    await (await container.connect(node)).close()

    history.say(f.NodeRemovalRequested(node_id=FAR))
    history.say(f.NodeRemoved(node_id=FAR))
    assert await admission.agreed(history.cluster.seq, 2 * JOINED_S)
    with pytest.raises(Unavailable):
        await container.connect(node, REFUSED_S)
    await gateway.close()


def test_a_stop_of_the_container_stops_the_server_in_order(container: Container) -> None:
    asyncio.run(_greeted(container))
    container.process.terminate()
    assert container.process.wait(20) == 0
    assert b"Server Exiting" in (container.state / "out").read_bytes()


async def _greeted(container: Container) -> None:
    await (await container.connect(permissions.KEEPER)).close()
