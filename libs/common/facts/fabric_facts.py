"""Facts about the fabric between nodes: requested tests, ordered probes, results, and verdicts.

Pure; part of the union in `facts/__init__.py`. Bandwidths are bytes per second, parts thousandths.
The page of people is docs/fabric.md.
"""

from typing import Final

import msgspec

from libs.common.facts.fact import Fact
from libs.common.model import JobId, NodeId

# What a test is for.
REQUESTED: Final = "requested"
SCHEDULED: Final = "scheduled"
PREFLIGHT: Final = "preflight"

# How a preflight ended. With SUSPECT its gang is placed again, with PASSED or UNFINISHED it starts
# there. ABANDONED: the gang gave up its place meanwhile.
PASSED: Final = "passed"
SUSPECT: Final = "suspect"
UNFINISHED: Final = "unfinished"
ABANDONED: Final = "abandoned"


class FabricTestRequested(Fact, frozen=True, tag="fabric.test_requested"):
    """An operator asked to measure the fabric between these nodes; none named: all idle ones."""

    test: str
    nodes: tuple[NodeId, ...] = ()
    user: str = ""


class FabricTestBegun(Fact, frozen=True, tag="fabric.test_begun"):
    """The scheduler began a test between these nodes, in the order of their places.

    `purpose` is requested, scheduled or preflight. `left_out` names the nodes that cannot be
    measured now, and why, one text each. A preflight is about `attempt` of the gang `job_id`, whose
    place these nodes are.
    """

    test: str
    purpose: str
    nodes: tuple[NodeId, ...]
    left_out: tuple[str, ...] = ()
    job_id: JobId = JobId("")
    attempt: int = 0


class FabricRoundOrdered(Fact, frozen=True, tag="fabric.round_ordered"):
    """The scheduler ordered these disjoint pairs of nodes to measure their links.

    `number` counts the rounds of the test. `stage` is 0 in the tournament, above 0 in confirmations
    of `targets` (suspect nodes, and links as two names). `planned` is how many rounds of the
    tournament are used up.
    """

    test: str
    number: int
    pairs: tuple[tuple[NodeId, NodeId], ...]
    stage: int = 0
    planned: int = 0
    targets: tuple[str, ...] = ()


class FabricProbed(Fact, frozen=True, tag="fabric.probed"):
    """An agent measured its link to `peer`, as ordered.

    `bandwidth` and `small_bandwidth` (64 KiB messages) are what this node received. `rtt_ns` is the
    shortest round trip that it saw, `received` its bytes, `engine` the transport. A probe that
    failed has an `error` that names the peer. With `refused` the agent did not begin, for the
    reason in `error`; that says nothing about the link.
    """

    node_id: NodeId
    test: str
    number: int
    peer: NodeId
    bandwidth: int = 0
    small_bandwidth: int = 0
    rtt_ns: int = 0
    received: int = 0
    engine: str = ""
    error: str = ""
    refused: bool = False


class PairMeasured(msgspec.Struct, frozen=True, array_like=True):
    """The result of one pair of a round.

    `forward` is what `b` received, `backward` what `a` received; the rest is the worse of what both
    saw. `error` says why there is no result.
    """

    a: NodeId
    b: NodeId
    forward: int = 0
    backward: int = 0
    small: int = 0
    rtt_ns: int = 0
    error: str = ""


class FabricRoundClosed(Fact, frozen=True, tag="fabric.round_closed"):
    """The scheduler took the results of a round at `at_ns` (wall clock).

    A pair of which a node refused to measure has no result; `refused` are these nodes, each with
    its reason.
    """

    test: str
    number: int
    pairs: tuple[PairMeasured, ...]
    at_ns: int = 0
    refused: tuple[tuple[NodeId, str], ...] = ()


class NodeMeasured(msgspec.Struct, frozen=True, array_like=True):
    """The verdict on one node.

    `capacity` is what the node can do. `usual`, `spread` and `values` are its baseline with this
    test. `part` is its part of the usual value, if it is a suspect for this `reason`; otherwise the
    reason is empty.
    """

    node_id: NodeId
    capacity: int
    usual: int = 0
    spread: int = 0
    values: int = 0
    part: int = 1_000
    reason: str = ""


class LinkSuspected(msgspec.Struct, frozen=True, array_like=True):
    """A link that is slower than it should be, and its part of the usual value."""

    a: NodeId
    b: NodeId
    bandwidth: int
    part: int


class FabricTestEnded(Fact, frozen=True, tag="fabric.test_ended"):
    """The scheduler ended a test at `at_ns` (wall clock) with its verdict.

    `outcome` is done, or failed because of `detail`. `nodes` are the tested nodes that have a
    result. `links` are the suspect links between tested nodes. `racks` are all measured racks in
    order (m1, m2 ...). With `measured_first` they count before the racks that nodes declare.
    """

    test: str
    outcome: str
    detail: str = ""
    nodes: tuple[NodeMeasured, ...] = ()
    links: tuple[LinkSuspected, ...] = ()
    racks: tuple[tuple[NodeId, ...], ...] = ()
    measured_first: bool = False
    at_ns: int = 0


class PreflightEnded(Fact, frozen=True, tag="fabric.preflight_ended"):
    """The scheduler ended the preflight of a gang at `at_ns` (wall clock).

    `outcome` is passed, suspect, unfinished or abandoned, `detail` what was found or left
    unmeasured, `measured` the pairs with a result. If it is suspect, the gang gives up its place
    and avoids the `excluded` nodes until `excluded_until_ns` (wall clock). If its place could not
    be used any more, it waits for another one until `not_before_ns` (wall clock).
    """

    test: str
    job_id: JobId
    attempt: int
    outcome: str
    detail: str = ""
    measured: int = 0
    excluded: tuple[NodeId, ...] = ()
    excluded_until_ns: int = 0
    at_ns: int = 0
    not_before_ns: int = 0


class NodeDrained(Fact, frozen=True, tag="node.drained"):
    """The scheduler drained a suspect node at `at_ns` (wall clock), because operators allow that.

    The node takes no new work until an operator returns it. `evidence` is the measurement.
    """

    node_id: NodeId
    test: str
    evidence: str
    at_ns: int = 0


class NodeDrainCleared(Fact, frozen=True, tag="node.drain_cleared"):
    """An operator returned a node that the scheduler had drained because of this test."""

    node_id: NodeId
    test: str
    user: str = ""


FabricDecision = (
    FabricTestBegun
    | FabricRoundOrdered
    | FabricRoundClosed
    | FabricTestEnded
    | PreflightEnded
    | NodeDrained
)
