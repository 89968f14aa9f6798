"""`python -m bench.scale`: the same figures at 8, 128 and 1,250 nodes of 8 GPUs.

Registration of all nodes at once, the control plane's processor when nothing happens, jobs of the
shapes of flux-schedbench (throughput of no-op jobs, time to fill the machine with mixed sizes,
share of gangs within one rack), the loss of 16 nodes under jobs, and a take-over with 100,000
elements waiting. `SIZES=8,128` chooses sizes, `STEPS=fill,lose` steps. Every figure names its
number of nodes.
"""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.cluster import (
    QUICK,
    Cluster,
    client,
    counts,
    cpu_of,
    end,
    quantile,
    running,
    say,
    submit,
)
from bench.scale.swarm import RACK_NODES
from libs.common.life import job_life
from libs.embedded import plan
from libs.embedded.living import die_with_parent

SIZES: Final = tuple(
    int(size) for size in os.environ.get("SIZES", "8,128" if QUICK else "8,128,1250").split(",")
)
STEPS: Final = tuple(filter(None, os.environ.get("STEPS", "").split(",")))
GPUS: Final = 8
PROCESSES_MAX: Final = 4
JOBS: Final = 500 if QUICK else 5_000
GANGS: Final = 50
CLIENTS: Final = 32
LOST: Final = 16
QUEUED: Final = 100_000
ARRAY: Final = 1_000_000
IDLE_S: Final = 5.0 if QUICK else 20.0
WITHIN_S: Final = 240.0
LOOK_S: Final = 0.2
LONG: Final = ("sleep", "100000")
SCHEDULERS: Final = tuple(plan.members(plan.SCHEDULER, 2))
KINDS: Final = ("nats", "scheduler", "quota", "audit", "gateway")


class Agents:
    """The processes of agents: `lost` holds the last LOST nodes, the others hold the rest.

    The lost are less than half of the nodes: the scheduler trusts no silence of more.
    """

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self.cluster, self.nodes = cluster, nodes
        alone = min(LOST, nodes // 4)
        rest = nodes - alone
        parts = min(PROCESSES_MAX, rest)
        begins = [1 + rest * part // parts for part in range(parts + 1)]
        spans = [(first, following - first) for first, following in pairwise(begins)]
        self.lost_nodes = [f"node-{number}" for number in range(rest + 1, nodes + 1)]
        self.others = [self._start(first, count) for first, count in spans]
        self.lost = self._start(rest + 1, alone)

    @property
    def processes(self) -> list["subprocess.Popen[bytes]"]:
        return [*self.others, self.lost]

    def _start(self, first: int, count: int) -> "subprocess.Popen[bytes]":
        told = [str(first), str(count), str(GPUS), str(self.cluster.state / "keys")]
        line = [sys.executable, "-m", "bench.scale.swarm", *told, self.cluster.added["MUSTER_NATS"]]
        with (self.cluster.state / "logs" / f"swarm-{first}.log").open("ab") as log:
            return subprocess.Popen(line, stdout=log, stderr=log, preexec_fn=die_with_parent())

    def cpu_s(self) -> float:
        """Return the processor seconds of all agents so far."""
        return sum(cpu_of(each.pid, children=False) for each in self.processes)

    def rss_mib(self) -> float:
        """Return the resident memory of all agents."""
        fields = [Path(f"/proc/{each.pid}/statm").read_text().split() for each in self.processes]
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(found[1]) for found in fields) * page / (1 << 20)


@contextmanager
def with_agents(nodes: int) -> Iterator[tuple[Cluster, Agents]]:
    """Run a control plane for that many nodes, and their agents."""
    with running(nodes=nodes, gpus=GPUS, agents=False, schedulers=2) as cluster:
        agents = Agents(cluster, nodes)
        try:
            yield cluster, agents
        finally:
            end(agents.processes)


def cpu_s(cluster: Cluster) -> dict[str, float]:
    """Return the processor seconds of the control plane so far, by kind of process."""
    used = dict.fromkeys(KINDS, 0.0)
    for name, process in cluster.processes.items():
        kind = name.split("-")[0]
        used[kind] = used.get(kind, 0.0) + cpu_of(process.pid, children=False)
    return used


async def states(session: aiohttp.ClientSession) -> dict[str, str]:
    async with session.get("/v1/nodes", params={"limit": "5000"}) as answer:
        found = (await answer.json()).get("nodes", [])
    return {node["id"]: node["state"] for node in found}


async def until(found: Callable[[], Awaitable[bool]], what: str) -> float:
    """Wait until `found()` is true; return the seconds. Raises TimeoutError."""
    began = time.monotonic()
    while not await found():
        if time.monotonic() - began > WITHIN_S:
            raise TimeoutError(f"{what}: not within {WITHIN_S:.0f} s")
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - began


class Measuring:
    """The figures of one size."""

    def __init__(self, cluster: Cluster, agents: Agents, session: aiohttp.ClientSession) -> None:
        self.cluster, self.agents, self.session = cluster, agents, session
        self.nodes = agents.nodes

    def say(self, figure: str, value: float | None, unit: str, n: int, **more: Any) -> None:
        say(figure, value, unit, n, nodes=self.nodes, gpus=GPUS, **more)

    async def register(self) -> None:
        async def all_healthy() -> bool:
            known = await states(self.session)
            return sum(state == "healthy" for state in known.values()) == self.nodes

        self.say("register_s", await until(all_healthy, "registration"), "s", self.nodes)
        self.say("agent_rss_mib", self.agents.rss_mib() / self.nodes, "MiB", self.nodes)

    async def idle(self) -> None:
        """The processor of the control plane, and of the agents, when no job runs."""
        before, agents, began = cpu_s(self.cluster), self.agents.cpu_s(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        took = time.monotonic() - began
        self.say("agents_cpu_pct", 100 * (self.agents.cpu_s() - agents) / took, "%", self.nodes)
        used = {
            kind: 100 * (now - before[kind]) / took for kind, now in cpu_s(self.cluster).items()
        }
        parts = {kind: round(each, 1) for kind, each in used.items()}
        self.say("idle_cpu_pct", sum(used.values()), "%", 1, **parts)

    async def throughput(self) -> None:
        """No-op jobs from submission to clean."""
        ended = (await counts(self.session)).get("completed", 0)
        began, left = time.monotonic(), iter(range(JOBS))

        async def submitter() -> None:
            for _ in left:
                await submit(self.session, "true")

        await asyncio.gather(*(submitter() for _ in range(CLIENTS)))

        async def all_ended() -> bool:
            return (await counts(self.session)).get("completed", 0) >= ended + JOBS

        await until(all_ended, "jobs")
        self.say("jobs_per_s", JOBS / (time.monotonic() - began), "1/s", JOBS)

    async def fill(self) -> None:
        """Fill the machine with jobs of 1, 2, 4 and 8 GPUs, by arrays; then empty it again."""
        total, made = self.nodes * GPUS, []
        began = time.monotonic()
        for size in (8, 4, 2, 1):
            elements = total // 4 // size
            made.append(await submit(self.session, *LONG, gpus=size, array=f"0-{elements - 1}"))

        async def full() -> bool:
            return await self._busy() >= total - total % 32

        await until(full, "filling")
        self.say("fill_s", time.monotonic() - began, "s", total)
        await self._empty(made)

    async def _busy(self) -> int:
        async with self.session.get("/v1/cluster") as answer:
            return int((await answer.json())["gpu_share_held"]) // 100

    async def _empty(self, made: Sequence[str]) -> None:
        for job in made:
            async with self.session.post(f"/v1/jobs/{job}/cancel") as answer:
                await answer.read()

        async def empty() -> bool:
            found = await counts(self.session)
            return not sum(found.get(state, 0) for state in job_life.LIVE)

        self.say("empty_s", await until(empty, "emptying"), "s", len(made))

    async def locality(self) -> None:
        """Gangs of two nodes: the share of those within one rack."""
        count = min(GANGS, self.nodes // 4)
        jobs = [await submit(self.session, *LONG, gpus=GPUS, nodes=2) for _ in range(count)]
        within = 0
        for job in jobs:
            racks = {
                (int(node.rpartition("-")[2]) - 1) // RACK_NODES for node in await self._on(job)
            }
            within += len(racks) == 1
        self.say("gangs_in_one_rack_pct", 100 * within / count, "%", count)
        await self._empty(jobs)

    async def _on(self, job: str) -> list[str]:
        """Wait until the job is placed; return its nodes."""
        nodes: list[str] = []

        async def placed() -> bool:
            async with self.session.get(f"/v1/jobs/{job}") as answer:
                nodes[:] = (await answer.json())["node_ids"]
            return bool(nodes)

        await until(placed, f"placement of {job}")
        return nodes

    async def lose(self) -> None:
        """End the agents of LOST nodes at once, without a word; until each node is given up."""
        names = self.agents.lost_nodes
        self.agents.lost.kill()
        self.agents.lost.wait()
        began = time.monotonic()
        seen: dict[str, float] = {}

        async def all_lost() -> bool:
            now = await states(self.session)
            for name in names:
                if now.get(name) != "healthy":
                    seen.setdefault(name, time.monotonic() - began)
            return len(seen) == len(names)

        await until(all_lost, "loss of nodes")
        times = list(seen.values())
        self.say("nodes_lost_p50_s", quantile(times, 0.5), "s", len(times))
        self.say("nodes_lost_max_s", max(times), "s", len(times))

    async def array(self) -> None:
        """An array of ARRAY elements: until its first element runs, or why it is refused."""
        body = {"command": list(LONG), "gpus": 1, "array": f"0-{ARRAY - 1}"}
        limits = {"max_waiting": 2 * ARRAY}
        async with self.session.put("/v1/tenants/default", json=limits) as answer:
            assert answer.status < 300, await answer.text()
        began = time.monotonic()
        async with self.session.post("/v1/jobs", json=body) as answer:
            made = await answer.json()
            if answer.status != 201:
                self.say("array_first_start_s", None, "s", ARRAY, refused=made["detail"])
                return

        async def runs() -> bool:
            found = await counts(self.session)
            if found.get(job_life.REJECTED):
                raise TimeoutError("the array is rejected")
            return bool(found.get("running"))

        await until(runs, "the first element")
        self.say("array_first_start_s", time.monotonic() - began, "s", ARRAY)
        await self._empty([str(made["id"])])

    async def take_over(self) -> None:
        """Kill the leading scheduler while QUEUED elements wait; until the next job has run."""
        job = await submit(self.session, *LONG, gpus=8, array=f"0-{QUEUED - 1}", priority=0)
        async with self.session.get("/v1/cluster") as answer:
            leader = str((await answer.json())["leader"])
        self.cluster.processes[SCHEDULERS["ab".index(leader)]].kill()
        began = time.monotonic()
        first = await submit(self.session, "true", gpus=0, cpus=1, priority=100)
        async with self.session.get(f"/v1/jobs/{first}/wait?timeout_s=60") as answer:
            shown = await answer.json()
        took = time.monotonic() - began
        self.say("take_over_s", took, "s", 1, queued=QUEUED, state=shown["state"])
        await self._empty([job])


async def measure(cluster: Cluster, agents: Agents) -> None:
    async with client(cluster) as session:
        found = Measuring(cluster, agents, session)
        await found.register()
        await found.idle()
        steps = (found.throughput, found.fill, found.locality, found.array, found.lose)
        for step in (*steps, found.take_over):
            if STEPS and step.__name__ not in STEPS:
                continue
            try:
                await step()
            except TimeoutError as error:
                found.say(f"{step.__name__}_limit", None, str(error), 1)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for nodes in SIZES:
        with with_agents(nodes) as (cluster, agents):
            asyncio.run(measure(cluster, agents))


if __name__ == "__main__":
    main()
