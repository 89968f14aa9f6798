"""Jobs with `--pool` on this machine's own devices: the broker grants device memory to their
processes, PyTorch trains on it, and it comes back when a holder is killed.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from bench.cluster import Cluster, client, ended, submit
from services.node_agent.drivers.local import LocalDriver
from tests.gpu.conftest import Machine
from tests.gpu.said import say
from tests.gpu.test_jobs import FOUND_BY, facts, got

PROGRAM: Final = Path(__file__).parent / "pool_program.py"
ROOT: Final = PROGRAM.parents[2]
ENVIRONMENT: Final = {**FOUND_BY, "PYTHONPATH": f"{ROOT}/libs/job/public:{ROOT}"}
POOL_MIB: Final = 8_192
HELD_MIB: Final = 4_096
KILLED: Final = 20
WAIT_S: Final = 60.0


@pytest.fixture
async def session(cluster: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    async with client(cluster) as made:
        yield made


async def start(session: aiohttp.ClientSession, *words: str) -> str:
    # -P: the folder of the program has a cuda.py, which hides the package that CuPy imports.
    command = (sys.executable, "-P", str(PROGRAM), *words)
    fields: dict[str, Any] = {"gpus": 1, "vendor": "nvidia", "pool": f"{POOL_MIB}MiB"}
    return await submit(session, *command, env=ENVIRONMENT, **fields)


async def output(session: aiohttp.ClientSession, job: str) -> list[bytes]:
    async with session.get(f"/v1/jobs/{job}/output") as answer:
        return (await answer.read()).splitlines()


async def ran(session: aiohttp.ClientSession, job: str) -> dict[str, Any]:
    """Return the completed job. One that is still not ended after a minute says why."""
    try:
        async with asyncio.timeout(WAIT_S):
            found = await ended(session, job)
    except TimeoutError:
        why, gpus = await got(session, f"/v1/jobs/{job}/why"), await got(session, "/v1/gpus")
        pytest.fail(f"{why} {gpus}")
    errors = await got(session, f"/v1/jobs/{job}/output?stream=stderr")
    assert found["state"] == "completed", (found, errors)
    return found


async def granted(session: aiohttp.ClientSession) -> dict[str, int]:
    """Bytes that jobs have, by purpose."""
    found: dict[str, int] = {}
    for node in (await got(session, "/v1/memory"))["nodes"]:
        for pool in node["pools"]:
            for purpose, size in pool["purposes"].items():
                found[purpose] = found.get(purpose, 0) + size
    return found


async def test_pytorch_trains_on_the_memory_of_its_job(session: aiohttp.ClientSession) -> None:
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed beside this Python")
    job = await ran(session, await start(session, "train"))
    found = json.loads((await output(session, job["id"]))[-1])
    pool, alone = found["pool"], found["alone"]
    assert pool["balanced"] and pool["used"] and not pool["refused"]
    assert pool["loss"] == pytest.approx(alone["loss"], rel=1e-3)
    say("torch_step_ms", pool["step_ms"], "ms", 200, alone_ms=alone["step_ms"], torch=pool["torch"])


async def test_cupy_computes_in_the_memory_of_its_job(session: aiohttp.ClientSession) -> None:
    if find_spec("cupy") is None:
        pytest.skip("CuPy is not installed beside this Python")
    job = await ran(session, await start(session, "cupy"))
    found = json.loads((await output(session, job["id"]))[-1])
    count = 64 << 20
    assert found["total"] == pytest.approx(count * (count - 1) / 2)
    assert found["used"] >= 8 * count and found["left"] < 8 * count


@pytest.mark.timeout(400)
async def test_memory_of_killed_jobs_comes_back(
    session: aiohttp.ClientSession, machine: Machine
) -> None:
    """Each holds half of its pool. The broker creates the memory, so it must free it too.

    NVML tells what is used: a CUDA context of this process would be a stranger on the device.
    """
    driver, uuid = LocalDriver(), machine.gpus[0].uuid
    await driver.inventory()

    async def used() -> int:
        found = (await driver.sample())[uuid].memory_used_bytes
        assert isinstance(found, int)
        return found

    try:
        before, took = -1, []
        for number in range(KILLED):
            job = await start(session, "fill", str(HELD_MIB))
            async with asyncio.timeout(WAIT_S):
                while not (lines := await output(session, job)):
                    await asyncio.sleep(0.05)
            assert str(POOL_MIB << 20) in json.loads(lines[-1])["refused"]
            async with asyncio.timeout(WAIT_S):
                while await granted(session) != {"weights": HELD_MIB << 20}:
                    await asyncio.sleep(0.05)
            held = await used()
            began = time.monotonic()
            await (await session.post(f"/v1/jobs/{job}/kill", json={})).read()
            await ended(session, job)
            async with asyncio.timeout(WAIT_S):
                while "job.released" not in (said := await facts(session, job)):
                    await asyncio.sleep(0.02)
            took.append(time.monotonic() - began)
            assert said["job.released"]["checks"]["pools"] == "returned"
            left = await used()
            assert held - left >= HELD_MIB << 20 and await granted(session) == {}
            before = left if before < 0 else before  # the broker's first grant may cost some
            assert left <= before, number
    finally:
        await driver.close()
    say("pool_release_s", sorted(took)[KILLED // 2], "s", KILLED, held_mib=HELD_MIB)
