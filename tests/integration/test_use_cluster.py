"""A whole cluster: what a job used of its GPUs and cost, through a kill of quota and of a gateway,
and a job whose GPUs are idle.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.cluster import AGAIN_S, Chaos, running
from tests.integration.test_files_cluster import shell_of

pytestmark = [pytest.mark.drill, pytest.mark.timeout(420)]
WAIT_S: Final = 60.0
IDLE_S: Final = 240.0
# Keeps one processor busy, so that a simulated GPU counts as used.
BUSY: Final = "import time\nend = time.time() + 8\nwhile time.time() < end: pass"


async def until(cluster: Chaos, path: str, wanted: Any, wait_s: float = WAIT_S) -> Any:
    """Return what a route answers, once it is as wanted."""
    found: Any = None
    async with asyncio.timeout(wait_s):
        while found is None or not wanted(found):
            await asyncio.sleep(AGAIN_S)
            found = await cluster.get(path)
    return found


def kill(cluster: Chaos, name: str) -> None:
    found = cluster.ticket(name)
    assert found is not None, f"no {name} lives"
    os.kill(found.pid, signal.SIGKILL)


async def submit(cluster: Chaos, body: dict[str, Any]) -> str:
    status, job = await cluster.try_once("POST", "/v1/jobs", json=body)
    assert status == 201, job
    return str(job["id"])


async def test_the_use_and_the_cost_of_jobs_add_up_through_kills(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, gpus=4) as cluster:
        shell = shell_of(cluster, tmp_path)
        await shell.run("price", "set", "h100", "3.60", "--currency", "EUR")
        command = [sys.executable, "-c", BUSY]
        first = await submit(cluster, {"command": command, "gpus": 2, "name": "busy"})
        await until(cluster, f"/v1/jobs/{first}", lambda job: job["state"] == "running")
        kill(cluster, "quota")
        for _ in range(6):
            await submit(cluster, {"command": ["sleep", "1"], "gpus": 1})
        kill(cluster, "gateway")
        found = await until(cluster, f"/v1/jobs/{first}", lambda job: job["state"] == "completed")
        assert found["use"]["devices"] == 2 and found["use"]["simulated"]
        assert found["use"]["energy_wh"] > 0 < found["use"]["average_percent"]
        charges = await until(cluster, "/v1/charges", lambda found: len(found["charges"]) == 7)
        usage = await cluster.get("/v1/usage", by="user,day", fleet="true")
        share_ms = sum(charge["share_ms"] for charge in charges["charges"])
        assert share_ms == charges["total"]["share_ms"] == usage["total"]["share_ms"]
        assert share_ms == sum(usage["charged_share_ms"].values())
        micros = sum(charge["costs_micros"]["EUR"] for charge in charges["charges"])
        assert micros == usage["total"]["costs_micros"]["EUR"] > 0
        (fleet,) = usage["fleet"]
        parts = sum(fleet[name] for name in fleet if name not in ("gpu", "capacity_share_ms"))
        assert parts == fleet["capacity_share_ms"] > fleet["unallocated_share_ms"] > 0
        out, _ = await shell.run("describe", first)
        assert "GPU use:" in out and "2 of 2 requested busy" in out and "simulated" in out
        for verb in ("usage", "history", "price"):
            out, _ = await shell.run(verb)
            assert "EUR" in out


async def test_a_job_with_idle_gpus_is_warned_and_released(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, gpus=2) as cluster:
        shell = shell_of(cluster, tmp_path)
        await shell.run("tenant", "set", "default")
        out, _ = await shell.run(
            "tenant", "idle", "default", "release", "--after", "1m", "--grace", "5s"
        )
        assert "warned after 1m00s, release 5s later" in out
        job = await submit(cluster, {"command": ["sleep", "600"], "gpus": 1})
        warned = await until(
            cluster, f"/v1/jobs/{job}", lambda found: found["idle_warning"], IDLE_S
        )
        assert "all its GPUs have been idle since" in warned["idle_warning"]
        why = await cluster.get(f"/v1/jobs/{job}/why")
        assert "all its GPUs have been idle for 1 minute" in why["answer"]
        ended = await until(
            cluster, f"/v1/jobs/{job}", lambda found: found["state"] == "cancelled", IDLE_S
        )
        assert ended["reason"] == "idle_gpus"
        history = await cluster.get(f"/v1/jobs/{job}/history")
        words = [fact["summary"] for fact in history["facts"]]
        assert any("have been idle for 6" in each for each in words)
        assert any("warned that all GPUs have been idle" in each for each in words)
