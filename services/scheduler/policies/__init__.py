"""Policies: the orders of queues. Each file has one function `key(job, queue, now_ns)`; the
smallest key goes first.

Pure. A key does not change while the job waits (`queue.py` sorts once), so 100,000 waiting jobs
cost nothing per decision. A policy with a `rank` gives each tenant a lane of its own, and only the
lanes are compared at each decision. A policy with `turns_ns` says when a job's key changes.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from libs.common.state.cluster import Job, Tenant
from libs.common.state.ordering import DEFAULT_POLICY, JobQueue
from libs.common.state.plugins import ORDER, Plugins
from services.scheduler.policies import deadline, fair_share, fifo, las, priority, srsf

# The policy's key, followed by tie-breakers.
OrderKey = tuple[int, ...]
# Hundredths of GPUs, thousandths of CPUs and MiB of the usable nodes.
Sizes = tuple[int, int, int]


class Policy(NamedTuple):
    key: Callable[[Job, JobQueue, int], OrderKey]
    rank: Callable[[Tenant, Sizes, int], int] | None = None
    turns_ns: Callable[[Job], int] | None = None


POLICIES: Final[dict[str, Policy]] = {
    "fifo": Policy(fifo.key),
    "priority": Policy(priority.key),
    "fair_share": Policy(fair_share.key, rank=fair_share.rank),
    "srsf": Policy(srsf.key),
    "las": Policy(las.key),
    "deadline": Policy(deadline.key, turns_ns=deadline.latest_start_ns),
}
# Policies that this process loaded from plug-ins (`plugins.py`). The log tells which of them count
# (`libs/common/state/plugins.py`).
PLUGGED: Final[dict[str, Policy]] = {}


def policy_named(name: str, plugins: Plugins) -> Policy:
    """Return the policy; `priority` if the name is unknown or its plug-in is not in force."""
    plugged = PLUGGED.get(name) if plugins.in_force(ORDER, name) else None
    return POLICIES.get(name) or plugged or POLICIES[DEFAULT_POLICY]
