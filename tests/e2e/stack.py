"""The suite's interface to a cluster; `compose.py` and `processes.py` implement it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.tidy import ROOT

VARIABLE = "MUSTER_TEST_E2E"
PATIENCE_S = 90.0
AGAIN_S = 0.3

Done = subprocess.CompletedProcess[str]


class Stack(Protocol):
    """`gateways`: part -> its address.

    `schedulers`: instance -> part; `servers`: the log's, none where there is but one; `parts`: all
    that can be killed.
    """

    gateways: Mapping[str, str]
    schedulers: Mapping[str, str]
    servers: tuple[str, ...]
    parts: tuple[str, ...]
    key: str
    example: tuple[str, ...]

    def kill(self, part: str) -> None:
        """Kill a part with -9; its watcher starts it again."""
        ...

    def take_away(self, part: str) -> None:
        """Kill a part with -9 and keep it down until `bring_back`, if the stack supports that."""
        ...

    def bring_back(self, part: str) -> None: ...

    def stream_leader(self) -> str:
        """Return which of `servers` leads the log."""
        ...

    def verify(self, head: str = "") -> Done:
        """Verify the archive against the log, and against a head that was kept."""
        ...

    def reset_key(self) -> str:
        """Make a new administrator's key on the host."""
        ...

    def join(self, line: str) -> None:
        """Run on another machine what `muster node add` printed, with two simulated GPUs; its agent
        keeps running.
        """
        ...

    def joined_ends(self, within_s: float) -> int:
        """Return the exit code of that machine's agent. Raises TimeoutExpired."""
        ...

    def restart(self) -> None:
        """Stop everything as planned, and start it again."""
        ...

    def close(self) -> None:
        """Check that nothing is left. Raises AssertionError that names what is."""
        ...


def muster(
    stack: Stack,
    *arguments: str,
    key: str = "",
    url: str = "",
    timeout: float = PATIENCE_S,
    given: str | None = None,
) -> Done:
    """Run the command as a user outside the cluster; `given` is its input."""
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
    """Return the command's standard output; show a failure."""
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
