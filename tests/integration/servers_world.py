"""Three nats containers' first processes on loopback, each with a real nats-server beneath it, and
somebody who starts a process again when it ends, as Docker does.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from libs.common.safety.following import TLS_NAME
from libs.common.transport.connection_nats import Client, connect
from libs.compose import containers as c
from libs.compose.server import TOLD, ServerIdentity
from libs.embedded import certificates, identity, nats_config, permissions, servers
from libs.embedded.living import die_with_parent

AGAIN_S: Final = 0.2
STOP_S: Final = 20.0
UP_S: Final = 40.0
LOG_BYTES: Final = 1 << 28


class Group:
    """The servers nats-1 to nats-5, of which `running` starts the first three.

    `lives` counts the starts of each process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        certificates.authority(folder, "authority")
        certificates.server(folder, "server", "authority", ["localhost", TLS_NAME])
        public = {name: identity.public_key(self.keys, name) for name in permissions.names(c.FLEET)}
        count = len(c.ALL_SERVERS)
        ports = servers.free_ports(3 * count)
        self.urls = [f"nats://127.0.0.1:{port}" for port in ports[: len(c.SERVERS)]]
        routes = tuple(f"localhost:{port}" for port in ports[count : 2 * count])
        for index, name in enumerate(c.ALL_SERVERS):
            own = self.state(name) / c.IDENTITY
            own.mkdir(parents=True)
            server = nats_config.Server(
                name=name,
                port=ports[index],
                store=str(self.store(name)),
                log_bytes=LOG_BYTES,
                peers=nats_config.Peers(
                    routes[: len(c.SERVERS)] if name in c.SERVERS else routes, "p" * 32
                ),
                route_address=routes[index],
                certificate=str(folder / "server.pem"),
                key=str(folder / "server.key"),
                authority=str(folder / "authority.pem"),
                monitor_port=ports[2 * count + index],
            )
            (own / TOLD).write_bytes(msgspec.json.encode(ServerIdentity(server, public)))
            (own / "nkey.seed").write_bytes(self._seed(permissions.KEEPER))
            (own / c.AUTHORITY_FILE).write_text((folder / "authority.pem").read_text())
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.lives = dict.fromkeys(c.ALL_SERVERS, 0)

    def state(self, name: str) -> Path:
        return self.folder / name

    def store(self, name: str) -> Path:
        return self.state(name) / "jetstream"

    def _seed(self, name: str) -> bytes:
        return identity.seed_file(self.keys, name).read_bytes().strip()

    async def connect(self, name: str) -> Client:
        return await connect(
            servers=self.urls,
            name=name,
            seed=self._seed(name),
            ca_file=str(self.folder / "authority.pem"),
            within_s=UP_S,
        )

    def start(self, name: str) -> None:
        self.lives[name] += 1
        line = [sys.executable, "-u", "-m", "libs.compose", "server", str(self.state(name))]
        with (self.state(name) / "out").open("ab") as log:
            self.running[name] = subprocess.Popen(
                line, stdout=log, stderr=log, preexec_fn=die_with_parent()
            )

    def nats_server(self, name: str) -> int:
        """Return the process id of the server beneath the first process."""
        pid = self.running[name].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def said(self, name: str) -> str:
        return (self.state(name) / "out").read_text(errors="replace")

    async def tend(self) -> None:
        """Start every process that has ended, for ever."""
        while True:
            for name, process in list(self.running.items()):
                if process.poll() is not None:
                    self.start(name)
            await asyncio.sleep(AGAIN_S)

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@asynccontextmanager
async def running(group: Group) -> AsyncIterator[None]:
    """Run the group's servers, and start each again whenever it ends."""
    for name in c.SERVERS:
        group.start(name)
    tending = asyncio.create_task(group.tend())
    try:
        yield
    finally:
        tending.cancel()
        await asyncio.wait((tending,))
        group.stop()
