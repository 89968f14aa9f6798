"""Orders of a queue: one file per policy, one function `key(job, queue, now_ns)` each; the smallest
key goes first.

Pure. A key stands still while the job waits (`queue.py` sorts it once), so that 100,000 waiting
jobs cost nothing per decision. What moves is left to two other numbers: where a policy has a
`rank`, each tenant's jobs wait in a lane of their own and only the lanes are compared anew; where
it says when a key `turns_ns`, the job is given its key again at that time.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from libs.common.state.cluster import Job, Tenant
from libs.common.state.ordering import JobQueue
from libs.common.state.plugins import ORDER, Plugins
from services.scheduler.policies import deadline, fair_share, fifo, las, priority, srsf

# What a policy gives, and behind it what decides among equals.
OrderKey = tuple[int, ...]
# GPUs (hundredths), thousandths of CPUs and MiB of the usable nodes.
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
# Those that this process has from plug-ins (`plugins.py`); which of them count, the log says
# (`libs/common/state/plugins.py`).
PLUGGED: Final[dict[str, Policy]] = {}


def policy_named(name: str, plugins: Plugins) -> Policy:
    """Of a name that nobody knows, or of a plug-in that does not count now, it is `priority`."""
    plugged = PLUGGED.get(name) if plugins.in_force(ORDER, name) else None
    return POLICIES.get(name) or plugged or POLICIES["priority"]
