"""1,000 subscribers of GET /v1/ws, with and without one that stalls: how late a change arrives.

The bench starts a whole cluster. 1,000 connections of this process subscribe to jobs. One job's
priority is changed at a steady rate over REST; a figure is the time from that request to the frame
at a subscriber. Rounds without and with a stalled client take turns. The stalled client subscribes
to the whole history 40 times and reads nothing, until the gateway cuts it off.

`change_cpu_filtered` is the gateway's processor time for each change while 1,000 subscribers have a
filter that lets nothing through, beside that without subscribers. `idle_cpu` is its processor time
while nothing changes. `request_*` is the time of a small request of one tenant, alone and beside a
greedy tenant whose subscriptions, as many as it can have, read old commits, or come and go.
"""

import asyncio
import json
import os
import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import uvloop

from bench.cluster import QUICK, Cluster, client, cpu_of, quantile, running, say, submit

SUBSCRIBERS: Final = int(os.environ.get("SUBSCRIBERS", "200" if QUICK else "1000"))
ROUNDS: Final = 1 if QUICK else 3
ROUND_S: Final = 4.0 if QUICK else 10.0
CHANGES_PER_S: Final = 4
FAST_PER_S: Final = 30
UNREAD_MS: Final = 5_000
HISTORY: Final = 80
STALLED_SUBSCRIPTIONS: Final = 40
GREEDY_CONNECTIONS: Final = 50 if QUICK else 250
GREEDY_SUBSCRIPTIONS: Final = 25
CONNECT_AT_ONCE: Final = 50
# The first bytes of a ping and of its answer.
PING: Final = 0x89
PONG: Final = 0x8A
ENVIRONMENT: Final = {
    "MUSTER_FOLLOWERS_PER_TENANT": "5000",
    "MUSTER_GATEWAY_UNREAD_MS": str(UNREAD_MS),
    # The history that the stalled client leaves unread must fit into the tenant's share of the log.
    "MUSTER_TENANT_BYTES_PER_MINUTE": str(1 << 30),
}


class Subscriber(asyncio.Protocol):
    """One WebSocket: it keeps the priorities that it was sent, with the time of each."""

    def __init__(self, head: bytes, asked: dict[str, Any]) -> None:
        self.head, self.asked = head, asked
        self.data = b""
        self.is_open = False
        self.ready = asyncio.get_running_loop().create_future()
        self.closed = asyncio.get_running_loop().create_future()
        self.arrived: dict[int, float] = {}
        self.frames = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        transport.write(self.head)  # type: ignore[attr-defined]

    def tell(self, fields: dict[str, Any]) -> None:
        data = json.dumps(fields).encode()
        assert len(data) < 1 << 16
        self.transport.write(b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.data += data
        if not self.is_open:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                return
            assert self.data.startswith(b"HTTP/1.1 101"), self.data
            self.is_open, self.data = True, self.data[end + 4 :]
            self.tell(self.asked)
        while (size := self._size()) is not None:
            first, length = size
            text = self.data[first : first + length]
            if self.data[0] == PING:
                self.transport.write(bytes((PONG, 0x80 | length)) + bytes(4) + text)
            else:
                self._frame(text, now)
            self.data = self.data[first + length :]

    def _size(self) -> tuple[int, int] | None:
        """Return where the first frame's text begins, and its length; None if it is not whole."""
        if len(self.data) < 2:
            return None
        short = self.data[1]
        first = {126: 4, 127: 10}.get(short, 2)
        length = int.from_bytes(self.data[2:first], "big") if first > 2 else short
        return (first, length) if len(self.data) >= first + length else None

    def _frame(self, text: bytes, now: float) -> None:
        if b'"event":"job"' in text:
            self.frames += 1
            place = text.index(b'"priority":') + 11
            self.arrived.setdefault(int(text[place : text.index(b",", place)]), now)
        elif b'"event":"ready"' in text and not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def head_of(key: str) -> bytes:
    lines = (
        "GET /v1/ws HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        f"Authorization: Bearer {key}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def open_one(cluster: Cluster, asked: dict[str, Any], key: str = "") -> Subscriber:
    host, port = cluster.url.removeprefix("http://").split(":")
    head = head_of(key or cluster.key)
    _, found = await asyncio.get_running_loop().create_connection(
        lambda: Subscriber(head, asked), host, int(port)
    )
    return found


@asynccontextmanager
async def subscribers(
    cluster: Cluster, count: int, chosen: dict[str, Any]
) -> AsyncIterator[list[Subscriber]]:
    asked = {"op": "subscribe", "id": "a", "topic": "jobs", "filter": chosen}
    found: list[Subscriber] = []
    while len(found) < count:
        part = min(CONNECT_AT_ONCE, count - len(found))
        opened = await asyncio.gather(*(open_one(cluster, asked) for _ in range(part)))
        await asyncio.gather(*(each.ready for each in opened))
        found += opened
    try:
        yield found
    finally:
        for each in found:
            each.transport.abort()
        await asyncio.gather(*(each.closed for each in found))


async def stall(cluster: Cluster) -> Subscriber:
    """Open a connection that is sent the history many times and reads nothing."""
    asked = {"op": "subscribe", "id": "e0", "topic": "events", "after": 1}
    found = await open_one(cluster, asked)
    await found.ready
    for number in range(1, STALLED_SUBSCRIPTIONS):
        found.tell({**asked, "id": f"e{number}"})
    found.transport.pause_reading()
    return found


class Changes:
    """One job whose priority is changed; each value is used once."""

    def __init__(self, session: aiohttp.ClientSession, job: str) -> None:
        self.session, self.job = session, job
        self.sent: dict[int, float] = {}
        self.number = 0

    async def make(self, seconds: float, per_s: int) -> list[int]:
        """Change the job at a steady rate; return the values."""
        made = []
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.number = self.number % 100 + 1
            value = self.number
            self.sent[value] = time.perf_counter()
            async with self.session.patch(
                f"/v1/jobs/{self.job}", json={"priority": value}
            ) as answer:
                assert answer.status == 200, await answer.text()
            made.append(value)
            await asyncio.sleep(max(0.0, began + len(made) / per_s - time.perf_counter()))
        return made


async def delivery(
    cluster: Cluster, changes: Changes, followers: list[Subscriber], with_stalled: bool
) -> tuple[list[float], float]:
    """Return how late each change came to each subscriber, and the gateway's processor time for
    each frame; both in milliseconds.
    """
    stalled = await stall(cluster) if with_stalled else None
    for each in followers:
        each.arrived.clear()
        each.frames = 0
    pid = cluster.processes["gateway"].pid
    before = cpu_of(pid, children=False)
    made = await changes.make(min(ROUND_S, 99 / CHANGES_PER_S), CHANGES_PER_S)
    await asyncio.sleep(1.0)
    used = cpu_of(pid, children=False) - before
    late = [
        (each.arrived[value] - changes.sent[value]) * 1_000
        for value in made
        for each in followers
        if value in each.arrived
    ]
    missed = sum(made[-1] not in each.arrived for each in followers)
    assert not missed, f"{missed} subscribers do not have the last change"
    if stalled is not None:
        stalled.transport.abort()
        await stalled.closed
    return late, used * 1_000 / max(1, sum(each.frames for each in followers))


async def cpu_of_changes(cluster: Cluster, changes: Changes, per_s: int) -> float:
    """Return the gateway's processor time for each change, in milliseconds."""
    pid = cluster.processes["gateway"].pid
    before = cpu_of(pid, children=False)
    made = await changes.make(min(ROUND_S, 99 / per_s) if per_s < FAST_PER_S else ROUND_S, per_s)
    return (cpu_of(pid, children=False) - before) * 1_000 / len(made)


async def requests(session: aiohttp.ClientSession, path: str) -> list[float]:
    """Return the times of requests, one after the other, in milliseconds."""
    times: list[float] = []
    until = time.perf_counter() + ROUND_S
    while (began := time.perf_counter()) < until:
        async with session.get(path) as answer:
            await answer.read()
            assert answer.status == 200
        times.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(0.01)
    return times


async def greedy(cluster: Cluster, session: aiohttp.ClientSession, job: str) -> None:
    """Measure requests of the default tenant beside a greedy one."""
    path = f"/v1/jobs/{job}"

    def show(situation: str, times: list[float]) -> None:
        for part, name in ((0.5, "p50"), (0.99, "p99")):
            say(f"request_{name}", quantile(times, part), "ms", len(times), beside=situation)

    show("nothing", await requests(session, path))
    async with session.put("/v1/tenants/greedy", json={}) as answer:
        assert answer.status == 201, await answer.text()
    body = {"user": "mallory", "role": "member", "tenant": "greedy"}
    async with session.post("/v1/keys", json=body) as answer:
        key = (await answer.json())["key"]
    asked = {"op": "subscribe", "topic": "events", "after": 1, "filter": {"kind": "gpu."}}
    found = []
    for _ in range(GREEDY_CONNECTIONS):
        found.append(await open_one(cluster, {**asked, "id": "e0"}, key))
    for each in found:
        for number in range(1, GREEDY_SUBSCRIPTIONS):
            each.tell({**asked, "id": f"e{number}"})
    show("subscriptions to old commits", await requests(session, path))

    async def churn() -> None:
        while True:
            for each in found:
                each.tell({"op": "subscribe", "id": "x", "topic": "jobs", "filter": {"user": "x"}})
                each.tell({"op": "unsubscribe", "id": "x"})
            await asyncio.sleep(0.02)

    churning = asyncio.create_task(churn())
    show("subscriptions that come and go", await requests(session, path))
    churning.cancel()
    for each in found:
        each.transport.abort()
    await asyncio.gather(churning, *(each.closed for each in found), return_exceptions=True)


async def measure(cluster: Cluster) -> None:
    async with client(cluster) as session:
        for _ in range(HISTORY):
            await submit(session, "true", env={"E": "x" * 30_000}, node_labels={"no": "node"})
        job = await submit(session, "true", node_labels={"no": "node"})
        await greedy(cluster, session, job)
        changes = Changes(session, job)
        alone = await cpu_of_changes(cluster, changes, FAST_PER_S)
        async with subscribers(cluster, SUBSCRIBERS, {"user": "no-such-user"}):
            filtered = await cpu_of_changes(cluster, changes, FAST_PER_S)
        pid = cluster.processes["gateway"].pid
        say("change_cpu_alone", alone, "ms", 1, subscribers=0)
        say("change_cpu_filtered", filtered, "ms", 1, subscribers=SUBSCRIBERS)
        async with subscribers(cluster, SUBSCRIBERS, {"ids": [job], "snapshot": False}) as found:
            before = cpu_of(pid, children=False)
            await asyncio.sleep(ROUND_S)
            idle = (cpu_of(pid, children=False) - before) / ROUND_S
            say("idle_cpu", idle * 100, "% of a processor", 1, subscribers=SUBSCRIBERS)
            late: dict[bool, list[float]] = {False: [], True: []}
            cpu: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(ROUNDS):
                for with_stalled in (False, True):
                    found_late, each_cpu = await delivery(cluster, changes, found, with_stalled)
                    late[with_stalled] += found_late
                    cpu[with_stalled].append(each_cpu)
            for with_stalled, values in late.items():
                setting = {"subscribers": SUBSCRIBERS, "stalled": int(with_stalled)}
                for part, name in ((0.5, "p50"), (0.99, "p99")):
                    say(f"delivery_{name}", quantile(values, part), "ms", len(values), **setting)
                say("frame_cpu", sum(cpu[with_stalled]) / ROUNDS, "ms", len(values), **setting)


def main() -> int:
    with running(nodes=1, gpus=1, environment=ENVIRONMENT) as cluster:
        uvloop.run(measure(cluster))
    return 0


if __name__ == "__main__":
    sys.exit(main())
