"""Control groups for tests: real ones below a group of their own, or the reason why this machine
gives none.
"""

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Iterator

import pytest

from services.node_agent.machine import cgroups
from services.node_agent.machine.cgroups import Home


@contextlib.contextmanager
def below() -> Iterator[str]:
    """The name of a group of the test's own, not made yet; whatever is left below it is killed and
    removed.
    """
    parent = f"muster-test-{secrets.token_hex(4)}"
    try:
        yield parent
    finally:
        for path in glob.glob(f"/sys/fs/cgroup/{parent}") + glob.glob(f"/sys/fs/cgroup/*/{parent}"):
            _remove(path)


@contextlib.contextmanager
def home() -> Iterator[Home]:
    """Skips where this machine gives none."""
    with below() as parent:
        made = cgroups.prepare(parent, "agent")
        if not made.dirs:
            pytest.skip(f"no control group can be made here: {made.lost}")
        yield made


def needs(made: Home, *controllers: str) -> None:
    """Skips with the reason."""
    for controller in controllers:
        if controller in made.lost:
            pytest.skip(f"no {controller} control group here: {made.lost[controller]}")


def _remove(path: str) -> None:
    for entry in [entry.name for entry in os.scandir(path) if entry.is_dir()]:
        _remove(f"{path}/{entry}")
    cgroups.kill(path)
    for _ in range(100):
        with contextlib.suppress(OSError):
            os.rmdir(path)
            return
        time.sleep(0.01)  # they are dying
