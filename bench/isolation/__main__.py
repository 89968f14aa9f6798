"""Waits of calm tenants beside each kind of storm of one hostile tenant, and without one.

`make isolation TENANTS=10 TASKS=100`: one embedded cluster with TENANTS tenants, of which one is
hostile. The others do TASKS tasks each in a window (`calm.py`). Windows without and with a storm
take turns within the run. A figure is the ratio of the p99 in all windows with the storm to that
without, of all requests (`requests`) and of the whole life of a job (`run`); its spread are the
ratios of the single rounds. `nothing` is a storm that sends no request: its ratio is what two equal
measurements differ by here. STORM=name,name: these storms only. ROUNDS=n; QUICK=1: one short round.
"""

import asyncio
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from bench.cluster import QUICK, Cluster, client, quantile, running, say
from bench.gateway import deploy, ready
from bench.isolation.calm import Calm, Times, window
from bench.isolation.storms import SETTLE_S, STORMS
from bench.noisy import member

TENANTS: Final = int(os.environ.get("TENANTS") or (4 if QUICK else 10))
TASKS: Final = int(os.environ.get("TASKS") or (40 if QUICK else 100))
ROUNDS: Final = int(os.environ.get("ROUNDS") or (1 if QUICK else 3))
# Tasks of all calm tenants in a second: load that leaves the machine's cores mostly idle.
RATE: Final = float(os.environ.get("RATE") or 40.0)
AIM: Final = 1.2
REQUESTS: Final = "requests"
# A storm fills what it reads before it begins.
SETUP_S: Final = 60.0
CLEAR_ROUNDS: Final = 60
CLEAR_CLIENTS: Final = 8


class Windows(NamedTuple):
    """The times of all windows: one dictionary for each round."""

    without: list[Times]
    during: list[Times]


async def beside(
    cluster: Cluster, calm: list[Calm], name: str, key: str, lasts_s: float
) -> tuple[Times, str]:
    """Measure a window while a storm blows; return the outcomes of its requests too."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.isolation.storms", name),
        env={**os.environ, "STORM_URL": cluster.url, "STORM_KEY": key},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SETUP_S):
            assert await process.stdout.readline() == b"ready\n", f"the storm {name} did not begin"
        await asyncio.sleep(SETTLE_S)
        times = await window(calm, TASKS, lasts_s)
    finally:
        process.terminate()
        outcome = (await process.communicate())[0].decode().strip()
    return times, outcome


async def cleared(cluster: Cluster, key: str) -> None:
    """Cancel what the storm left, so that the next window is calm."""
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(cluster.url, headers=headers) as session:
        for _ in range(CLEAR_ROUNDS):
            async with session.get("/v1/jobs", params={"limit": "1000"}) as answer:
                jobs = [job["id"] for job in (await answer.json())["jobs"]]
            if not jobs:
                return
            left = iter(jobs)

            async def cancel() -> None:
                for job in left:  # noqa: B023  awaited within the turn
                    async with session.post(f"/v1/jobs/{job}/cancel") as answer:
                        await answer.read()

            await asyncio.gather(*(cancel() for _ in range(CLEAR_CLIENTS)))
            await asyncio.sleep(SETTLE_S / 2)


def merged(rounds: list[Times]) -> Times:
    """Return the times of all rounds by figure, and of all requests together."""
    found: Times = defaultdict(list)
    for times in rounds:
        for figure, values in times.items():
            found[figure] += values
            if figure != "run":
                found[REQUESTS] += values
    return found


def ratio(during: Times, without: Times, figure: str, part: float) -> float:
    """Return the quantile with the storm over the one without."""
    return quantile(during[figure], part) / quantile(without[figure], part)


def show(name: str, found: Windows, outcome: str, failed: int) -> None:
    """Print each quantile without and with the storm, the ratio of all tasks, and its spread."""
    without, during = merged(found.without), merged(found.during)
    setting = {"storm": name, "answers_to_it": outcome, "tenants": TENANTS, "rounds": ROUNDS}
    say("failed_requests", failed, "requests", len(during[REQUESTS]), **setting)
    for figure in sorted(without):
        for label, part in (("p50", 0.5), ("p99", 0.99)):
            count = len(during[figure])
            say(
                f"{figure}_{label}_ms",
                quantile(during[figure], part),
                "ms",
                count,
                without=round(quantile(without[figure], part), 3),
                ratio=round(ratio(during, without, figure, part), 3),
                storm=name,
            )
    for figure in (REQUESTS, "run"):
        single = [
            ratio(merged([with_storm]), merged([calm]), figure, 0.99)
            for calm, with_storm in zip(found.without, found.during, strict=True)
        ]
        spread = {"least": round(min(single), 3), "most": round(max(single), 3)}
        together, count = ratio(during, without, figure, 0.99), len(during[figure])
        say(f"{figure}_p99_ratio", together, "1", count, **spread, aim_at_most=AIM, **setting)


async def prepared(cluster: Cluster) -> tuple[list[Calm], str]:
    """Return the calm tenants and the hostile one's key; a model serves all of them."""
    backend = str(Path(__file__).parents[1] / "model_backend.py")
    command = [sys.executable, backend, "{port}"]
    await deploy(cluster, {"name": "m", "replicas": 1, "command": command})
    await ready(cluster)
    names = [f"calm{number}" for number in range(1, TENANTS)]
    async with client(cluster) as admin:
        keys = [await member(admin, name) for name in names]
        storm = await member(admin, "hostile")
        async with admin.put("/v1/tenants/hostile", json={"max_gpus": 1}) as answer:
            assert answer.status == 200, await answer.text()
        async with admin.patch("/v1/deployments/m/guests", json={"add": ["*"]}) as answer:
            assert answer.status == 200, await answer.text()
    return [Calm(cluster.url, name, key) for name, key in zip(names, keys, strict=True)], storm


async def measure(cluster: Cluster) -> None:
    """Measure all storms."""
    calm, key = await prepared(cluster)
    lasts_s = len(calm) * TASKS / RATE
    chosen = os.environ.get("STORM", "")
    try:
        await asyncio.gather(*(tenant.prepare() for tenant in calm))
        await window(calm, TASKS, lasts_s)  # once to warm every process
        for name in chosen.split(",") if chosen else STORMS:
            found, outcome = Windows([], []), ""
            for _ in range(ROUNDS):
                # The jobs of before may have left the state, behind those that a storm left.
                await asyncio.gather(*(tenant.prepare() for tenant in calm))
                found.without.append(await window(calm, TASKS, lasts_s))
                times, outcome = await beside(cluster, calm, name=name, key=key, lasts_s=lasts_s)
                found.during.append(times)
                await cleared(cluster, key)
                await asyncio.sleep(SETTLE_S)
            show(name, found, outcome, sum(tenant.failed for tenant in calm))
            for tenant in calm:
                tenant.failed = 0
    finally:
        await asyncio.gather(*(tenant.session.close() for tenant in calm))


if __name__ == "__main__":
    os.environ["MUSTER_JOB_USERS"] = "*=self"
    with running(nodes=2) as started:
        asyncio.run(measure(started))
