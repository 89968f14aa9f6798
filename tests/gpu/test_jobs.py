"""CUDA programs as jobs on this machine's own devices.

The tests measure how soon they compute and what Muster costs them, and check which devices they can
open and what they leave.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from bench.cluster import Cluster, client, ended, quantile, submit
from libs.embedded.shape import LOCAL_NODE
from tests.gpu.conftest import Machine
from tests.gpu.said import say

PROGRAM: Final = (sys.executable, "-ISc", (Path(__file__).parent / "cuda.py").read_text())
# The device that it was given, and each that it can open.
OPENS: Final = (
    "echo $MUSTER_GPUS; for each in /dev/nvidia[0-9]*; do if : < $each; then echo $each; fi; "
    "done 2>/dev/null"
)
# A job does not inherit the way in which this process finds libcuda.
FOUND_BY: Final = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
WISH: Final[dict[str, Any]] = {"gpus": 1, "vendor": "nvidia", "env": FOUND_BY}
SUBMITTED: Final = 30
WORK_S: Final = 10.0
ROUNDS: Final = 3
HELD_MIB: Final = 2_048
WAIT_S: Final = 60.0


@pytest.fixture
async def session(cluster: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    async with client(cluster) as made:
        yield made


async def got(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await (answer.json() if "json" in answer.headers["content-type"] else answer.text())


async def run(
    session: aiohttp.ClientSession, *words: str, gpus: int = 1
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the program as a job; return the job and the program's output."""
    wish = WISH if gpus else {"gpus": 0, "cpus": 1, "env": FOUND_BY}
    job = await ended(session, await submit(session, *PROGRAM, *words, **wish))
    assert job["state"] == "completed", (
        job,
        await got(session, f"/v1/jobs/{job['id']}/output?stream=stderr"),
    )
    async with session.get(f"/v1/jobs/{job['id']}/output") as answer:
        return job, json.loads((await answer.read()).splitlines()[-1])


async def alone(*words: str) -> dict[str, Any]:
    """Run the same program without Muster and return its output."""
    done = await asyncio.to_thread(
        subprocess.run, [*PROGRAM, *words], capture_output=True, check=True
    )
    return dict(json.loads(done.stdout))


async def facts(session: aiohttp.ClientSession, job: str) -> dict[str, dict[str, Any]]:
    """Return the job's facts by kind; the last fact of each kind."""
    return {
        row["fact"]["kind"]: row["fact"]
        for row in (await got(session, f"/v1/jobs/{job}/history?limit=100"))["facts"]
    }


async def test_from_submission_to_the_first_cuda_call(
    session: aiohttp.ClientSession, machine: Machine
) -> None:
    await run(session, "first")
    first, computed = [], []
    for _ in range(SUBMITTED):
        asked_ns = time.time_ns()
        _, found = await run(session, "first")
        assert any(
            found["uuid"] == gpu.uuid.removeprefix("GPU-").replace("-", "") for gpu in machine.gpus
        )
        first.append((found["first_ns"] - asked_ns) / 1e6)
        computed.append((found["computed_ns"] - asked_ns) / 1e6)
    bare = []
    for _ in range(5):
        asked_ns = time.time_ns()
        bare.append(((await alone("first"))["first_ns"] - asked_ns) / 1e6)
    setting = {"bare_p50_ms": round(quantile(bare, 0.5), 1)}
    for name, values in (("first_cuda_call", first), ("first_result", computed)):
        say(f"{name}_p50_ms", quantile(values, 0.5), "ms", len(values), **setting)
        say(f"{name}_p99_ms", quantile(values, 0.99), "ms", len(values), **setting)


async def test_a_job_cannot_open_a_device_that_it_was_not_given(
    session: aiohttp.ClientSession, machine: Machine
) -> None:
    node = (await got(session, f"/v1/nodes/{LOCAL_NODE}"))["node"]
    if node["isolation"].get("devices", "lost") != "enforced":
        pytest.skip(f"this machine does not keep devices apart: {node['isolation'].get('devices')}")
    paths = {
        gpu.uuid: f"/dev/nvidia{minor}"
        for gpu in machine.gpus
        for major, minor in machine.nodes[gpu.uuid]
        if major == 195
    }
    for path in paths.values():
        _, found = await run(session, "open", path, gpus=0)
        assert found == {"error": "Operation not permitted"}
    job = await ended(session, await submit(session, "sh", "-c", OPENS, **WISH))
    async with session.get(f"/v1/jobs/{job['id']}/output") as answer:
        mine, *opened = (await answer.text()).split()
    assert opened == [paths[mine]]


async def test_a_job_that_is_killed_leaves_its_device_clean_and_that_is_proved(
    session: aiohttp.ClientSession,
) -> None:
    job = await submit(session, *PROGRAM, "hold", str(HELD_MIB), **WISH)
    async with asyncio.timeout(WAIT_S):
        while b"held_mib" not in await (await session.get(f"/v1/jobs/{job}/output")).read():
            await asyncio.sleep(0.1)
    began = time.monotonic()
    await (await session.post(f"/v1/jobs/{job}/kill", json={})).read()
    await ended(session, job)
    async with asyncio.timeout(WAIT_S):
        while "job.released" not in (said := await facts(session, job)):
            await asyncio.sleep(0.05)
    say(
        "release_s",
        time.monotonic() - began,
        "s",
        1,
        held_mib=HELD_MIB,
        checks=said["job.released"]["checks"],
    )
    checks = said["job.released"]["checks"]
    assert (checks["processes"], checks["devices"]) == ("gone", "free")
    assert all(gpu["health"] == "healthy" for gpu in (await got(session, "/v1/gpus"))["gpus"])


async def test_overhead_of_muster_on_a_computing_job_is_measured(
    session: aiohttp.ClientSession,
) -> None:
    """In turns, so that a card that gets warm gets warm for both.

    Required is less than 5 %, aimed at less than 1 %.
    """
    bare, under = [], []
    for _ in range(ROUNDS):
        bare.append((await alone("work", str(WORK_S)))["steps_per_s"])
        under.append((await run(session, "work", str(WORK_S)))[1]["steps_per_s"])
    overhead = 1 - quantile(under, 0.5) / quantile(bare, 0.5)
    assert all(under) and all(bare)
    say(
        "overhead_pct",
        100 * overhead,
        "%",
        ROUNDS,
        bare_gib_per_s=round(quantile(bare, 0.5), 1),
        each_s=WORK_S,
    )
