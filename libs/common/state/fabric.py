"""The measured fabric in the state: tests under way, measured pairs, verdicts, and racks.

Pure. Bandwidths are bytes per second, parts thousandths, times those of the schedulers' wall clock.
"""

from typing import Final

import msgspec

from libs.common.model import JobId, NodeId
from libs.common.state.baseline import Baseline

# Pairs that are kept; the ones measured longest ago leave first. All pairs of 256 nodes fit.
PAIRS_KEPT: Final = 32_768
# Ended tests that are kept for their readers.
ENDED_KEPT: Final = 32
# Drains of the last hour count against the bound; a few more are kept for people.
DRAINS_KEPT: Final = 64

# Characters of a text of a node that are kept.
TEXT_MAX: Final = 200

DONE: Final = "done"
FAILED: Final = "failed"


class PairView(msgspec.Struct, frozen=True, array_like=True):
    """The last result of a pair, and the baseline of its bandwidth.

    An `error` is the failure of the last probe; the other values are then those of the last one
    that succeeded.
    """

    forward: int = 0
    backward: int = 0
    small: int = 0
    rtt_ns: int = 0
    at_ns: int = 0
    baseline: Baseline = Baseline()
    error: str = ""

    @property
    def bandwidth(self) -> int:
        """The bandwidth of the worse direction."""
        return min(self.forward, self.backward)


class Probe(msgspec.Struct, frozen=True, array_like=True):
    """The report of one node of an ordered pair."""

    bandwidth: int = 0
    small: int = 0
    rtt_ns: int = 0
    engine: str = ""
    error: str = ""
    refused: bool = False


class FabricTest(msgspec.Struct):
    """A test under way.

    `number` is the last ordered round and `pairs` are its pairs, none once it is closed. `probes`
    are the reports for it so far. `confirmed` are the pairs that the present stage has measured.
    `refused` are the nodes that took no probe at least once, and why. A preflight is about
    `attempt` of the gang `job_id`.
    """

    test: str
    purpose: str
    nodes: tuple[NodeId, ...]
    left_out: tuple[str, ...] = ()
    number: int = 0
    stage: int = 0
    planned: int = 0
    targets: tuple[str, ...] = ()
    pairs: tuple[tuple[NodeId, NodeId], ...] = ()
    probes: dict[NodeId, Probe] = {}
    confirmed: dict[str, None] = {}
    measured: int = 0
    refused: dict[NodeId, str] = {}
    job_id: JobId = JobId("")
    attempt: int = 0


class EndedTest(msgspec.Struct, frozen=True):
    """The result of a test in short."""

    test: str
    purpose: str
    outcome: str
    detail: str
    nodes: tuple[NodeId, ...]
    left_out: tuple[str, ...]
    rounds: int
    pairs: int
    at_ns: int


class Preflight(msgspec.Struct, frozen=True):
    """The last preflight of a gang: of this attempt, on these nodes (`facts.PreflightEnded`).

    `suspects` are the nodes that it and earlier preflights of the gang excluded, and when. A
    preflight that passes clears its nodes.
    """

    attempt: int
    nodes: tuple[NodeId, ...]
    outcome: str
    detail: str
    measured: int
    excluded: tuple[NodeId, ...]
    at_ns: int
    suspects: dict[NodeId, int] = {}


class NodeView(msgspec.Struct, frozen=True):
    """The last verdict on a node. `reason` is empty unless the node is a suspect."""

    capacity: int
    baseline: Baseline
    part: int
    reason: str
    at_ns: int


class LinkView(msgspec.Struct, frozen=True):
    """A suspect link."""

    bandwidth: int
    part: int
    at_ns: int


class Fabric(msgspec.Struct):
    """All that is known of the fabric.

    `pairs` and `links` are by `pair_key`. `racks` is the measured rack of each node in one, as of
    `racks_ns`. `requests` are tests that wait, with their nodes. `drains` are (time, node).
    """

    requests: dict[str, tuple[NodeId, ...]] = {}
    tests: dict[str, FabricTest] = {}
    ended: dict[str, EndedTest] = {}
    pairs: dict[str, PairView] = {}
    nodes: dict[NodeId, NodeView] = {}
    links: dict[str, LinkView] = {}
    racks: dict[NodeId, str] = {}
    racks_ns: int = 0
    tested_ns: int = 0
    drains: list[tuple[int, NodeId]] = []


def pair_key(a: NodeId, b: NodeId) -> str:
    """Return the key of a pair; node names contain no space."""
    return f"{a} {b}" if a < b else f"{b} {a}"


def pair_of(key: str) -> tuple[NodeId, NodeId]:
    """Return the nodes of a key of `pair_key`."""
    first, _, second = key.partition(" ")
    return NodeId(first), NodeId(second)
