"""Publish hostile commits with one node's own key to a real embedded cluster, while jobs run on
another node.

`python -m tests.attack.fuzz --commits 100000` prints one JSON line. It fails when a service died or
was started again, when a job of the other node did not complete exactly once, or when readers
disagree about what was ignored. The small size is in tests/attack/test_hostile_node.py.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from nats.aio.client import Client

from libs.common import fold, reading, subjects
from libs.common.errors import Unavailable
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.log_jetstream import JetStreamLog
from libs.embedded.identity import seed_file
from libs.embedded.permissions import node_name
from services.quota.state import State as QuotaState
from services.scheduler.state.state import State
from tests.attack.hostile import Hostile
from tests.chaos.cluster import Chaos, running

SERVICES: Final = ("scheduler", "quota", "audit", "gateway")
HOSTILE: Final = "node-1"
HONEST: Final = "node-2"
# Messages between two answers of the log, so that they are not published faster than they are
# stored.
BURST: Final = 100
# Number of commits for each submitted job.
COMMITS_PER_JOB: Final = 200
SETTLE_S: Final = 120.0
CLOSE_S: Final = 10.0
# The commits must reach all readers: the budget of a node (test_node_floods_log.py) would end them.
UNBOUNDED: Final = {"MUSTER_NODE_BURST_BYTES": "0"}


async def fuzz(chaos: Chaos, commits: int, seed: int = 0) -> dict[str, Any]:
    """Publish so many commits and return the figures. Raises AssertionError naming what broke."""
    services = {name: chaos.ticket(name) for name in SERVICES}
    assert all(services.values()), services
    url = f"nats://127.0.0.1:{json.loads((chaos.state / 'cluster.json').read_text())['nats_port']}"
    gpus = [gpu["uuid"] for gpu in (await chaos.get("/v1/gpus"))["gpus"]]
    client = await connect(
        [url], node_name(HOSTILE), seed_file(chaos.state / "keys", node_name(HOSTILE)).read_bytes()
    )
    jobs: list[str] = []
    try:
        hostile = Hostile(
            chance=Random(seed), node=HOSTILE, others=(HONEST,), jobs=jobs, uuids=gpus
        )
        for at in range(commits):
            if at % COMMITS_PER_JOB == 0:
                jobs.append(await _submit(chaos))
                hostile.jobs = jobs[-20:]
            if at % BURST == 0:
                await client.request(hostile.subject, hostile.next(), timeout=20)
            else:
                await client.publish(hostile.subject, hostile.next())
        await client.flush(timeout=20)
    finally:
        await _closed(client)
    await _completed(chaos, jobs)
    read = await _folded(chaos, url)
    assert {name: chaos.ticket(name) for name in SERVICES} == services, (
        "a service was started again"
    )
    return {"figure": "hostile_commits", "commits": commits, "jobs": len(jobs), **read}


async def _closed(client: Client) -> None:
    """Close the connection; after many thousand messages the library's own end may not come."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await client.close()


async def _submit(chaos: Chaos) -> str:
    body = {"command": ["true"], "gpus": 1, "node_list": [HONEST]}
    status, answer = await chaos.try_once("POST", "/v1/jobs", json=body)
    assert status in (200, 201, 202), answer
    return str(answer["id"])


async def _completed(chaos: Chaos, jobs: list[str]) -> None:
    """Check that every job of the honest node completed at its first attempt."""
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while asyncio.get_running_loop().time() < deadline:
        found = await chaos.jobs()
        if all(found[job]["state"] == "completed" for job in jobs):
            assert {found[job]["attempt"] for job in jobs} == {1}
            return
        await asyncio.sleep(0.5)
    raise AssertionError(
        [(job, found[job]["state"]) for job in jobs if found[job]["state"] != "completed"][:5]
    )


async def _folded(chaos: Chaos, url: str) -> dict[str, Any]:
    """Fold the log here as each reader does, and compare with what the services report."""
    client = await connect(
        [url], "trimmer", seed_file(chaos.state / "keys", "trimmer").read_bytes()
    )
    try:
        log, bus = JetStreamLog(client), NatsBus(client)
        last = (await log.bounds())[1]
        gateway, scheduler, quota = Cluster(), State(Cluster()), QuotaState(Cluster())
        async for batch in log.read(0):
            for entry in batch:
                commit = reading.read(gateway.writers, entry.subject, entry.data)
                fold.apply_entry(gateway, entry.seq, entry.subject, commit)
                for state in (scheduler, quota):
                    state.apply_entry(entry.seq, entry.subject, commit)
            if gateway.seq >= last:
                break
        for subject in (subjects.ask_scheduler("position"), subjects.ask_quota("position")):
            await _reaches(bus, subject, last)
    finally:
        await _closed(client)
    counts = [
        (cluster.seq, cluster.ignored) for cluster in (gateway, scheduler.cluster, quota.cluster)
    ]
    assert len(set(counts)) == 1, counts
    node = gateway.nodes[NodeId(HOSTILE)]
    shown = (await chaos.get(f"/v1/nodes/{HOSTILE}", min_seq=str(gateway.seq)))["node"]
    assert shown["ignored"] >= node.ignored > 0, (shown["ignored"], node.ignored)
    return {"log": gateway.seq, "ignored_facts": gateway.ignored, "ignored_of_node": node.ignored}


async def _reaches(bus: NatsBus, subject: str, last: int) -> None:
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while asyncio.get_running_loop().time() < deadline:
        try:
            if int(await bus.request(subject, b"", 5.0)) >= last:
                return
        except Unavailable:
            pass
        await asyncio.sleep(0.2)
    raise AssertionError(f"{subject} is not at {last} after {SETTLE_S:.0f} s")


async def main(commits: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as folder:
        async with running(Path(folder), nodes=2, gpus=4, **UNBOUNDED) as chaos:
            print(json.dumps(await fuzz(chaos, commits, seed)))
            await chaos.archived()
            code, words = chaos.verify()
            assert code == 0, words


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Publish hostile commits of one node to a real cluster under load."
    )
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(sys.argv[1:])
    asyncio.run(main(given.commits, given.seed))
