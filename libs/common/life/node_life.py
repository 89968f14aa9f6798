"""A node's life: a table of state x event -> state.

Pure. docs/node-life.md is generated from it. A lost node that registers again stays unreachable
until the scheduler records NodeReturned, when agent and scheduler agree on what runs there. `:hurt`
means that one of the node's devices is not healthy now. `node.replaced` means that an agent with
another state directory registered: the node is unreachable until the scheduler records NodeLost for
the previous incarnation.
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

# Reasons for which a node is lost: it was silent, an operator declared it dead, or it was silent
# while nothing but its supervisors ended its jobs.
SILENT: Final = "silent"
DECLARED_DEAD: Final = "declared_dead"
UNGUARDED: Final = "unguarded"
# Shown for a usable node from which the scheduler receives no heartbeat.
UNHEARD: Final = (
    "silent: the scheduler received no heartbeat for a lease and its margin: if the machine is "
    "off, confirm it with `muster node dead`"
)

# States in which a node takes work. The healthy devices of a degraded node go on.
USABLE: Final = (HEALTHY, DEGRADED)
