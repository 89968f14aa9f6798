"""The wheel in an empty environment: install it, start a cluster without the repository, run jobs.

Tests: tests/integration/test_installed_wheel.py.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from libs.common.errors import Refused

INSTALL_S: Final = 900.0
STEP_S: Final = 180.0
# Two nodes suffice for a job that spans nodes.
CLUSTER: Final = ("--nodes", "2", "--gpus", "4")


def installed(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new virtual environment and return its Python."""
    _run([sys.executable, "-m", "venv", str(folder)], INSTALL_S)
    python = folder / "bin" / "python"
    line = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    _run([str(python), *line], INSTALL_S)
    return python


class Trial:
    """A cluster of an installed wheel, in a folder that is not the repository."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.bin = python.parent
        self.folder = folder
        self.environment = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "MUSTER_PROFILE": str(folder / "profile.json"),
            "LANG": "C.UTF-8",
        }

    def muster(self, *arguments: str) -> str:
        """Run one `muster` command and return its output. Raises Refused if it fails."""
        return _run([str(self.bin / "muster"), *arguments], STEP_S, self)

    def tour(self, model_server: Path) -> list[str]:
        """Start the cluster, follow the tour of the README, stop it; return what each step said."""
        self.muster("up", "--background", "--port", str(_free_port()), *CLUSTER)
        try:
            return self._steps(model_server)
        finally:
            self.muster("down")

    def _steps(self, model_server: Path) -> list[str]:
        said = [self._imports(), self.muster("run", "--gpus", "2", "--", "env")]
        _expect("CUDA_VISIBLE_DEVICES=", said[-1], "a job with two GPUs")
        said.append(
            self.muster(
                "run", "--nodes", "2", "--gpus", "4", "--", "sh", "-c", "echo r$RANK of $WORLD_SIZE"
            )
        )
        _expect("r0 of 2", said[-1], "a job on two nodes")
        self.muster("submit", "--name", "huge", "--gpus", "9", "--", "true")
        said.append(self.muster("why", "huge"))
        _expect("could never hold it", said[-1], "`muster why`")
        server = [str(self.bin / "python"), str(model_server), "--port", "{port}"]
        self.muster("deploy", "tiny", "--replicas", "1", "--wait", "--", *server)
        said.append(self.muster("models", "tiny"))
        self.muster("undeploy", "tiny")
        said.append(self.muster("audit", "verify"))
        _expect("the chain is whole", said[-1], "`muster audit verify`")
        return said

    def _imports(self) -> str:
        """Return where the code comes from: it must be the environment."""
        code = "import libs.cli.main as m, muster; print(m.__file__)"
        said = _run([str(self.bin / "python"), "-c", code], STEP_S, self)
        _expect(str(self.bin.parent), said, "the place of the installed code")
        return said


def _run(line: list[str], limit_s: float, trial: Trial | None = None) -> str:
    done = subprocess.run(
        line,
        cwd=trial.folder if trial else None,
        env=trial.environment if trial else {**os.environ, "PYTHONPATH": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )
    if done.returncode:
        tail = (done.stdout + done.stderr)[-2_000:]
        raise Refused(f"`{' '.join(line)}` ended with {done.returncode}:\n{tail}")
    return done.stdout


def _expect(part: str, said: str, what: str) -> None:
    if part not in said:
        raise Refused(f"{what} of the installed wheel did not say {part!r}, but:\n{said[-2_000:]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
