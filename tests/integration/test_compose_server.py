"""The first process of a nats container, with a real server beneath it: machines that join connect, those that were removed do not."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from libs.common import facts as f
from libs.common.errors import Unavailable
from libs.common.model import NodeId
from libs.common.transport import log_jetstream
from libs.common.transport.bus_nats import NatsBus
from libs.compose import containers as c
from libs.compose.server import TOLD, Told
from libs.embedded import certificates, identity, nats_config, permissions, servers
from libs.embedded.living import die_with_parent
from services.api_gateway.admission import Admission
from services.api_gateway.membership_intents import hash_secret
from tests.history import History

JOINED_S = 10.0
REFUSED_S = 1.0
FAR = NodeId("far")


class Container:
    """Its volume as `provision.py` fills it, but for a port of its own and no other servers."""

    def __init__(self, state: Path) -> None:
        self.state, own = state, state / c.IDENTITY
        self.keys = state / "keys"
        self.port = servers.free_ports(1)[0]
        certificates.authority(own, "authority")
        certificates.server(own, "server", "authority", [log_jetstream.TLS_NAME])
        public = {name: identity.public_key(self.keys, name) for name in permissions.names(c.FLEET)}
        files = str(own / "server.pem"), str(own / "server.key")
        server = nats_config.Server("nats-1", self.port, str(state / "jetstream"), 1 << 28, certificate=files[0], key=files[1])
        (own / TOLD).write_bytes(msgspec.json.encode(Told(server, public)))
        (own / "nkey.seed").write_text(identity.seed_file(self.keys, permissions.KEEPER).read_text())
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        line = [sys.executable, "-m", "libs.compose", "server", str(self.state)]
        with (self.state / "out").open("ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, preexec_fn=die_with_parent())
        return self.process

    def nats_server(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    async def connect(self, name: str, within_s: float = JOINED_S) -> Client:
        seed = identity.seed_file(self.keys, name).read_bytes().strip()
        authority = str(self.state / c.IDENTITY / "authority.pem")
        return await log_jetstream.connect([f"nats://127.0.0.1:{self.port}"], name, seed, authority, within_s)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    found = Container(tmp_path)
    yield found
    found.process.terminate()
    found.process.wait(20)


async def test_a_machine_that_joined_connects_also_after_a_restart_and_one_that_was_removed_does_not(container: Container) -> None:
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
