"""The stack of deploy/docker-compose.yml on a real engine, under a project name and ports of its
own.
"""

import json
import os
import shutil
import subprocess
from typing import Final

from libs.embedded import servers
from tests.e2e.stack import PATIENCE_S, Done
from tests.tidy import ROOT

FILE: Final = ROOT / "compose.yaml"
UP_S: Final = 170.0
PARTS: Final = (
    *("postgres", "scheduler-a", "scheduler-b", "quota", "quota-b", "audit", "audit-b"),
    *("gateway-a", "gateway-b", "node-1", "node-2", "node-3", "node-4"),
)
# The engine restarts a container when its process dies, but not when the engine itself killed it.
KILL_MAIN: Final = "kill -9 $(cat /proc/1/task/1/children)"
LEADER: Final = """
import json, urllib.request
found = json.load(urllib.request.urlopen("http://127.0.0.1:8222/jsz?accounts=true&streams=true"))
streams = [each for account in found["account_details"] for each in account["stream_detail"]]
print(*(each["cluster"].get("leader", "") for each in streams if each["name"] == "FACTS"))
"""


def command(*arguments: str, project: str = "muster") -> list[str]:
    return ["docker", "compose", "-f", str(FILE), "-p", project, *arguments]


def missing() -> str:
    """Why compose cannot be used here; empty when it can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    for line, what in (
        (["docker", "info"], "no Docker engine answers"),
        (["docker", "compose", "version"], "docker has no compose plugin"),
    ):
        if subprocess.run(line, capture_output=True, check=False).returncode:
            return what
    return ""


class ComposeStack:
    """See `stack.Stack`."""

    def __init__(self) -> None:
        a, b, c, d = servers.free_ports(4)
        self.project = f"muster-e2e-{os.getpid()}"
        self.far = f"{self.project}-far"
        self.environment = {
            **os.environ,
            "MUSTER_PORT": str(a),
            "MUSTER_PORT_B": str(b),
            "MUSTER_GRPC_PORT": str(c),
            "MUSTER_GRPC_PORT_B": str(d),
        }
        self.gateways = {"gateway-a": f"http://127.0.0.1:{a}", "gateway-b": f"http://127.0.0.1:{b}"}
        self.schedulers = {"a": "scheduler-a", "b": "scheduler-b"}
        self.servers = ("nats-1", "nats-2", "nats-3")
        self.parts = (*self.servers, *PARTS)
        self.example = ("python", "/opt/muster/examples/model_server.py")
        self.run("up", "--detach", "--wait", timeout=UP_S)
        self.key = self.run("run", "--rm", "key").stdout.strip()

    def run(
        self,
        *arguments: str,
        timeout: float = PATIENCE_S,
        check: bool = True,
        given: str | None = None,
    ) -> Done:
        line = command(*arguments, project=self.project)
        done = subprocess.run(
            line,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            input=given,
        )
        assert done.returncode == 0 or not check, f"{' '.join(line)}\n{done.stdout}{done.stderr}"
        return done

    def kill(self, part: str) -> None:
        self.run("exec", "-T", part, "sh", "-c", KILL_MAIN, check=False)

    def take_away(self, part: str) -> None:
        self.run("kill", part)

    def bring_back(self, part: str) -> None:
        self.run("start", part)

    def stream_leader(self) -> str:
        """Empty while the first of them is only starting."""
        return self.run(
            "exec", "-T", self.servers[0], "python", "-c", LEADER, check=False
        ).stdout.strip()

    def verify(self, head: str = "") -> Done:
        held = "cat > /tmp/head && exec python -m services.audit verify --head /tmp/head"
        words = ("sh", "-c", held) if head else ("python", "-m", "services.audit", "verify")
        return self.run("exec", "-T", "audit", *words, check=False, given=head or None)

    def reset_key(self) -> str:
        self.run("run", "--rm", "init", "python", "-m", "libs.compose", "reset-key")
        return self.run("run", "--rm", "key").stdout.strip()

    def join(self, line: str) -> None:
        """A container that was given nothing, on the cluster's network."""
        joining = [*line.split()[1:], "--simulated-gpus", "2", "--state", "/tmp/far"]
        self.run(
            "run",
            "--detach",
            "--name",
            self.far,
            "--entrypoint",
            "muster",
            "--env",
            "MUSTER_PROFILE=",
            "cli",
            *joining,
        )

    def joined_ends(self, within_s: float) -> int:
        done = subprocess.run(
            ["docker", "wait", self.far],
            capture_output=True,
            text=True,
            timeout=within_s,
            check=True,
        )
        subprocess.run(["docker", "rm", self.far], capture_output=True, check=True)
        return int(done.stdout)

    def restart(self) -> None:
        self.run("stop", timeout=UP_S)
        self.run("up", "--detach", "--wait", timeout=UP_S)

    def close(self) -> None:
        self.run("--profile", "*", "down", "--volumes", timeout=UP_S)
        label = f"label=com.docker.compose.project={self.project}"
        for kind in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
            left = subprocess.run(
                ["docker", *kind, "--quiet", "--filter", label],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert not left, f"left behind: docker {' '.join(kind)}: {left}"

    def published(self) -> dict[str, list[str]]:
        """Service -> the ports that it publishes."""
        rows = [json.loads(line) for line in self.run("ps", "--format", "json").stdout.splitlines()]
        return {
            row["Service"]: ports
            for row in rows
            if (ports := [p["URL"] for p in row["Publishers"] or () if p["PublishedPort"]])
        }
