"""Counters of jobs: submitted, placed with their wait, requeued and ended.

A gateway counts what it folds after it has caught up, so the counters of gateways differ by their
age. Test: tests/integration/test_gateway_metrics.py.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from libs.common import facts as f
from libs.common.facts import Commit
from libs.common.state.cluster import Cluster

WAIT_BUCKETS_S: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0)
OUTCOMES: Final = ("completed", "failed", "cancelled", "rejected")
NS: Final = 1_000_000_000


class JobCounters:
    """The counters of one gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.submitted = Counter("muster_jobs_submitted", "Jobs submitted", registry=registry)
        self.requeued = Counter(
            "muster_jobs_requeued", "Attempts that another one followed", registry=registry
        )
        self.ended = Counter(
            "muster_jobs_ended", "Jobs that ended, by outcome", ("outcome",), registry=registry
        )
        self.wait = Histogram(
            "muster_job_wait_seconds",
            "Time that placed jobs had waited since they were queued",
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        for outcome in OUTCOMES:
            self.ended.labels(outcome)

    def note(self, cluster: Cluster, commit: Commit) -> None:
        """Count the facts of a commit that is folded next."""
        for fact in commit.facts:
            match fact:
                case f.JobSubmitted():
                    self.submitted.inc()
                case f.JobRequeued():
                    self.requeued.inc()
                case f.JobClosed() if fact.outcome in OUTCOMES:
                    self.ended.labels(fact.outcome).inc()
                case f.JobRejected():
                    self.ended.labels("rejected").inc()
                case f.JobPlaced():
                    job = cluster.jobs.get(fact.job_id)
                    if job is not None and job.queued_ns:
                        self.wait.observe(max(0, commit.at_ns - job.queued_ns) / NS)
                case _:
                    pass
