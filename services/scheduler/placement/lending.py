"""Nodes that the first waiting job lends to preemptible jobs, until it could start.

Pure. An attempt stays on lent nodes until it ends. The first waiting job may call it back if it
stands before the borrower in the order of the queue; that need not be the job that lent the nodes.
Tests: tests/unit/test_lent_nodes.py.
"""

from typing import Final

from libs.common.life import job_life
from libs.common.model import JobSpec
from libs.common.state.cluster import Job
from libs.common.state.ordering import SECOND_NS

# Nodes are lent for at least this long, and only to jobs that are gone this soon after they are
# told to make room.
LENT_MIN_NS: Final = 30 * SECOND_NS
LENT_GRACE_MAX_S: Final = 60


def can_borrow(spec: JobSpec) -> bool:
    """Return whether a job may run on lent nodes: it is preemptible at any time, and soon gone."""
    return (
        spec.preemptible
        and not spec.min_run_s
        and spec.serve is None
        and spec.allocation is None
        and not spec.preflight
        and spec.checkpoint_grace_s + spec.grace_s <= LENT_GRACE_MAX_S
    )


def can_lend(lender: Job, borrower: Job) -> bool:
    """Return whether a waiting job lends the nodes that are reserved for it.

    An array does not wait itself, and a preflight may refuse nodes that a borrower would free.
    """
    return (
        lender.elements is None
        and not lender.spec.preflight
        and borrower.spec.priority <= lender.spec.priority
    )


def may_be_called_back(job: Job) -> bool:
    """Return whether a borrower has not ended, and does not end soon anyway."""
    is_soon_gone = bool(job.stop_reason) and job.stop_grace_ms <= LENT_GRACE_MAX_S * 1_000
    return job.state in (job_life.PLACED, job_life.RUNNING) and not is_soon_gone
