"""Arrays: over real HTTP with the scheduler played by the test, and on a whole embedded cluster
through the command line.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from tests.chaos.cluster import Chaos, running
from tests.integration.gateway_world import World, gateway_world

WAIT_S = 60


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found:
        await found.writers.begin_term()
        yield found


async def begun(world: World, text: str, *numbers: int, **fields: object) -> str:
    """An array of which these elements have begun."""
    job = JobId((await world.submit(array=text, **fields))["id"])
    await world.writers.queue(job)
    for number in numbers:
        await world.writers.schedule(
            f.ElementBegun(
                job_id=JobId(f"{job}_{number}"),
                array=job,
                number=number,
                tenant=TenantId("default"),
                priority=50,
            )
        )
    await world.settle()
    return job


async def test_an_array_is_one_row_that_counts_its_elements(world: World) -> None:
    job = await begun(world, "0-99%4", 0, 1, name="sweep")
    await world.writers.close(f"{job}_0", "cancelled")
    await world.settle()
    (row,) = (await world.ask("GET", "/v1/jobs"))["jobs"]
    assert row["array"] == {
        "numbers": "0-99%4",
        "count": 100,
        "states": {"queued": 99, "cancelled": 1},
    }
    rows = (await world.ask("GET", "/v1/jobs?elements=1"))["jobs"]
    assert [each["id"] for each in rows] == [job, f"{job}_1"] and rows[1]["element_of"] == job
    for ref in (f"{job}_1", f"{job[:6]}_1", "sweep_1"):
        assert (await world.ask("GET", f"/v1/jobs/{ref}"))["id"] == f"{job}_1"
    assert (
        (await world.ask("GET", f"/v1/jobs/{job[:6]}"))["id"]
        == (await world.ask("GET", "/v1/jobs/sweep"))["id"]
        == job
    )


async def test_an_elements_history_begins_where_it_began(world: World) -> None:
    job = await begun(world, "5-6", 5)
    facts = (await world.ask("GET", f"/v1/jobs/{job}_5/history"))["facts"]
    assert [fact["summary"] for fact in facts] == [f"element 5 of array {job} begun"]


async def test_an_element_that_has_not_begun_is_cancelled_and_is_not_there_otherwise(
    world: World,
) -> None:
    job = await begun(world, "0-9", 0)
    refusal = await world.ask("GET", f"/v1/jobs/{job}_7", 404)
    assert "has not begun" in refusal["detail"]
    await world.ask("POST", f"/v1/jobs/{job}_7/cancel", 202)
    await world.ask("POST", f"/v1/jobs/{job}_0/cancel", 202)
    await world.ask("POST", f"/v1/jobs/{job}_12/cancel", 404)
    assert [fact.job_id for fact in await world.said() if isinstance(fact, f.CancelRequested)] == [
        f"{job}_7",
        f"{job}_0",
    ]
    async with world.as_("member", "eve") as eve:
        await eve.ask("POST", f"/v1/jobs/{job}_8/cancel", 403)


async def test_an_array_writes_nothing_itself(world: World) -> None:
    job = await begun(world, "0-1")
    for verb in ("output", "attach"):
        assert f"{job}_NUMBER" in (await world.ask("GET", f"/v1/jobs/{job}/{verb}", 409))["detail"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"array": "0-1000000"}, "at most 1000000 elements"),
        ({"array": "9-0"}, "expected numbers as in 0-99"),
        ({"array": 7.5}, "expected numbers as in 0-99"),
        ({"array": "0-9", "stdin": True}, "no standard input"),
    ],
)
async def test_invalid_array_is_refused(
    world: World, fields: dict[str, object], expected: str
) -> None:
    assert (
        expected
        in (await world.ask("POST", "/v1/jobs", 422, json={"command": ["x"], **fields}))["detail"]
    )


async def muster(chaos: Chaos, *arguments: str) -> tuple[int, str, str]:
    environ = {**os.environ, "MUSTER_PROFILE": str(chaos.folder / "profile.json")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from libs.cli.main import main; main()", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    out, err = await asyncio.wait_for(process.communicate(), WAIT_S)
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.timeout(240)
async def test_an_array_runs_through_and_each_element_knows_its_number(tmp_path: Path) -> None:
    script = (
        'echo "$MUSTER_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"; [ $MUSTER_ARRAY_TASK_ID != 3 ] '
        "|| exit 7"
    )
    async with running(tmp_path, 2, 2) as chaos:
        code, job, err = await muster(
            chaos, "submit", "--array", "1-6%2", "-J", "sweep", "--", "sh", "-c", script
        )
        assert code == 0, err
        after = (await muster(chaos, "submit", "--after", f"afterany:{job.strip()}", "--", "true"))[
            1
        ].strip()
        assert (await muster(chaos, "wait", "sweep"))[0] == 7
        code, out, _ = await muster(chaos, "logs", "sweep_2")
        assert (code, out) == (0, "2 of 6\n")
        shown = await chaos.get(f"/v1/jobs/{job.strip()}")
        assert (shown["state"], shown["reason"], shown["exit_code"]) == (
            "failed",
            "1 of 6 elements failed",
            7,
        )
        assert shown["array"]["states"] == {"completed": 5, "failed": 1}
        assert (await muster(chaos, "wait", after))[0] == 0
        _, out, _ = await muster(chaos, "ps", "--all", "--no-headers")
        assert [line.split()[0] for line in out.splitlines()] == [job.strip(), after]
        _, out, _ = await muster(chaos, "ps", "--all", "--expand", "--no-headers")
        assert len(out.splitlines()) == 8
        assert "1-6%2: 5 completed, 1 failed" in (await muster(chaos, "describe", "sweep"))[1]
        await a_short_array_has_a_result_for_each_element(chaos)


async def a_short_array_has_a_result_for_each_element(chaos: Chaos) -> None:
    """Part of the test above, which has a cluster."""
    script = "[ $MUSTER_ARRAY_TASK_ID != 13 ] || { echo thirteen; exit 5; }"
    small = ("--gpus", "0", "--cpus", "0.5")
    code, out, err = await muster(
        chaos, "submit", "--array", "10-49%2", "--short", *small, "--", "sh", "-c", script
    )
    assert code == 0, err
    job = out.strip()
    assert (await muster(chaos, "wait", job))[0] == 5
    shown = await chaos.get(f"/v1/jobs/{job}")
    assert shown["array"]["states"] == {"completed": 39, "failed": 1}
    _, out, _ = await muster(chaos, "ps", "--elements", job, "--no-headers")
    rows = [line.split() for line in out.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(10, 50))
    batch = rows[3][3]
    assert rows[3] == ["13", "failed", "5", batch, "failed"]
    assert rows[4][1:3] == ["completed", "0"]
    assert (await muster(chaos, "logs", batch))[1] == "== element 13 ==\nthirteen\n"
    code, _, err = await muster(chaos, "logs", f"{job}_13")
    assert code and f"muster logs {batch}" in err
    facts = [fact["kind"] for fact in await chaos.history(batch)]
    assert "array.elements_ended" in facts and facts[-2:] == ["job.closed", "usage.charged"]
    code, _, err = await muster(chaos, "submit", "--array", "0-9", "--short", "-N", "2", "--", "x")
    assert code and "leave out nodes" in err
