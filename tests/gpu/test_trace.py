"""`muster trace` on a real GPU: kernels of a PyTorch job, and the work of another CUDA program."""

import asyncio
import gzip
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.cluster import Cluster, client, running, submit
from services.node_agent.tracing.cupti.building import headers
from tests import cgroups
from tests.gpu.conftest import Machine
from tests.gpu.said import say
from tests.gpu.test_jobs import FOUND_BY, PROGRAM, WISH, got

TRAINING = str(Path(__file__).with_name("traced_training.py"))
# A process asks for orders every 5 s.
ASKS_S = 7.0
TRACED_S = 2
WAIT_S = 60.0
# The categories of what the device does.
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


async def traced(session: aiohttp.ClientSession, job: str) -> tuple[dict[str, Any], Any]:
    """Trace the job; return the trace's description and its events."""
    async with session.post(f"/v1/jobs/{job}/traces", json={"duration_s": TRACED_S}) as answer:
        assert answer.status == 202, await answer.text()
        begun = await answer.json()
    path = f"/v1/jobs/{job}/traces/{begun['id']}"
    async with asyncio.timeout(WAIT_S):
        while (found := await got(session, path))["state"] != "ready":
            assert found["state"] != "failed", found
            await asyncio.sleep(0.2)
    async with session.get(f"{path}/file") as answer:
        return found, json.loads(gzip.decompress(await answer.read()))["traceEvents"]


async def started(session: aiohttp.ClientSession, *words: str) -> str:
    """Start a job that computes on the GPU; return once it computes and asks to be traced."""
    job = await submit(session, *words, **WISH)
    async with asyncio.timeout(WAIT_S):
        while (await got(session, f"/v1/jobs/{job}"))["state"] != "running":
            await asyncio.sleep(0.1)
    await asyncio.sleep(ASKS_S)
    return job


async def stopped(session: aiohttp.ClientSession, job: str) -> None:
    async with session.post(f"/v1/jobs/{job}/cancel", json={"grace_s": 0}) as answer:
        assert answer.status < 300, await answer.text()


def tell(metric: str, found: dict[str, Any], events: Any) -> None:
    work = [event for event in events if event.get("cat") in WORK]
    busy_us = sum(event["dur"] for event in work)
    say(metric, len(work), "events", 1, busy_ms=busy_us / 1e3, overhead_pct=found["overhead_pct"])


async def test_kernels_of_pytorch_are_in_the_trace(cluster: Cluster) -> None:
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed beside this Python")
    async with client(cluster) as session:
        job = await started(session, sys.executable, TRAINING)
        async with asyncio.timeout(WAIT_S):
            while "trains" not in str(await got(session, f"/v1/jobs/{job}/output")):
                await asyncio.sleep(0.2)
        await asyncio.sleep(ASKS_S)
        found, events = await traced(session, job)
        await stopped(session, job)
    assert [rank["tracer"] for rank in found["ranks"]] == ["torch"], found
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert any("gemm" in event["name"] for event in kernels), {e["name"] for e in kernels}
    tell("torch_traced", found, events)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
async def test_work_of_a_cuda_program_is_in_the_trace(machine: Machine) -> None:
    if not (include := headers()):
        pytest.skip("CUPTI's headers are not installed")
    folders = [FOUND_BY.get("LD_LIBRARY_PATH", "")]
    folders += [f"{include[0]}/../{name}" for name in ("lib64", "lib")]
    wish = {"LD_LIBRARY_PATH": ":".join(filter(None, folders))}
    with cgroups.below() as parent:
        local = {"MUSTER_CGROUP": parent, "MUSTER_TRACE_CUPTI": "1"}
        with running(nodes=0, gpus=0, local=local) as own:
            async with client(own) as session:
                job = await started(
                    session, "env", *(f"{k}={v}" for k, v in wish.items()), *PROGRAM, "work", "60"
                )
                found, events = await traced(session, job)
                await stopped(session, job)
    assert [rank["tracer"] for rank in found["ranks"]] == ["cupti"], found
    assert [event for event in events if event.get("cat") == "gpu_memset"], events[:20]
    tell("cupti_traced", found, events)
