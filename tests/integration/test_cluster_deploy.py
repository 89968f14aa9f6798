"""`scripts/cluster_deploy.py` over a real sshd: install, join, upgrade, and the way back.

Each machine is an sshd on loopback in a mount namespace of its own, in which the folders of the
deployment are its own. systemd is a twin (systemctl_twin.py).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.embedded import servers
from libs.embedded.living import die_with_parent
from tests.tidy import ROOT

HERE = "127.0.0.1"
SSHD = shutil.which("sshd", path=f"/usr/sbin:{os.environ['PATH']}")
SCRIPT = ROOT / "scripts" / "cluster_deploy.py"
TWIN = Path(__file__).with_name("systemctl_twin.py")
FOLDERS = ("prefix", "state", "units")
PATIENCE_S = 120.0
HEALTH_S = 60


def why_not() -> str:
    if SSHD is None or shutil.which("ssh") is None:
        return "sshd or ssh is missing (Debian, Ubuntu: apt install openssh-server)"
    if os.geteuid() != 0:
        return "mount namespaces of the machines need root"
    tried = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, check=False
    ).returncode
    return "this machine allows no mount namespaces" if tried else ""


pytestmark = [pytest.mark.drill, pytest.mark.skipif(bool(why_not()), reason=why_not())]


class Machine:
    """One sshd, with folders of its own at the paths that all machines share."""

    def __init__(self, world: "World", name: str) -> None:
        self.port = servers.free_ports(1)[0]
        own = world.folder / name
        for each in FOLDERS:
            (own / each).mkdir(parents=True)
        config = own / "sshd_config"
        site = sysconfig.get_paths()["purelib"]
        beside = Path(sys.executable).parent
        variables = f"PYTHONPATH={site} PATH={beside}:{os.environ['PATH']}"
        more = " ".join(f"{key}={value}" for key, value in world.variables.items())
        config.write_text(
            f"Port {self.port}\nListenAddress {HERE}\nHostKey {world.folder}/host_key\n"
            f"AuthorizedKeysFile {world.folder}/user_key.pub\nPidFile none\nStrictModes no\n"
            f"UsePAM no\nPasswordAuthentication no\nSetEnv {variables} {more}\n"
        )
        binds = " && ".join(
            f"mount --bind {own / each} {world.folder / 'shared' / each}" for each in FOLDERS
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"{binds} && exec {SSHD} -D -e -f {config}"],
            stdin=subprocess.DEVNULL,
            stdout=(own / "sshd.log").open("ab"),
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent(),
        )

    def stop(self, units: Path) -> None:
        """End the machine's units, then its sshd."""
        for file in units.glob("*.pid"):
            pid = int(file.read_text())
            if b"systemctl_twin" in _command(pid):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and any(
            b"systemctl_twin" in _command(int(file.read_text())) for file in units.glob("*.pid")
        ):
            time.sleep(0.1)
        self.process.terminate()
        self.process.wait()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class World:
    """Three machines, and wheels of versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, tls_port = servers.free_ports(2)
        self.variables = {
            "MUSTER_GATEWAY_TLS_PORT": tls_port,
            "MUSTER_GATEWAY_GRPC_PORT": 0,
            "MUSTER_METRICS_PORT": 0,
            "MUSTER_JOB_USERS": "default/*=self",
            # On a busy machine an agent takes long to start, and its jobs must live until then.
            "MUSTER_LEASE_MS": 60_000,
        }
        for each in FOLDERS:
            (folder / "shared" / each).mkdir(parents=True)
        for key in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
            )
        self.machines = {name: Machine(self, name) for name in ("head", "n1", "n2")}
        self.wheel = _built(folder)
        self.config = folder / "cluster.yaml"
        twin = folder / "systemctl"
        units = folder / "shared" / "units"
        twin.write_text(f'#!/bin/sh\nexec {sys.executable} {TWIN} {units} "$@"\n')
        twin.chmod(0o755)
        self.twin = twin

    def use(self, wheel: Path, **settings: str) -> None:
        """Write the configuration with this wheel and these settings."""
        shared = self.folder / "shared"
        nodes = {name: {"ssh": f"root@{HERE}%{name}", "simulated_gpus": 2} for name in ("n1", "n2")}
        plan = {
            "wheel": str(wheel),
            "head": {"ssh": "root@head.muster", "listen": HERE},
            "nodes": {name: node | {"ssh": f"root@{name}.muster"} for name, node in nodes.items()},
            "ssh_options": ["-F", str(self._client_config())],
            **{each: str(shared / each) for each in FOLDERS},
            "python": sys.executable,
            "port": self.port,
            "venv_options": ["--without-pip"],
            "pip_options": ["--no-deps", "--no-index", "--ignore-installed"],
            "systemctl": str(self.twin),
            "health_s": HEALTH_S,
            "settings": settings,
        }
        self.config.write_text(yaml.safe_dump(plan))

    def _client_config(self) -> Path:
        path = self.folder / "ssh_config"
        hosts = "".join(
            f"Host {name}.muster\n HostName {HERE}\n Port {machine.port}\n"
            for name, machine in self.machines.items()
        )
        path.write_text(
            f"{hosts}Host *\n IdentityFile {self.folder}/user_key\n StrictHostKeyChecking no\n"
            f" UserKnownHostsFile {self.folder}/known_hosts\n LogLevel ERROR\n"
        )
        return path

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--config", str(self.config), *words],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def ask(self, path: str, body: object = None) -> Any:
        """Ask the gateway with the head's own profile."""
        import urllib.request

        profile = self.folder / "head" / "state" / "profile.json"
        request = urllib.request.Request(
            f"http://{HERE}:{self.port}{path}",
            json.dumps(body).encode() if body is not None else None,
            {
                "Authorization": f"Bearer {json.loads(profile.read_text())['key']}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def current(self, name: str) -> str:
        return os.readlink(self.folder / name / "prefix" / "current").rpartition("/")[2]

    def close(self) -> None:
        for name, machine in reversed(self.machines.items()):
            machine.stop(self.folder / name / "units")


def _built(folder: Path) -> Path:
    """Build the wheel of these sources, without a network."""
    line = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in ("libs", "services"):
        shutil.copytree(ROOT / part, source / part, ignore=ignored)
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, source / part)
    subprocess.run([*line, "--no-index", "-w", str(folder / "dist"), str(source)], check=True)
    return next((folder / "dist").glob("*.whl"))


def _changed(wheel: Path, folder: Path, change: dict[str, str]) -> Path:
    """Return a copy of the wheel with other content of some files: another version."""
    folder.mkdir()
    other = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(other, "w") as new:
        new.comment = folder.name.encode()
        for name in old.namelist():
            new.writestr(name, change.get(name, old.read(name)))
    return other


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


@pytest.mark.timeout(900)
def test_a_cluster_is_installed_upgraded_and_taken_back_while_a_job_runs(world: World) -> None:
    world.use(world.wheel)
    world.run()
    assert {node["state"] for node in world.ask("/v1/nodes")["nodes"]} == {"healthy"}
    first = world.current("head")
    assert [world.current(name) for name in ("n1", "n2")] == [first, first]
    jobs = [world.ask("/v1/jobs", {"command": ["sleep", "900"], "gpus": 2})["id"] for _ in range(2)]
    _until(lambda: _are_running(world, jobs), "a job runs on each node")
    said = world.run("--status")
    assert said.count("unit active") == 3
    world.use(world.wheel, log_level="DEBUG")
    said = world.run()
    assert (
        said.count("restarted with version") == 1
        and f"head: restarted with version {first}" in said
    )
    assert _are_running(world, jobs)

    world.use(_changed(world.wheel, world.folder / "second", {}))
    world.run("--upgrade")
    second = world.current("head")
    assert second != first
    assert [world.current(name) for name in ("n1", "n2")] == [second, second]
    assert _are_running(world, jobs)

    broken = "if __name__ == '__main__':\n    raise SystemExit('broken')\n"
    change = {"services/scheduler/__main__.py": broken}
    world.use(_changed(world.wheel, world.folder / "third", change))
    said = world.run("--upgrade", code=2)
    assert f"head runs version {second} again" in said and "no process leads: scheduler" in said
    assert [world.current(name) for name in ("head", "n1", "n2")] == [second] * 3
    assert _are_running(world, jobs)

    change = {"services/node_agent/__main__.py": broken}
    world.use(_changed(world.wheel, world.folder / "fourth", change))
    said = world.run("--upgrade", code=2)
    assert "going back" in said
    assert [world.current(name) for name in ("n1", "n2")] == [second, second]
    assert {node["state"] for node in world.ask("/v1/nodes")["nodes"]} == {"healthy"}
    assert _are_running(world, [job for job in jobs if "n2" in _nodes(world, job)])


def _are_running(world: World, jobs: list[str]) -> bool:
    found = [world.ask(f"/v1/jobs/{job}") for job in jobs]
    return all((job["state"], job["attempt"]) == ("running", 1) for job in found)


def _nodes(world: World, job: str) -> list[str]:
    found: list[str] = world.ask(f"/v1/jobs/{job}")["node_ids"]
    return found


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def test_a_machine_that_is_away_stops_the_command_before_anything_is_changed(
    world: World,
) -> None:
    world.machines["n2"].process.terminate()
    world.machines["n2"].process.wait()
    world.use(world.wheel)
    said = world.run(code=2)
    assert "nothing was changed: n2 is not reachable over ssh" in said
    assert not (world.folder / "head" / "prefix" / "current").exists()
