"""Devices that fail under jobs, on a real cluster with simulated devices: who is blamed, how a
cancelled job ends, what comes back.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from services.node_agent.health.listen import KERNEL_PIPE
from tests.chaos.cluster import Chaos, running

PATIENCE_S = 30.0
GPUS = 4
SLEEP = ["sleep", "600"]


def xid(chaos: Chaos, device: int, number: int, instance: str = "") -> None:
    """As the kernel's log would say it on the node."""
    (pipe,) = chaos.state.rglob(KERNEL_PIPE)
    with pipe.open("w") as file:
        file.write(f"3,1,1,-;NVRM: Xid (PCI:0000:{device + 1:02x}:00{instance}): {number}, words\n")


async def until(ask: Callable[[], Awaitable[Any]], is_so: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so(found := await ask()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)
    return found


async def begun(chaos: Chaos, gpus: list[str], **fields: Any) -> str:
    wish = {"command": SLEEP, "gpus": len(gpus), "gpu_uuids": gpus, **fields}
    status, job = await chaos.try_once("POST", "/v1/jobs", json=wish)
    assert status == 201, job
    await state_of(chaos, job["id"], "running")
    return str(job["id"])


async def state_of(chaos: Chaos, job_id: str, *states: str) -> Any:
    return await until(lambda: chaos.get(f"/v1/jobs/{job_id}"), lambda job: job["state"] in states)


async def gpu_of(chaos: Chaos, uuid: str, health: str) -> Any:
    return await until(lambda: chaos.get(f"/v1/gpus/{uuid}"), lambda gpu: gpu["health"] == health)


async def test_three_devices_off_their_bus_blame_the_node_and_come_back_by_a_reset_without_a_boot(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, nodes=1, gpus=GPUS) as chaos:
        uuids = [gpu["uuid"] for gpu in (await chaos.get("/v1/gpus"))["gpus"]]
        job_id = await begun(chaos, uuids[:3], requeue=False)
        for device in range(3):
            xid(chaos, device, 79)
        job = await state_of(chaos, job_id, "failed")
        for uuid in uuids[:3]:
            assert (await gpu_of(chaos, uuid, "offline"))["verdict"] == "reboot_node"
        assert (job["reason"], [said for said in job["gpu_errors"] if "suspect" in said]) == (
            "gpu_fault",
            [],
        )
        assert "suspect" in (await chaos.get("/v1/nodes/node-1"))["node"]["suspicion"]
        status, _ = await chaos.try_once("PUT", f"/v1/gpus/{uuids[0]}/controls/reset", json={})
        assert status == 202
        assert (await gpu_of(chaos, uuids[0], "healthy"))["state"] == "AVAILABLE"
        assert (await chaos.get(f"/v1/gpus/{uuids[1]}"))["health"] == "offline"


async def test_a_job_that_is_cancelled_on_a_device_that_failed_ends_as_cancelled(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, nodes=1, gpus=GPUS) as chaos:
        uuid = (await chaos.get("/v1/gpus"))["gpus"][0]["uuid"]
        job_id = await begun(chaos, [uuid])
        why = await chaos.get(f"/v1/jobs/{job_id}/why")
        assert why["answer"].startswith("it runs on node-1")
        xid(chaos, 0, 48)
        await until(lambda: chaos.get(f"/v1/gpus/{uuid}"), lambda gpu: gpu["reason"] == "xid 48")
        await chaos.try_once("POST", f"/v1/jobs/{job_id}/cancel", json={})
        job = await state_of(chaos, job_id, "cancelled", "failed", "queued", "completed")
        assert (job["state"], job["reason"]) == ("cancelled", "cancelled")
        assert [member["reason"] for member in job["members"]] == ["stopped"]
