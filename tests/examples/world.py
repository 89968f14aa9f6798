"""A cluster of `muster up` in which the examples run as a user runs them.

`muster` is a program in PATH, the profile is the administrator's, and jobs are real processes.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from libs.client.profile import read_profile
from libs.embedded import servers
from tests.tidy import ROOT

EXAMPLES: Final = ROOT / "examples"
PATIENCE_S: Final = 120.0
NODES: Final = 4
GPUS: Final = 2

Done = subprocess.CompletedProcess[str]


class ExampleWorld:
    """`environment` is that of a user's shell; `grpc` is the address of the gateway's gRPC."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        port, grpc_port = servers.free_ports(2)
        self.grpc = f"127.0.0.1:{grpc_port}"
        self.environment = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{programs(folder / 'bin')}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "MUSTER_PROFILE": str(folder / "profile.json"),
            "MUSTER_CONFIG_DIR": "",
            "MUSTER_CGROUP": "",
        }
        self.port = port
        self.said(
            f"muster up --background --state {self.state} --port {port} --nodes {NODES} "
            f"--gpus {GPUS}",
            # Where the agent is not root, it takes jobs of other tenants only if it is told so.
            MUSTER_JOB_USERS="*=self",
            MUSTER_GATEWAY_GRPC_PORT=str(grpc_port),
        )
        key = read_profile(self.environment).key
        self.environment |= {"MUSTER_URL": f"http://127.0.0.1:{port}", "MUSTER_API_KEY": key}

    def run(self, line: str, **more: str) -> Done:
        """Run a line of shell where the examples are."""
        return subprocess.run(
            ["sh", "-c", line],
            env=self.environment | more,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def said(self, line: str, **more: str) -> str:
        """Return what a line of shell prints; show its failure."""
        done = self.run(line, **more)
        assert done.returncode == 0, f"$ {line}\n{done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        self.said(f"muster down --state {self.state}")


def programs(folder: Path) -> Path:
    """Write the program `muster` of this working tree into a folder, and return the folder."""
    folder.mkdir(parents=True)
    program = folder / "muster"
    start = "import sys; from libs.cli.main import main; sys.exit(main())"
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/libs/job/public "
        f'exec {shlex.quote(sys.executable)} -c {shlex.quote(start)} "$@"\n'
    )
    program.chmod(0o755)
    return folder


@contextmanager
def example_world(folder: Path) -> Iterator[ExampleWorld]:
    world = ExampleWorld(folder)
    try:
        yield world
    finally:
        world.close()
