"""Sample what processes use, from /proc, and what the servers of the bus hold."""

import asyncio
import csv
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

EVERY_S: Final = 5.0
ASK_S: Final = 5.0
KIB: Final = 1 / 1_024
TASKS: Final = "muster_gateway_tasks "


class Sample(msgspec.Struct, frozen=True):
    """One process at one time. `tasks` are asyncio's, where the process shows them, else -1."""

    at_s: float
    process: str
    rss_mib: float
    pss_mib: float
    descriptors: int
    threads: int
    tasks: int = -1


class BusSample(msgspec.Struct, frozen=True):
    """One nats-server at one time."""

    at_s: float
    server: str
    streams: int
    consumers: int
    connections: int
    subscriptions: int
    bytes: int


def sample(at_s: float, name: str, pid: int, tasks: int = -1) -> Sample | None:
    """Return what the process uses now; None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        rollup = _fields((folder / "smaps_rollup").read_text())
        status = _fields((folder / "status").read_text())
        descriptors = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return None
    if "Rss" not in rollup or "Threads" not in status:
        return None
    return Sample(
        at_s=round(at_s, 1),
        process=name,
        rss_mib=round(rollup["Rss"] * KIB, 2),
        pss_mib=round(rollup["Pss"] * KIB, 2),
        descriptors=descriptors,
        threads=status["Threads"],
        tasks=tasks,
    )


def _fields(text: str) -> dict[str, int]:
    """Return the numeric fields of a file of /proc."""
    rows = (line.partition(":") for line in text.splitlines())
    words = ((name, rest.split()) for name, _, rest in rows)
    return {name: int(rest[0]) for name, rest in words if rest and rest[0].isdigit()}


class Sampling:
    """Samples of all processes that `processes` names, until cancelled; each is a line of a CSV
    file in `folder` at once.
    """

    def __init__(
        self,
        folder: Path,
        processes: Callable[[], Mapping[str, int]],
        gateways: Mapping[str, str],
        monitors: Sequence[str],
    ) -> None:
        self.folder, self.processes = folder, processes
        self.gateways, self.monitors = gateways, monitors
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.bus: dict[str, list[BusSample]] = defaultdict(list)
        self.began = time.monotonic()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with aiohttp.ClientSession(timeout=timeout) as asking:
            while True:
                await self._look(asking)
                await asyncio.sleep(EVERY_S)

    async def _look(self, asking: aiohttp.ClientSession) -> None:
        at_s = time.monotonic() - self.began
        for name, pid in self.processes().items():
            tasks = -1
            if name in self.gateways:
                tasks = await _tasks(asking, self.gateways[name])
            found = await asyncio.to_thread(sample, at_s, name, pid, tasks)
            if found is not None:
                self.samples[name].append(found)
                _append(self.folder / "processes.csv", found)
        for number, url in enumerate(self.monitors, 1):
            bus = await _bus(asking, round(at_s, 1), f"nats-{number}", url)
            if bus is not None:
                self.bus[bus.server].append(bus)
                _append(self.folder / "bus.csv", bus)


async def _tasks(asking: aiohttp.ClientSession, url: str) -> int:
    try:
        async with asking.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return -1
    found = [line.removeprefix(TASKS) for line in lines if line.startswith(TASKS)]
    return int(float(found[0])) if found else -1


async def _bus(
    asking: aiohttp.ClientSession, at_s: float, server: str, url: str
) -> BusSample | None:
    try:
        stores = await _json(asking, f"{url}/jsz")
        shown = await _json(asking, f"{url}/varz")
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    return BusSample(
        at_s=at_s,
        server=server,
        streams=stores.get("streams", 0),
        consumers=stores.get("consumers", 0),
        connections=shown["connections"],
        subscriptions=shown["subscriptions"],
        bytes=stores.get("bytes", 0),
    )


async def _json(asking: aiohttp.ClientSession, url: str) -> Any:
    async with asking.get(url) as answer:
        return await answer.json(content_type=None)


def _append(path: Path, row: Sample | BusSample) -> None:
    new = not path.exists()
    fields = msgspec.structs.asdict(row)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(fields))
        if new:
            writer.writeheader()
        writer.writerow(fields)
