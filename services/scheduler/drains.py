"""Which retired replicas have no request left: as the gateways say, each for itself.

Pure. A gateway that has folded a replica's retirement routes no request there any more, so once it has said that none of its own is
outstanding, that stays true. A gateway that has not said so since the retirement is unknown, and then the replica is drained only when its
grace is over. Gateways are known by what they said, and by what they wrote to the log lately. Tests: tests/unit/test_scheduler_drains.py.
"""

import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.cluster import Cluster
from libs.common.messages.outstanding import Outstanding, decode_outstanding
from libs.common.model import JobId

# A gateway that was silent for so long has ended; before that it may only be cut off from here.
FORGOTTEN_NS: Final = 600_000_000_000
# A gateway reports every second (services/api_gateway/openai/reporter.py). Who begins a term listens for so long before it believes that it
# knows all of them: a gateway that wrote nothing lately is known by its reports alone.
LISTEN_NS: Final = 3_000_000_000
# Far more gateways than a cluster has.
GATEWAYS_MAX: Final = 1_024


class Drains:
    """What each gateway said last, and when; and where in the log each replica was retired."""

    def __init__(self) -> None:
        self.said: dict[str, tuple[int, Outstanding]] = {}
        self.retired: dict[JobId, int] = {}
        self.floor = 0
        self.listened_ns = 0

    def begin(self, seq: int, now_ns: int) -> None:
        """A term begins at this sequence: retirements before it count as made here. Every gateway can be heard until `LISTEN_NS` later."""
        self.floor = seq
        self.listened_ns = now_ns + LISTEN_NS

    def retire(self, job_ids: Iterable[JobId], seq: int) -> None:
        """The log took the retirement of these replicas."""
        self.retired.update(dict.fromkeys(job_ids, seq))

    def read(self, subject: str, data: bytes, now_ns: int) -> None:
        """A gateway's message; the subject says which gateway speaks. One that cannot be read says nothing."""
        with contextlib.suppress(msgspec.DecodeError):
            self.hear(subject.partition(".")[2], decode_outstanding(data), now_ns)

    def hear(self, instance: str, said: Outstanding, now_ns: int) -> None:
        """A gateway says what it has outstanding."""
        if instance in self.said or len(self.said) < GATEWAYS_MAX:
            self.said[instance] = (now_ns, said)

    def drained(self, cluster: Cluster, draining: Iterable[JobId], now_ns: int, wall_ns: int) -> tuple[JobId, ...]:
        """Those of the draining replicas that no gateway has a request at, once the log has their retirement. `cluster` is what the log has
        acknowledged, `now_ns` this machine's boot clock, as in `hear`.
        """
        jobs = [job_id for job_id in draining if (job := cluster.jobs.get(job_id)) is not None and job.cancel is not None]
        self.retired = {job_id: self.retired[job_id] for job_id in jobs if job_id in self.retired}
        self.said = {instance: said for instance, said in self.said.items() if now_ns - said[0] < FORGOTTEN_NS}
        if (
            not jobs
            or not self.said
            or now_ns < self.listened_ns
            or any(instance not in self.said for instance in _writers(cluster, wall_ns))
        ):
            return ()
        return tuple(job_id for job_id in jobs if self._is_drained(job_id))

    def _is_drained(self, job_id: JobId) -> bool:
        seq = self.retired.get(job_id, self.floor)
        return all(said.seq >= seq and not said.requests.get(job_id) for _, said in self.said.values())


def _writers(cluster: Cluster, wall_ns: int) -> list[str]:
    """Gateways that wrote to the log lately."""
    return [
        subjects.node_of(subject)
        for subject, mark in cluster.writers.items()
        if subjects.writer_kind(subject) == subjects.GATEWAY_KIND and wall_ns - mark.at_ns < FORGOTTEN_NS
    ]
