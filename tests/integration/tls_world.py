"""Three real nats-servers as the containers have them, on loopback: TLS to clients and among
themselves, from the first byte.
"""

import subprocess
from pathlib import Path

from libs.common.safety import following
from libs.common.settings.settings import Settings
from libs.embedded import certificates, nats_config, permissions, servers
from libs.embedded.living import die_with_parent
from libs.embedded.permissions import Fleet

COUNT = 3


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        certificates.authority(folder, "authority")
        ports = servers.free_ports(2 * COUNT)
        self.urls = [f"nats://127.0.0.1:{port}" for port in ports[:COUNT]]
        self.routes = ports[COUNT:]
        peers = nats_config.Peers(tuple(f"localhost:{port}" for port in self.routes), "p" * 32)
        self.running = [
            self._start(f"nats-{index}", ports[index], peers, index) for index in range(COUNT)
        ]

    def _start(
        self, name: str, port: int, peers: nats_config.Peers, index: int
    ) -> "subprocess.Popen[bytes]":
        certificates.server(self.folder, name, "authority", ["localhost", following.TLS_NAME])
        server = nats_config.Server(
            name=name,
            port=port,
            store=str(self.folder / name),
            log_bytes=1 << 28,
            peers=peers,
            route_address=peers.addresses[index],
            certificate=str(self.folder / f"{name}.pem"),
            key=str(self.folder / f"{name}.key"),
            authority=str(self.folder / "authority.pem"),
        )
        assert servers.write_config(self.folder, server, Fleet()) == {}
        config = servers.config_file(self.folder, name)
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [servers.binary(), "-c", str(config)],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )

    def settings(self, authority: str = "authority.pem") -> Settings:
        seed = self.folder / "keys" / f"{permissions.s.SCHEDULER_KIND}.seed"
        return Settings(
            nats=",".join(self.urls),
            nkey_seed_file=str(seed),
            nats_ca_file=str(self.folder / authority) if authority else "",
        )

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
