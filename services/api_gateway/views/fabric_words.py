"""Facts about the fabric in words, for histories. Pure."""

from collections.abc import Callable
from typing import Any, Final

from libs.common import facts as f
from libs.common.quantities import counted

NAMED_MAX: Final = 4


def _pairs(fact: f.FabricRoundOrdered) -> str:
    what = "confirmation" if fact.stage else "round"
    return f"{what} {fact.number} of {fact.test}: {counted(len(fact.pairs), 'pair')} to measure"


def _probed(fact: f.FabricProbed) -> str:
    found = fact.error or f"{fact.bandwidth * 8 / 1e6:.1f} Mbit/s received"
    return f"{fact.node_id} measured its link to {fact.peer}: {found}"


def _closed(fact: f.FabricRoundClosed) -> str:
    failed = sum(1 for pair in fact.pairs if pair.error)
    return (
        f"round {fact.number} of {fact.test} closed: {len(fact.pairs) - failed} measured, "
        f"{failed} failed"
    )


def _ended(fact: f.FabricTestEnded) -> str:
    slow = [f"{node.node_id}: {node.reason}" for node in fact.nodes if node.reason]
    links = [f"{link.a} - {link.b} at {link.part / 10:.0f} %" for link in fact.links]
    found = "; ".join([*slow, *links][:NAMED_MAX]) or "no suspect"
    return f"fabric test {fact.test} {fact.outcome}: {fact.detail or found}"


def _preflight(fact: f.PreflightEnded) -> str:
    avoids = f", avoids {', '.join(fact.excluded[:NAMED_MAX])}" if fact.excluded else ""
    detail = f": {fact.detail}" if fact.detail else ""
    measured = f"{counted(fact.measured, 'pair')} measured{avoids}{detail}"
    return f"preflight of attempt {fact.attempt} {fact.outcome}, {measured}"


FABRIC_WORDS: Final[dict[type[f.AnyFact], Callable[[Any], str]]] = {
    f.FabricTestRequested: lambda x: (
        f"fabric test {x.test} of {', '.join(x.nodes[:NAMED_MAX]) or 'all idle nodes'} requested "
        f"by {x.user or 'a user'}"
    ),
    f.FabricTestBegun: lambda x: (
        f"fabric test {x.test} of {counted(len(x.nodes), 'node')} begun ({x.purpose})"
    ),
    f.FabricRoundOrdered: _pairs,
    f.FabricProbed: _probed,
    f.LinkChosen: lambda x: (
        f"node {x.node_id} opened a link to {x.peer} over {x.transport}: {x.why}"
    ),
    f.WatchdogChanged: lambda x: (
        f"the lease watchdog of node {x.node_id} "
        + (f"is missing: {x.missing}" if x.missing else "runs")
        + (
            f"; the hardware watchdog is armed ({x.armed_ms / 1e3:g} s)"
            if x.armed_ms
            else "; no hardware watchdog is armed"
        )
    ),
    f.FabricRoundClosed: _closed,
    f.FabricTestEnded: _ended,
    f.PreflightEnded: _preflight,
    f.NodeDrained: lambda x: f"node {x.node_id} drained by the scheduler: {x.evidence}",
    f.NodeDrainCleared: lambda x: f"node {x.node_id} returned to work by {x.user or 'an operator'}",
}
