"""A supervisor runs the elements of a batch one after the other, and its journal says which began
and how they ended, whatever is killed.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from supervision_world import World, kill, world_at

from services.node_agent.directories.batches import elements_seen
from services.node_agent.supervision import output
from services.node_agent.supervisor.elements import AT_LIMIT, SIGNAL_BASE

NUMBERS = list(range(100, 140))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


def elements(first: int = 0, limit_s: int = 0, numbers: list[int] = NUMBERS) -> dict[str, object]:
    names = ["MUSTER_ARRAY_TASK_ID"]
    return {
        "numbers": numbers,
        "first": first,
        "names": names,
        "limit_s": limit_s,
        "grace_s": 1,
    }


def seen(world: World, key: tuple[str, int]) -> tuple[int, list[int], int]:
    found = elements_seen(world.supervisors.job_dir(key), "key")
    assert found is not None
    return found.first, list(found.results), found.begun


def printed(world: World, key: tuple[str, int]) -> str:
    return output.read(world.supervisors.job_dir(key), "stdout", 0, 100_000).data.decode()


async def test_each_element_runs_once_with_its_number_and_has_its_own_output(world: World) -> None:
    key = await world.shell(
        "job", "echo $MUSTER_ARRAY_TASK_ID; exit $((MUSTER_ARRAY_TASK_ID % 3))", elements=elements()
    )
    record = await world.told(key, "exited")
    assert (record["exit_code"], record["reason"]) == (1, "exited")
    assert seen(world, key) == (0, [number % 3 for number in NUMBERS], 40)
    assert printed(world, key) == "".join(f"== element {each} ==\n{each}\n" for each in NUMBERS)


async def test_an_attempt_begins_behind_the_elements_that_have_ended(world: World) -> None:
    key = await world.shell("job", "echo $MUSTER_ARRAY_TASK_ID", elements=elements(first=38))
    record = await world.told(key, "exited")
    assert record["exit_code"] == 0 and seen(world, key) == (38, [0, 0], 40)
    assert "element 138 ==\n138\n== element 139" in printed(world, key)


async def test_an_element_that_prints_nothing_has_no_heading(world: World) -> None:
    script = "test $MUSTER_ARRAY_TASK_ID = 101 && printf two; test $MUSTER_ARRAY_TASK_ID -lt 104 "
    key = await world.shell("job", f"{script} || echo end", elements=elements(numbers=NUMBERS[:5]))
    await world.told(key, "exited")
    assert printed(world, key) == "== element 101 ==\ntwo\n== element 104 ==\nend\n"


async def test_an_element_is_over_when_nothing_of_it_is_left(world: World, tmp_path: Path) -> None:
    """Processes that an element leaves behind are ended before the next one begins."""
    mark, pid = tmp_path / "alive", tmp_path / "pid"
    script = f"kill -0 $(cat {pid}) && touch {mark}; sleep 60 & echo $! > {pid}"
    key = await world.shell("job", script, elements=elements(numbers=NUMBERS[:3]))
    assert (await world.told(key, "exited"))["exit_code"] == 0
    assert pid.exists() and not mark.exists()


async def test_an_element_over_its_own_time_limit_ends_and_the_next_one_runs(world: World) -> None:
    script = "test $MUSTER_ARRAY_TASK_ID != 101 || sleep 60"
    key = await world.shell("job", script, elements=elements(limit_s=1, numbers=NUMBERS[:3]))
    assert (await world.told(key, "exited"))["exit_code"] == 1
    assert seen(world, key) == (0, [0, AT_LIMIT, 0], 3)


async def test_an_element_that_a_signal_ended_or_that_cannot_be_executed_has_that_result(
    world: World,
) -> None:
    key = await world.shell("job", "kill -9 $$", elements=elements(numbers=NUMBERS[:2]))
    await world.told(key, "exited")
    assert seen(world, key) == (0, [SIGNAL_BASE + 9] * 2, 2)
    gone = await world.launch("gone", "/no/such/program", elements=elements(numbers=NUMBERS[:2]))
    record = await world.told(gone, "exited")
    assert record["exit_code"] == 1 and "was not found" in record["detail"]
    assert seen(world, gone) == (0, [127, 127], 2)


async def test_a_stopped_attempt_begins_no_other_element_and_gives_the_last_no_result(
    world: World,
) -> None:
    script = "test $MUSTER_ARRAY_TASK_ID != 105 || { echo ready; sleep 60; }"
    key = await world.shell("job", script, elements=elements())
    await world.printed(key, b"ready")
    await world.supervisors.stop(key, signal.SIGTERM, 5)
    record = await world.told(key, "exited")
    assert (record["reason"], record["exit_code"]) == ("stopped", None)
    assert seen(world, key) == (0, [0] * 5, 6)


async def test_an_element_that_saves_its_work_and_exits_with_0_when_told_to_end_has_no_result(
    world: World,
) -> None:
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    key = await world.shell("job", script, elements=elements(numbers=NUMBERS[:1]))
    await world.printed(key, b"ready")
    await world.supervisors.stop(key, signal.SIGTERM, 5)
    record = await world.told(key, "exited")
    assert (record["reason"], record["exit_code"]) == ("stopped", None)
    assert seen(world, key) == (0, [], 1)


async def test_an_element_that_exits_with_0_when_the_machine_shuts_down_has_no_result(
    world: World,
) -> None:
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    key = await world.shell("job", script, elements=elements(numbers=NUMBERS[:2]))
    await world.printed(key, b"ready")
    os.kill((await world.told(key, "started"))["pid"], signal.SIGTERM)
    record = await world.told(key, "exited")
    assert (record["reason"], record["exit_code"]) == ("supervisor_lost", None)
    assert seen(world, key) == (0, [], 1)


async def test_a_killed_supervisor_leaves_the_journal_exact(world: World, tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = f"echo $MUSTER_ARRAY_TASK_ID >> {done}; test $MUSTER_ARRAY_TASK_ID != 107 || sleep 60"
    key = await world.shell("job", script, elements=elements())
    identity = await world.told(key, "started")
    while not done.exists() or "107" not in done.read_text():
        await asyncio.sleep(0.01)
    kill(identity["pid"])
    record = await world.told(key, "exited")
    assert (record["reason"], record["clean"]) == ("supervisor_lost", True)
    assert seen(world, key) == (0, [0] * 7, 8)
    assert done.read_text().split() == [str(number) for number in range(100, 108)]


async def test_a_supervisor_that_ran_a_batch_serves_again(world: World) -> None:
    first = await world.shell("job", "true", elements=elements())
    one = await world.told(first, "exited")
    assert one["clean"]
    assert (await world.run("next", "exit 5"))["exit_code"] == 5
