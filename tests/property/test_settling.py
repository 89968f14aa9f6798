"""After a restore no job is placed while a node that joined after the backup may run it.

Nodes a and b are in the backup, x is not: it gets no lease of the restored cluster. Until a and b
are renewed, x extends its lease with their help. The scheduler's side is real; the agents follow
the rule of `services/node_agent/peers/gossip.py`. One case is left out, as docs/howto/back-up.md
says: a node that is declared lost although it lives and x reaches it.
"""

import msgspec
from hypothesis import assume, example, settings
from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.messages import Heartbeat
from libs.common.model import NodeId
from libs.common.timing import Timing
from services.scheduler.leases.former import Former
from services.scheduler.leases.leases import Leases
from services.scheduler.leases.renewals import Renewals
from services.scheduler.leases.settling import is_over
from tests.restored import again, restored, told

MS = 1_000_000
STEP_MS = 500
BEAT_MS = 1_000
STOP_LEASE_MS = 60_000
# A living node that has not registered is lost soon after these times.
LATEST_MS = 14_000
LATEST_STOPPED_MS = 60_000
END_MS = 180_000
TIMING = Timing()
HALF_MS = TIMING.lease_ms // 2


class Agent(msgspec.Struct):
    """A node of the backup. It is in the new life from `joins_ms`, and dead from `dies_ms`.

    `granted_ms`: when the heartbeat of its last lease was sent.
    """

    name: str
    joins_ms: int
    dies_ms: int = END_MS
    cut_ms: range = range(0)
    granted_ms: int = 0
    held_ns: int = 0
    has_joined: bool = False

    def is_dead(self, now_ms: int) -> bool:
        """Return whether it is dead and never was alive without being renewed since it joined."""
        last_ms = self.dies_ms - self.granted_ms
        joined = self.has_joined and last_ms <= HALF_MS and self.dies_ms <= now_ms
        return not self.dies_ms or joined


class World:
    """The restored cluster from the start of its first term, which is time 0."""

    def __init__(self, agents: list[Agent], x_until_ms: int, is_stopped: bool) -> None:
        self.agents, self.x_until_ms = agents, x_until_ms
        before = (f.LeaseExtended(duration_ms=STOP_LEASE_MS),) if is_stopped else ()
        self.cluster = restored(*before)
        self.leases, self.renewals, self.former = Leases(), Renewals(), Former()
        self.leases.begin(self.cluster, 0)
        self.renewals.begin(0)
        self.now_ms = self.term_ms = 0

    def begin(self) -> None:
        """Begin another term."""
        self.term_ms = self.now_ms
        self.leases.begin(self.cluster, self.now_ms * MS)
        self.renewals.begin(self.now_ms * MS)
        self.former.begin()

    def run(self, next_term_ms: int) -> int:
        """Let time pass until jobs may be placed again; return when x's jobs are certainly dead."""
        while self.now_ms < END_MS:
            self.now_ms += STEP_MS
            if self.now_ms == next_term_ms:
                self.begin()
            for agent in self.agents:
                self._beat(agent)
            self._extend_x()
            if self._is_over():
                return self.x_until_ms + TIMING.margin_ms
        raise AssertionError("the cluster waits for ever")

    def _beat(self, agent: Agent) -> None:
        now_ms = self.now_ms
        node = self.cluster.nodes[NodeId(agent.name)]
        if now_ms % BEAT_MS or now_ms in agent.cut_ms:
            return
        if not agent.joins_ms <= now_ms < agent.dies_ms or not node.usable:
            return
        if not agent.has_joined:
            again(self.cluster, agent.name)
            agent.has_joined = True
        beat = Heartbeat(
            node_id=node.node_id,
            incarnation=node.incarnation,
            sent_boot_ns=now_ms * MS,
            digest="",
            lease_sent_ns=agent.held_ns,
        )
        taken = agent.held_ns > self.term_ms * MS
        self.leases.hear(self.cluster, node.node_id, now_ms * MS, taken, agent.held_ns)
        self.renewals.hear(self.cluster, beat, now_ms * MS)
        self.leases.grant(self.cluster, node.node_id, now_ms * MS)
        self.renewals.grant(beat, now_ms * MS)
        agent.granted_ms, agent.held_ns = now_ms, now_ms * MS

    def _extend_x(self) -> None:
        """Extend x's lease if most of a, b and x are not renewed."""
        unrenewed = sum(
            self.now_ms < agent.dies_ms and self.now_ms - agent.granted_ms > HALF_MS
            for agent in self.agents
        )
        if self.x_until_ms > self.now_ms and unrenewed >= 1:
            self.x_until_ms = max(self.x_until_ms, self.now_ms + TIMING.lease_ms)

    def _is_over(self) -> bool:
        now = self.now_ms * MS
        self.renewals.check(self.cluster, now)
        silent = self.leases.silent(self.cluster, self.cluster, now)
        for node_id, incarnation in self.renewals.losable(self.cluster, silent, now):
            assume(all(a.is_dead(self.now_ms) for a in self.agents if a.name == node_id))
            self._tell(f.NodeLost(node_id=node_id, incarnation=incarnation))
        for fact in self.former.facts(self.leases, self.renewals, self.cluster, now):
            self._tell(fact)
        return is_over(self.cluster, self.leases, self.renewals, now)

    def _tell(self, fact: f.AnyFact) -> None:
        told(fact, cluster=self.cluster)


STEPS = st.integers(0, 20)
CUTS = st.builds(
    lambda begun, steps: (begun, begun + steps), st.integers(0, END_MS // STEP_MS), STEPS
)


@settings(max_examples=100, deadline=None)
@draw(
    late=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    cuts=st.tuples(CUTS, CUTS),
    b_dies=st.none() | STEPS,
    is_stopped=st.booleans(),
    held=st.integers(0, 100),
    term=st.integers(0, LATEST_STOPPED_MS // STEP_MS),
)
@example(late=(0, 0), cuts=((0, 0), (0, 0)), b_dies=None, is_stopped=True, held=100, term=40)
@example(late=(0, 0), cuts=((0, 0), (0, 0)), b_dies=None, is_stopped=True, held=100, term=0)
@example(late=(0, 0), cuts=((0, 0), (0, 0)), b_dies=0, is_stopped=True, held=100, term=0)
@example(late=(0, 100), cuts=((0, 0), (0, 0)), b_dies=None, is_stopped=False, held=100, term=0)
@example(late=(0, 100), cuts=((0, 0), (0, 0)), b_dies=4, is_stopped=False, held=100, term=0)
@example(late=(0, 100), cuts=((0, 0), (0, 0)), b_dies=None, is_stopped=True, held=100, term=0)
@example(late=(0, 0), cuts=((0, 0), (98, 116)), b_dies=None, is_stopped=True, held=100, term=0)
def test_no_job_is_placed_while_a_node_that_the_backup_does_not_know_may_run_it(
    late: tuple[int, int],
    cuts: tuple[tuple[int, int], tuple[int, int]],
    b_dies: int | None,
    is_stopped: bool,
    held: int,
    term: int,
) -> None:
    """`late` and `held` are percent of the longest time; `b_dies` is in steps after it joined, and
    `term` the step at which another term begins.
    """
    latest_ms, longest_ms = (
        (LATEST_STOPPED_MS, STOP_LEASE_MS) if is_stopped else (LATEST_MS, TIMING.lease_ms)
    )
    agents = [
        Agent(name, joins_ms=latest_ms * part // 100, cut_ms=range(*(STEP_MS * at for at in cut)))
        for name, part, cut in zip("ab", late, cuts, strict=True)
    ]
    if b_dies is not None:
        agents[1].dies_ms = agents[1].joins_ms + b_dies * STEP_MS if b_dies else 0
    until_ms = (longest_ms + TIMING.term_ms) * held // 100
    world = World(agents, x_until_ms=until_ms, is_stopped=is_stopped)
    assert world.run(next_term_ms=term * STEP_MS) <= world.now_ms
