"""A real nats-server of one test run's own: one process, a free port of loopback, every message
synced, no keys.

It can be killed as a power cut would (SIGKILL) and started again on the same port and store.
Servers with keys and permissions are `libs.embedded.servers`.
"""

import json
import subprocess
from pathlib import Path

from libs.embedded import servers
from libs.embedded.living import die_with_parent

NAME = "contract"


class NatsServer:
    """`url` is the same over a restart."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = servers.free_ports(1)
        self.url = f"nats://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        self.config = folder / "server.conf"
        jetstream = {"store_dir": str(folder), "sync_interval": "always"}
        self.config.write_text(
            json.dumps(
                {
                    "server_name": NAME,
                    "host": "127.0.0.1",
                    "port": self.port,
                    "jetstream": jetstream,
                }
            )
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it greets, which is after JetStream has recovered."""
        with self.log.open("ab") as log:
            line = [servers.binary(), "-c", str(self.config)]
            self.process = subprocess.Popen(
                line, stdout=log, stderr=log, preexec_fn=die_with_parent()
            )
        servers.wait_ready(self.port, NAME)

    def kill(self) -> None:
        """At once, in the middle of whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
