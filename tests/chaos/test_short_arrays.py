"""Short arrays on a real cluster whose agents, supervisors, scheduler and other services are killed
at random: each element has one result, and runs again only if the retry policy says so.

Each element appends its number and its attempt to a file.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.machine import processes
from services.node_agent.supervisor import records
from tests.chaos.cluster import Chaos, running
from tests.chaos.killing import AGENT, Killing

pytestmark = [pytest.mark.drill, pytest.mark.timeout(420)]

ELEMENTS = 12_000
SUPERVISOR = "supervisor"
SUPERVISOR_PAUSE_S = (0.1, 0.5)
TARGETS = (AGENT, "scheduler", AGENT, "gateway", "nats-server", "quota")
KILLS_MAX = 25
ENDED_S = 240.0
LOST_S = 40.0
WORK = 'echo "$MUSTER_ARRAY_TASK_ID $MUSTER_ATTEMPT" >> {path}'


class Elements:
    """One short array, and what its elements wrote."""

    def __init__(self, chaos: Chaos, path: Path) -> None:
        self.chaos, self.path = chaos, path
        self.job = ""

    async def submit(self, requeue: bool, elements: int = ELEMENTS) -> None:
        body = {
            "command": ["sh", "-c", WORK.format(path=self.path)],
            "array": f"0-{elements - 1}%4",
            "short": True,
            "gpus": 0,
            "cpus": 0.25,
            "requeue": requeue,
        }
        status, answer = await self.chaos.try_once("POST", "/v1/jobs", json=body)
        assert status == 201, answer
        self.job = answer["id"]

    async def ended(self) -> dict[str, Any]:
        shown: dict[str, Any] = await self.chaos.get(f"/v1/jobs/{self.job}")
        return shown if shown["ended_at"] else {}

    async def states(self) -> dict[int, tuple[str, str]]:
        """Return state and reason of each element."""
        found: dict[int, tuple[str, str]] = {}
        after: int | None = 0
        while after is not None:
            page = await self.chaos.get(f"/v1/jobs/{self.job}/elements", after=str(after))
            found |= {each["number"]: (each["state"], each["reason"]) for each in page["elements"]}
            after = page["next"]
        return found

    def written(self) -> list[tuple[int, int]]:
        """Return number and attempt of each run."""
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [(int(number), int(attempt)) for number, attempt in lines]


def supervisors(chaos: Chaos) -> list[int]:
    """Return the supervisors that serve an attempt now."""
    found = []
    for marker in chaos.state.glob("**/jobs/*/order.json"):
        identity = records.read_identity(str(marker.parent))
        if (
            identity is not None
            and records.read_exit(str(marker.parent)) is None
            and processes.is_living(identity["pid"], identity["start_ticks"])
        ):
            found.append(identity["pid"])
    return found


async def killed_until_it_ends(array: Elements, chance: random.Random) -> Counter[str]:
    """Kill one process after the other until the array has ended; return what was killed.

    Supervisors are killed more often than all others together.
    """
    killing = Killing(array.chaos, chance)
    deadline = time.monotonic() + ENDED_S
    killed: Counter[str] = Counter()

    async def supervisor_kills() -> None:
        while True:
            await asyncio.sleep(chance.uniform(*SUPERVISOR_PAUSE_S))
            if living := supervisors(array.chaos):
                os.kill(chance.choice(living), signal.SIGKILL)
                killed[SUPERVISOR] += 1

    others = asyncio.create_task(supervisor_kills())
    try:
        for number in range(KILLS_MAX):
            if await array.ended():
                break
            await killing.in_turn(1, (TARGETS[number % len(TARGETS)],))
        others.cancel()
        while not await array.ended():
            assert time.monotonic() < deadline, "the array did not end"
            await asyncio.sleep(0.5)
    finally:
        others.cancel()
    assert killing.absent == []
    return killed + killing.done()


async def test_each_element_completes_and_only_killed_ones_run_again(tmp_path: Path) -> None:
    async with running(tmp_path, 2, 1) as chaos:
        array = Elements(chaos, tmp_path / "written")
        await array.submit(requeue=True)
        killed = await killed_until_it_ends(array, random.Random(1))
        runs = array.written()
        assert Counter(runs).most_common(1)[0][1] == 1, "an attempt ran an element twice"
        times = Counter(number for number, _ in runs)
        assert sorted(times) == list(range(ELEMENTS))
        assert sum(times.values()) - ELEMENTS <= killed[SUPERVISOR]
        states = await array.states()
        assert Counter(states.values()) == {("completed", ""): ELEMENTS}
        assert (await array.ended())["array"]["states"] == {"completed": ELEMENTS}
        print(f"killed {dict(killed)}, {sum(times.values()) - ELEMENTS} elements ran again")


async def test_without_requeue_no_element_runs_twice_and_lost_ones_are_said(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, 2, 1) as chaos:
        array = Elements(chaos, tmp_path / "written")
        await array.submit(requeue=False)
        killed = await killed_until_it_ends(array, random.Random(2))
        times = Counter(number for number, _ in array.written())
        assert times.most_common(1)[0][1] == 1, "an element ran twice"
        states = await array.states()
        lost = {number for number, state in states.items() if state[0] != "completed"}
        assert {states[number] for number in lost} <= {("failed", "element_lost")}
        assert len(lost) <= killed[SUPERVISOR]
        assert set(range(ELEMENTS)) - set(times) <= lost
        counted = {"completed": ELEMENTS - len(lost), "failed": len(lost)}
        assert (await array.ended())["array"]["states"] == {k: v for k, v in counted.items() if v}
        print(f"killed {dict(killed)}, {len(lost)} elements are lost")


async def test_elements_of_a_node_that_is_lost_run_again_only_in_another_attempt(
    tmp_path: Path,
) -> None:
    """An agent is frozen for longer than its lease: its results since the last report are lost."""
    async with running(tmp_path, 2, 1) as chaos:
        again, once = (Elements(chaos, tmp_path / name) for name in ("again", "once"))
        await again.submit(requeue=True)
        await once.submit(requeue=False)
        while not (again.path.exists() and once.path.exists()):
            await asyncio.sleep(0.1)
        name = await node_at_work(again)
        agent = chaos.ticket(name)
        assert agent is not None
        os.kill(agent.pid, signal.SIGSTOP)
        try:
            await node_is_lost(chaos, name)
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        deadline = time.monotonic() + ENDED_S
        while not (await again.ended() and await once.ended()):
            assert time.monotonic() < deadline, "the arrays did not end"
            await asyncio.sleep(0.5)
        assert Counter(again.written()).most_common(1)[0][1] == 1
        states = await again.states()
        assert Counter(states.values()) == {("completed", ""): ELEMENTS}
        assert Counter(number for number, _ in once.written()).most_common(1)[0][1] == 1
        ends = Counter((await once.states()).values())
        assert set(ends) <= {("completed", ""), ("failed", "element_lost")}
        print(f"{len(again.written()) - ELEMENTS} ran again; without requeue: {dict(ends)}")


async def node_is_lost(chaos: Chaos, name: str) -> None:
    deadline = time.monotonic() + LOST_S
    while True:
        nodes = (await chaos.get("/v1/nodes"))["nodes"]
        if any(node["id"] == name and node["state"] == "unreachable" for node in nodes):
            return
        assert time.monotonic() < deadline, nodes
        await asyncio.sleep(0.2)


async def node_at_work(array: Elements) -> str:
    """Return a node that runs a batch of the array."""
    while True:
        page = await array.chaos.get("/v1/jobs", elements="true")
        for job in page["jobs"]:
            if job["element_of"] == array.job and job["state"] == "running":
                return str(job["members"][0]["node_id"])
        await asyncio.sleep(0.1)
