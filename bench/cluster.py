"""A real cluster for a benchmark: nats-server (one, or three as a Raft group), the four services
and the agents, as processes on loopback.

The same commands and environments as `muster up` gives them, without its watching. `cpu_s` reads
what each process and its children have used, from /proc.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from libs.embedded import identity, plan, servers
from libs.embedded.living import die_with_parent
from libs.embedded.processes import Spec
from libs.embedded.shape import Shape

QUICK = os.environ.get("QUICK") == "1"
READY_S = 60.0
SHOWN_LINES = 8  # of each log, when the cluster is not ready
STOP_S = 10.0
TICKS = os.sysconf("SC_CLK_TCK")


def say(figure: str, value: float | str | None, unit: str, n: int, **setting: Any) -> None:
    """Print one figure as one line of JSON; nothing else goes to stdout."""
    shown = round(value, 3) if isinstance(value, float) else value
    print(
        json.dumps({"figure": figure, "value": shown, "unit": unit, "n": n, "setting": setting}),
        flush=True,
    )


def quantile(values: list[float], part: float) -> float:
    """Return the value below which `part` of the sorted values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class Cluster:
    """A running one: `url` and `key` of the gateway, the processes by name.

    `grpc` is the address of gRPC, if it was asked for. `monitors` are those of the log's servers.
    """

    monitors: Sequence[str] = ()

    def __init__(
        self,
        state: Path,
        url: str,
        key: str,
        processes: dict[str, subprocess.Popen[bytes]],
        urls: tuple[str, ...],
        grpc: str = "",
        specs: dict[str, Spec] | None = None,
        added: Mapping[str, str] | None = None,
    ) -> None:
        self.grpc = grpc
        self.specs = specs or {}
        self.added = added or {}
        self.state = state
        self.url = url
        self.urls = urls
        self.key = key
        self.processes = processes
        # By process: the way to the log, and how it is started again.
        self.proxies: dict[str, Any] = {}
        self.starts: Mapping[str, Callable[[], subprocess.Popen[bytes]]] = {}

    def again(self, name: str) -> None:
        """Start a process again that has ended."""
        self.processes[name] = self.starts[name]()

    def start_again(self, name: str) -> None:
        """Start a service that has ended."""
        self.processes[name].wait(STOP_S)
        self.processes[name] = start(self.specs[name], self.added)

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds by kind of process so far; `jobs` are the agents' zygotes with all that
        they have started.
        """
        used: dict[str, float] = {}
        for name, process in self.processes.items():
            kind = name.split("-")[0]
            used[kind] = used.get(kind, 0.0) + cpu_of(process.pid, children=kind == "nats")
            for child in children_of(process.pid):
                used["jobs"] = used.get("jobs", 0.0) + sum(
                    cpu_of(pid, children=True) for pid in (child, *children_of(child))
                )
        return used


def cpu_of(pid: int, children: bool) -> float:
    """User and system seconds of a process, and of its ended children if asked; none of one that
    has ended itself.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11 : 15 if children else 13]) / TICKS


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running(
    replicas: int = 1,
    nodes: int = 4,
    gpus: int = 8,
    audit: bool = True,
    gateways: int = 1,
    local: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    grpc: bool = False,
    schedulers: int = 1,
    proxied: Callable[[str], Any] | None = None,
    monitored: bool = False,
    agents: bool = True,
) -> Iterator[Cluster]:
    """Run a cluster that answers, until the end of the block; `urls` are its gateways'.

    `local`: own devices too, with these variables. `environment` are further variables.
    `proxied` makes the way of each agent to the log, which has a `url`, of the log's.
    `monitored`: the log's servers answer at a monitoring port. `agents` False: the caller starts
    the agents of `nodes`.
    """
    with tempfile.TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as folder:
        found = Shape(
            cluster_id="bench",
            nodes=nodes,
            gpus=gpus,
            gateways=gateways,
            schedulers=schedulers,
            local=local is not None,
        )
        shape = _with_ports(found, grpc)
        group = _servers(Path(folder), replicas, shape, monitored)
        added = _added(group, {**(local or {}), **(environment or {})})
        cluster = _cluster(Path(folder), shape, group, added, agents, proxied)
        names = [name for name in cluster.specs if name != "audit" or audit]
        try:
            cluster.processes |= {name: cluster.starts[name]() for name in names}
            try:
                expected = nodes + (local is not None) if agents else 0
                await_ready(cluster.url, cluster.key, expected)
            except TimeoutError as error:
                raise TimeoutError(f"{error}\n{last_lines(cluster.state / 'logs')}") from None
            yield cluster
        finally:
            named = cluster.processes.items()
            end([process for name, process in named if not name.startswith("nats")])
            end(group.running)


def _servers(state: Path, replicas: int, shape: Shape, monitored: bool) -> servers.Servers:
    """Start the log's servers, and make all keys."""
    (state / "logs").mkdir()
    group = servers.start_servers(state, replicas, shape.fleet, shape.log_bytes, monitored)
    identity.public_key(state / "keys", plan.AUDIT_HEADS_KEY)
    return group


def _cluster(
    state: Path,
    shape: Shape,
    group: servers.Servers,
    added: Mapping[str, str],
    agents: bool,
    proxied: Callable[[str], Any] | None,
) -> Cluster:
    """Return the cluster, of which only the log's servers run yet."""
    specs = plan.control_plane(state, shape)
    specs += plan.agents(state, shape) if agents else []
    cluster = Cluster(
        state,
        url=shape.gateway,
        key=identity.api_key(state / "keys", ""),
        processes={f"nats-{i}": process for i, process in enumerate(group.running)},
        urls=tuple(f"http://127.0.0.1:{shape.port + number}" for number in range(shape.gateways)),
        grpc=shape.grpc if shape.grpc_port else "",
        specs={spec.name: spec for spec in specs},
        added=added,
    )
    ways = {name: proxied(group.urls[0]) for name in shape.fleet.nodes} if proxied else {}
    cluster.proxies, cluster.monitors = ways, group.monitors
    cluster.starts = {
        spec.name: partial(start, spec, {**added, **_way(ways.get(spec.name))}) for spec in specs
    }
    return cluster


def _with_ports(shape: Shape, grpc: bool) -> Shape:
    """Return the shape with free ports."""
    (nats_port, grpc_port), port = servers.free_ports(2), servers.free_port_run(shape.gateways)
    return msgspec.structs.replace(
        shape, port=port, nats_port=nats_port, grpc_port=grpc_port if grpc else 0
    )


def _added(group: servers.Servers, more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of every process beside its own."""
    replicas = str(len(group.running))
    return {"MUSTER_NATS": ",".join(group.urls), "MUSTER_STREAM_REPLICAS": replicas, **more}


def _way(proxy: Any) -> dict[str, str]:
    """Return the variables of an agent that reaches the log through a proxy; none without one."""
    return {} if proxy is None else {"MUSTER_NATS": proxy.url}


def start(spec: Spec, added: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a process with these variables beside its own; it ends with this one."""
    with spec.log.open("ab") as log:
        return subprocess.Popen(
            spec.command,
            env={**spec.environment, **added},
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(),
        )


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Asked first, killed when that is not heard."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def await_ready(url: str, key: str, nodes: int) -> None:
    """Until the gateway answers and every node is healthy and leased."""
    request = urllib.request.Request(f"{url}/v1/nodes", headers={"Authorization": f"Bearer {key}"})
    deadline = time.monotonic() + READY_S
    seen: Any = "nothing"
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                seen = json.load(answer)["nodes"]
                if sum(node["state"] == "healthy" for node in seen) == nodes:
                    time.sleep(2.0)  # a lease, and the start's own work done
                    return
        except OSError as error:
            seen = error
        time.sleep(0.1)
    raise TimeoutError(f"the cluster at {url} was not ready within {READY_S} s; it said: {seen}")


def last_lines(folder: Path) -> str:
    """Return the end of each process's log."""
    return "\n".join(
        f"{log.name}: {line}"
        for log in sorted(folder.glob("*.log"))
        for line in log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    )


@asynccontextmanager
async def client(cluster: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a session with the key."""
    async with aiohttp.ClientSession(
        cluster.url, headers={"Authorization": f"Bearer {cluster.key}"}
    ) as session:
        yield session


async def submit(session: aiohttp.ClientSession, *command: str, **fields: Any) -> str:
    """Submit one job and return its id."""
    async with session.post("/v1/jobs", json={"command": list(command), **fields}) as answer:
        body = await answer.json()
        assert answer.status == 201, body
        return str(body["id"])


async def ended(session: aiohttp.ClientSession, job: str) -> dict[str, Any]:
    """Wait for the end of the job and return it."""
    while True:
        async with session.get(f"/v1/jobs/{job}/wait", params={"timeout_s": "30"}) as answer:
            body: dict[str, Any] = await answer.json()
        if body["ended_at"]:
            return body


async def counts(session: aiohttp.ClientSession) -> dict[str, int]:
    """Return the number of jobs by state."""
    async with session.get("/v1/cluster") as answer:
        found: dict[str, int] = (await answer.json())["jobs"]
        return found


async def archived(cluster: Cluster, session: aiohttp.ClientSession, within_s: float) -> float:
    """Return the seconds until the audit archive holds every commit that the gateway has folded;
    raises TimeoutError after `within_s`.
    """
    import sqlite3

    began = time.monotonic()
    async with session.get("/v1/cluster") as answer:
        target = (await answer.json())["seq"]
    with sqlite3.connect(cluster.state / "services" / "audit" / "audit.db") as database:
        while database.execute("select coalesce(max(seq), 0) from commits").fetchone()[0] < target:
            if time.monotonic() - began > within_s:
                raise TimeoutError(f"the archive was not at {target} within {within_s} s")
            await asyncio.sleep(0.02)
    return time.monotonic() - began
