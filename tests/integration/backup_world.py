"""A cluster with machines that joined, which is lost and restored from a backup elsewhere.

All parts are real: `muster up`, nat-servers, agents that joined over TLS, and jobs that write down
that they live. A machine's agent is started again when it ends, as systemd does.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from libs.common.messages import Roster
from libs.embedded import runfile, servers
from libs.embedded.living import die_with_parent, is_living
from services.node_agent.peers import kept_roster
from services.node_agent.peers.peers import Kept
from tests.tidy import ROOT

HERE = "127.0.0.1"
CLI = "import sys; from libs.cli.main import main; sys.exit(main())"
JOB = ROOT / "tests" / "chaos" / "job.py"
PATIENCE_S = 90.0
AGAIN_S = 0.2
# Short leases, so that a lost machine's jobs are elsewhere soon.
TIMES = {
    "MUSTER_HEARTBEAT_MS": "300",
    "MUSTER_LEASE_MS": "6000",
    "MUSTER_MARGIN_MS": "500",
    "MUSTER_TERM_MS": "1500",
    # Jobs write their lives to a folder of the user who runs the tests.
    "MUSTER_JOB_USERS": "default/*=self",
    "MUSTER_METRICS_PORT": "0",
}


class Machine:
    """One machine that joins; `look` starts its agent again if it ended."""

    def __init__(self, world: "World", name: str, code: Path | None = None) -> None:
        self.world = world
        self.code = code or ROOT
        self.state = world.folder / name
        self.name = name
        self.dead = False
        words = world.cli("node", "add", name).split()[2:]
        self.process = self._start(*words, "--simulated-gpus", "4")

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        line = [sys.executable, "-c", CLI, "join", *words, "--state", str(self.state)]
        with (self.world.folder / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                line,
                env=self.world.environment | {"PYTHONPATH": str(self.code)},
                cwd=self.world.folder,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )

    def look(self) -> None:
        if not self.dead and self.process.poll() is not None:
            self.process = self._start("--again")

    def roster(self) -> Roster:
        """Return the roster on the machine's disk."""
        data = (self.state / kept_roster.FILE).read_bytes()
        return msgspec.msgpack.decode(data, type=Kept).roster

    def kill(self) -> None:
        """End the agent for ever; its jobs end with their leases."""
        self.dead = True
        self.process.kill()
        self.process.wait()


class World:
    """The cluster in `state`; `restore` moves on to another one.

    `code` are the sources that it runs, `times` settings in place of TIMES.
    """

    def __init__(self, folder: Path, code: Path = ROOT, **times: str) -> None:
        self.folder = folder
        self.code = code
        self.state = folder / "state"
        self.lives = folder / "lives"
        self.place, self.key = folder / "backup", folder / "backup.key"
        self.port, tls_port = servers.free_ports(2)
        self.environment = {
            **os.environ,
            **TIMES,
            **times,
            "MUSTER_PROFILE": str(folder / "profile.json"),
            "MUSTER_GATEWAY_TLS_PORT": str(tls_port),
            "MUSTER_GATEWAY_GRPC_PORT": "0",
        }
        self.machines: list[Machine] = []
        self.launcher = self.up()

    def up(self) -> "subprocess.Popen[bytes]":
        line = [sys.executable, "-m", "libs.embedded", "up", "--state", str(self.state)]
        flags = ["--port", str(self.port), "--nodes", "0", "--listen", HERE]
        with (self.folder / "up.log").open("ab") as log:
            self.launcher = subprocess.Popen(
                [*line, *flags],
                env=self.environment | {"PYTHONPATH": str(self.code)},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )
        self.until(self._is_ready, "muster up is ready")
        return self.launcher

    def _is_ready(self) -> bool:
        assert self.launcher.poll() is None, (self.folder / "up.log").read_text()
        found = runfile.running(self.state) if self.state.exists() else None
        return found is not None and found.launcher.pid == self.launcher.pid and found.ready

    def cli(self, *words: str, code: int = 0, sources: Path = ROOT) -> str:
        ended, out, said = self.ran(*words, sources=sources)
        assert ended == code, (words, out + said)
        return out if code == 0 else said

    def ran(self, *words: str, sources: Path = ROOT) -> tuple[int, str, str]:
        """Run a command; return its exit code, output and complaints."""
        done = subprocess.run(
            [sys.executable, "-c", CLI, *words],
            env=self.environment | {"PYTHONPATH": str(sources)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def until(self, condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Return the first true result; the machines' agents are kept meanwhile."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for machine in self.machines:
                machine.look()
            if found := condition():
                return found
            time.sleep(AGAIN_S)
        raise AssertionError(f"not within {within_s:.0f} s: {what}")

    def get(self, path: str) -> Any:
        key = json.loads((self.folder / "profile.json").read_text())["key"]
        request = urllib.request.Request(
            f"http://{HERE}:{self.port}{path}", headers={"Authorization": f"Bearer {key}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def post(self, path: str, body: object) -> Any:
        key = json.loads((self.folder / "profile.json").read_text())["key"]
        request = urllib.request.Request(
            f"http://{HERE}:{self.port}{path}",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def submit(self, seconds: float) -> str:
        command = [sys.executable, str(JOB), str(self.lives), str(seconds), "0"]
        return str(self.post("/v1/jobs", {"command": command, "gpus": 1})["id"])

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["id"]: job for job in self.get("/v1/jobs?all=true&limit=1000")["jobs"]}

    def processes(self) -> dict[str, list[tuple[int, int]]]:
        """Return when each process of each job was alive, by the machine's monotonic clock."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for line in self.lives.read_text().splitlines():
            _, job_id, _, pid, text = line.split()
            first, last = found.get((job_id, pid), (int(text), 0))
            found[job_id, pid] = first, max(last, int(text))
        times: dict[str, list[tuple[int, int]]] = {}
        for (job_id, _), span in found.items():
            times.setdefault(job_id, []).append(span)
        return times

    def backup(self, *flags: str, code: int = 0) -> str:
        words = [str(self.place), "--key-file", str(self.key), "--state", str(self.state)]
        return self.cli("backup", *words, *flags, code=code)

    def kill_all(self) -> None:
        """End the whole control plane at once, and take its state directory away."""
        run = runfile.read(self.state)
        assert run is not None
        for ticket in (run.launcher, *run.children.values()):
            if is_living(ticket):
                os.kill(ticket.pid, signal.SIGKILL)
        self.launcher.wait()
        self.state.rename(self.folder / "lost")

    def restore(self, *flags: str, code: int = 0) -> str:
        self.state = self.folder / "restored"
        words = [str(self.place), "--key-file", str(self.key), "--state", str(self.state)]
        return self.cli("restore", *words, *flags, code=code)

    def close(self) -> None:
        for machine in self.machines:
            machine.kill()
        if self.launcher.poll() is None:
            self.launcher.send_signal(signal.SIGTERM)
            self.launcher.wait(PATIENCE_S)
