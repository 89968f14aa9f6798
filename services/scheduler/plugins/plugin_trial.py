"""A small cluster on which a plug-in is tried before it counts: many kinds of jobs, some of which
must wait.

Pure: equal runs of a plug-in must lead to equal decisions, or it is refused (`plugins.py`).
"""

from collections.abc import Iterator
from typing import Any, Final

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact
from libs.common.model import Gpu, GpuId, JobId, JobSpec, NodeId
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import DEFAULT_QUEUE, SECOND_NS
from libs.common.state.plugins import SCORE
from services.scheduler.decide.decide import decide
from services.scheduler.state.state import State

EPOCH: Final = 1
NODES: Final = 3
GPUS: Final = 4
DECISIONS_MAX: Final = 1_000
# The jobs' requests; each is submitted twice.
REQUESTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"gpu_share": 30, "priority": 90},
    {"gpus": 2, "estimate_s": 600},
    {"nodes": 2, "gpus": 2, "priority": 10},
    {"gpus": 0, "cpus_milli": 500},
    {"gpu_share": 50, "time_limit_s": 60, "deadline_ns": 900 * SECOND_NS},
)


def trial(kind: str, name: str, version: str) -> list[AnyFact]:
    """Return the scheduler's decisions when everything uses this plug-in."""
    cluster = Cluster()
    for seq, fact in enumerate(_history(kind, name, version), EPOCH):
        writer = subjects.WRITER_OF[type(fact)]
        node_id = getattr(fact, "node_id", "") if writer == subjects.NODE_KIND else ""
        fold.apply(
            cluster,
            fact,
            Stamp(seq, at_ns=seq * SECOND_NS, epoch=EPOCH, writer=writer, writer_id=node_id),
        )
    state = State(cluster)
    state.begin(EPOCH, 0)
    decisions: list[AnyFact] = []
    while len(decisions) < DECISIONS_MAX and (facts := decide(state, SECOND_NS)):
        decisions.extend(facts)
        state.apply_own(facts, SECOND_NS)
    return decisions


def _history(kind: str, name: str, version: str) -> Iterator[AnyFact]:
    versions = {name: version}
    yield f.TermBegan(
        instance="trial",
        orders={} if kind == SCORE else versions,
        scores=versions if kind == SCORE else {},
    )
    if kind != SCORE:
        yield f.QueueSet(queue=DEFAULT_QUEUE, policy=name)
    for number in range(NODES):
        gpus = tuple(
            Gpu(
                uuid=GpuId(f"n{number}-g{index}"),
                index=index,
                vendor="nvidia",
                model="H100",
                memory_bytes=80 << 30,
                numa=index // 2,
            )
            for index in range(GPUS)
        )
        yield f.NodeRegistered(
            node_id=NodeId(f"n{number}"),
            incarnation=1,
            address="127.0.0.1",
            gpus=gpus,
            cpus_milli=64_000,
            memory_bytes=1 << 40,
        )
    for number, words in enumerate((*REQUESTS, *REQUESTS)):
        job_id = JobId(f"j{number}")
        yield f.JobSubmitted(
            job_id=job_id,
            spec=JobSpec(command=("true",), placement=name if kind == SCORE else "", **words),
        )
        yield f.JobAdmitted(job_id=job_id)
        yield f.JobQueued(job_id=job_id)
