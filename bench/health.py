"""Every error of the catalogue on a node with a job on it: the verdict, what became of device and
job, and how long it took until the job ran elsewhere.

Errors are played into the kernel's log and as events of simulated devices, as docs/health.md says;
then each that a vendor's library tells comes as its event: from libraries built from C
(tests/drivers), through the real bindings, on a node with those devices. A library tells nothing of
what only a kernel's log does. A table for people goes to stderr.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from bench.cluster import QUICK, Cluster, client, running, say, submit
from libs.common.devices.error_catalogue import ENDS_JOBS, REBOOT_NODE, REPLACE, Seen, judge
from libs.common.devices.error_rows import catalogue
from libs.embedded.shape import LOCAL_NODE
from tests.drivers.fakes import HERE, NVML, Fakes, build, build_amd

NODES: Final = 2
GPUS: Final = 8
WAIT_S: Final = 20.0
LOOK_S: Final = 0.01
# Time for which the bench checks that a job that must continue does so.
QUIET_S: Final = 0.4
KERNEL: Final = {
    "uncorrectable": (
        "amdgpu {at}: amdgpu: 1 uncorrectable hardware errors detected in total in umc block"
    ),
    "page_fault": "amdgpu {at}: amdgpu: [gfxhub0] no-retry page fault (src_id:0)",
    "driver_reset": "amdgpu {at}: amdgpu: GPU reset begin!",
    "hang": "i915 {at}: [drm] GPU HANG: ecode 12:1:85dffffb",
    "blocked": "xe {at}: [drm] CRITICAL: Xe has declared device {at} as wedged.",
}
EVENTS: Final = {
    "uncorrectable": "ecc",
    "page_fault": "page_fault",
    "driver_reset": "reset_began",
    "lost": "lost",
}
LIBRARY: Final = "library"
# For each vendor's library: NVML's event types and their data, AMD SMI's kinds, and the answer of
# every call for a lost device.
XID_EVENT: Final = 8
TOLD: Final = {
    ("nvidia", "xid 48"): (2, 0),
    ("amd", "page_fault"): (1, 0),
    ("amd", "driver_reset"): (3, 0),
}
LOST: Final = {"nvidia": 15, "amd": 31}
# Some devices stay out of service afterwards.
OWN_GPUS: Final = 16


class Row(NamedTuple):
    vendor: str
    error: str
    source: str


# Injects an error into a device.
Strike = Callable[[Row, dict[str, Any]], None]


class Fate(NamedTuple):
    verdict: str
    device: str
    job: str
    elsewhere_ms: float | None


def rows() -> Iterator[Row]:
    """Yield each error once for each way in which a node can report it."""
    for vendor, error in dict.fromkeys(
        (row.vendor or "nvidia", error) for row in catalogue().rows for error in row.errors
    ):
        if error.startswith("xid ") or error in KERNEL:
            yield Row(vendor, error, "kernel_log")
        if not QUICK and (error.startswith("xid ") or error in EVENTS):
            yield Row(vendor, error, "driver")


def reports() -> Iterator[Row]:
    """Yield each error that a vendor's library reports."""
    for vendor, error in dict.fromkeys(
        (row.vendor or known, error)
        for row in catalogue().rows
        for error in row.errors
        for known in LOST
    ):
        if (
            (vendor == "nvidia" and error.startswith("xid "))
            or (vendor, error) in TOLD
            or (error == "lost" and vendor in LOST)
        ):
            yield Row(vendor, error, LIBRARY)


def happen(fakes: Fakes, lost: dict[str, list[int]], row: Row, index: int) -> None:
    """Make the library report an event, or stop answering."""
    if row.error == "lost":
        lost[row.vendor].append(index)
        fakes.tell(
            row.vendor,
            f"count * {OWN_GPUS}",
            *(f"* {one} {LOST[row.vendor]}" for one in lost[row.vendor]),
        )
    else:
        kind, data = TOLD.get((row.vendor, row.error)) or (
            XID_EVENT,
            int(row.error.removeprefix("xid ")),
        )
        fakes.happen(row.vendor, index, kind, data)


def play(state: Path, row: Row, node: str, address: str) -> None:
    pipe, number = (
        ("kernel-log", row.error[4:])
        if row.source == "kernel_log"
        else ("driver-events", row.error[4:])
    )
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
    """Wait until this attempt of the job runs or the job has ended; return the job."""
    async with asyncio.timeout(WAIT_S):
        while True:
            shown: dict[str, Any] = await got(session, f"/v1/jobs/{job}")
            if shown["ended_at"] or (shown["attempt"] == attempt and shown["state"] == "running"):
                return shown
            await asyncio.sleep(LOOK_S)


async def settled(session: aiohttp.ClientSession, uuid: str) -> None:
    """Its reset is over, if it comes to one: while NVML is closed for that, it tells of no other
    device either.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            gpu = await got(session, f"/v1/gpus/{uuid}")
            if not gpu["holders"] and (
                gpu["health"] == "healthy" or gpu["verdict"] in (REBOOT_NODE, REPLACE)
            ):
                return
            await asyncio.sleep(LOOK_S)


async def device_of(session: aiohttp.ClientSession, job: str) -> str:
    gpus = (await got(session, "/v1/gpus"))["gpus"]
    return str(
        next(
            (
                one["uuid"]
                for one in gpus
                if any(holder["job_id"] == job for holder in one["holders"])
            ),
            "",
        )
    )


async def fate_of(
    session: aiohttp.ClientSession, row: Row, strike: Strike, wish: dict[str, Any]
) -> Fate:
    job = await submit(session, "sleep", "1000", gpus=1, retries=1, **wish)
    await until(session, job, 1)
    (gpu,) = [
        one
        for one in (await got(session, "/v1/gpus"))["gpus"]
        if any(holder["job_id"] == job for holder in one["holders"])
    ]
    verdict = judge(Seen(row.vendor, gpu["model"], "", row.error), catalogue(), {}).verdict
    began = time.monotonic()
    strike(row, gpu)
    if verdict in ENDS_JOBS:
        shown = await until(session, job, 2)
        elsewhere_ms = (time.monotonic() - began) * 1_000
        outcome = (
            "runs again, one retry used" if shown["retries_used"] else "runs again, no retry used"
        )
        outcome = (
            outcome.replace("again", "elsewhere")
            if await device_of(session, job) != gpu["uuid"]
            else outcome
        )
    else:
        await asyncio.sleep(QUIET_S)
        shown, elsewhere_ms = await until(session, job, 1), None
        outcome = "goes on"
    (device,) = [
        one for one in (await got(session, "/v1/gpus"))["gpus"] if one["uuid"] == gpu["uuid"]
    ]
    await (await session.post(f"/v1/jobs/{job}/cancel", json={"grace_s": 0})).read()
    await settled(session, gpu["uuid"])
    return Fate(
        verdict,
        f"{device['state']} {device['reason']}".strip(),
        outcome if not shown["ended_at"] else "ENDED",
        elsewhere_ms,
    )


async def measure(
    cluster: Cluster, errors: Iterator[Row], strike: Strike, own: bool = False
) -> list[tuple[Row, Fate]]:
    """Measure one error; `own`: on the devices of the error's vendor."""
    found = []
    async with client(cluster) as session:
        for row in errors:
            fate = await fate_of(session, row, strike, {"vendor": row.vendor} if own else {})
            took = f"{fate.elsewhere_ms:.0f} ms" if fate.elsewhere_ms is not None else "-"
            print(
                (
                    f"{row.vendor:7} {row.error:14} {row.source:11} {fate.verdict:17} "
                    f"{fate.device:24} {fate.job:30} {took}"
                ),
                file=sys.stderr,
            )
            found.append((row, fate))
    return found


def simulated() -> list[tuple[Row, Fate]]:
    with running(nodes=NODES, gpus=GPUS) as cluster:

        def strike(row: Row, gpu: dict[str, Any]) -> None:
            play(cluster.state, row, gpu["node_id"], gpu["pcie_bus_id"])

        return asyncio.run(measure(cluster, rows(), strike))


def by_libraries() -> list[tuple[Row, Fate]]:
    """Measure errors on a node with devices of two vendors."""
    with tempfile.TemporaryDirectory() as name:
        folder, lost = Path(name), {vendor: list[int]() for vendor in LOST}
        fakes = Fakes(folder)
        build(folder, NVML, HERE / "nvml.c")
        build_amd(folder)
        for vendor in LOST:
            fakes.tell(vendor, f"count * {OWN_GPUS}")
        (folder / "nvidia-smi").write_text("#!/bin/sh\nexit 0\n")  # a reset that is done at once
        (folder / "nvidia-smi").chmod(0o755)
        own = {
            "LD_LIBRARY_PATH": name,
            "FAKE_DRIVERS": name,
            "PATH": f"{name}:{os.environ['PATH']}",
        }
        os.environ.update(own)
        with running(nodes=1, gpus=1, local=own) as cluster:
            assert any(process.endswith(LOCAL_NODE) for process in cluster.processes), (
                "the node with devices of its own"
            )
            return asyncio.run(
                measure(
                    cluster,
                    reports(),
                    lambda row, gpu: happen(fakes, lost, row, gpu["index"]),
                    own=True,
                )
            )


def figures(found: list[tuple[Row, Fate]], **setting: Any) -> None:
    times = sorted(fate.elsewhere_ms for _, fate in found if fate.elsewhere_ms is not None)
    say("elsewhere_p50_ms", times[len(times) // 2], "ms", len(times), **setting)
    say("elsewhere_max_ms", times[-1], "ms", len(times), **setting)
    verdicts = json.dumps(sorted({fate.verdict for _, fate in found}))
    say(
        "errors",
        len(found),
        "rows",
        len(found),
        ended=sum(fate.job == "ENDED" for _, fate in found),
        verdicts=verdicts,
        **setting,
    )


def main() -> None:
    # Each row's device is repaired before the next: the breaker would rightly stop that.
    os.environ["MUSTER_HEALTH_BREAKER_S"] = "0"
    figures(simulated(), nodes=NODES, gpus=GPUS, simulated=True)
    figures(by_libraries(), nodes=1, gpus=2 * OWN_GPUS, told_by="libraries built from C")


if __name__ == "__main__":
    main()
