"""The stack of `muster up`: the same services as processes, one of each, with one nats-server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from libs.cli import archive_process
from libs.embedded import plan, runfile, servers
from libs.embedded.living import Ticket, die_with_parent, is_living
from tests.e2e.stack import PATIENCE_S, Done, until
from tests.tidy import ROOT

STOP_S: Final = 60.0
HERE: Final = "127.0.0.1"
NODES: Final = tuple(f"node-{number}" for number in range(1, 5))
PARTS: Final = (plan.SERVER, "scheduler", "quota", "audit", "gateway", *NODES)


class ProcessStack:
    """See `stack.Stack`. The launcher dies with this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.port, port_of_join = servers.free_ports(2)
        self.gateways = {"gateway": f"http://127.0.0.1:{self.port}"}
        self.schedulers = {"a": "scheduler"}
        self.servers: tuple[str, ...] = ()
        self.parts = PARTS
        self.example = (sys.executable, str(ROOT / "examples" / "model_server.py"))
        self.environment = {
            **os.environ,
            "MUSTER_PROFILE": str(folder / "profile.json"),
            "MUSTER_STOP_LEASE_MS": "20000",
        }
        self.environment["MUSTER_GATEWAY_TLS_PORT"] = str(port_of_join)
        self.agent: subprocess.Popen[bytes] | None = None
        self.launcher = self._start()
        self.key = self._profile_key()

    def _start(self) -> "subprocess.Popen[bytes]":
        line = [
            sys.executable,
            "-m",
            "libs.embedded",
            "up",
            "--state",
            str(self.state),
            "--port",
            str(self.port),
            "--listen",
            HERE,
        ]
        with (self.folder / "up.log").open("ab") as log:
            started = subprocess.Popen(
                line,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )
        until(
            lambda: started.poll() is not None or self._is_ready(started.pid), "muster up is ready"
        )
        assert started.poll() is None, (self.folder / "up.log").read_text()
        return started

    def _is_ready(self, pid: int) -> bool:
        found = runfile.running(self.state) if self.state.exists() else None
        return found is not None and found.launcher.pid == pid and found.ready

    def _ticket(self, part: str) -> Ticket:
        found = runfile.read(self.state)
        assert found is not None
        return found.children[part]

    def kill(self, part: str) -> None:
        ticket = self._ticket(part)
        if is_living(ticket):
            os.kill(ticket.pid, signal.SIGKILL)

    def take_away(self, part: str) -> None:
        self.kill(part)

    def bring_back(self, part: str) -> None:
        """The launcher has."""

    def stream_leader(self) -> str:
        return ""

    def verify(self, head: str = "") -> Done:
        (self.folder / "head").write_text(head)
        nats_port = json.loads((self.state / "cluster.json").read_text())["nats_port"]
        told = {
            "MUSTER_STATE": str(self.state / archive_process.ARCHIVE),
            "MUSTER_NATS": f"tls://{HERE}:{nats_port}",
            "MUSTER_NATS_CA_FILE": str(self.state / "keys" / "ca.pem"),
            "MUSTER_NKEY_SEED_FILE": str(self.state / archive_process.SEED),
        }
        line = [
            sys.executable,
            "-m",
            "services.audit",
            "verify",
            *(("--head", str(self.folder / "head")) if head else ()),
        ]
        return subprocess.run(
            line,
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def reset_key(self) -> str:
        line = [
            sys.executable,
            "-c",
            "from libs.cli.main import main; main()",
            "key",
            "reset",
            "--state",
            str(self.state),
        ]
        subprocess.run(
            line, env=self.environment, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S
        )
        return self._profile_key()

    def _profile_key(self) -> str:
        return str(json.loads((self.folder / "profile.json").read_text())["key"])

    def join(self, line: str) -> None:
        words = [*line.split()[1:], "--simulated-gpus", "2", "--state", str(self.folder / "far")]
        with (self.folder / "far.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-c", "from libs.cli.main import main; main()", *words],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )

    def joined_ends(self, within_s: float) -> int:
        assert self.agent is not None
        return self.agent.wait(within_s)

    def restart(self) -> None:
        self._stop()
        self.launcher = self._start()

    def _stop(self) -> None:
        self.launcher.send_signal(signal.SIGTERM)
        self.launcher.wait(STOP_S)

    def close(self) -> None:
        children = found.children if (found := runfile.read(self.state)) is not None else {}
        self._stop()
        assert not [name for name, ticket in children.items() if is_living(ticket)]
