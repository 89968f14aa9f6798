"""A fatal NVSwitch error and a contained error of a MIG instance, on a real cluster with simulated
devices: who ends, and what is shown.
"""

from pathlib import Path
from typing import Any

import aiohttp

from libs.embedded import servers
from services.node_agent.health.listen import KERNEL_PIPE
from tests.attack.test_devices_come_back import begun, state_of, until, xid
from tests.chaos.cluster import Chaos, running

PORT = servers.free_port_run(1)
GPUS = 3


def switch(chaos: Chaos, number: int, words: str) -> None:
    """As the NVSwitch driver writes it into the node's kernel log."""
    (pipe,) = chaos.state.rglob(KERNEL_PIPE)
    with pipe.open("w") as file:
        file.write(f"3,1,1,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {number}, {words}\n")


async def metrics() -> list[str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{PORT}/metrics") as answer,
    ):
        return (await answer.text()).splitlines()


async def errors_of(chaos: Chaos, uuid: str) -> list[tuple[str, str]]:
    found = (await chaos.get(f"/v1/gpus/{uuid}"))["errors"]
    return [(error["error"], error["verdict"]) for error in found]


async def output_of(chaos: Chaos, job_id: str) -> str:
    async with chaos.session.get(
        f"/v1/jobs/{job_id}/output", params={"stream": "stdout"}
    ) as answer:
        return await answer.text()


async def submitted(chaos: Chaos, **wish: Any) -> str:
    status, job = await chaos.try_once("POST", "/v1/jobs", json={"command": ["true"], **wish})
    assert status == 201, job
    return str(job["id"])


async def test_a_fatal_switch_error_ends_multi_gpu_jobs_and_the_node_takes_single_gpu_jobs_only(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, nodes=1, gpus=GPUS, MUSTER_METRICS_PORT=str(PORT)) as chaos:
        uuids = [gpu["uuid"] for gpu in (await chaos.get("/v1/gpus"))["gpus"]]
        pair, one = await begun(chaos, uuids[:2]), await begun(chaos, uuids[2:])
        switch(chaos, 12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)")
        mild = ("sxid 12028", "ignore")
        await until(lambda: errors_of(chaos, uuids[2]), lambda found: found == [mild])
        assert (await chaos.get(f"/v1/jobs/{pair}"))["state"] == "running"
        switch(chaos, 24007, "Fatal, Link 30 sourcetrack timeout error")
        job = await state_of(chaos, pair, "queued")
        assert (job["reason"], job["retries_used"]) == ("gpu_fault", 0)
        why = str(await chaos.get(f"/v1/jobs/{pair}/why"))
        assert (
            "NVLink fabric not up, so only jobs with one GPU" in why
            and "Link 30 sourcetrack timeout error" in why
        )
        for uuid in uuids:
            gpu = await chaos.get(f"/v1/gpus/{uuid}")
            assert (gpu["health"], gpu["reason"], gpu["verdict"]) == (
                "degraded",
                "sxid 24007",
                "reboot_node",
            )
            assert await errors_of(chaos, uuid) == [mild, ("sxid 24007", "reboot_node")]
        assert (await chaos.get(f"/v1/jobs/{one}"))["state"] == "running"
        await state_of(chaos, await submitted(chaos, gpus=1), "completed")
        assert (
            sum('reason="sxid 24007",health="degraded"' in line for line in await metrics()) == GPUS
        )


async def test_a_contained_error_ends_only_the_job_in_its_mig_instance(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, gpus=1, MUSTER_METRICS_PORT=str(PORT)) as chaos:
        (uuid,) = [gpu["uuid"] for gpu in (await chaos.get("/v1/gpus"))["gpus"]]
        command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 600"]
        jobs = [
            await submitted(chaos, command=command, mig_profile="3g.40gb", requeue=False)
            for _ in range(2)
        ]
        for job_id in jobs:
            await state_of(chaos, job_id, "running")
        (first, _) = jobs
        text = await until(lambda: output_of(chaos, first), lambda found: "\n" in found)
        number = int(text.strip().rpartition("-")[2])
        xid(chaos, 0, 94, f" GPU-I:{number:02}")
        job = await state_of(chaos, first, "failed")
        assert job["reason"] == "gpu_fault"
        gpu = await chaos.get(f"/v1/gpus/{uuid}")
        assert (gpu["health"], [job["job_id"] for job in gpu["errors"][0]["jobs"]]) == (
            "healthy",
            [first],
        )
        assert (await chaos.get(f"/v1/jobs/{jobs[1]}"))["state"] == "running"
        assert any(
            line.startswith("muster_gpu_errors_total") and 'error="xid 94"' in line
            for line in await metrics()
        )
