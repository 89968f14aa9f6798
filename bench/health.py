"""Every error of the catalogue on a simulated node with a job on it: the verdict, what became of device and job, and how long it took
until the job ran elsewhere.

Errors are played into the kernel's log and as events of the driver, as docs/health.md says; the devices are simulated, everything else
is real. A table for people goes to stderr.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from bench.cluster import QUICK, Cluster, client, running, say, submit
from libs.common.error_catalogue import ENDS_JOBS, Seen, judge
from libs.common.error_rows import catalogue

NODES: Final = 2
GPUS: Final = 8
WAIT_S: Final = 20.0
LOOK_S: Final = 0.01
# So long it is watched that nothing happens to a job that shall go on.
QUIET_S: Final = 0.4
KERNEL: Final = {
    "uncorrectable": "amdgpu {at}: amdgpu: 1 uncorrectable hardware errors detected in total in umc block",
    "page_fault": "amdgpu {at}: amdgpu: [gfxhub0] no-retry page fault (src_id:0)",
    "driver_reset": "amdgpu {at}: amdgpu: GPU reset begin!",
    "hang": "i915 {at}: [drm] GPU HANG: ecode 12:1:85dffffb",
    "blocked": "xe {at}: [drm] CRITICAL: Xe has declared device {at} as wedged.",
}
EVENTS: Final = {"uncorrectable": "ecc", "page_fault": "page_fault", "driver_reset": "reset_began", "lost": "lost"}


class Row(NamedTuple):
    vendor: str
    error: str
    source: str


class Fate(NamedTuple):
    verdict: str
    device: str
    job: str
    elsewhere_ms: float | None


def rows() -> Iterator[Row]:
    """Each error by each way in which it is told."""
    for vendor, error in dict.fromkeys((row.vendor or "nvidia", error) for row in catalogue().rows for error in row.errors):
        if error.startswith("xid ") or error in KERNEL:
            yield Row(vendor, error, "kernel_log")
        if not QUICK and (error.startswith("xid ") or error in EVENTS):
            yield Row(vendor, error, "driver")


def play(state: Path, row: Row, node: str, address: str) -> None:
    pipe, number = ("kernel-log", row.error[4:]) if row.source == "kernel_log" else ("driver-events", row.error[4:])
    if row.source == "driver":
        kind = "xid" if row.error.startswith("xid ") else EVENTS[row.error]
        line = f"{row.vendor} {address} {kind} {number if kind == 'xid' else 0} played"
    elif row.error.startswith("xid "):
        line = f"3,1,1,-;NVRM: Xid (PCI:{address.rpartition('.')[0]}): {number}, played"
    else:
        line = f"3,1,1,-;{KERNEL[row.error].format(at=address)}"
    with open(state / "services" / node / pipe, "w") as file:
        file.write(line + "\n")


async def got(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as answer:
        return await answer.json()


async def until(session: aiohttp.ClientSession, job: str, attempt: int) -> dict[str, Any]:
    """The job, once this attempt of it runs, or it has ended."""
    async with asyncio.timeout(WAIT_S):
        while True:
            shown: dict[str, Any] = await got(session, f"/v1/jobs/{job}")
            if shown["ended_at"] or (shown["attempt"] == attempt and shown["state"] == "running"):
                return shown
            await asyncio.sleep(LOOK_S)


async def fate_of(cluster: Cluster, session: aiohttp.ClientSession, row: Row) -> Fate:
    job = await submit(session, "sleep", "1000", gpus=1, retries=1)
    await until(session, job, 1)
    (gpu,) = [one for one in (await got(session, "/v1/gpus"))["gpus"] if any(holder["job_id"] == job for holder in one["holders"])]
    verdict = judge(Seen(row.vendor, gpu["model"], "", row.error), catalogue(), {}).verdict
    began = time.monotonic()
    play(cluster.state, row, gpu["node_id"], gpu["pcie_bus_id"])
    if verdict in ENDS_JOBS:
        shown = await until(session, job, 2)
        elsewhere_ms = (time.monotonic() - began) * 1_000
        said = "runs again, one retry used" if shown["retries_used"] else "runs elsewhere, no retry used"
    else:
        await asyncio.sleep(QUIET_S)
        shown, elsewhere_ms = await until(session, job, 1), None
        said = "goes on"
    (device,) = [one for one in (await got(session, "/v1/gpus"))["gpus"] if one["uuid"] == gpu["uuid"]]
    await (await session.post(f"/v1/jobs/{job}/cancel", json={"grace_s": 0})).read()
    return Fate(verdict, f"{device['state']} {device['reason']}".strip(), said if not shown["ended_at"] else "ENDED", elsewhere_ms)


async def measure(cluster: Cluster) -> list[tuple[Row, Fate]]:
    found = []
    async with client(cluster) as session:
        for row in rows():
            fate = await fate_of(cluster, session, row)
            took = f"{fate.elsewhere_ms:.0f} ms" if fate.elsewhere_ms is not None else "-"
            print(f"{row.vendor:7} {row.error:14} {row.source:11} {fate.verdict:17} {fate.device:24} {fate.job:30} {took}", file=sys.stderr)
            found.append((row, fate))
    return found


def main() -> None:
    # Each row's device is repaired before the next: the breaker would rightly stop that.
    os.environ["MUSTER_HEALTH_BREAKER_S"] = "0"
    with running(nodes=NODES, gpus=GPUS) as cluster:
        found = asyncio.run(measure(cluster))
    times = sorted(fate.elsewhere_ms for _, fate in found if fate.elsewhere_ms is not None)
    say("elsewhere_p50_ms", times[len(times) // 2], "ms", len(times), nodes=NODES, gpus=GPUS, simulated=True)
    say("elsewhere_max_ms", times[-1], "ms", len(times))
    say("errors", len(found), "rows", len(found), verdicts=json.dumps(sorted({fate.verdict for _, fate in found})))


if __name__ == "__main__":
    main()
