"""The standby of a replica as the agent's core knows it: which engine serves, and what is recorded.

Pure. The job itself reports its promotions, so a report counts only upwards, and the port follows
from the number alone: a job cannot point its route to a port that is not its own. Tests:
tests/unit/test_agent_standby.py.
"""

from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.facts import NodeFact
from libs.common.messages import StartOrder
from libs.common.model import AttemptRef, NodeId, standby_port
from services.node_agent.core import observations as o
from services.node_agent.core import serving

# More promotions than an attempt can have; a job that reports more is not believed.
NUMBER_MAX: Final = 1 << 20
REASON_MAX: Final = 64
# A job may report any number; the log cannot hold larger ones than 64 bits. This is 24 days.
MS_MAX: Final = (1 << 31) - 1


class Standby(msgspec.Struct):
    """`number` promotions were reported, `recorded` of them were recorded.

    `port` is the one of the placement.
    """

    port: int
    number: int = 0
    recorded: int = 0
    took_ms: int = 0
    reason: str = ""


def standby_of(order: StartOrder) -> Standby | None:
    """Return the standby of a replica that has one."""
    serve = order.spec.serve
    return Standby(order.port) if serve is not None and serve.standby else None


def port_after(port: int, number: int) -> int:
    """Return the port that serves after so many promotions: the two engines take turns."""
    return standby_port(port) if number % 2 else port


def note_report(standby: Standby, number: int, took_ms: int, reason: str) -> bool:
    """Note a report; return whether another engine serves now."""
    if not standby.number < number <= NUMBER_MAX:
        return False
    standby.number, standby.took_ms = number, min(max(0, took_ms), MS_MAX)
    standby.reason = reason[:REASON_MAX]
    return True


def follow(standby: Standby | None, health: serving.Health | None, seen: o.StandbySeen) -> None:
    """Note a report, and probe the engine that serves now."""
    if standby is None or not note_report(standby, seen.number, seen.took_ms, seen.reason):
        return
    if health is not None:
        serving.move(health, port_after(standby.port, standby.number))


def facts(standby: Standby | None, ref: AttemptRef, node_id: NodeId) -> list[NodeFact]:
    """Return the promotion that is not recorded yet."""
    if standby is None or standby.recorded >= standby.number:
        return []
    standby.recorded = standby.number
    return [
        f.StandbyPromoted(
            job_id=ref.job_id,
            attempt=ref.attempt,
            node_id=node_id,
            number=standby.number,
            port=port_after(standby.port, standby.number),
            took_ms=standby.took_ms,
            reason=standby.reason,
        )
    ]
