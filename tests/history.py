"""A cluster and the log that made it, one fact at a time: what the tests of the folds begin with.

`History.say` folds one fact as the subject that owns its kind would record it and answers whether
it took effect. A fact that changes nothing must leave everything but the counters as it was: `say`
holds that for every test.
"""

from typing import Final

import msgspec

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.life.node_life import DECLARED_DEAD
from libs.common.model import AttemptRef, Gpu, GpuHold, GpuId, JobId, JobSpec, Member, NodeId
from libs.common.state.cluster import Cluster, Job

SECOND: Final = 1_000_000_000
COUNTERS: Final = ("seq", "facts", "ignored", "writers")


def job(name: str) -> JobId:
    return JobId(name)


def node(name: str) -> NodeId:
    return NodeId(name)


def gpu(name: str, index: int = 0) -> Gpu:
    return Gpu(
        uuid=GpuId(name),
        index=index,
        vendor="simulated",
        model="Simulated H100",
        memory_bytes=80 << 30,
    )


def member(
    node_id: str, *uuids: str, rank: int = 0, incarnation: int = 1, share: int = 100
) -> Member:
    return Member(
        NodeId(node_id), incarnation, rank, tuple(GpuHold(GpuId(uuid), share) for uuid in uuids)
    )


def ref(name: str, attempt: int = 1) -> AttemptRef:
    return AttemptRef(JobId(name), attempt)


def registered(
    name: str,
    *uuids: str,
    incarnation: int = 1,
    attempts: tuple[AttemptRef, ...] = (),
    directory: str = "",
) -> f.NodeRegistered:
    gpus = tuple(gpu(uuid, index) for index, uuid in enumerate(uuids))
    return f.NodeRegistered(
        node_id=NodeId(name),
        incarnation=incarnation,
        address="10.0.0.1",
        gpus=gpus,
        attempts=attempts,
        directory=directory,
    )


def submitted(name: str, **spec: object) -> f.JobSubmitted:
    return f.JobSubmitted(
        job_id=JobId(name), spec=msgspec.convert({"command": ("true",), **spec}, JobSpec)
    )


def placed(name: str, *members: Member, attempt: int = 1) -> f.JobPlaced:
    return f.JobPlaced(job_id=JobId(name), attempt=attempt, members=members)


def finished(name: str, node_id: str, exit_code: int | None = 0, attempt: int = 1) -> f.JobFinished:
    return f.JobFinished(
        job_id=JobId(name), attempt=attempt, node_id=NodeId(node_id), exit_code=exit_code
    )


def started(name: str, node_id: str, attempt: int = 1) -> f.JobStarted:
    return f.JobStarted(job_id=JobId(name), attempt=attempt, node_id=NodeId(node_id))


def released(name: str, node_id: str, attempt: int = 1) -> f.JobReleased:
    return f.JobReleased(job_id=JobId(name), attempt=attempt, node_id=NodeId(node_id))


def refused(name: str, node_id: str, attempt: int = 1) -> f.JobRefused:
    return f.JobRefused(
        job_id=JobId(name), attempt=attempt, node_id=NodeId(node_id), reason="no device"
    )


def closed(name: str, outcome: str = "completed", attempt: int = 1) -> f.JobClosed:
    return f.JobClosed(job_id=JobId(name), attempt=attempt, outcome=outcome, exit_code=0)


def requeued(name: str, attempt: int = 1) -> f.JobRequeued:
    return f.JobRequeued(job_id=JobId(name), attempt=attempt, reason="node_lost", counted=False)


def lost(name: str, incarnation: int = 1) -> f.NodeLost:
    return f.NodeLost(node_id=NodeId(name), incarnation=incarnation)


def declared_dead(name: str, incarnation: int = 1, lost: int = 1) -> f.NodeDeclaredDead:
    return f.NodeDeclaredDead(node_id=NodeId(name), incarnation=incarnation, lost=lost)


def buried(name: str, incarnation: int = 1) -> f.NodeLost:
    return f.NodeLost(node_id=NodeId(name), incarnation=incarnation, reason=DECLARED_DEAD)


def returned(name: str, incarnation: int = 2) -> f.NodeReturned:
    return f.NodeReturned(node_id=NodeId(name), incarnation=incarnation)


def faulted(name: str, uuid: str, health: str = "degraded") -> f.GpuFaulted:
    return f.GpuFaulted(node_id=NodeId(name), uuid=GpuId(uuid), health=health, reason="xid")


def recovered(name: str, uuid: str) -> f.GpuRecovered:
    return f.GpuRecovered(node_id=NodeId(name), uuid=GpuId(uuid))


def subject_of(fact: AnyFact | Unknown) -> str:
    """The subject on which a right writer records this fact."""
    owner = subjects.WRITER_OF.get(type(fact), subjects.GATEWAY_KIND)
    if owner == subjects.NODE_KIND:
        return subjects.node(str(getattr(fact, "node_id", "")))
    return {subjects.GATEWAY_KIND: subjects.gateway("a"), subjects.QUOTA_KIND: subjects.QUOTA}.get(
        owner, subjects.SCHEDULER
    )


def stamp_of(subject: str, seq: int, epoch: int = 0) -> Stamp:
    return Stamp(
        seq=seq,
        at_ns=seq * SECOND,
        epoch=epoch,
        writer=subjects.writer_kind(subject),
        writer_id=subjects.node_of(subject),
    )


def copy(cluster: Cluster) -> Cluster:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(cluster), type=Cluster)


def picture(cluster: Cluster) -> dict[str, object]:
    """Everything but the counters, as plain values."""
    values = msgspec.to_builtins(cluster)
    return {name: value for name, value in values.items() if name not in COUNTERS}


class History:
    """`log` is what was said, as (subject, commit); sequence numbers count from 1."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.log: list[tuple[str, Commit]] = []
        self.numbers: dict[str, int] = {}

    def say(self, *facts: AnyFact | Unknown, subject: str = "", epoch: int | None = None) -> bool:
        """Whether the last fact took effect. Each is a commit of its own."""
        took_effect = False
        for fact in facts:
            before, ignored = picture(self.cluster), self.cluster.ignored
            took_effect = (
                self._commit(subject or subject_of(fact), (fact,), epoch)[0] is not IGNORED
            )
            assert took_effect == (self.cluster.ignored == ignored)
            assert took_effect or picture(self.cluster) == before, (
                f"{fact} was ignored and changed something"
            )
        return took_effect

    def _commit(
        self, subject: str, facts: tuple[AnyFact | Unknown, ...], epoch: int | None
    ) -> list[Change]:
        number = self.numbers[subject] = self.numbers.get(subject, 0) + 1
        seq = len(self.log) + 1
        epoch = self.cluster.epoch if epoch is None else epoch
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=number,
            epoch=epoch,
            at_ns=seq * SECOND,
            seen=seq - 1,
            facts=facts,
        )
        self.log.append((subject, commit))
        return fold.apply_entry(self.cluster, seq, subject, commit)

    def job(self, name: str) -> Job:
        return self.cluster.jobs[JobId(name)]

    def queue(self, name: str, **spec: object) -> None:
        """A job on its way: submitted, admitted, queued."""
        assert self.say(
            submitted(name, **spec),
            f.JobAdmitted(job_id=JobId(name)),
            f.JobQueued(job_id=JobId(name)),
        )

    def members(self, name: str) -> dict[str, str]:
        return {str(node_id): view.state for node_id, view in self.job(name).members.items()}

    def holds(self, uuid: str) -> dict[str, int]:
        return self.cluster.gpus[GpuId(uuid)].holds


def begun(nodes: int = 1, gpus: int = 1) -> History:
    """A term, and nodes n1, n2 ... with devices n1g1, n1g2 ... each."""
    history = History()
    assert history.say(f.TermBegan(instance="a"), f.ClusterConfigured(cluster_id="test"))
    for n in range(1, nodes + 1):
        assert history.say(registered(f"n{n}", *(f"n{n}g{g}" for g in range(1, gpus + 1))))
    return history
