"""Time in which a service folds a million facts from a real server, or starts from a snapshot
instead.

The facts belong to jobs that live whole lives on 16 nodes. They come in commits of up to 100 facts,
as a busy cluster groups them. `FACTS=10000000` chooses their number.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.cluster import QUICK, say
from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.facts import AnyFact
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, Member, NodeId, TenantId
from libs.common.process.clock import SystemClock
from libs.common.state.cluster import Cluster
from libs.common.transport import connection_nats, log_jetstream, snapshot
from libs.common.transport.writer import Writer
from libs.embedded.permissions import Fleet, gateway_name, node_name
from libs.embedded.servers import Servers, start_servers

FACTS = int(os.environ.get("FACTS") or (100_000 if QUICK else 1_000_000))
NODES = 16
FACTS_PER_JOB = 9
JOBS_AT_ONCE = 25
DEFAULT = TenantId("default")


def opening() -> list[tuple[str, list[AnyFact]]]:
    """Return the commits that begin the term and register the nodes."""
    commits: list[tuple[str, list[AnyFact]]] = [(subjects.SCHEDULER, [f.TermBegan(instance="a")])]
    for n in range(NODES):
        devices = tuple(
            Gpu(
                uuid=GpuId(f"node-{n}-{i}"),
                index=i,
                vendor="simulated",
                model="Simulated H100",
                memory_bytes=80 << 30,
            )
            for i in range(8)
        )
        commits.append(
            (
                subjects.node(f"node-{n}"),
                [
                    f.NodeRegistered(
                        node_id=NodeId(f"node-{n}"), incarnation=1, address="", gpus=devices
                    )
                ],
            )
        )
    return commits


def lives(number: int) -> Iterator[tuple[str, list[AnyFact]]]:
    """Some jobs' whole lives on one node, grouped by writer as a busy cluster groups them."""
    node = NodeId(f"node-{number % NODES}")
    ids = [JobId(f"j{number}-{i}") for i in range(JOBS_AT_ONCE)]
    spec = JobSpec(command=("python", "train.py"), gpu_share=4)
    hold = (GpuHold(GpuId(f"{node}-0"), 4),)
    yield (
        subjects.gateway("a"),
        [f.JobSubmitted(job_id=job, spec=spec, user="bench") for job in ids],
    )
    yield subjects.QUOTA, [f.JobAdmitted(job_id=job) for job in ids]
    placed = [
        f.JobPlaced(job_id=job, attempt=1, members=(Member(node, 1, 0, hold),), port=29_500)
        for job in ids
    ]
    yield subjects.SCHEDULER, [*(f.JobQueued(job_id=job) for job in ids), *placed]
    yield subjects.node(node), [f.JobStarted(job_id=job, attempt=1, node_id=node) for job in ids]
    over: list[AnyFact] = []
    for job in ids:
        over += [
            f.JobFinished(job_id=job, attempt=1, node_id=node, exit_code=0),
            f.JobReleased(job_id=job, attempt=1, node_id=node),
        ]
    yield subjects.node(node), over
    yield (
        subjects.SCHEDULER,
        [f.JobClosed(job_id=job, attempt=1, outcome="completed", exit_code=0) for job in ids],
    )
    yield (
        subjects.QUOTA,
        [f.UsageCharged(job_id=job, attempt=1, tenant=DEFAULT, share_ms=1) for job in ids],
    )


async def fill(group: Servers, epoch: int = 1) -> log_jetstream.JetStreamLog:
    """Write the history, each subject by its own key."""
    writers: dict[str, Writer] = {}

    async def write(subject: str, facts: list[AnyFact]) -> None:
        if subject not in writers:
            name = {
                subjects.SCHEDULER: "scheduler",
                subjects.QUOTA: "quota",
                subjects.gateway("a"): gateway_name("a"),
            }.get(subject)
            key = name or node_name(subjects.node_of(subject))
            client = await connection_nats.connect(group.urls, key, group.seed(key))
            if subject == subjects.SCHEDULER:
                await log_jetstream.create_stream(client, 1, 4 << 30)
            writers[subject] = Writer(
                log_jetstream.JetStreamLog(client), SystemClock(), subject, lambda: 0
            )
            writers[subject].epoch = epoch
        await writers[subject].commit(facts)

    for subject, facts in opening():
        await write(subject, facts)
    for number in range(FACTS // (FACTS_PER_JOB * JOBS_AT_ONCE)):
        for subject, facts in lives(number):
            await write(subject, facts)
    return writers[subjects.SCHEDULER].log  # type: ignore[return-value]


async def replay(log: log_jetstream.JetStreamLog, cluster: Cluster) -> float:
    """Fold to the present end; the seconds that it took."""
    began = time.monotonic()
    _, last = await log.bounds()
    if cluster.seq < last:
        async for batch in log.read(cluster.seq):
            for entry in batch:
                fold.apply_entry(cluster, entry.seq, entry.subject, f.decode(entry.data))
            if cluster.seq >= last:
                break
    return time.monotonic() - began


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as folder:
        group = start_servers(
            Path(folder), 1, Fleet(nodes=tuple(f"node-{n}" for n in range(NODES))), 4 << 30
        )
        try:
            log = await fill(group)
            cluster = Cluster()
            took_s = await replay(log, cluster)
            assert cluster.ignored == 0, cluster.ignored
            say(
                "facts_per_s",
                cluster.facts / took_s,
                "1/s",
                cluster.facts,
                facts_per_commit=round(cluster.facts / cluster.seq),
            )
            data = snapshot.encode(cluster)
            began = time.monotonic()
            restored = snapshot.decode(data)
            assert restored is not None
            await replay(log, restored)
            say(
                "snapshot_start_s",
                time.monotonic() - began,
                "s",
                cluster.facts,
                snapshot_bytes=len(data),
                jobs_kept=len(cluster.jobs),
            )
        finally:
            group.stop()


if __name__ == "__main__":
    asyncio.run(main())
