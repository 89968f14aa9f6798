"""How chance makes facts about the fabric: what could be said now by each writer."""

from collections.abc import Iterator
from random import Random
from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.facts.fabric_facts import LinkSuspected, NodeMeasured, PairMeasured
from libs.common.life import job_life
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster

TESTS: Final = ("t1", "t2")
# Preflights begin seldom, so that the tests that gateways request get somewhere too.
PREFLIGHT_PART: Final = 0.1


def by_gateways(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for test in TESTS:
        if test not in (*cluster.fabric.requests, *cluster.fabric.tests, *cluster.fabric.ended):
            yield f.FabricTestRequested(test=test, nodes=tuple(cluster.nodes))
    for node in cluster.nodes.values():
        yield f.NodeDrainCleared(node_id=node.node_id, test=chance.choice(TESTS))


def by_scheduler(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    fabric, nodes = cluster.fabric, tuple(cluster.nodes)
    for name in TESTS:
        test = fabric.tests.get(name)
        if test is None:
            if name in fabric.requests:
                yield f.FabricTestBegun(test=name, purpose="requested", nodes=nodes)
        elif test.pairs:
            results = tuple(
                PairMeasured(*pair, chance.randrange(9), chance.randrange(9)) for pair in test.pairs
            )
            yield f.FabricRoundClosed(
                test=name,
                number=test.number,
                pairs=results,
                at_ns=5,
                refused=((chance.choice(nodes), "it is busy"),) if chance.random() < 0.2 else (),
            )
        else:
            pairs = tuple(zip(nodes[::2], nodes[1::2], strict=False))
            yield f.FabricRoundOrdered(
                test=name, number=test.number + 1, pairs=pairs, stage=chance.randrange(3)
            )
            yield _ended(name, nodes, chance)
    yield from _preflights(cluster, chance)
    for node_id in nodes:
        yield f.NodeDrained(node_id=node_id, test=chance.choice(TESTS), evidence="slow", at_ns=3)


def _preflights(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    """Begin a preflight of a waiting job, and end those under way."""
    nodes = tuple(cluster.nodes)
    for job in cluster.jobs.values():
        name = f"preflight-{job.job_id}"
        if name not in cluster.fabric.tests:
            if job.state != job_life.QUEUED or chance.random() >= PREFLIGHT_PART:
                continue
            yield f.FabricTestBegun(
                test=name,
                purpose="preflight",
                nodes=nodes,
                job_id=job.job_id,
                attempt=job.attempt,
            )
        else:
            found = chance.random() < 0.5 and bool(nodes)
            yield f.PreflightEnded(
                test=name,
                job_id=job.job_id,
                attempt=job.attempt,
                outcome="suspect" if found else "passed",
                excluded=nodes[:1] if found else (),
                excluded_until_ns=9 if found else 0,
                at_ns=4,
                not_before_ns=0 if found else chance.choice((0, 6)),
            )


def _ended(name: str, nodes: tuple[NodeId, ...], chance: Random) -> AnyFact:
    return f.FabricTestEnded(
        test=name,
        outcome="done",
        nodes=tuple(NodeMeasured(node_id, 5, 5, 1, 2) for node_id in nodes),
        links=tuple(LinkSuspected(*nodes[:2], 3, 400) for _ in nodes[1:2]),
        racks=(nodes,) if nodes else (),
        measured_first=chance.random() < 0.5,
        at_ns=4,
    )


def by_nodes(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for node in cluster.nodes.values():
        yield f.WatchdogChanged(
            node_id=node.node_id,
            incarnation=node.incarnation - (chance.random() < 0.2),
            missing=chance.choice(("", "it ended")),
            armed_ms=chance.choice((0, 5_000)),
        )
        yield f.LinkChosen(
            node_id=node.node_id,
            incarnation=node.incarnation - (chance.random() < 0.2),
            peer=chance.choice([*cluster.nodes, NodeId("unknown")]),
            transport=chance.choice(("rdma", "tcp", "")),
            why=chance.choice(("", "no port is active")),
        )
    for test in cluster.fabric.tests.values():
        for first, second in test.pairs:
            for node_id, peer in ((first, second), (second, first)):
                yield f.FabricProbed(
                    node_id=node_id,
                    test=test.test,
                    number=test.number,
                    peer=peer,
                    bandwidth=chance.randrange(9),
                    error=chance.choice(("", "it stalled")),
                    refused=chance.random() < 0.2,
                )


def wild(chance: Random, node_id: NodeId, peer: NodeId, number: int) -> AnyFact:
    """Return a report that no round asked for."""
    return f.FabricProbed(
        node_id=node_id, test=chance.choice(TESTS), number=number, peer=peer, bandwidth=-number
    )
