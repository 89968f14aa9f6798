"""A nats container's first process on a port of loopback, with a real nats-server beneath it and
every key that a test may use.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
from nats.aio.client import Client

from libs.common.safety import following
from libs.common.transport import connection_nats
from libs.compose import containers as c
from libs.compose.server import TOLD, ServerIdentity
from libs.embedded import certificates, identity, nats_config, permissions, servers
from libs.embedded.living import die_with_parent

JOINED_S = 10.0


class Container:
    """Its volume as `provision.py` fills it, but for a port of its own and no other servers."""

    def __init__(self, state: Path) -> None:
        self.state, own = state, state / c.IDENTITY
        self.keys = state / "keys"
        self.port = servers.free_ports(1)[0]
        certificates.authority(own, "authority")
        certificates.server(own, "server", "authority", [following.TLS_NAME])
        public = {name: identity.public_key(self.keys, name) for name in permissions.names(c.FLEET)}
        files = str(own / "server.pem"), str(own / "server.key")
        server = nats_config.Server(
            "nats-1",
            self.port,
            str(state / "jetstream"),
            1 << 28,
            certificate=files[0],
            key=files[1],
        )
        (own / TOLD).write_bytes(msgspec.json.encode(ServerIdentity(server, public)))
        (own / "nkey.seed").write_text(
            identity.seed_file(self.keys, permissions.KEEPER).read_text()
        )
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        line = [sys.executable, "-m", "libs.compose", "server", str(self.state)]
        with (self.state / "out").open("ab") as log:
            self.process = subprocess.Popen(
                line, stdout=log, stderr=log, preexec_fn=die_with_parent()
            )
        return self.process

    def nats_server(self) -> int:
        return int(
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            .read_text()
            .split()[0]
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)

    async def connect(self, name: str, within_s: float = JOINED_S) -> Client:
        seed = identity.seed_file(self.keys, name).read_bytes().strip()
        authority = str(self.state / c.IDENTITY / "authority.pem")
        return await connection_nats.connect(
            servers=[f"nats://127.0.0.1:{self.port}"],
            name=name,
            seed=seed,
            ca_file=authority,
            within_s=within_s,
        )
