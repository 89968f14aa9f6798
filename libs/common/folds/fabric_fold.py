"""Apply facts about the fabric to the cluster's state: one function per kind, named after the kind.

Pure and total, called by `fold.apply` only. A node's report counts only for the round that is open
and for the pair that was ordered, so what a node writes reaches no other row. A report that comes
too late changes nothing and is not counted as ignored: the scheduler that closed the round ahead of
the log must end in the same state as every other reader.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts.fabric_facts import PASSED, SUSPECT, PairMeasured
from libs.common.folds import preemption_fold
from libs.common.model import NodeId
from libs.common.state.baseline import Baseline, updated
from libs.common.state.cluster import Cluster
from libs.common.state.fabric import (
    DRAINS_KEPT,
    ENDED_KEPT,
    PAIRS_KEPT,
    TEXT_MAX,
    EndedTest,
    Fabric,
    FabricTest,
    LinkView,
    NodeView,
    PairView,
    Preflight,
    Probe,
    pair_key,
    pair_of,
)


def test_requested(cluster: Cluster, fact: f.FabricTestRequested, stamp: Stamp) -> Change:
    fabric = cluster.fabric
    if fact.test in fabric.requests or fact.test in fabric.tests or fact.test in fabric.ended:
        return IGNORED
    fabric.requests[fact.test] = fact.nodes
    return Change()


def test_begun(cluster: Cluster, fact: f.FabricTestBegun, stamp: Stamp) -> Change:
    """Begin a test. A gang has one preflight: the next one replaces it."""
    tests = cluster.fabric.tests
    if fact.job_id:
        for name in [each.test for each in tests.values() if each.job_id == fact.job_id]:
            del tests[name]
    if fact.test in tests:
        return IGNORED
    cluster.fabric.requests.pop(fact.test, None)
    test = FabricTest(fact.test, fact.purpose, fact.nodes, fact.left_out)
    test.job_id, test.attempt = fact.job_id, fact.attempt
    tests[fact.test] = test
    return Change()


def round_ordered(cluster: Cluster, fact: f.FabricRoundOrdered, stamp: Stamp) -> Change:
    test = cluster.fabric.tests.get(fact.test)
    if test is None or fact.number != test.number + 1 or test.pairs:
        return IGNORED
    test.number, test.pairs, test.probes = fact.number, fact.pairs, {}
    test.planned, test.targets = fact.planned, fact.targets
    if fact.stage != test.stage:
        test.stage, test.confirmed = fact.stage, {}
    return Change()


def probed(cluster: Cluster, fact: f.FabricProbed, stamp: Stamp) -> Change:
    test = cluster.fabric.tests.get(fact.test)
    ordered = (fact.node_id, fact.peer), (fact.peer, fact.node_id)
    if (
        test is None
        or test.number != fact.number
        or fact.node_id in test.probes
        or not any(pair in ordered for pair in test.pairs)
    ):
        return Change()
    test.probes[fact.node_id] = Probe(
        max(0, fact.bandwidth),
        max(0, fact.small_bandwidth),
        max(0, fact.rtt_ns),
        fact.engine[:TEXT_MAX],
        fact.error[:TEXT_MAX],
        fact.refused,
    )
    return Change()


def round_closed(cluster: Cluster, fact: f.FabricRoundClosed, stamp: Stamp) -> Change:
    fabric = cluster.fabric
    test = fabric.tests.get(fact.test)
    if test is None or fact.number != test.number or not test.pairs:
        return IGNORED
    test.refused |= dict(fact.refused)
    for pair in test.pairs:
        test.confirmed[pair_key(*pair)] = None
    for result in fact.pairs:
        key = pair_key(result.a, result.b)
        fabric.pairs[key] = _measured(fabric.pairs.pop(key, PairView()), result, fact.at_ns)
        test.measured += not result.error
    while len(fabric.pairs) > PAIRS_KEPT:
        del fabric.pairs[next(iter(fabric.pairs))]
    test.pairs, test.probes = (), {}
    return Change()


def _measured(before: PairView, result: PairMeasured, at_ns: int) -> PairView:
    if result.error:
        return PairView(
            before.forward,
            before.backward,
            before.small,
            before.rtt_ns,
            before.at_ns,
            before.baseline,
            result.error,
        )
    baseline = updated(before.baseline, min(result.forward, result.backward))
    return PairView(result.forward, result.backward, result.small, result.rtt_ns, at_ns, baseline)


def test_ended(cluster: Cluster, fact: f.FabricTestEnded, stamp: Stamp) -> Change:
    fabric = cluster.fabric
    test = fabric.tests.pop(fact.test, None)
    if test is None:
        return IGNORED
    fabric.tested_ns = max(fabric.tested_ns, fact.at_ns)
    for each in fact.nodes:
        baseline = Baseline(each.usual, each.spread, each.values)
        fabric.nodes[each.node_id] = NodeView(
            each.capacity, baseline, each.part, each.reason, fact.at_ns
        )
    _renew_links(fabric, test, fact)
    fabric.ended[fact.test] = EndedTest(
        test=fact.test,
        purpose=test.purpose,
        outcome=fact.outcome,
        detail=fact.detail,
        nodes=test.nodes,
        left_out=test.left_out,
        rounds=test.number,
        pairs=test.measured,
        at_ns=fact.at_ns,
    )
    while len(fabric.ended) > ENDED_KEPT:
        del fabric.ended[next(iter(fabric.ended))]
    return Change((), _take_racks(cluster, fact)) if fact.racks else Change()


def preflight_ended(cluster: Cluster, fact: f.PreflightEnded, stamp: Stamp) -> Change:
    """Note the result of a preflight. A suspect one ends the gang's reservation of its place."""
    test = cluster.fabric.tests.get(fact.test)
    if test is None or test.job_id != fact.job_id:
        return IGNORED
    del cluster.fabric.tests[fact.test]
    job = cluster.jobs.get(fact.job_id)
    if job is None or job.attempt != fact.attempt:
        return Change()
    job.preflight = Preflight(
        attempt=fact.attempt,
        nodes=test.nodes,
        outcome=fact.outcome,
        detail=fact.detail,
        measured=fact.measured,
        excluded=fact.excluded,
        at_ns=fact.at_ns,
        suspects=_suspects(job.preflight, test, fact),
    )
    freed = preemption_fold.free(cluster, job) if fact.outcome == SUSPECT else ()
    if fact.excluded:
        job.refusals = job.refusals.excluding(fact.excluded, fact.excluded_until_ns)
    if fact.not_before_ns:
        job.refusals = job.refusals.waiting_until(fact.not_before_ns)
    return Change((fact.job_id,), freed)


def _suspects(
    last: Preflight | None, test: FabricTest, fact: f.PreflightEnded
) -> dict[NodeId, int]:
    """Return the nodes that preflights of the gang excluded, and when, after this one."""
    cleared = test.nodes if fact.outcome == PASSED else ()
    before = last.suspects if last is not None else {}
    left = {node_id: at_ns for node_id, at_ns in before.items() if node_id not in cleared}
    return {**left, **dict.fromkeys(fact.excluded, fact.at_ns)}


def _renew_links(fabric: Fabric, test: FabricTest, fact: f.FabricTestEnded) -> None:
    """Replace the verdicts on the links between tested nodes."""
    tested = dict.fromkeys(each.node_id for each in fact.nodes)
    for key in [key for key in fabric.links if all(node in tested for node in pair_of(key))]:
        del fabric.links[key]
    for link in fact.links:
        fabric.links[pair_key(link.a, link.b)] = LinkView(link.bandwidth, link.part, fact.at_ns)


def _take_racks(cluster: Cluster, fact: f.FabricTestEnded) -> tuple[NodeId, ...]:
    """Take over the measured racks. Return the nodes whose rack changed."""
    fabric = cluster.fabric
    fabric.racks = {
        node_id: f"m{number}" for number, rack in enumerate(fact.racks, 1) for node_id in rack
    }
    fabric.racks_ns = fact.at_ns
    changed = []
    for node in cluster.nodes.values():
        before = node.network_rack
        node.measured_rack = fabric.racks.get(node.node_id, "")
        # A node without a measured rack may register before or after this fact.
        node.measured_first = fact.measured_first and bool(node.measured_rack)
        if node.network_rack != before:
            changed.append(node.node_id)
    return tuple(changed)


def drained(cluster: Cluster, fact: f.NodeDrained, stamp: Stamp) -> Change:
    node = cluster.nodes.get(fact.node_id)
    if node is None:
        return IGNORED
    node.drained_by, node.drain_evidence = fact.test, fact.evidence
    cluster.fabric.drains = [*cluster.fabric.drains, (fact.at_ns, fact.node_id)][-DRAINS_KEPT:]
    return Change((), (fact.node_id,))


def drain_cleared(cluster: Cluster, fact: f.NodeDrainCleared, stamp: Stamp) -> Change:
    """Note that an operator ended the drain of this test.

    A drain of another test stays, so that the fact commutes with those of the scheduler.
    """
    node = cluster.nodes.get(fact.node_id)
    if node is None:
        return IGNORED
    node.drain_cleared = fact.test
    return Change((), (fact.node_id,))
