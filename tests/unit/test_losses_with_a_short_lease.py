"""How late a heartbeat of another node may be before it delays the loss of a node, with `fast`:
both rules of loss together (services/scheduler/leases).
"""

from typing import Final

import pytest

from libs.common.messages import Heartbeat
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node
from libs.common.timing import FAST_TIMING
from services.scheduler.leases.leases import Leases
from services.scheduler.leases.renewals import Renewals

MS: Final = 1_000_000
BEAT_MS: Final = FAST_TIMING.heartbeat_ms
TICK_MS: Final = 100
DEAD_MS: Final = 60_000
A, B, C = NAMES = [NodeId(name) for name in "abc"]


class Ruled:
    """The two rules of loss for three nodes, checked every 100 ms; leases arrive without delay."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            timing=FAST_TIMING,
            nodes={name: Node(name, "healthy", 1, peer_address="host:1") for name in NAMES},
        )
        self.leases, self.renewals = Leases(), Renewals()
        self.leases.begin(self.cluster, 0)
        self.renewals.begin(0)
        self.held = dict.fromkeys(NAMES, 0)

    def beat(self, name: NodeId, now: int) -> None:
        beat = Heartbeat(name, 1, now, "", len(NAMES), self.held[name], 0)
        self.leases.hear(self.cluster, name, now, True, beat.lease_sent_ns)
        self.renewals.hear(self.cluster, beat, now)
        self.leases.grant(self.cluster, name, now)
        self.renewals.grant(beat, now)
        self.held[name] = now

    def lost(self, now: int) -> list[tuple[NodeId, int]]:
        self.renewals.check(self.cluster, now)
        silent = self.leases.silent(self.cluster, self.cluster, now)
        return self.renewals.losable(self.cluster, silent, now)


def noticed_after_ms(late_ms: int) -> int:
    """Return when the loss of c is noticed, if the next heartbeat of b is that late."""
    ruled = Ruled()
    due_ms = {A: 0, B: 0, C: 0}
    for now_ms in range(0, DEAD_MS + 30_000, TICK_MS):
        if now_ms == DEAD_MS:
            due_ms[B] += late_ms
            del due_ms[C]
        for name, due in list(due_ms.items()):
            if now_ms >= due:
                ruled.beat(name, now_ms * MS)
                due_ms[name] = now_ms + BEAT_MS
        if ruled.lost(now_ms * MS):
            return now_ms - DEAD_MS
    raise AssertionError("the loss was never noticed")


@pytest.mark.parametrize("late_ms", [0, 300, 600])
def test_a_heartbeat_that_is_a_little_late_delays_no_loss(late_ms: int) -> None:
    assert noticed_after_ms(late_ms) <= FAST_TIMING.silence_ms


def test_the_nodes_must_have_been_renewed_without_a_break_for_a_lease_and_a_margin() -> None:
    assert FAST_TIMING.silence_ms < noticed_after_ms(1_000) <= 2 * FAST_TIMING.silence_ms
