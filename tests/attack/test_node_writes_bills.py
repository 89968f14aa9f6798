"""A node's key cannot change a bill, and no commit of a node stops the archive."""

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgpack
from nats.aio.client import Client

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import ChargePart, Commit, ModelUse
from libs.common.model import JobId, NodeId, TenantId
from libs.common.transport.connection_nats import connect
from libs.embedded.identity import seed_file
from libs.embedded.permissions import node_name
from tests.attack.fuzz import HONEST, HOSTILE, SERVICES, UNBOUNDED
from tests.chaos.cluster import Chaos, running

WITHIN_S: Final = 60.0
# One message of the log's server holds at most 1 MiB.
MESSAGE_BYTES: Final = (1 << 20) - 4_096
# Messages of the largest size that the budget of a node allows (decision 33).
LARGEST: Final = 15
SUBJECT: Final = subjects.node(HOSTILE)
VICTIM: Final = TenantId("default")


async def test_a_nodes_facts_change_no_bill_and_stop_no_archive(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2, gpus=4, **UNBOUNDED) as chaos:
        services = {name: chaos.ticket(name) for name in SERVICES}
        client = await _client(chaos)
        try:
            at_ns = time.time_ns()
            await _job(chaos)
            until = datetime.now(UTC).isoformat()
            before = await _bills(chaos, until)
            for data in _hostile(at_ns):
                await client.request(SUBJECT, data, timeout=20)
            await chaos.archived()
            assert await _bills(chaos, until) == before
            job_id = await _job(chaos)
            await _seen_in_events(chaos, job_id)
        finally:
            await client.close()
        assert {name: chaos.ticket(name) for name in SERVICES} == services
        code, words = chaos.verify()
        assert code == 0, words


async def _client(chaos: Chaos) -> Client:
    port = json.loads((chaos.state / "cluster.json").read_text())["nats_port"]
    seed = seed_file(chaos.state / "keys", node_name(HOSTILE)).read_bytes()
    return await connect([f"nats://127.0.0.1:{port}"], node_name(HOSTILE), seed)


async def _job(chaos: Chaos) -> str:
    """Run a job on the honest node until it is charged; return its id."""
    body = {"command": ["true"], "gpus": 1, "node_list": [HONEST]}
    status, answer = await chaos.try_once("POST", "/v1/jobs", json=body)
    assert status in (200, 201, 202), answer
    job_id, deadline = str(answer["id"]), time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        rows = (await chaos.get("/v1/charges"))["charges"]
        if any(row["job"] == job_id for row in rows):
            return job_id
        await asyncio.sleep(0.2)
    raise AssertionError(f"job {job_id} was not charged within {WITHIN_S:.0f} s")


async def _bills(chaos: Chaos, until: str) -> list[dict[str, Any]]:
    """Return all that the archive says of use up to a time, without the sequence of its end."""
    found = [
        await chaos.get("/v1/usage", fleet="true", until=until),
        await chaos.get("/v1/charges", until=until),
    ]
    return [{name: value for name, value in each.items() if name != "seq"} for each in found]


async def _seen_in_events(chaos: Chaos, job_id: str) -> None:
    """Follow the events from the first one on until a job's submission is among them."""
    after, deadline = "", time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        status, found = await chaos.try_once(
            "GET", "/v1/audit/events", params={"after": after, "limit": "1000"}
        )
        assert status == 200, found
        kinds = {(each["type"], each.get("subject")) for each in found}
        if ("io.muster.job.submitted", job_id) in kinds:
            return
        if found:
            after = found[-1]["id"]
        else:
            await asyncio.sleep(0.2)
    raise AssertionError(f"job {job_id} is in no event within {WITHIN_S:.0f} s, after {after}")


def _hostile(at_ns: int) -> list[bytes]:
    """Return commits that a node may publish, about a time that is already billed."""
    many = [_raw(number, {"kind": "a"}, MESSAGE_BYTES // 8) for number in range(LARGEST)]
    repeated = _raw(99, {"kind": "job.submitted", "job_id": "j", "request": "r"}, 25_000)
    return [_forged_bill(at_ns), *many, repeated]


def _forged_bill(at_ns: int) -> bytes:
    share_ms = 10**12
    charge = f.UsageCharged(
        job_id=JobId("forged"),
        attempt=1,
        tenant=VICTIM,
        share_ms=share_ms,
        user="ada",
        parts=(ChargePart("H100", share_ms, currency="EUR", cost_micros=10**12),),
    )
    use = ModelUse(
        model="forged",
        owner=VICTIM,
        tenant=VICTIM,
        user="ada",
        key_id="k",
        job_id=JobId("forged-1"),
        attempt=1,
        requests=10**6,
    )
    lost = f.NodeLost(node_id=NodeId(HONEST), incarnation=1, reason="silent")
    commit = Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=SUBJECT,
        number=1,
        epoch=1,
        at_ns=at_ns,
        seen=0,
        facts=(charge, f.ModelUsed(uses=(use,)), lost),
    )
    return f.encode(commit)


def _raw(number: int, fact: dict[str, str], count: int) -> bytes:
    head = [1, 1, SUBJECT, number, 1, time.time_ns(), 0]
    data = bytes(msgpack.packb([*head, [fact] * count]))
    assert len(data) <= 1 << 20
    return data
