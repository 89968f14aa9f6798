"""The states of what a node keeps for a model, and the tiers in which it can be kept.

Pure. A tier on a node is an entry. The scheduler chooses the node, the node measures the bytes, the
scheduler grants them, and the node fills the entry and verifies it. A tier without bytes in the
ledger (artefact) goes from requested to ready at once. Those on devices need no measurement: a
later grant covers the devices of more replicas. docs/kept-life.md is generated from this
table.
"""

from typing import Final

# Tiers, the cheapest first: compile products on the node's disk; weight files in its memory;
# weights on the device, held by a weight server; a second engine that is ready to take over.
ARTEFACT: Final = "artefact"
HOST: Final = "host"
GPU: Final = "gpu"
STANDBY: Final = "standby"
TIERS: Final = (ARTEFACT, HOST, GPU, STANDBY)

REQUESTED: Final = "requested"
MEASURED: Final = "measured"
FILLING: Final = "filling"
READY: Final = "ready"
FAILED: Final = "failed"
EVICTED: Final = "evicted"

KEPT_LIFE: Final[dict[tuple[str, str], str]] = {
    ("", "kept.placed"): REQUESTED,
    (EVICTED, "kept.placed"): REQUESTED,
    (REQUESTED, "kept.observed:measured"): MEASURED,
    (REQUESTED, "kept.observed:ready"): READY,
    (REQUESTED, "kept.observed:failed"): FAILED,
    (REQUESTED, "kept.granted"): FILLING,
    (REQUESTED, "kept.evicted"): EVICTED,
    (MEASURED, "kept.granted"): FILLING,
    (MEASURED, "kept.observed:failed"): FAILED,
    (MEASURED, "kept.evicted"): EVICTED,
    (FILLING, "kept.granted"): FILLING,
    (FILLING, "kept.observed:filling"): FILLING,
    (FILLING, "kept.observed:ready"): READY,
    (FILLING, "kept.observed:failed"): FAILED,
    (FILLING, "kept.evicted"): EVICTED,
    (READY, "kept.granted"): READY,
    (READY, "kept.observed:ready"): READY,
    (READY, "kept.observed:filling"): FILLING,
    (READY, "kept.observed:failed"): FAILED,
    (READY, "kept.evicted"): EVICTED,
    (FAILED, "kept.observed:measured"): MEASURED,
    (FAILED, "kept.observed:ready"): READY,
    (FAILED, "kept.observed:failed"): FAILED,
    (FAILED, "kept.evicted"): EVICTED,
}

# The states in which the scheduler's ledger counts bytes for an entry.
HOLDS_BYTES: Final = (FILLING, READY)
