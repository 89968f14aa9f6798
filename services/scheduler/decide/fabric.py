"""The rules of fabric tests: begin one, order its rounds, take their results, and end it.

Pure. A round is ordered only between idle nodes that take work, and its pairs share no node. It is
closed when every node has reported, or ROUND_MORE_NS after its pairs had to be ready; nodes that
were silent are named. Tests: tests/unit/test_fabric_decide.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.facts import (
    AnyFact,
    FabricRoundClosed,
    FabricRoundOrdered,
    FabricTestBegun,
    FabricTestEnded,
    NodeDrained,
)
from libs.common.facts.fabric_facts import (
    REQUESTED,
    SCHEDULED,
    LinkSuspected,
    NodeMeasured,
    PairMeasured,
)
from libs.common.model import NODES_MAX, NodeId
from libs.common.state.baseline import Baseline, updated
from libs.common.state.cluster import Cluster, is_leaving
from libs.common.state.fabric import DONE, FAILED, FabricTest, Probe, pair_key, pair_of
from services.scheduler.decide.fabric_findings import (
    failing_links,
    findings,
    reason_of,
    verdict_of,
)
from services.scheduler.fabric.rounds import Pair, disjoint, rounds_of
from services.scheduler.fabric.verdict import (
    STAGES,
    Verdict,
    again,
    is_link,
    suspects,
)
from services.scheduler.state.fabric_rules import MS
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()
# Orders and reports travel, and a node may be slow: a round waits this much longer than a pair may
# take.
ROUND_MORE_NS: Final = 1_500 * MS
HOUR_NS: Final = 3_600 * 1_000 * MS
# The scheduler drains at most one node or this many percent in an hour.
DRAINED_PERCENT: Final = 5
NAMED_MAX: Final = 8


def measure_fabric(state: State, now_ns: int) -> Sequence[AnyFact]:
    """Return the next step of a fabric test: begin, order a round, close it, or end."""
    fabric = state.cluster.fabric
    for test in fabric.tests.values():
        if not test.job_id:
            return _go_on(state, test, now_ns)
    if fabric.requests:
        name, nodes = next(iter(fabric.requests.items()))
        return _begin(state, name, REQUESTED, nodes)
    if state.fabric_rules.every_ns and _is_due(state):
        return _begin(state, f"idle-{state.wall_ns}", SCHEDULED, ())
    return NONE


def drain_suspect(state: State) -> Sequence[AnyFact]:
    """Drain a suspect node, if operators allow that and the bound of an hour leaves room."""
    cluster, now_ns = state.cluster, state.wall_ns
    if not state.fabric_rules.drain or not cluster.fabric.nodes:
        return NONE
    for node_id, view in cluster.fabric.nodes.items():
        node = cluster.nodes.get(node_id)
        if view.reason and node is not None and node.takes_work and _may_drain(state):
            test = f"{node_id}@{view.at_ns}"
            if test != node.drain_cleared:
                return (
                    NodeDrained(node_id=node_id, test=test, evidence=view.reason, at_ns=now_ns),
                )
    return NONE


def _may_drain(state: State) -> bool:
    recent = [at_ns for at_ns, _ in state.cluster.fabric.drains if at_ns > state.wall_ns - HOUR_NS]
    usable = sum(1 for node in state.cluster.nodes.values() if node.usable)
    return len(recent) < max(1, usable * DRAINED_PERCENT // 100)


def _is_due(state: State) -> bool:
    """Return whether a test by schedule should begin: the last one is old, and no job waits."""
    cluster = state.cluster
    if state.queue.waiting:
        return False
    known = [node.registered_ns for node in cluster.nodes.values() if node.usable]
    since_ns = max(cluster.fabric.tested_ns, min(known, default=state.wall_ns))
    if state.wall_ns - since_ns < state.fabric_rules.every_ns:
        return False
    return sum(1 for node_id in cluster.nodes if not why_not(cluster, node_id)) > 1


def why_not(cluster: Cluster, node_id: NodeId, for_job: str = "") -> str:
    """Return why a node cannot be measured now; empty if it can.

    A node that is reserved only for this job can be.
    """
    node = cluster.nodes.get(node_id)
    if node is None:
        return "it has not registered"
    if not node.usable or node.distrusted or node.revoked or node.withheld:
        why = node.distrusted or node.revoked or node.withheld or node.state
        return f"it takes no work ({why})"
    if is_leaving(cluster, node.node_id):
        return "it leaves the cluster"
    if node.members or any(job_id != for_job for job_id in node.reserved):
        return "it runs jobs"
    return "" if node.fabric_address else "its agent takes no probes"


def _begin(state: State, name: str, purpose: str, wanted: Sequence[NodeId]) -> Sequence[AnyFact]:
    cluster = state.cluster
    asked = wanted or [node.node_id for node in cluster.nodes.values() if node.usable]
    reasons = {node_id: why_not(cluster, node_id) for node_id in asked}
    nodes = [node_id for node_id, why in reasons.items() if not why][:NODES_MAX]
    left_out = tuple(f"{node_id}: {why}" for node_id, why in reasons.items() if why)
    begun = FabricTestBegun(
        test=name,
        purpose=purpose,
        nodes=tuple(sorted(nodes, key=lambda node_id: _place(cluster, node_id))),
        left_out=left_out,
    )
    return (begun,)


def _place(cluster: Cluster, node_id: NodeId) -> tuple[str, str]:
    """Return the sort key that makes nodes of one place neighbours."""
    node = cluster.nodes[node_id]
    return node.spine, node.network_rack


def _go_on(state: State, test: FabricTest, now_ns: int) -> Sequence[AnyFact]:
    if test.pairs:
        return closed_round(state, test, now_ns)
    if len(test.nodes) < 2:
        words = "fewer than two nodes can be measured now"
        return _end(state, test, FAILED, f"{words}: {', '.join(test.left_out[:NAMED_MAX])}")
    more = _next_round(state, test)
    if more:
        return more
    if test.refused and not test.measured:
        return _end(state, test, FAILED, f"nothing was measured: {_refusals(test)}")
    return _end(state, test, DONE, "")


def closed_round(state: State, test: FabricTest, now_ns: int) -> Sequence[AnyFact]:
    """Close the open round if every node has reported, or it is late."""
    waited_ns = state.round_clock.since(test.test, test.number, now_ns)
    late = waited_ns > state.fabric_rules.pair_ns + ROUND_MORE_NS
    reported = all(node in test.probes for pair in test.pairs for node in pair)
    return (_closed(state, test),) if late or reported else NONE


def _closed(state: State, test: FabricTest) -> FabricRoundClosed:
    refused = _refused(test.probes)
    measured = [pair for pair in test.pairs if not any(node in refused for node in pair)]
    return FabricRoundClosed(
        test=test.test,
        number=test.number,
        pairs=tuple(_result(pair, test.probes) for pair in measured),
        at_ns=state.wall_ns,
        refused=tuple(refused.items()),
    )


def _refused(probes: dict[NodeId, Probe]) -> dict[NodeId, str]:
    """Return the nodes that took no probe in this round, and why."""
    return {node_id: probe.error for node_id, probe in probes.items() if probe.refused}


def _result(pair: Pair, probes: dict[NodeId, Probe]) -> PairMeasured:
    """Return the result of a pair from the reports of its two nodes."""
    a, b = pair
    silent = [node for node in pair if node not in probes]
    errors = [
        f"{node}: {probes[node].error or 'it received nothing'}"
        for node in pair
        if node in probes and (probes[node].error or not probes[node].bandwidth)
    ]
    if silent or errors:
        words = [f"{node} did not report" for node in silent] + errors
        return PairMeasured(a, b, error="; ".join(words))
    small = min(probes[a].small, probes[b].small)
    rtt_ns = max(probes[a].rtt_ns, probes[b].rtt_ns)
    return PairMeasured(a, b, probes[b].bandwidth, probes[a].bandwidth, small, rtt_ns)


def _next_round(state: State, test: FabricTest) -> Sequence[AnyFact]:
    """Order the next round: of the tournament, then of confirmations of what it suspects.

    A node that refused once takes no further part in the test.
    """
    busy = [
        node_id
        for node_id in test.nodes
        if node_id in test.refused or why_not(state.cluster, node_id)
    ]
    planned = rounds_of(test.nodes, test.test)
    for index in range(test.planned, len(planned)):
        pairs = disjoint(planned[index], busy)
        if pairs:
            return (order_round(test, pairs, stage=0, planned=index + 1, targets=()),)
    return confirmation(state, test, busy, len(planned))


def confirmation(
    state: State, test: FabricTest, busy: Sequence[NodeId], planned: int
) -> Sequence[FabricRoundOrdered]:
    """Order the next round that confirms or clears what the test suspects; nothing if none is
    left.
    """
    among = dict.fromkeys(test.nodes)
    stage, targets = max(1, test.stage), test.targets
    while stage < STAGES:
        verdict, known = verdict_of(state)
        found = (*suspects(verdict, test.nodes), *failing_links(state, test))
        if stage > test.stage:
            targets = tuple(each for each in found if test.stage == 0 or each in targets)
        done = test.confirmed if stage == test.stage else {}
        # Nodes of earlier tests may be busy or gone now: only nodes of this test confirm.
        tested = {pair: bw for pair, bw in known.items() if all(node in among for node in pair)}
        left = _unconfirmed(verdict, tested, targets, done)
        pairs = disjoint(left, busy)
        if pairs:
            return (order_round(test, pairs, stage=stage, planned=planned, targets=targets),)
        stage += 1
    return ()


def _unconfirmed(
    verdict: Verdict, known: dict[Pair, int], targets: Sequence[str], done: dict[str, None]
) -> list[Pair]:
    """Return the pairs that this stage has still to measure for its targets."""
    left: dict[Pair, None] = {}
    for target in targets:
        wanted = again(verdict, known, [target])
        measured = sum(1 for key in done if is_link(target) or target in pair_of(key))
        if is_link(target) or measured < len(wanted):
            left |= {pair: None for pair in wanted if pair_key(*pair) not in done}
    return list(left)


def order_round(
    test: FabricTest, pairs: Sequence[Pair], stage: int, planned: int, targets: tuple[str, ...]
) -> FabricRoundOrdered:
    return FabricRoundOrdered(
        test=test.test,
        number=test.number + 1,
        pairs=tuple(pairs),
        stage=stage,
        planned=planned,
        targets=targets,
    )


def _end(state: State, test: FabricTest, outcome: str, detail: str) -> Sequence[AnyFact]:
    found = findings(state, test)
    verdict, failing, slow = found.verdict, found.failing, found.nodes
    tested = [node_id for node_id in test.nodes if node_id in verdict.capacities]
    changed = "most nodes are far below their own baseline: the fabric has changed"
    state.round_clock.forget(test.test)
    # A node that is no suspect any more may be worth the stop of a running job.
    state.none_grows, state.no_room = (), ()
    ended = FabricTestEnded(
        test=test.test,
        outcome=outcome,
        detail=detail or (changed if verdict.shifted else _unmeasured(state, test)),
        nodes=(
            *(_node(state, verdict, each, each in slow) for each in tested if each not in failing),
            *(NodeMeasured(each, 0, part=0, reason=why) for each, why in failing.items()),
        ),
        links=(
            *(LinkSuspected(a, b, found.known[a, b], verdict.links[a, b]) for a, b in found.links),
            *(LinkSuspected(*pair_of(key), 0, 0) for key in found.cut),
        ),
        racks=_racks(verdict),
        measured_first=state.fabric_rules.measured_first,
        at_ns=state.wall_ns,
    )
    return (ended,)


def _unmeasured(state: State, test: FabricTest) -> str:
    """Return in words what the test could not measure, and why."""
    return "; ".join(words for words in (_refusals(test), _unreached(state, test)) if words)


def _refusals(test: FabricTest) -> str:
    """Return the reasons of the nodes that took no probe; a reason that many gave appears once."""
    nodes: dict[str, list[NodeId]] = {}
    for node_id, reason in test.refused.items():
        nodes.setdefault(reason, []).append(node_id)
    return "; ".join(
        f"{', '.join(named[:NAMED_MAX])}{' and others' if len(named) > NAMED_MAX else ''} "
        f"took no probe: {reason}"
        for reason, named in list(nodes.items())[:NAMED_MAX]
    )


def _unreached(state: State, test: FabricTest) -> str:
    """Return the last failures among the tested nodes, in words."""
    among = dict.fromkeys(test.nodes)
    errors = [
        view.error
        for key, view in state.cluster.fabric.pairs.items()
        if view.error and key in test.confirmed and all(node in among for node in pair_of(key))
    ]
    return "; ".join(errors[:NAMED_MAX])


def _node(state: State, verdict: Verdict, node_id: NodeId, suspect: bool) -> NodeMeasured:
    """Return the verdict on a node. A suspect's baseline stays as it was."""
    view = state.cluster.fabric.nodes.get(node_id)
    before, capacity = (
        view.baseline if view is not None else Baseline(),
        verdict.capacities[node_id],
    )
    after = before if suspect else updated(before, capacity)
    part = verdict.nodes.get(node_id, 1_000)
    return NodeMeasured(
        node_id=node_id,
        capacity=capacity,
        usual=after.usual,
        spread=after.spread,
        values=after.values,
        part=part if suspect else 1_000,
        reason=reason_of(state, verdict, node_id) if suspect else "",
    )


def _racks(verdict: Verdict) -> tuple[tuple[NodeId, ...], ...]:
    racks: dict[str, list[NodeId]] = {}
    for node_id, rack in verdict.racks.items():
        racks.setdefault(rack, []).append(node_id)
    return tuple(tuple(nodes) for nodes in racks.values())
