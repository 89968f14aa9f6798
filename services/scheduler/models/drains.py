"""Finds retired replicas without outstanding requests, from the reports of gateways.

Pure. A gateway that has folded a replica's retirement routes no request there any more, so once it
has reported none outstanding, that stays true. If a gateway has not reported since the retirement,
the replica is drained only when its grace is over. Gateways are known by their reports, and by what
they wrote to the log lately. Tests: tests/unit/test_scheduler_drains.py.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.messages.outstanding import Outstanding, decode_outstanding
from libs.common.model import JobId
from libs.common.state.cluster import Cluster

# A gateway that is silent for this long has ended. Before that it may only be disconnected from
# this scheduler.
FORGOTTEN_NS: Final = 600_000_000_000
# A gateway reports every second (services/api_gateway/openai/reporter.py). A new leader listens for
# this long before it assumes that it knows all of them, because a gateway that wrote nothing lately
# is known only by its reports.
LISTEN_NS: Final = 3_000_000_000
# More gateways than any cluster has.
GATEWAYS_MAX: Final = 1_024


class Drains:
    """The last report of each gateway, with its time, and the sequence at which each replica was
    retired.
    """

    def __init__(self) -> None:
        self.reports: dict[str, tuple[int, Outstanding]] = {}
        self.retired: dict[JobId, int] = {}
        self.floor = 0
        self.listened_ns = 0

    def begin(self, seq: int, now_ns: int) -> None:
        """Begin a term at this sequence.

        Earlier retirements count as made here. Every gateway reports within `LISTEN_NS`.
        """
        self.floor = seq
        self.listened_ns = now_ns + LISTEN_NS

    def retire(self, job_ids: Iterable[JobId], seq: int) -> None:
        """Note the sequence at which these replicas were retired."""
        self.retired.update(dict.fromkeys(job_ids, seq))

    def read(self, subject: str, data: bytes, now_ns: int) -> Outstanding | None:
        """Read a gateway's message and return it; the subject names the gateway.

        A message that cannot be read is dropped.
        """
        try:
            report = decode_outstanding(data)
        except msgspec.DecodeError:
            return None
        self.hear(subject.partition(".")[2], report, now_ns)
        return report

    def hear(self, instance: str, report: Outstanding, now_ns: int) -> None:
        """Note a gateway's report."""
        if instance in self.reports or len(self.reports) < GATEWAYS_MAX:
            self.reports[instance] = (now_ns, report)

    def drained(
        self, cluster: Cluster, draining: Iterable[JobId], now_ns: int, wall_ns: int
    ) -> tuple[JobId, ...]:
        """Return the draining replicas at which no gateway has a request since their retirement.

        `cluster` holds what the log has acknowledged, `now_ns` is this machine's boot clock, as in
        `hear`.
        """
        jobs = [
            job_id
            for job_id in draining
            if (job := cluster.jobs.get(job_id)) is not None and job.cancel is not None
        ]
        self.retired = {job_id: self.retired[job_id] for job_id in jobs if job_id in self.retired}
        self.reports = {
            instance: report
            for instance, report in self.reports.items()
            if now_ns - report[0] < FORGOTTEN_NS
        }
        if (
            not jobs
            or not self.reports
            or now_ns < self.listened_ns
            or any(instance not in self.reports for instance in _writers(cluster, wall_ns))
        ):
            return ()
        return tuple(job_id for job_id in jobs if self._is_drained(job_id))

    def _is_drained(self, job_id: JobId) -> bool:
        seq = self.retired.get(job_id, self.floor)
        return all(
            report.seq >= seq and not report.requests.get(job_id)
            for _, report in self.reports.values()
        )


def _writers(cluster: Cluster, wall_ns: int) -> list[str]:
    """Return the gateways that wrote to the log lately."""
    return [
        subjects.node_of(subject)
        for subject, mark in cluster.writers.items()
        if subjects.writer_kind(subject) == subjects.GATEWAY_KIND
        and wall_ns - mark.at_ns < FORGOTTEN_NS
    ]
