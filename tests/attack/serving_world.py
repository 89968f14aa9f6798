"""A real cluster that serves a model to two tenants, of which one attacks its gateway.

The gateway, its replicas and the attack are processes of their own, so the figures of the modest
tenant are those of the gateway. `Asked` has them.
"""

import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest

from tests.chaos.cluster import Chaos, running
from tests.chaos.submitting import all_ended

# `make attack` sets the variable. These attacks need both processors for half a minute, which would
# slow the tests beside them.
IN_MAKE_ATTACK: Final = pytest.mark.skipif(
    "MUSTER_TEST_SECONDS" not in os.environ, reason="takes half a minute: `make attack` runs it"
)
CHAT: Final = "/v1/chat/completions"
MIB: Final = 1 << 20
READY_S: Final = 60.0
STEADY_S: Final = 1.5
LOOK_S: Final = 0.1
CLIENTS: Final = 8
MODEST: Final = "modest"
GREEDY: Final = "greedy"
# A key of the modest tenant whose answers name the replica.
MODEST_OPERATOR: Final = "modest-operator"


class Asked(NamedTuple):
    """The times of requests that were answered, in seconds, and the others."""

    times_s: Sequence[float]
    failed: Sequence[str]

    def shown(self) -> str:
        ordered = sorted(self.times_s)
        middle, late = (ordered[int(part * (len(ordered) - 1))] * 1_000 for part in (0.5, 0.99))
        return f"{len(ordered)} requests, p50 {middle:.1f} ms, p99 {late:.1f} ms"


class Serving:
    """The cluster, and a key of each tenant."""

    def __init__(self, chaos: Chaos, keys: Mapping[str, str]) -> None:
        self.chaos = chaos
        self.keys = keys
        self.port = int(chaos.urls[0].rsplit(":", 1)[1])

    def pid(self) -> int:
        ticket = self.chaos.ticket("gateway")
        assert ticket is not None, "the gateway does not live"
        return ticket.pid

    def memory_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid()}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def cpu_s(self) -> float:
        """Return the seconds of processors that the gateway has used."""
        fields = Path(f"/proc/{self.pid()}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(int(each) for each in fields[11:13]) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid()}/fd"))

    async def open_requests(self) -> int:
        """Return how many requests to the model the gateway has open."""
        async with self.chaos.session.get("/metrics") as answer:
            text = await answer.text()
        return sum(
            int(float(line.rsplit(" ", 1)[1]))
            for line in text.splitlines()
            if line.startswith("muster_model_requests_open{")
        )

    async def none_open(self, within_s: float) -> float:
        """Return after how many seconds no request is open. Raises TimeoutError."""
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            while await self.open_requests():
                await asyncio.sleep(LOOK_S)
        return time.monotonic() - began

    async def asked(
        self, seconds: float, body: Mapping[str, Any] | None = None, clients: int = CLIENTS
    ) -> Asked:
        """Let clients of the modest tenant ask, one request after the other, each for `seconds`."""
        times_s: list[float] = []
        failed: list[str] = []
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **(body or {})}

        async def client(session: aiohttp.ClientSession) -> None:
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                began = time.monotonic()
                try:
                    async with session.post(CHAT, json=asked) as answer:
                        text = await answer.text()
                        status = answer.status
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    status, text = 0, repr(error)
                if status == 200:
                    times_s.append(time.monotonic() - began)
                else:
                    failed.append(f"{status} {text[:200]}")

        async with self.session(MODEST) as session:
            await asyncio.gather(*(client(session) for _ in range(clients)))
        return Asked(times_s, failed)

    @asynccontextmanager
    async def session(self, tenant: str) -> AsyncIterator[aiohttp.ClientSession]:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            self.chaos.urls[0], headers=headers, connector=connector
        ) as session:
            yield session


@contextmanager
def with_files(soft: int) -> Iterator[None]:
    """Let this process, and children that it starts, have so many files open, until the end."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@asynccontextmanager
async def serving(
    folder: Path, program: Path, replicas: int = 2, tenants: Sequence[str] = (), **settings: str
) -> AsyncIterator[Serving]:
    """Run a cluster whose model `m` all tenants may use; its replicas run `program PORT`."""
    with with_files(1_024):
        cluster = running(folder, nodes=1, gpus=4, **settings)
        chaos = await cluster.__aenter__()
    try:
        command = [sys.executable, str(program), "{port}"]
        body = {"name": "m", "replicas": replicas, "command": command}
        await _ask(chaos, "POST", "/v1/deployments", json=body)
        keys = {}
        for name in (MODEST, GREEDY, *tenants):
            await _ask(chaos, "PUT", f"/v1/tenants/{name}", json={})
            wanted = {"user": name, "tenant": name, "role": "member"}
            keys[name] = (await _ask(chaos, "POST", "/v1/keys", json=wanted))["key"]
        await _ask(chaos, "PATCH", "/v1/deployments/m/guests", json={"add": [*keys]})
        wanted = {"user": MODEST_OPERATOR, "tenant": MODEST, "role": "operator"}
        keys[MODEST_OPERATOR] = (await _ask(chaos, "POST", "/v1/keys", json=wanted))["key"]
        await _ready(chaos, replicas)
        yield Serving(chaos, keys)
    finally:
        await chaos.try_once("DELETE", "/v1/deployments/m")
        await all_ended(chaos)  # the replicas would outlive the cluster
        await cluster.__aexit__(None, None, None)


async def _ask(chaos: Chaos, method: str, path: str, **more: Any) -> Any:
    status, answer = await chaos.try_once(method, path, **more)
    assert 200 <= status < 300, f"{method} {path}: {status} {answer}"
    return answer


async def _ready(chaos: Chaos, replicas: int) -> None:
    """Wait until the replicas are ready and stay so: one whose port is taken ends at once."""
    ids: list[str] = []
    async with asyncio.timeout(READY_S):
        while True:
            shown = (await chaos.get("/v1/deployments/m"))["replicas"]
            before, ids = ids, [each["id"] for each in shown if each["ready"]]
            if ids == before and len(ids) == replicas:
                return
            await asyncio.sleep(STEADY_S)
