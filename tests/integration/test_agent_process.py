"""`python -m services.node_agent` against a real nats-server: killed, stopped, doubled.

The test is its scheduler.
"""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio
from nats.aio.client import Client

from libs.common import facts as f
from libs.common.messages import (
    Heartbeat,
    Lease,
    Orders,
    OutputAsk,
    OutputChunk,
    StartOrder,
    StopOrder,
    digest,
)
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, JobSpec, TenantId
from libs.common.settings.settings import Settings, environment
from libs.common.subjects import ask_node, heartbeat, orders
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv_nats import KvOutputs, create_buckets
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.embedded import servers
from services.node_agent.__main__ import FILES_MAX
from services.node_agent.machine.cgroup_files import CONTROLLERS
from tests import cgroups

ROOT = Path(__file__).parents[2]
WAIT_S = 20.0
DEVICE = GpuHold(GpuId("GPU-n-0"))


class Cluster:
    """A server without keys, the log, and a scheduler that grants leases and agrees with everything
    it is told.
    """

    def __init__(self, client: Client, url: str, tmp_path: Path, group: str) -> None:
        self.group = group
        self.log, self.bus, self.outputs = JetStreamLog(client), NatsBus(client), KvOutputs(client)
        self.url = url
        self.tmp_path = tmp_path
        self.facts: list[f.AnyFact | f.Unknown] = []
        self.agents: list[subprocess.Popen[str]] = []
        self.wanted: dict[AttemptRef, StartOrder] = {}

    async def follow(self) -> None:
        async for batch in self.log.read(0):
            for entry in batch:
                self.facts += f.decode(entry.data).facts

    async def on_heartbeat(self, subject: str, data: bytes) -> bytes | None:
        beat = msgspec.msgpack.decode(data, type=Heartbeat)
        return msgspec.msgpack.encode(
            Lease(
                epoch=1,
                verdict="ok",
                sent_boot_ns=beat.sent_boot_ns,
                lease_ms=30_000,
                heartbeat_ms=200,
                digest=digest(self.wanted, ()),
                seq=0,
            )
        )

    def agent(
        self,
        state: str = "a",
        metrics_port: int = 0,
        prefix: Sequence[str] = (),
        job_users: str = "*=self",
        **more: Any,
    ) -> subprocess.Popen[str]:
        """`prefix`: a program that starts the agent; `more` are further settings."""
        state_dir, group = str(self.tmp_path / state), self.group
        settings = Settings(
            nats=self.url,
            state=state_dir,
            node_id="n",
            simulated_gpus=2,
            heartbeat_ms=200,
            cgroup=group,
            metrics_port=metrics_port,
            job_users=job_users,
            **more,
        )
        fakes = {
            name: os.environ[name]
            for name in ("LD_LIBRARY_PATH", "FAKE_DRIVERS")
            if name in os.environ
        }
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.tmp_path),
            **fakes,
            **environment(settings),
        }
        line = [*prefix, sys.executable, "-m", "services.node_agent"]
        self.agents.append(
            subprocess.Popen(line, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        )
        return self.agents[-1]

    def of(self, kind: type[f.Fact]) -> list[f.AnyFact | f.Unknown]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def until(self, kind: type[f.Fact], count: int = 1) -> f.AnyFact | f.Unknown:
        async with asyncio.timeout(WAIT_S):
            while len(self.of(kind)) < count:
                await asyncio.sleep(0.01)
        return self.of(kind)[count - 1]

    async def start(
        self,
        job: str,
        script: str,
        incarnation: int,
        hold: GpuHold = DEVICE,
        tenant: str = "default",
    ) -> None:
        spec = JobSpec(command=("/bin/sh", "-c", script))
        order = StartOrder(
            job_id=JobId(job),
            attempt=1,
            incarnation=incarnation,
            seq=100,
            rank=0,
            gpus=(hold,),
            spec=spec,
            tenant=TenantId(tenant),
            user="",
            peers=(),
            port=0,
        )
        self.wanted[AttemptRef(order.job_id, 1)] = order
        await self.bus.publish(orders("n"), msgspec.msgpack.encode(Orders(1, (order,))))

    async def stop(self, job: str) -> None:
        await self.bus.publish(
            orders("n"),
            msgspec.msgpack.encode(
                Orders(
                    1,
                    (
                        StopOrder(
                            job_id=JobId(job),
                            attempt=1,
                            seq=101,
                            reason="cancelled",
                            signal=15,
                            grace_ms=1_000,
                        ),
                    ),
                )
            ),
        )


@contextlib.contextmanager
def nats_server(folder: Path) -> Iterator[int]:
    """A server without keys; gives its port."""
    (port,) = servers.free_ports(1)
    line = [
        servers.binary(),
        "-js",
        "-a",
        "127.0.0.1",
        "-p",
        str(port),
        "-sd",
        str(folder),
        "-n",
        "one",
    ]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as server:
        servers.wait_ready(port, "one")
        try:
            yield port
        finally:
            server.terminate()


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    with nats_server(tmp_path / "nats") as port, cgroups.below() as group:
        client = await connect([f"nats://127.0.0.1:{port}"], "test")
        await create_stream(client, 1, 64 << 20)
        await create_buckets(client, Settings())
        cluster = Cluster(client, f"nats://127.0.0.1:{port}", tmp_path, group)
        await cluster.bus.subscribe(heartbeat("*"), cluster.on_heartbeat)
        following = asyncio.create_task(cluster.follow())
        try:
            yield cluster
        finally:
            for agent in cluster.agents:
                agent.kill()
                agent.communicate()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            await client.close()


async def test_a_job_outlives_an_agent_that_was_killed(cluster: Cluster) -> None:
    first = cluster.agent()
    await cluster.until(f.NodeRegistered)
    await cluster.start("j", "echo kept; while [ ! -e go ]; do sleep 0.02; done; exit 5", 1)
    await cluster.until(f.JobStarted)
    soft, hard = resource.prlimit(first.pid, resource.RLIMIT_NOFILE)
    assert soft in {hard, FILES_MAX} or soft > FILES_MAX
    first.kill()
    first.wait()
    second = cluster.agent()
    registered = await cluster.until(f.NodeRegistered, 2)
    assert isinstance(registered, f.NodeRegistered)
    assert (registered.incarnation, registered.attempts) == (2, (AttemptRef(JobId("j"), 1),))
    (cluster.tmp_path / "go").touch()
    finished = await cluster.until(f.JobFinished)
    assert isinstance(finished, f.JobFinished)
    assert finished.exit_code == 5
    await cluster.until(f.JobReleased)
    async with asyncio.timeout(WAIT_S):
        while await cluster.outputs.get("n.j.1.0.stdout") != b"kept\n":
            await asyncio.sleep(0.02)
    ask = msgspec.msgpack.encode(
        OutputAsk(
            job_id=JobId("j"), attempt=1, stream="stdout", offset=0, max_bytes=100, wait_ms=5_000
        )
    )
    chunk = msgspec.msgpack.decode(
        await cluster.bus.request(ask_node("n", "output"), ask, WAIT_S), type=OutputChunk
    )
    assert chunk == OutputChunk(0, b"kept\n", True)
    second.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(second.wait, WAIT_S) == 0


async def test_a_stopped_agent_leaves_its_jobs_to_the_next(cluster: Cluster) -> None:
    first = cluster.agent()
    await cluster.until(f.NodeRegistered)
    await cluster.start("j", "sleep 600", 1)
    await cluster.until(f.JobStarted)
    first.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait, WAIT_S) == 0
    cluster.agent()
    await cluster.until(f.NodeRegistered, 2)
    await cluster.stop("j")
    finished = await cluster.until(f.JobFinished)
    assert isinstance(finished, f.JobFinished)
    assert (finished.signal, finished.reason) == (15, "stopped")


async def test_a_node_s_record_says_what_bounds_its_jobs_and_a_job_is_where_that_is_so(
    cluster: Cluster,
) -> None:
    cluster.agent()
    registered = await cluster.until(f.NodeRegistered)
    assert isinstance(registered, f.NodeRegistered)
    assert list(registered.isolation) == [
        *CONTROLLERS,
        "users",
        "mig",
        "watchdog",
        "images",
        "containers",
        "pools",
        "weights",
        "short_arrays",
    ]
    assert registered.isolation.pop("users").startswith("lost: ")
    lost = [name for name, state in registered.isolation.items() if state != "enforced"]
    assert all(registered.isolation[name].startswith("lost: ") for name in lost)
    await cluster.start(
        "j", "cat /proc/self/cgroup >&2; sed 's/.*://' /proc/self/cgroup | sort -u | grep -c /n-", 1
    )
    finished = await cluster.until(f.JobFinished)
    assert isinstance(finished, f.JobFinished)
    assert (finished.exit_code == 0) is (lost != list(CONTROLLERS))


async def test_a_second_agent_of_the_same_name_ends_the_first_with_a_clear_line(
    cluster: Cluster,
) -> None:
    first = cluster.agent("a")
    await cluster.until(f.NodeRegistered)
    cluster.agent("b")
    await cluster.until(f.NodeRegistered, 2)
    await cluster.start("j", "true", 1)
    _, told = await asyncio.to_thread(first.communicate, None, WAIT_S)
    assert first.returncode == 1
    assert "another process wrote facts of node n to facts.node.n" in told
    assert "muster node remove n" in told and "MUSTER_NODE_ID" in told
    assert "Traceback" not in told


async def test_two_agents_do_not_share_a_state_directory(cluster: Cluster) -> None:
    cluster.agent()
    await cluster.until(f.NodeRegistered)
    second = cluster.agent()
    _, told = await asyncio.to_thread(second.communicate, None, WAIT_S)
    assert second.returncode == 2
    assert "another agent uses" in told
