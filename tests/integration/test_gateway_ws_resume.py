"""Connections that break are continued without a gap, at the same gateway or at another one, over a
real nats-server: what the client then has is what a fresh fold of the whole log has.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from libs.common import fold, reading, subjects
from libs.common.facts import AnyFact, kind_of
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.transport.connection_nats import connect as connect_nats
from libs.common.transport.kv_nats import create_buckets
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.embedded.identity import seed_file
from libs.embedded.permissions import Fleet
from libs.embedded.servers import Servers, free_ports, start_servers
from services.api_gateway.access.auth import hash_key
from services.api_gateway.access.roles import ADMIN, Principal
from services.api_gateway.service import main
from services.api_gateway.views.fleet import fleet_row
from services.api_gateway.views.history import row
from services.api_gateway.views.jobs import job_shown
from tests.integration.gateway_world import Writers
from tests.integration.ws_world import Socket

KEY = "k"
ROOT = Principal("k", "default", "root", ADMIN)
JOBS = 30
LOG_BYTES = 64 << 20
WRITERS = ("scheduler", "quota", "node-n1")


class Parts(Writers):
    """Everyone who writes but the gateways, each with its own key."""

    def __init__(self, logs: dict[str, JetStreamLog]) -> None:
        super().__init__(logs["scheduler"])
        self.logs = logs

    async def write(self, subject: str, *facts: AnyFact, epoch: int = 0) -> int:
        kind = subjects.writer_kind(subject)
        self.log = self.logs[next(name for name in self.logs if name.startswith(kind))]
        return await super().write(subject, *facts, epoch=epoch)


class Gateways:
    """Two gateways of one log, which can be stopped and started again."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.servers = servers
        self.folder = folder
        self.ports = dict(zip("ab", free_ports(2), strict=True))
        self.running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    async def start(self, name: str) -> None:
        settings = Settings(
            nats=",".join(self.servers.urls),
            nkey_seed_file=str(seed_file(self.servers.keys, f"gateway-{name}")),
            instance=name,
            gateway_port=self.ports[name],
            gateway_stop_ms=500,
            api_keys_file=str(self.folder / "api-keys"),
        )
        stop = asyncio.Event()
        task = asyncio.create_task(main(settings, stop))
        self.running[name] = stop, task
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            while True:
                assert not task.done(), task.exception()
                try:
                    async with session.get(self.url(name, "http") + "/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.02)

    async def stop(self, name: str) -> None:
        stop, task = self.running.pop(name)
        stop.set()
        await asyncio.wait_for(task, 20)

    def url(self, name: str, scheme: str = "ws") -> str:
        return f"{scheme}://127.0.0.1:{self.ports[name]}"


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Gateways, Parts]]:
    fleet = Fleet(nodes=("n1",), gateways=("a", "b"), isolated=False)
    servers = start_servers(tmp_path, fleet=fleet, log_bytes=4 << 30)
    (tmp_path / "api-keys").write_text(hash_key(KEY) + "\n")
    try:
        async with AsyncExitStack() as stack:
            clients = {
                name: await connect_nats(servers.urls, name, servers.seed(name)) for name in WRITERS
            }
            for client in clients.values():
                stack.push_async_callback(client.close)
            await create_stream(clients["scheduler"], 1, LOG_BYTES)
            await create_buckets(clients["scheduler"], Settings())
            parts = Parts({name: JetStreamLog(client) for name, client in clients.items()})
            gateways = Gateways(servers, tmp_path)
            for name in "ab":
                await gateways.start(name)
            await parts.begin_term()
            await parts.register("n1", gpus=4)
            yield gateways, parts
            for name in list(gateways.running):
                await gateways.stop(name)
    finally:
        servers.stop()


class Follower:
    """A client that keeps what it was sent, over as many connections as it takes."""

    def __init__(self) -> None:
        self.seqs: dict[str, int] = {}
        self.jobs: dict[str, Any] = {}
        self.nodes: dict[str, Any] = {}
        self.facts: dict[tuple[int, str, str], Any] = {}
        self.connections = 0

    async def follow(self, url: str, breaks_after: int) -> None:
        """Follow until so many frames have come; 0: until the gateway closes."""
        async with connect(
            url + "/v1/ws", additional_headers={"authorization": f"Bearer {KEY}"}, max_size=None
        ) as connection:
            self.connections += 1
            client = Socket(connection)
            for topic in ("jobs", "fleet", "events"):
                chosen = {"elements": True} if topic == "jobs" else {}
                after = self.seqs.get(topic) or (1 if topic == "events" else None)
                await client.subscribe(topic, topic, after=after, **chosen)
            frames = 0
            while not breaks_after or frames < breaks_after:
                self.take(await client.next())
                frames += 1
            connection.transport.abort()

    def take(self, frame: dict[str, Any]) -> None:
        name, event, data = frame["id"], frame["event"], frame["data"]
        assert event != "error", frame
        assert frame["seq"] >= self.seqs.get(name, 0), "a frame goes back"
        if event == "snapshot":
            for each in data.get("jobs", ()):
                self.jobs[each["id"]] = each
            for each in data.get("nodes", ()):
                self.nodes[each["id"]] = each
        elif event == "job":
            self.jobs[data["id"]] = data
        elif event == "fleet":
            self.nodes[data["id"]] = data
        elif event == "fact":
            self.facts[data["seq"], data["kind"], str(data["fact"])] = data
        self.seqs[name] = frame["seq"]


async def lives(parts: Parts, session: aiohttp.ClientSession, random: Random) -> None:
    """Jobs come, run and end."""
    for number in range(JOBS):
        body = {"command": ["true"], "name": f"job-{number}"}
        async with session.post("/v1/jobs", json=body) as made:
            job_id = (await made.json())["id"]
        await parts.queue(job_id)
        for step in (parts.place, parts.start, parts.finish):
            await asyncio.sleep(random.random() / 50)
            await step(job_id, "n1")
        await parts.close(job_id)


async def fresh(parts: Parts) -> tuple[Cluster, dict[tuple[int, str, str], Any]]:
    """The whole log, folded anew, and its facts as the API shows them."""
    state, facts = Cluster(), {}
    log = parts.logs["scheduler"]
    last = (await log.bounds())[1]
    for seq in range(1, last + 1):
        entry = await log.get(seq)
        assert entry is not None
        commit = reading.read(state.writers, entry.subject, entry.data)
        fold.apply_entry(state, entry.seq, entry.subject, commit)
        for fact in commit.facts:
            if kind_of(fact) != "access.recorded" and seq > 1:
                shown = msgspec.json.decode(msgspec.json.encode(row(seq, commit, fact)))
                facts[seq, shown["kind"], str(shown["fact"])] = shown
    return state, facts


def built(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


async def caught_up(follower: Follower, url: str, parts: Parts) -> None:
    """Follow until the client has what a fresh fold of the log has."""
    async with asyncio.timeout(30):
        task = asyncio.create_task(follower.follow(url, 0))
        try:
            while True:
                state, facts = await fresh(parts)
                jobs = {job_id: built(job_shown(state, job)) for job_id, job in state.jobs.items()}
                nodes = {
                    name: built(fleet_row(ROOT, state, node)) for name, node in state.nodes.items()
                }
                if (follower.jobs, follower.nodes, follower.facts) == (jobs, nodes, facts):
                    return
                assert not task.done(), task.exception()
                await asyncio.sleep(0.2)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_client_that_continues_elsewhere_misses_nothing(tmp_path: Path, seed: int) -> None:
    random, follower = Random(seed), Follower()
    async with (
        cluster(tmp_path) as (gateways, parts),
        aiohttp.ClientSession(
            gateways.url("a", "http"), headers={"authorization": f"Bearer {KEY}"}
        ) as session,
    ):
        working = asyncio.create_task(lives(parts, session, random))
        while not working.done():
            url, frames = gateways.url(random.choice("ab")), random.randrange(3, 12)
            following = asyncio.create_task(follower.follow(url, frames))
            await asyncio.wait((following, working), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await working
        assert follower.connections > 5
        await caught_up(follower, gateways.url("b"), parts)
        assert len(follower.jobs) == JOBS


async def test_a_gateway_that_restarts_loses_nothing_for_its_clients(tmp_path: Path) -> None:
    follower = Follower()
    async with (
        cluster(tmp_path) as (gateways, parts),
        aiohttp.ClientSession(
            gateways.url("a", "http"), headers={"authorization": f"Bearer {KEY}"}
        ) as session,
    ):
        following = asyncio.create_task(follower.follow(gateways.url("b"), 0))
        working = asyncio.create_task(lives(parts, session, Random(3)))
        while len(follower.jobs) < 5:
            await asyncio.sleep(0.05)
        await gateways.stop("b")
        with pytest.raises(ConnectionClosed) as caught:
            await following
        closed = caught.value.rcvd
        assert closed is not None and closed.code == 1001
        assert "the gateway stops: connect again and continue after" in closed.reason
        await working
        await gateways.start("b")
        await caught_up(follower, gateways.url("b"), parts)
        assert (follower.connections, len(follower.jobs)) == (2, JOBS)
