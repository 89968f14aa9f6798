"""A node that writes to the log as fast as it can loses its key.

The log does not fill, and other nodes' jobs go on.
"""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import Commit
from libs.common.model import JobId, NodeId
from libs.common.transport.connection_nats import connect
from libs.common.transport.log_jetstream import JetStreamLog
from libs.embedded.identity import seed_file
from libs.embedded.permissions import node_name
from tests.attack.fuzz import HONEST, HOSTILE, SERVICES
from tests.chaos.cluster import Chaos, running

MIB: Final = 1 << 20
LOG_BYTES: Final = 1 << 30
# Seconds until a flooding node is cut off, and until a job of another node has run beside the
# flood.
CUT_S: Final = 60.0
JOB_S: Final = 60.0
CLOSE_S: Final = 5.0
# Messages between two checks that the server still listens.
BURST: Final = 50
VALID: Final = Commit(
    version=1,
    min_reader=1,
    writer=subjects.node(HOSTILE),
    number=1,
    epoch=1,
    at_ns=0,
    seen=0,
    facts=(f.JobStarted(job_id=JobId("j"), attempt=1, node_id=NodeId(HOSTILE)),),
)
FLOODS: Final = {"valid": f.encode(VALID), "garbage": b"\x93" * 500_000}


async def _flood(client: Client, data: bytes, over: asyncio.Event) -> int:
    """Publish until told to end or cut off, without waiting for any answer of the log.

    Return how many were sent.
    """
    sent = 0
    with suppress(NatsError, TimeoutError, OSError):
        while not over.is_set() and client.is_connected:
            for _ in range(BURST):
                await client.publish(subjects.node(HOSTILE), data)
            sent += BURST
            await client.flush(timeout=5)
    return sent


async def _log_bytes(chaos: Chaos, url: str) -> int:
    client = await connect(
        [url], "trimmer", seed_file(chaos.state / "keys", "trimmer").read_bytes()
    )
    found = (await JetStreamLog(client).extent()).bytes
    await client.close()
    return found


async def _job(chaos: Chaos) -> float:
    """Return how long a job of the honest node takes, from its submission to its end."""
    begun, job_id = time.monotonic(), ""
    while time.monotonic() - begun < JOB_S:
        if not job_id:
            status, answer = await chaos.try_once(
                "POST", "/v1/jobs", json={"command": ["true"], "gpus": 1, "node_list": [HONEST]}
            )
            job_id = str(answer["id"]) if status in (200, 201, 202) else ""
        elif (await chaos.jobs())[job_id]["state"] == "completed":
            return time.monotonic() - begun
        await asyncio.sleep(0.1)
    raise AssertionError(f"no job ran within {JOB_S:.0f} s beside the flood")


async def _revoked(chaos: Chaos) -> str:
    deadline = time.monotonic() + CUT_S
    while time.monotonic() < deadline:
        found = str((await chaos.get(f"/v1/nodes/{HOSTILE}"))["node"]["revoked"])
        if found:
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"the node was not revoked within {CUT_S:.0f} s")


@pytest.mark.parametrize("kind", ["valid", pytest.param("garbage", marks=pytest.mark.drill)])
async def test_a_node_that_floods_the_log_loses_its_key_and_other_tenants_go_on(
    tmp_path: Path, kind: str
) -> None:
    async with running(tmp_path, nodes=2, gpus=4, MUSTER_STREAM_BYTES=str(LOG_BYTES)) as chaos:
        services = {name: chaos.ticket(name) for name in SERVICES}
        port = json.loads((chaos.state / "cluster.json").read_text())["nats_port"]
        url = f"nats://127.0.0.1:{port}"
        seed = seed_file(chaos.state / "keys", node_name(HOSTILE)).read_bytes()
        client = await connect([url], node_name(HOSTILE), seed)
        over = asyncio.Event()
        begun = time.monotonic()
        flood = asyncio.create_task(_flood(client, FLOODS[kind], over))
        try:
            took = await _job(chaos)
            reason = await _revoked(chaos)
            sent = await asyncio.wait_for(flood, CUT_S)
        finally:
            over.set()
            flood.cancel()
            with suppress(TimeoutError, OSError):
                await asyncio.wait_for(client.close(), CLOSE_S)
        cut_s = time.monotonic() - begun
        held = await _log_bytes(chaos, url)
        print(
            f"{kind}: {sent} sent, the job took {took:.1f} s, cut after {cut_s:.1f} s, the "
            f"log holds {held / MIB:.1f} MiB"
        )
        assert "more to the log than its work explains" in reason
        assert held < LOG_BYTES // 4
        await _job(chaos)
        with pytest.raises(Exception, match=r"(?i)authorization|no NATS server"):
            await connect([url], node_name(HOSTILE), seed, within_s=3.0)
        assert {name: chaos.ticket(name) for name in SERVICES} == services
