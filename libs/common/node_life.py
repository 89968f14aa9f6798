"""A node's life, as a literal table: state x event -> state.

Pure. docs/node-life.md is generated from it. A node that was lost and registers again stays unreachable: it comes
back only by the scheduler's NodeReturned, once everything that it still accounts for is released. `:hurt` = one of
its devices is not healthy.
"""

from typing import Final

HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"
UNREACHABLE: Final = "unreachable"

NODE_LIFE: Final[dict[tuple[str, str], str]] = {
    ("", "node.registered"): HEALTHY,
    (HEALTHY, "node.registered"): HEALTHY,
    (HEALTHY, "gpu.faulted"): DEGRADED,
    (DEGRADED, "gpu.faulted"): DEGRADED,
    (HEALTHY, "node.lost"): UNREACHABLE,
    (DEGRADED, "node.registered"): DEGRADED,
    (DEGRADED, "gpu.recovered:last"): HEALTHY,
    (DEGRADED, "node.lost"): UNREACHABLE,
    (UNREACHABLE, "node.registered"): UNREACHABLE,
    (UNREACHABLE, "node.returned"): HEALTHY,
    (UNREACHABLE, "node.returned:hurt"): DEGRADED,
}

# Where work may be placed. A degraded node's healthy devices go on.
USABLE: Final = (HEALTHY, DEGRADED)
