"""Each supervisor enforces the lease alone: the job is dead before the deadline.

This holds whichever other processes are alive.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from supervision_world import NS_PER_S, PATIENT, World, gone, kill, world_at

from services.node_agent.supervision.supervised_job import Key
from services.node_agent.supervisor import lease
from services.node_agent.supervisor.ending import MAX_SLEEP_NS, Ending
from services.node_agent.supervisor.lease import Lease, boottime_ns


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


def short_lease(world: World, seconds: float) -> Lease:
    made = Lease(str(world.state_dir / "short"))
    made.extend(boottime_ns() + int(seconds * NS_PER_S))
    return made


async def job_under(world: World, made: Lease, script: str = PATIENT) -> Key:
    """The lease is counted from when the job is ready, however long its start took."""
    left_ns = made.deadline_ns() - boottime_ns()
    made.extend(boottime_ns() + 60 * NS_PER_S)
    key = await world.shell("job", script, lease_path=made.path)
    await world.printed(key, b"ready")
    made.replace(boottime_ns() + left_ns)
    return key


async def test_a_job_is_dead_before_its_lease_is_over(world: World) -> None:
    made = short_lease(world, 2.6)
    key = await job_under(world, made)
    record = await world.told(key, "exited")
    assert boottime_ns() < made.deadline_ns()
    assert (record["reason"], record["signal"], record["clean"]) == (
        "lease_expired",
        signal.SIGKILL,
        True,
    )


async def test_a_job_is_asked_to_end_before_it_is_killed(world: World) -> None:
    made = short_lease(world, 2.6)
    key = await job_under(
        world, made, "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    )
    record = await world.told(key, "exited")
    assert boottime_ns() < made.deadline_ns() - NS_PER_S
    assert (record["reason"], record["exit_code"]) == ("lease_expired", 0)
    assert world.output(key).endswith(b"saved\n")


async def test_expired_lease_ends_the_job_without_agent_and_zygote(world: World) -> None:
    made = short_lease(world, 3.0)
    key = await job_under(world, made)
    job_pid = (await world.told(key, "started"))["job_pid"]
    kill(world.supervisors._zygote.pid)
    await world.supervisors.close()
    await gone(job_pid)
    assert boottime_ns() < made.deadline_ns()
    await world.supervisors.start()
    assert (await world.told(key, "exited"))["reason"] == "lease_expired"


async def test_an_extended_lease_keeps_the_job_alive(world: World) -> None:
    made = short_lease(world, 2.5)
    key = await job_under(world, made, "echo ready; sleep 1.5; echo done")
    for _ in range(6):
        made.extend(boottime_ns() + int(2.5 * NS_PER_S))
        await asyncio.sleep(0.3)
    record = await world.told(key, "exited")
    assert (record["reason"], record["exit_code"]) == ("exited", 0)


async def test_a_stop_for_the_lease_goes_on_when_the_lease_is_extended_late(world: World) -> None:
    made = short_lease(world, 2.2)
    key = await job_under(
        world, made, "trap 'echo asked' TERM; echo ready; while :; do sleep 0.02; done"
    )
    await world.printed(key, b"asked")
    made.extend(boottime_ns() + 60 * NS_PER_S)
    assert (await world.told(key, "exited"))["reason"] == "lease_expired"


async def test_nothing_is_executed_under_an_expired_lease(world: World) -> None:
    key = await world.shell("job", "echo ran", lease_path=short_lease(world, -1.0).path)
    record = await world.told(key, "exited")
    assert (record["reason"], record["executed"], record["exit_code"]) == (
        "lease_expired",
        False,
        None,
    )
    assert world.output(key) == b"" and world.names(key) == ["exited"]


async def test_a_lease_that_cannot_be_read_is_an_expired_one(world: World) -> None:
    record = await world.run("job", "echo ran", lease_path=str(world.state_dir / "nothing"))
    assert record["reason"] == "lease_expired"


async def test_a_job_that_ignores_the_lease_is_never_stopped_for_silence(world: World) -> None:
    record = await world.run(
        "job", "echo ran", lease_path=short_lease(world, -1.0).path, ignore_lease=True
    )
    assert (record["reason"], record["exit_code"]) == ("exited", 0)


def test_a_lease_never_goes_back(tmp_path: Path) -> None:
    made = Lease(str(tmp_path / "lease"))
    made.extend(7)
    made.extend(5)
    assert made.deadline_ns() == 7 == lease.map_deadline(made.path)[0]


def test_a_lease_that_is_replaced_goes_back_for_all_who_have_it_mapped(tmp_path: Path) -> None:
    made = Lease(str(tmp_path / "lease"))
    made.extend(7)
    mapped = lease.map_deadline(made.path)
    made.replace(5)
    assert made.deadline_ns() == 5 == mapped[0]


def test_a_supervisor_that_sleeps_towards_a_far_deadline_looks_again_within_a_second() -> None:
    mapped = memoryview(bytearray((600 * NS_PER_S).to_bytes(8, "little"))).cast("Q")
    assert Ending(1, mapped).sleep_ns(0) == MAX_SLEEP_NS <= NS_PER_S


async def test_a_job_under_a_long_lease_ends_with_the_shorter_one_that_replaced_it(
    world: World,
) -> None:
    made = short_lease(world, 600.0)
    key = await job_under(world, made, "echo ready; sleep 60")
    made.replace(boottime_ns() + int(3.5 * NS_PER_S))
    assert (await world.told(key, "exited"))["reason"] == "lease_expired"
    assert boottime_ns() < made.deadline_ns()


def test_a_lease_outlives_its_agent_and_not_its_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lease")
    Lease(path).extend(7)
    assert Lease(path).deadline_ns() == 7
    monkeypatch.setattr(lease, "boot_id", lambda: "x" * 36)
    assert Lease(path).deadline_ns() == 0
