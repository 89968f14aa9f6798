"""One node's real key against the stored output of the others: it can neither overwrite nor remove
a key that is not its own.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv import earlier_output_key, output_key
from libs.common.transport.kv_nats import KvOutputs, create_buckets
from libs.embedded.permissions import Fleet
from libs.embedded.servers import Servers, start_servers

SETTLE_S = 0.2
VICTIM = output_key(node_id="2", job_id="job-a", attempt=1, rank=0, stream="stdout")
EARLIER = earlier_output_key("job-a", 1, 0, "stdout")
OWN = output_key(node_id="1", job_id="job-b", attempt=1, rank=0, stream="stdout")
# Headers that a hostile node may put in front of a message.
REMOVALS = (
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"KV-Operation": "PURGE", "Nats-Rollup": "all"},
)


@pytest.fixture(params=[True, False], ids=["isolated", "together"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    found = start_servers(
        tmp_path, fleet=Fleet(nodes=("1", "2"), isolated=request.param), log_bytes=64 << 20
    )
    yield found
    found.stop()


class Bucket:
    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.clients: list[Client] = []

    async def client(self, name: str) -> Client:
        self.clients.append(await connect(self.servers.urls, name, self.servers.seed(name)))
        return self.clients[-1]

    async def stored(self) -> dict[str, bytes | None]:
        reader = KvOutputs(await self.client("gateway-a"))
        return {key: await reader.get(key) for key in (VICTIM, EARLIER, OWN)}


@pytest.fixture
async def bucket(servers: Servers) -> AsyncIterator[Bucket]:
    """As an earlier version made it: rollups allowed, and an entry under a key without its node's
    name.
    """
    found = Bucket(servers)
    scheduler = await found.client("scheduler")
    for name in (subjects.OUTPUT_BUCKET, subjects.LEADER_BUCKET, subjects.SECRET_BUCKET):
        await scheduler.jetstream().create_key_value(KeyValueConfig(name, history=1))
    await create_buckets(scheduler, Settings())
    await KvOutputs(await found.client("node-2")).put(VICTIM, b"theirs")
    yield found
    for client in found.clients:
        await client.close()


async def test_a_node_writes_no_output_of_another_node(bucket: Bucket) -> None:
    hostile = await bucket.client("node-1")
    for key in (VICTIM, EARLIER, "job-a", f"{VICTIM}.x", "2.>", "x"):
        for headers in ({}, *REMOVALS):
            await hostile.publish(f"$KV.OUTPUT.{key}", b"forged", headers=headers or None)
    await hostile.flush()
    await asyncio.sleep(SETTLE_S)
    assert await bucket.stored() == {VICTIM: b"theirs", EARLIER: None, OWN: None}


async def test_a_node_removes_nothing_by_a_header_on_its_own_key(bucket: Bucket) -> None:
    hostile = await bucket.client("node-1")
    await KvOutputs(hostile).put(OWN, b"mine")
    for headers in REMOVALS:
        with pytest.raises((NatsError, Unavailable)):
            await hostile.jetstream().publish(f"$KV.OUTPUT.{OWN}", b"forged", headers=headers)
    assert await bucket.stored() == {VICTIM: b"theirs", EARLIER: None, OWN: b"mine"}


async def test_no_process_may_delete_or_purge_the_bucket(bucket: Bucket) -> None:
    for name in ("node-1", "gateway-a", "scheduler", "audit", "trimmer"):
        client = await bucket.client(name)
        for verb in ("PURGE", "DELETE", "MSG.DELETE"):
            with pytest.raises((NatsError, TimeoutError)):
                await client.request(f"$JS.API.STREAM.{verb}.KV_OUTPUT", b"{}", timeout=SETTLE_S)
    assert (await bucket.stored())[VICTIM] == b"theirs"
