"""Two nodes whose wall clocks are 2.3 s apart and drift: their events meet within 1 ms.

Both nodes, their traced processes and the nats-server between them are real processes. A preloaded
library shifts the wall clock of the second node. Each event carries the monotonic clock, which both
share and no part of Muster reads.
"""

import asyncio
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from libs.common.settings.settings import Settings
from libs.common.state.cluster import Job
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect_as
from libs.embedded.living import die_with_parent
from services.api_gateway.access.slots import Slots
from services.api_gateway.gateway import Gateway
from services.api_gateway.intents.trace_intents import TraceBody
from services.api_gateway.traces import job_traces
from tests.natsserver import NatsServer

SOURCE = Path(__file__).parents[1] / "shifted_clock.c"
SHIFT_NS = 2_345_678_901
# Ten times the drift of a bad crystal: without the second measurement it would show.
SHIFT_PPM = 500
NODES = ("n0", "n1")
ONE_MS_NS = 1_000_000
# The error of a test's own comparison of two clocks.
READING_NS = 200_000

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


class Member:
    """The part of a job's member that traces read."""

    def __init__(self, rank: int) -> None:
        self.node_id, self.rank = NODES[rank], rank


class Running:
    """The part of a running job that traces read."""

    job_id, attempt, state, tenant = "j", 1, "running", "t"
    members = {node: Member(rank) for rank, node in enumerate(NODES)}  # noqa: RUF012


class Asker:
    """The part of a gateway that traces use."""

    def __init__(self, bus: NatsBus) -> None:
        self.bus, self.settings = bus, Settings(trace_lead_ms=1_500)
        self.slots = Slots()


def node(rank: int, server: str, folder: Path, shim: Path) -> "subprocess.Popen[bytes]":
    shifted = {
        "LD_PRELOAD": str(shim),
        "SHIFT_NS": str(SHIFT_NS),
        "SHIFT_PPM": str(SHIFT_PPM),
        "SHIFT_FROM_NS": str(time.monotonic_ns()),
    }
    state = folder / NODES[rank]
    state.mkdir()
    line = [sys.executable, "-m", "tests.traces_agent", NODES[rank], str(rank), server, str(state)]
    return subprocess.Popen(
        line,
        env={**os.environ, **(shifted if rank else {})},
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent(),
    )


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    shim = tmp_path / "shim.so"
    line = ("cc", "-shared", "-fPIC", "-O1", "-o", shim, SOURCE, "-ldl")
    subprocess.run(line, check=True)  # noqa: ASYNC221  before anything runs
    server = NatsServer(tmp_path)
    server.start()
    children = [node(rank, server.url, tmp_path, shim) for rank in range(2)]
    client = await connect_as(Settings(nats=server.url), "gateway")
    for child in children:
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == b"ready\n"
    yield cast(Gateway, Asker(NatsBus(client)))
    await client.close()
    for child in children:
        child.kill()
        child.wait()
    server.kill()


async def traced(gateway: Gateway) -> tuple[int, list[dict[str, Any]]]:
    """Trace both nodes; return the error that the trace states, and the steps of its file."""
    job = cast(Job, Running())
    begun = await job_traces.begun(gateway, job, TraceBody(duration_s=1))
    async with asyncio.timeout(30):
        while (found := await job_traces.watched(gateway, job, begun.id)).state != "ready":
            assert found.state != "failed", found
            await asyncio.sleep(0.1)
    data = b"".join([piece async for piece in job_traces.file(gateway, found, job.tenant)])
    merged = json.loads(gzip.decompress(data))
    shifts = [each["shift_ns"] for each in merged["otherData"]["nodes"]]
    assert shifts[0] == 0 and abs(shifts[1] + SHIFT_NS) < SHIFT_NS // 10
    steps = [event for event in merged["traceEvents"] if event["name"] == "step"]
    return found.error_ns, steps


async def test_nodes_with_different_clocks_are_within_one_millisecond(gateway: Gateway) -> None:
    error_ns, steps = await traced(gateway)
    apart = {
        rank: [
            round(step["ts"] * 1_000) - int(step["args"]["monotonic"])
            for step in steps
            if step["args"]["rank"] == rank
        ]
        for rank in ("0", "1")
    }
    assert all(len(each) > 2 for each in apart.values())
    every = apart["0"] + apart["1"]
    spread_ns = max(every) - min(every)
    print(f"clocks: {spread_ns} ns apart, at most {error_ns} ns stated")
    # On a busy machine round trips are long; then the trace says so.
    assert spread_ns < max(ONE_MS_NS, error_ns + READING_NS)
