"""Quota's state: the cluster's fold, the jobs that wait for a word, the attempts that wait for their charge.

Pure. Both lists are rebuilt by replay: a submission adds, an admission or rejection removes; the end of an attempt adds,
its charge removes.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import NOTHING, Stamp
from libs.common.cluster import Cluster, Job
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.model import JobId, TenantId, attempt_key


class Charge(msgspec.Struct, frozen=True):
    """What one attempt used: hundredths of a GPU times milliseconds from its placement to its end."""

    job_id: JobId
    attempt: int
    tenant: TenantId
    share_ms: int


class State:
    """`undecided` by submission, and how many each tenant has of them; `uncharged` by the end of the attempt."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.undecided: dict[JobId, None] = {
            job.job_id: None for job in cluster.jobs.values() if job.state == "pending" and not job.admitted
        }
        self.undecided_of = Counter(cluster.jobs[job_id].tenant for job_id in self.undecided)
        self.uncharged: dict[str, Charge] = {}

    @property
    def seq(self) -> int:
        return self.cluster.seq

    def apply_entry(self, seq: int, subject: str, commit: Commit) -> None:
        """Fold a commit of the log. An attempt is looked at before its end is folded: afterwards its members are gone."""
        fold.check_place(self.cluster, seq, subject, commit)
        stamp = fold.enter(self.cluster, seq, subject, commit)
        for fact in commit.facts:
            self._apply(fact, stamp)

    def apply_own(self, facts: Sequence[AnyFact], at_ns: int) -> None:
        """Fold own facts ahead of the log."""
        for fact in facts:
            self._apply(fact, Stamp(0, at_ns, 0, subjects.QUOTA_KIND, ""))

    def skip_own(self, seq: int, subject: str, commit: Commit) -> None:
        """An own commit came back: only the position moves."""
        fold.pass_over(self.cluster, seq, subject, commit)

    def _apply(self, fact: AnyFact | Unknown, stamp: Stamp) -> None:
        charge = self._charge_for(fact, stamp)
        if fold.apply(self.cluster, fact, stamp) is NOTHING:
            return
        if charge is not None:
            self.uncharged[attempt_key(charge.job_id, charge.attempt)] = charge
        match fact:
            case f.JobSubmitted():
                self.undecided[fact.job_id] = None
                self.undecided_of[fact.tenant] += 1
            case f.JobAdmitted() | f.JobRejected():
                del self.undecided[fact.job_id]
                self.undecided_of[self.cluster.jobs[fact.job_id].tenant] -= 1
            case f.UsageCharged():
                self.uncharged.pop(attempt_key(fact.job_id, fact.attempt), None)
            case _:
                pass

    def _charge_for(self, fact: AnyFact | Unknown, stamp: Stamp) -> Charge | None:
        """The charge that follows from this fact if it ends an attempt that was placed."""
        if not isinstance(fact, f.JobClosed | f.JobRequeued):
            return None
        job = self.cluster.jobs.get(fact.job_id)
        if job is None or job.attempt != fact.attempt or not job.members:
            return None
        return Charge(job.job_id, job.attempt, job.tenant, _share_of(job) * max(0, stamp.at_ns - job.placed_ns) // 1_000_000)


def _share_of(job: Job) -> int:
    return sum(wish.share for member in job.members.values() for wish in member.gpus)
