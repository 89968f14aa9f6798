"""Agents are killed, replaced by another version, and killed again, under jobs that outlive all of
it.

No job notices. The cluster runs from a copy of the code through a link. The link is switched to a
copy of another version, as by an upgrade: a process that starts later runs the new version. Running
jobs stay under the supervisors of the old one.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from libs.common import installed
from libs.embedded.living import Ticket
from tests.chaos import lives
from tests.chaos.cluster import AGAIN_S, Chaos, healthy
from tests.chaos.killing import BACK_S, Killing
from tests.chaos.lives import Life
from tests.chaos.model_checks import Kill
from tests.chaos.submitting import Wish

ROOT: Final = Path(__file__).parents[2]
CODE: Final = "code"
JOBS: Final = 50
# Longer than all kills and upgrades of the agents together.
JOB_S: Final = 90.0
ALL_BEGAN_S: Final = 60.0
BACK_LOOK_S: Final = 0.1


def version(number: int) -> str:
    return f"{installed.version()}+chaos.{number}"


def install(folder: Path, number: int) -> None:
    """Install a copy of the code with the given version, and switch the link to it."""
    place = folder / f"version-{number}"
    for part in ("libs", "services"):
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    known = place / f"muster_gpu-{number}.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: muster-gpu\nVersion: {version(number)}\n"
    )
    turned = folder / "turned"
    turned.symlink_to(place)
    turned.replace(folder / CODE)


def wishes() -> list[Wish]:
    return [Wish(f"agent-{number:03}", JOB_S) for number in range(JOBS)]


async def all_run(chaos: Chaos) -> None:
    """Wait until all jobs run. Raises TimeoutError."""
    deadline = time.monotonic() + ALL_BEGAN_S
    while len(lived(chaos)) < JOBS:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(lived(chaos))} of {JOBS} jobs had begun after {ALL_BEGAN_S:.0f} s"
            )
        await asyncio.sleep(AGAIN_S)


def lived(chaos: Chaos) -> dict[tuple[str, int], Life]:
    return lives.read(chaos.lives.read_text().splitlines()) if chaos.lives.exists() else {}


async def exchanged(chaos: Chaos) -> list[Kill]:
    """Stop each agent as by an upgrade of its package, and wait for its successor. Raises
    TimeoutError.
    """
    done = []
    await asyncio.to_thread(install, chaos.folder, 2)
    for name in (f"node-{number}" for number in range(1, chaos.nodes + 1)):
        before = chaos.ticket(name)
        assert before is not None, f"{name} does not live"
        os.kill(before.pid, signal.SIGTERM)
        done.append(Kill(name, time.monotonic_ns()))
        await _back(chaos, name, before)
    await healthy(chaos)
    return done


async def _back(chaos: Chaos, name: str, before: Ticket) -> None:
    """Wait until the new agent has registered. Raises TimeoutError."""
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        node = (await chaos.get(f"/v1/nodes/{name}"))["node"]
        if chaos.ticket(name) not in (None, before) and node["version"] == version(2):
            return
        await asyncio.sleep(BACK_LOOK_S)
    raise TimeoutError(f"{name} was not of version {version(2)} within {BACK_S:.0f} s")


async def killed(chaos: Chaos, killing: Killing, rounds: int) -> None:
    """Kill each agent `rounds` times, one after the other."""
    names = [f"node-{number}" for number in range(1, chaos.nodes + 1)]
    await killing.in_turn(rounds * len(names), names)
    await healthy(chaos)


def violations(
    found: Mapping[tuple[str, int], Life], kills: Sequence[Kill], jobs: int = JOBS
) -> list[str]:
    """Report jobs that were not alive while an agent was down, and jobs with a second attempt."""
    first = [life for (_, attempt), life in found.items() if attempt == 1]
    wrong = [
        f"{life.job_id} has an attempt {life.attempt}"
        for life in found.values()
        if life.attempt != 1
    ]
    wrong += [] if len(first) == jobs else [f"{len(first)} of {jobs} jobs have lived"]
    for kill in kills:
        dead = [life.job_id for life in first if not life.first_ns < kill.at_ns < life.last_ns]
        wrong += (
            [f"{len(dead)} jobs did not live when {kill.name} was ended: {', '.join(dead[:5])}"]
            if dead
            else []
        )
    return wrong
