"""What the suite knows of a cluster, whatever it runs on; `compose.py` and `processes.py` are the
two.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.tidy import ROOT

VARIABLE = "MUSTER_E2E"
PATIENCE_S = 90.0
AGAIN_S = 0.3

Done = subprocess.CompletedProcess[str]


class Stack(Protocol):
    """`gateways`: part -> its address.

    `schedulers`: instance -> part; `servers`: the log's, none where there is but one.
    """

    gateways: Mapping[str, str]
    schedulers: Mapping[str, str]
    servers: tuple[str, ...]
    key: str
    example: tuple[str, ...]

    def kill(self, part: str) -> None:
        """kill -9; whoever watches it starts it again."""
        ...

    def take_away(self, part: str) -> None:
        """kill -9, and it stays down until `bring_back`, where the form can do that."""
        ...

    def bring_back(self, part: str) -> None: ...

    def stream_leader(self) -> str:
        """Which of `servers` leads the log."""
        ...

    def verify(self, head: str = "") -> Done:
        """The archive's check, against the log, and against a head that was kept."""
        ...

    def reset_key(self) -> str:
        """A new administrator's key, made on the host."""
        ...

    def join(self, line: str) -> None:
        """Another machine does what `muster node add` printed, with two GPUs in name only; its
        agent goes on.
        """
        ...

    def joined_ends(self, within_s: float) -> int:
        """The exit code of that machine's agent. Raises TimeoutExpired."""
        ...

    def restart(self) -> None:
        """A planned stop of everything, and a start."""
        ...

    def close(self) -> None:
        """Nothing is left. Raises AssertionError naming what is."""
        ...


def muster(
    stack: Stack,
    *arguments: str,
    key: str = "",
    url: str = "",
    timeout: float = PATIENCE_S,
    given: str | None = None,
) -> Done:
    """The command, as a user outside the cluster calls it; `given` is its input."""
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "PYTHONPATH": str(ROOT),
        "MUSTER_URL": url or next(iter(stack.gateways.values())),
        "MUSTER_API_KEY": key or stack.key,
        "MUSTER_PROFILE": "/nonexistent/profile.json",
        "USER": "ada",
    }
    line = [sys.executable, "-c", "from libs.cli.main import main; main()", *arguments]
    return subprocess.run(
        line,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd="/tmp",
        input=given,
    )


def said(stack: Stack, *arguments: str, **more: Any) -> str:
    """Its standard output; a failure is shown."""
    done = muster(stack, *arguments, **more)
    assert done.returncode == 0, (
        f"muster {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout.strip()


def known(stack: Stack, *arguments: str, **more: Any) -> Any:
    return json.loads(said(stack, *arguments, "-o", "json", **more))


def until(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(AGAIN_S)
