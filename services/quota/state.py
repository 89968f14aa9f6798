"""Quota's state: the cluster's fold, the jobs to decide on, and the tenants to decide on.

Pure. `State(cluster)` builds the indexes from any cluster. The attempts to charge are in the fold
itself (`Cluster.uncharged`), because a snapshot must hold them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import IGNORED, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.model import GPU_HOUR_SHARE_MS, JobId, TenantId
from libs.common.state.cluster import Cluster, WriterMark


class State:
    """The cluster and quota's indexes.

    `undecided` are jobs in the order of submission, `undecided_of` their number by tenant.
    `dependencies` are those of each undecided job that has any, `dependencies_of` their sum by
    tenant. `spent` are tenants whose BudgetExhausted is due; `monthly` those with a monthly budget.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.undecided: dict[JobId, None] = {
            job.job_id: None
            for job in cluster.jobs.values()
            if job.state == "pending" and not job.admitted
        }
        self.undecided_of: Counter[TenantId] = Counter()
        for job_id in self.undecided:
            self.undecided_of[cluster.jobs[job_id].tenant] += cluster.jobs[job_id].waiting
        self.dependencies: dict[JobId, int] = {}
        self.dependencies_of: Counter[TenantId] = Counter()
        for job_id in self.undecided:
            self._count_dependencies(job_id)
        self.spent: dict[TenantId, None] = {}
        self.monthly: dict[TenantId, None] = {}
        for name in cluster.tenants:
            self._look_at_budget(name)

    @property
    def seq(self) -> int:
        return self.cluster.seq

    @property
    def writers(self) -> Mapping[str, WriterMark]:
        return self.cluster.writers

    def apply_entry(self, seq: int, subject: str, commit: Commit) -> None:
        """Fold a commit of the log."""
        fold.check_place(self.cluster, seq, subject, commit)
        stamp = fold.enter(self.cluster, seq, subject, commit)
        for fact in commit.facts:
            self._apply(fact, stamp)

    def apply_own(self, facts: Sequence[AnyFact], at_ns: int) -> None:
        """Fold own facts ahead of the log."""
        for fact in facts:
            self._apply(
                fact, Stamp(seq=0, at_ns=at_ns, epoch=0, writer=subjects.QUOTA_KIND, writer_id="")
            )

    def skip_own(self, seq: int, subject: str, commit: Commit) -> None:
        """Pass over an own commit that came back: only the position moves."""
        fold.pass_over(self.cluster, seq, subject, commit)

    def _apply(self, fact: AnyFact | Unknown, stamp: Stamp) -> None:
        change = fold.apply(self.cluster, fact, stamp)
        if change is IGNORED:
            return
        match fact:
            case f.JobSubmitted():
                self.undecided[fact.job_id] = None
                self.undecided_of[fact.tenant] += self.cluster.jobs[fact.job_id].waiting
            case f.JobAdmitted() | f.JobRejected():
                del self.undecided[fact.job_id]
                job = self.cluster.jobs[fact.job_id]
                self.undecided_of[job.tenant] -= job.waiting
            case f.UsageCharged() | f.TenantSet() | f.BudgetExhausted() | f.BudgetRenewed():
                self._look_at_budget(fact.tenant)
            case _:
                pass
        for job_id in change.jobs:
            if job_id in self.undecided or job_id in self.dependencies:
                self._count_dependencies(job_id)

    def _count_dependencies(self, job_id: JobId) -> None:
        """Count the dependencies of an undecided job again. They become fewer as other jobs end."""
        job = self.cluster.jobs[job_id]
        count = sum(map(len, job.order.waits.values())) if job_id in self.undecided else 0
        self.dependencies_of[job.tenant] += count - self.dependencies.pop(job_id, 0)
        if count:
            self.dependencies[job_id] = count

    def _look_at_budget(self, name: TenantId) -> None:
        tenant = self.cluster.tenants[name]
        if tenant.monthly and tenant.gpu_hours:
            self.monthly[name] = None
        else:
            self.monthly.pop(name, None)
        if (
            0 < tenant.gpu_hours * GPU_HOUR_SHARE_MS <= tenant.budget_share_ms
            and not tenant.exhausted
        ):
            self.spent[name] = None
        else:
            self.spent.pop(name, None)
