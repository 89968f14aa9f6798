"""Time from the agent's order to a job's first line of output, and the processor time of a launch.

One agent's supervisors run `date` as the job, one job after the other, and then `true` in parallel.
Prints one JSON line per figure. QUICK=1 runs fewer.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from services.node_agent.machine import processes
from services.node_agent.supervision import output
from services.node_agent.supervision.launch_request import LaunchRequest
from services.node_agent.supervision.supervised_job import Key
from services.node_agent.supervision.supervisor_client import SupervisorClient
from services.node_agent.supervisor.lease import Lease, boottime_ns

QUICK = os.environ.get("QUICK") == "1"
SEQUENTIAL = 100 if QUICK else 400
PARALLEL = 300 if QUICK else 1500
AT_ONCE = 16
LEASE_NS = 3_600_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, folder: str) -> None:
        self.supervisors = SupervisorClient(folder, self._note)
        self.lease = Lease(f"{folder}/lease")
        self.lease.extend(boottime_ns() + LEASE_NS)
        self._ended: dict[Key, asyncio.Event] = {}

    def _note(self, key: Key, event: str, record: Mapping[str, Any]) -> None:
        if event == "exited":
            self._ended[key].set()

    async def run(self, name: str, *argv: str) -> Key:
        key = (name, 1)
        self._ended[key] = asyncio.Event()
        env = {"PATH": os.environ["PATH"]}
        await self.supervisors.launch(
            LaunchRequest(
                job_id=name,
                attempt=1,
                argv=list(argv),
                env=env,
                workdir="/tmp",
                lease_path=self.lease.path,
            )
        )
        await self._ended[key].wait()
        return key

    async def latencies_ms(self) -> list[float]:
        """Return the times from the call of `launch` to the time that the job printed: marker, both
        forks, exec and the start of `date` included.
        """
        found = []
        for number in range(SEQUENTIAL):
            before_ns = time.time_ns()
            key = await self.run(f"date-{number}", "/bin/date", "+%s%N")
            await asyncio.sleep(0.002)
            found.append(
                (int(output.read(self.supervisors.job_dir(key), "stdout", 0, 100).data) - before_ns)
                / 1e6
            )
        return found

    async def throughput(self) -> float:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await self.run(f"true-{number}", "/bin/true")

        began = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(PARALLEL)))
        return PARALLEL / (time.monotonic() - began)

    def zygote_cpu_ms(self) -> float:
        """Return the CPU time of the zygote, its supervisors, and every supervisor and job that was
        waited for.
        """
        zygote = self.supervisors._zygote.pid
        return sum(map(cpu_ms, (zygote, *processes.children(zygote))))


def cpu_ms(pid: int) -> float:
    """Return a process's CPU time with that of its ended children."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) * 1000 / TICKS


def show(figure: str, value: float, unit: str, n: int) -> None:
    alone = figure.startswith("start")
    setting = {
        "job": "date" if alone else "true",
        "at_once": 1 if alone else AT_ONCE,
        "cores": os.cpu_count(),
    }
    print(
        json.dumps(
            {"figure": figure, "value": round(value, 3), "unit": unit, "n": n, "setting": setting}
        )
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder)
        await bench.supervisors.start()
        await bench.run("first", "/bin/true")
        quantiles = statistics.quantiles(await bench.latencies_ms(), n=100)
        show("start_p50_ms", quantiles[49], "ms", SEQUENTIAL)
        show("start_p99_ms", quantiles[98], "ms", SEQUENTIAL)
        zygote_ms, agent_ms = bench.zygote_cpu_ms(), time.process_time() * 1000
        show("jobs_per_s", await bench.throughput(), "1/s", PARALLEL)
        await asyncio.sleep(0.2)
        show("cpu_ms_per_job", (bench.zygote_cpu_ms() - zygote_ms) / PARALLEL, "ms", PARALLEL)
        show(
            "agent_cpu_ms_per_job",
            (time.process_time() * 1000 - agent_ms) / PARALLEL,
            "ms",
            PARALLEL,
        )
        await bench.supervisors.close()


asyncio.run(main())
