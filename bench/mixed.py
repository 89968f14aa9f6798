"""A full cluster under a mixed load for ten minutes: allocation, and how busy the held devices are.

Four embedded nodes have eight simulated devices each. All processes start as in `muster up`. The
load of `mixed_load.py` asks for a sixth more than the cluster has.

The bench prints two figures that must not be confused. *Allocation* comes from the ledger: held
shares of devices, as a part of all usable ones. *Sampled utilisation* covers held devices only and
comes from the nodes' metrics: the part of the last second in which jobs kept the device busy. Jobs
report that time as docs/howto/simulated-devices.md describes.

A job's program decides how busy the job is while it runs (`mixed_job.py`, the example server). This
bench measures how much of that remains after starting, saving, preempting and releasing. QUICK=1
runs for fifteen seconds.
"""

import asyncio
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import aiohttp
import uvloop

from bench.cluster import QUICK, Cluster, client, quantile, running, say
from bench.mixed_load import (
    CAPACITY,
    CLASSES,
    INFERENCE,
    LOAD,
    SEED,
    Records,
    arrivals,
    asking,
    deploy,
    submitting,
)
from libs.embedded import servers

NODES: Final = 4
WARM_S: Final = 10.0 if QUICK else 60.0
MEASURED_S: Final = 15.0 if QUICK else 600.0
LOOK_S: Final = 1.0
SUBMITTED, PLACED, PREEMPTED = "job.submitted", "job.placed", "job.preempted"
BUSY: Final = re.compile(r'^muster_gpu_busy_ratio\{.*UUID="([^"]+)".*\} (\S+)$', re.MULTILINE)


class Look(NamedTuple):
    """At one moment, by class: the devices that it has, parts of them as parts, and how busy each
    is of which it has something.
    """

    held: Mapping[str, float]
    busy: Mapping[str, list[float]]


async def looking(session: aiohttp.ClientSession, ports: list[int], records: Records) -> list[Look]:
    """Collect looks; each covers the time since the one before, the first one covers nothing."""
    looks: list[Look] = []
    await look(session, ports, records)
    await asyncio.sleep(LOOK_S)
    began = time.monotonic()
    while time.monotonic() < began + MEASURED_S:
        looks.append(await look(session, ports, records))
        await asyncio.sleep(max(0.0, began + len(looks) * LOOK_S - time.monotonic()))
    return looks


async def look(session: aiohttp.ClientSession, ports: list[int], records: Records) -> Look:
    async with session.get("/v1/allocations") as answer:
        rows = (await answer.json())["allocations"]
    texts = await asyncio.gather(*(scraped(session, port) for port in ports))
    busy = {uuid: float(value) for text in texts for uuid, value in BUSY.findall(text)}
    held = dict.fromkeys(CLASSES, 0.0)
    devices: dict[
        str, str
    ] = {}  # of one class each: nothing but the model's replicas shares a device
    for row in rows:
        kind = records.classes.get(row["job_id"], INFERENCE)
        held[kind] += row["share"] / 100
        devices[row["gpu_uuid"]] = kind
    return Look(
        held,
        {
            kind: [busy[uuid] for uuid, found in devices.items() if found == kind]
            for kind in CLASSES
        },
    )


async def scraped(session: aiohttp.ClientSession, port: int) -> str:
    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.status == 200
        return await answer.text()


async def loaded(
    session: aiohttp.ClientSession, ports: list[int], records: Records, folder: Path
) -> list[Look]:
    """Apply the load and return the looks that were taken after the warm-up."""
    await deploy(session)
    loads = [
        asyncio.create_task(submitting(session, arrivals(WARM_S + MEASURED_S, folder), records)),
        asyncio.create_task(asking(session, records)),
    ]
    await asyncio.sleep(WARM_S)
    records.answers_s.clear()
    looks = await looking(session, ports, records)
    loads[1].cancel()
    for found in await asyncio.gather(*loads, return_exceptions=True):
        if isinstance(found, Exception):
            raise found
    return looks


def show(looks: list[Look]) -> None:
    """Print both figures for each class and for all classes together."""
    for name, kinds in [*((kind, (kind,)) for kind in CLASSES), ("all", CLASSES)]:
        held = [100 * sum(seen.held[kind] for kind in kinds) / CAPACITY for seen in looks]
        busy = [[100 * value for kind in kinds for value in seen.busy[kind]] for seen in looks]
        means = [mean(values) for values in busy if values]
        setting = {
            "class": name,
            "gpus": CAPACITY,
            "seconds": MEASURED_S,
            "load": round(LOAD, 2),
            "seed": SEED,
        }
        say("allocation_mean_pct", mean(held), "% of all devices", len(held), **setting)
        say(
            "sampled_utilisation_mean_pct",
            mean(each for values in busy for each in values),
            "% of held devices",
            len(means),
            **setting,
        )
        say("allocation_p5_pct", quantile(held, 0.05), "% of all devices", len(held), **setting)
        say(
            "sampled_utilisation_p5_pct",
            quantile(means, 0.05),
            "% of held devices",
            len(means),
            **setting,
        )


async def show_waits(session: aiohttp.ClientSession, records: Records) -> None:
    """From the submission to the first placement; who is not placed yet has waited at least until
    now, and is counted apart.
    """
    asked: dict[str, datetime] = {}
    waits: dict[str, dict[str, float]] = {kind: {} for kind in CLASSES}
    preempted = 0
    async for event in events(session, ",".join((SUBMITTED, PLACED, PREEMPTED))):
        job, at = event["fact"]["job_id"], datetime.fromisoformat(event["at"])
        if event["kind"] == SUBMITTED:
            asked[job] = at
        elif event["kind"] == PREEMPTED:
            preempted += 1
        elif job in asked:
            waits[records.classes[job]].setdefault(job, (at - asked[job]).total_seconds())
    for kind in CLASSES:
        values, waiting = (
            list(waits[kind].values()),
            sum(records.classes[job] == kind for job in asked) - len(waits[kind]),
        )
        for label, part in (("p50", 0.5), ("p95", 0.95)) if values else ():
            say(
                f"wait_{label}_s",
                quantile(values, part),
                "s",
                len(values),
                **{"class": kind, "still_waiting": waiting},
            )
    say("preemptions", preempted, "jobs", 1)


async def events(session: aiohttp.ClientSession, kind: str) -> AsyncIterator[dict[str, Any]]:
    after, more = 0, True
    while more:
        async with session.get(
            "/v1/events", params={"kind": kind, "after": str(after), "limit": "1000"}
        ) as answer:
            page = await answer.json()
        after, more = page["next"], page["more"]
        for event in page["events"]:
            yield event


async def measure(cluster: Cluster, ports: list[int]) -> None:
    records = Records({}, [])
    with tempfile.TemporaryDirectory() as folder:
        async with client(cluster) as session:
            show(await loaded(session, ports, records, Path(folder)))
            for label, part in (("p50", 0.5), ("p99", 0.99)):
                say(
                    f"model_answer_{label}_ms",
                    1_000 * quantile(records.answers_s, part),
                    "ms",
                    len(records.answers_s),
                )
            await show_waits(session, records)


def main() -> None:
    first = servers.free_port_run(NODES)
    os.environ["MUSTER_METRICS_PORT"] = str(first)
    with running(nodes=NODES, gpus=CAPACITY // NODES) as cluster:
        uvloop.run(measure(cluster, list(range(first, first + NODES))))


if __name__ == "__main__":
    main()
