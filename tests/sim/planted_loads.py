"""Planted bugs, like those of `planted.py`: each lets one tenant or one silent server delay the
others.
"""

import pytest

from libs.common.folds import order_fold
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job, tenant_of
from libs.common.transport import connection_nats


def a_job_that_ends_is_searched_among_all_dependents(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the fold searches an ended job among all jobs that depend on the same jobs."""

    def searching(cluster: Cluster, ended: Job, before: list[JobId]) -> None:
        for other, kinds in ended.order.waits.items():
            tenant_of(cluster, ended.tenant).dependencies -= len(kinds)
            left = {job_id: None for job_id in cluster.dependents[other] if job_id != ended.job_id}
            cluster.dependents[other] = left
            if not left:
                del cluster.dependents[other]
        ended.order.waits, ended.order.in_vain = {}, JobId("")

    patch.setattr(order_fold, "_forget", searching)


def clients_ping_as_rarely_as_before(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a client leaves a silent server only after its lease has ended."""
    patch.setattr(connection_nats, "PING_S", 5.0)
