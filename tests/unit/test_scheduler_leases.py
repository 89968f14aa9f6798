"""The scheduler's side of the leases: who may be called silent, and when."""

from libs.common import facts as f
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from libs.common.timing import Timing
from services.scheduler.leases.leases import HEARD_BEATS, MS, QUIET_BEATS, Leases
from tests.given import given, registered, tell

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
LEASE = 13_000 * MS
MARGIN = 1_500 * MS
TERM = 3_000 * MS
STEP = 500 * MS


def cluster() -> Cluster:
    return given(registered("a"), registered("b"), registered("c")).cluster


class Term:
    """A term that began at 0; `run` lets time pass while some nodes are heard and answered."""

    def __init__(self, state: Cluster | None = None) -> None:
        self.cluster = state or cluster()
        self.acked = self.cluster
        self.leases = Leases()
        self.now = 0
        self.leases.begin(self.cluster, 0)

    def run(self, until: int, *heard: NodeId, taken: bool = False) -> list[NodeId]:
        """The nodes that were called silent on the way, each once.

        `taken`: the heartbeats name a lease of this term.
        """
        found: dict[NodeId, None] = {}
        while self.now < until:
            self.now += STEP
            for node_id in heard:
                self.leases.hear(self.cluster, node_id, self.now, taken)
                self.leases.grant(self.cluster, node_id, self.now)
            for node_id, _ in self.leases.silent(self.cluster, self.acked, self.now):
                found[node_id] = None
        return list(found)

    def declare_dead(self, node_id: NodeId) -> None:
        incarnation = self.cluster.nodes[node_id].incarnation
        tell(self.cluster, f.NodeDeclaredDead(node_id=node_id, incarnation=incarnation, lost=0))
        self.leases.declare_dead(self.cluster, node_id, self.now)


def test_a_node_is_silent_only_after_its_lease_and_a_margin() -> None:
    term = Term()
    term.run(60_000 * MS, A, B, C)
    last = term.now
    assert term.run(last + LEASE + MARGIN, A, B) == []
    assert term.run(last + LEASE + MARGIN + 2 * STEP, A, B) == [C]


def test_a_new_term_first_assumes_that_every_node_was_just_answered_by_the_last() -> None:
    term = Term()
    assert term.run(LEASE + TERM + MARGIN, A, B) == []
    assert term.run(LEASE + TERM + MARGIN + 3 * STEP, A, B) == [C]


def test_a_scheduler_that_hears_less_than_half_of_the_nodes_declares_none_lost() -> None:
    term = Term()
    assert term.run(120_000 * MS, A) == []


def test_a_late_heartbeat_of_another_node_does_not_delay_a_loss() -> None:
    term = Term()
    term.run(60_000 * MS, A, B, C)
    last = term.now
    beat = term.cluster.timing.heartbeat_ms * MS
    term.run(last + HEARD_BEATS * beat, B)
    assert term.run(last + LEASE + MARGIN + 2 * STEP, A, B) == [C]


def test_a_scheduler_that_hears_none_for_a_whole_lease_loses_none_whatever_the_heartbeat() -> None:
    state = given(
        f.ClusterConfigured(cluster_id="c", timing=Timing(lease_ms=3_000)),
        registered("a"),
        registered("b"),
        registered("c"),
    ).cluster
    term = Term(state)
    term.run(60_000 * MS, A, B, C)
    assert term.run(120_000 * MS) == []


def test_an_operator_declares_dead_what_is_not_heard_however_few_others_are() -> None:
    term = Term()
    assert term.run(120_000 * MS, A) == []
    assert term.leases.unheard(term.cluster, term.now) == [B, C]
    term.declare_dead(B)
    assert term.leases.declared_dead(term.cluster, term.now) == [(B, 1)]


def test_an_operators_word_about_a_node_that_was_just_heard_counts_for_no_later_silence() -> None:
    term = Term()
    term.run(60_000 * MS, A, B)
    term.declare_dead(B)
    term.run(term.now + 60_000 * MS, A)
    assert term.leases.unheard(term.cluster, term.now) == [B, C]
    assert term.leases.declared_dead(term.cluster, term.now) == []


def test_an_operators_word_ends_when_the_node_is_heard_or_registers_or_a_term_begins() -> None:
    term = Term()
    term.run(60_000 * MS, A)
    for node_id in (B, C):
        term.declare_dead(node_id)
    term.run(term.now + STEP, B)
    term.run(term.now + 60_000 * MS, A)
    assert term.leases.declared_dead(term.cluster, term.now) == [(C, 1)]
    tell(term.cluster, registered("c", incarnation=2))
    assert term.leases.declared_dead(term.cluster, term.now) == []
    term.declare_dead(B)
    term.leases.begin(term.cluster, term.now)
    term.run(term.now + 60_000 * MS, A)
    assert term.leases.declared_dead(term.cluster, term.now) == []


def test_after_a_pause_of_the_scheduler_nobody_is_unheard() -> None:
    """The heartbeats of that time wait to be read."""
    term = Term()
    term.run(60_000 * MS, A, B, C)
    term.now += 60_000 * MS
    assert term.leases.silent(term.cluster, term.acked, term.now) == []
    assert term.leases.unheard(term.cluster, term.now) == []


def test_after_deafness_every_count_begins_again() -> None:
    term = Term()
    term.run(60_000 * MS)
    assert term.run(60_000 * MS + LEASE, A, B) == []
    assert term.run(60_000 * MS + LEASE + MARGIN + 4 * STEP, A, B) == [C]


def test_scheduler_that_was_paused_declares_no_node_lost_for_that_silence() -> None:
    term = Term()
    term.run(60_000 * MS, A, B, C)
    term.now += 60_000 * MS
    assert term.leases.silent(term.cluster, term.acked, term.now) == []
    assert term.run(term.now + LEASE, A, B) == []


def test_a_planned_stop_holds_until_its_long_lease_and_a_margin_have_passed() -> None:
    state = cluster()
    tell(state, f.LeaseExtended(duration_ms=100_000))
    term = Term(state)
    assert term.run(100_000 * MS + MARGIN - STEP, A, B) == []
    assert term.run(100_000 * MS + TERM + 2 * MARGIN, A, B) == [C]
    assert term.leases.extension_is_over(state, term.now)


def test_a_node_that_has_taken_a_lease_of_this_term_is_silent_as_ever_after_a_planned_stop() -> (
    None
):
    state = cluster()
    tell(state, f.LeaseExtended(duration_ms=600_000))
    term = Term(state)
    assert term.run(30_000 * MS, A, B) == []
    assert term.run(40_000 * MS, B, C, taken=True) == []
    assert not term.leases.extension_is_over(state, term.now)
    assert term.run(40_000 * MS + LEASE + MARGIN, A, B) == []
    assert term.run(40_000 * MS + LEASE + MARGIN + 3 * STEP, A, B) == [C]


def test_a_node_whose_long_lease_was_replaced_is_counted_from_when_it_said_so() -> None:
    state = cluster()
    tell(state, f.LeaseExtended(duration_ms=600_000))
    term = Term(state)
    term.run(60_000 * MS, A, B)
    term.leases.hear(state, C, term.now, True)
    assert term.run(60_000 * MS + LEASE + MARGIN, A, B) == []
    assert term.run(60_000 * MS + LEASE + MARGIN + 2 * STEP, A, B) == [C]


def test_a_planned_stop_is_over_when_every_node_has_taken_a_lease_of_the_next_term() -> None:
    state = cluster()
    tell(state, f.LeaseExtended(duration_ms=600_000))
    term = Term(state)
    term.run(5_000 * MS, A, B, C, taken=True)
    assert term.leases.extension_is_over(state, term.now)
    term.leases.begin(state, term.now)
    assert not term.leases.extension_is_over(state, term.now)


def test_after_a_restore_only_its_time_ends_the_long_lease_of_a_planned_stop() -> None:
    """A node that joined after the backup may hold it, and takes no lease of this term."""
    state = cluster()
    tell(state, f.LeaseExtended(duration_ms=100_000))
    tell(state, f.ClusterRestored(life=1, backup="x"))
    term = Term(state)
    term.run(100_000 * MS + TERM, A, B, C, taken=True)
    assert not term.leases.extension_is_over(state, term.now)
    term.run(term.now + STEP, A, B, C, taken=True)
    assert term.leases.extension_is_over(state, term.now)
    state.extension_ms = 0
    assert not term.leases.are_over(state, term.now)
    term.run(term.now + MARGIN, A, B, C, taken=True)
    assert term.leases.are_over(state, term.now)


def test_a_node_that_came_back_is_counted_from_when_the_log_has_it() -> None:
    """Until then it is given no lease, however long that takes."""
    state = cluster()
    tell(state, f.NodeLost(node_id=C, incarnation=1, reason="silent"))
    term = Term(state)
    term.run(60_000 * MS, A, B)
    tell(state, registered("c", incarnation=2))
    tell(state, f.NodeReturned(node_id=C, incarnation=2))
    assert term.run(60_000 * MS + LEASE, A, B) == []
    term.leases.returned(state, C, term.now)
    assert term.run(60_000 * MS + 2 * LEASE + MARGIN, A, B) == []
    assert term.run(60_000 * MS + 2 * LEASE + MARGIN + 2 * STEP, A, B) == [C]


def test_a_node_whose_return_the_log_has_not_yet_is_not_lost() -> None:
    """A log that takes nothing for longer than a lease ends no node that is heard."""
    state, acked = cluster(), cluster()
    term = Term(state)
    term.acked = acked
    for each in (state, acked):
        tell(each, f.NodeLost(node_id=C, incarnation=1, reason="silent"))
        tell(each, registered("c", incarnation=2))
    tell(state, f.NodeReturned(node_id=C, incarnation=2))
    assert term.run(60_000 * MS, A, B) == []
    tell(acked, f.NodeReturned(node_id=C, incarnation=2))
    term.leases.returned(acked, C, term.now)
    assert term.run(60_000 * MS + LEASE + MARGIN, A, B) == []
    assert term.run(60_000 * MS + LEASE + MARGIN + 2 * STEP, A, B) == [C]


def replaced(state: Cluster) -> None:
    """Node c begins with another state directory."""
    tell(state, registered("c", incarnation=2, directory="one"))
    tell(state, registered("c", incarnation=3, directory="other"))


def test_a_replaced_incarnation_counts_as_silent_after_a_lease_and_a_margin() -> None:
    term = Term()
    term.run(60_000 * MS, A, B, C)
    replaced(term.cluster)
    last = term.now
    assert term.run(last + STEP, A, B) == []
    tell(term.cluster, registered("c", incarnation=4, directory="other"))
    assert term.run(last + LEASE + MARGIN, A, B) == []
    term.now += STEP
    assert term.leases.silent(term.cluster, term.acked, term.now + STEP) == [(C, 2)]


def test_a_replaced_incarnation_that_may_hold_the_long_lease_of_a_planned_stop_is_waited_for() -> (
    None
):
    state = cluster()
    tell(state, f.LeaseExtended(duration_ms=100_000))
    replaced(state)
    term = Term(state)
    assert term.run(100_000 * MS + MARGIN - STEP, A, B, taken=True) == []
    assert not term.leases.extension_is_over(state, term.now)
    assert term.run(100_000 * MS + TERM + 2 * MARGIN, A, B, taken=True) == [C]


def test_a_lost_node_is_not_called_silent_again() -> None:
    state = cluster()
    tell(state, f.NodeLost(node_id=C, incarnation=1))
    assert Term(state).run(60_000 * MS, A, B) == []


def test_a_usable_node_that_missed_three_heartbeats_is_quiet() -> None:
    term = Term()
    beats = QUIET_BEATS * term.cluster.timing.heartbeat_ms * MS
    term.run(60_000 * MS, A, B, C)
    term.run(term.now + beats, A, B)
    assert term.leases.quiet(term.cluster, term.now) == []
    term.run(term.now + STEP, A, B)
    assert term.leases.quiet(term.cluster, term.now) == [C]
    tell(term.cluster, f.NodeLost(node_id=C, incarnation=1))
    assert term.leases.quiet(term.cluster, term.now) == []


def test_a_scheduler_that_hears_too_few_nodes_calls_none_quiet() -> None:
    term = Term()
    term.run(60_000 * MS, A)
    assert term.leases.quiet(term.cluster, term.now) == []


def test_no_node_is_quiet_after_a_silence_too_short_to_make_the_scheduler_deaf() -> None:
    term = Term()
    term.run(60_000 * MS, A, B, C)
    beat = term.cluster.timing.heartbeat_ms * MS
    term.run(term.now + (HEARD_BEATS - 1) * beat)
    assert term.leases.quiet(term.cluster, term.now) == []
    term.run(term.now + STEP, A, B)
    assert term.leases.quiet(term.cluster, term.now) == [] and not term.leases.deaf


def test_without_a_planned_stop_no_long_lease_is_over() -> None:
    term = Term()
    term.run(60_000 * MS, A, B, C, taken=True)
    assert not term.leases.extension_is_over(term.cluster, term.now)


def test_leases_of_before_are_over_after_a_lease_a_term_and_a_margin() -> None:
    term = Term()
    term.run(LEASE + TERM + MARGIN, A, B, C)
    assert not term.leases.are_over(term.cluster, term.now)
    term.run(LEASE + TERM + MARGIN + STEP, A, B, C)
    assert term.leases.are_over(term.cluster, term.now)


def test_leases_of_before_are_not_over_while_a_long_one_may_be_held() -> None:
    state = cluster()
    tell(state, f.LeaseExtended(duration_ms=100_000))
    term = Term(state)
    term.run(LEASE + TERM + MARGIN + STEP, A, B, C)
    assert not term.leases.are_over(term.cluster, term.now)


def test_leases_of_before_are_not_over_while_a_scheduler_is_deaf() -> None:
    term = Term()
    term.run(60_000 * MS, A)
    assert not term.leases.are_over(term.cluster, term.now)
