"""A node's life, as a literal table: state x event -> state.

Pure. docs/node-life.md is generated from it. A node that was lost and registers again stays
unreachable: it comes back only by the scheduler's NodeReturned, once everything that it still
accounts for is released. `:hurt` = one of its devices is not healthy now. `node.replaced` =
registered from another state directory: as good as lost, until the scheduler says so of the
incarnation before.
"""

from typing import Final

HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"
UNREACHABLE: Final = "unreachable"
REMOVED: Final = "removed"
STATES: Final = (HEALTHY, DEGRADED, UNREACHABLE, REMOVED)

NODE_LIFE: Final[dict[tuple[str, str], str]] = {
    ("", "node.registered"): HEALTHY,
    ("", "node.registered:hurt"): DEGRADED,
    (HEALTHY, "node.registered"): HEALTHY,
    (HEALTHY, "node.registered:hurt"): DEGRADED,
    (HEALTHY, "gpu.faulted:hurt"): DEGRADED,
    (HEALTHY, "gpu.moved:hurt"): DEGRADED,
    (HEALTHY, "node.replaced"): UNREACHABLE,
    (HEALTHY, "node.lost"): UNREACHABLE,
    (DEGRADED, "node.registered"): HEALTHY,
    (DEGRADED, "node.registered:hurt"): DEGRADED,
    (DEGRADED, "gpu.faulted:hurt"): DEGRADED,
    (DEGRADED, "gpu.recovered"): HEALTHY,
    (DEGRADED, "gpu.recovered:hurt"): DEGRADED,
    (DEGRADED, "gpu.moved"): HEALTHY,
    (DEGRADED, "gpu.moved:hurt"): DEGRADED,
    (DEGRADED, "node.replaced"): UNREACHABLE,
    (DEGRADED, "node.lost"): UNREACHABLE,
    (HEALTHY, "node.removed"): REMOVED,
    (DEGRADED, "node.removed"): REMOVED,
    (UNREACHABLE, "node.removed"): REMOVED,
    (UNREACHABLE, "node.registered"): UNREACHABLE,
    (UNREACHABLE, "node.registered:hurt"): UNREACHABLE,
    (UNREACHABLE, "node.returned"): HEALTHY,
    (UNREACHABLE, "node.returned:hurt"): DEGRADED,
}

# Why a node is held for lost: nothing was heard of it, or an operator has said that nothing of it
# is alive.
SILENT: Final = "silent"
DECLARED_DEAD: Final = "declared_dead"

# Where work may be placed. A degraded node's healthy devices go on.
USABLE: Final = (HEALTHY, DEGRADED)
