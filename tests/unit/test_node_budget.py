"""A node's budget in the log: what an honest node writes never passes it, a flood passes it soon
and once.
"""

import pytest

from libs.common import facts as f
from libs.common import fold
from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit
from libs.common.messages.admission import Admitted, admitted
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster
from libs.common.subjects import NODE_KIND
from services.api_gateway.agents.node_budget import (
    BYTES_PER_S,
    COMMIT_BYTES,
    MOVES,
    REPEAT_NS,
    SECOND_NS,
    NodeBudget,
    moves_of,
)
from tests.history import History, begun, member, node, placed, registered

N1 = node("n1")
BURST = 16 << 20
# The bytes of one fact alone in a commit; a JobFinished has about 250.
SMALL = 300


def write(budget: NodeBudget, size: int, moves: int = 0, jobs: int = 0, now_ns: int = 0) -> bool:
    """A commit comes to the servers, and then back from the log."""
    passed = budget.wrote(N1, bytes(size), jobs, now_ns)
    budget.stored(N1, moves)
    return passed


def test_a_flood_of_small_commits_passes_the_budget_once() -> None:
    budget = NodeBudget(BURST)
    passed = [write(budget, 85, now_ns=number * 1_000) for number in range(20_000)]
    assert passed.count(True) == 1
    assert passed.index(True) < BURST // COMMIT_BYTES
    assert "16777216 bytes more" in budget.over[N1]


def test_a_flood_of_large_commits_passes_the_budget_at_its_34th() -> None:
    budget = NodeBudget(BURST)
    assert [write(budget, 500_000) for _ in range(34)] == [False] * 33 + [True]


def test_the_budget_of_one_node_is_not_another_s() -> None:
    budget = NodeBudget(BURST)
    assert write(budget, BURST + 1)
    assert not budget.wrote(node("n2"), b"x" * 100, 0, 0)
    assert list(budget.over) == [N1]


def test_a_thousand_short_jobs_a_minute_with_an_error_each_leave_no_level() -> None:
    budget = NodeBudget(BURST)
    for number in range(60_000):
        now_ns = number * SECOND_NS * 60 // 1_000
        for moves in (1, 1, 1, 0):
            assert not write(budget=budget, size=SMALL, moves=moves, jobs=1, now_ns=now_ns)
    assert budget.levels[N1][0] < BURST // 100


def test_an_agent_that_was_disconnected_may_catch_up_with_all_its_jobs_at_once() -> None:
    budget = NodeBudget(BURST)
    assert not any(write(budget, 256 * SMALL, 256, 6_400) for _ in range(3 * 6_400 // 256))


def test_a_job_that_saves_each_second_for_a_week_never_passes_the_budget() -> None:
    budget = NodeBudget(BURST)
    assert not any(
        write(budget=budget, size=SMALL, moves=0, jobs=1, now_ns=number * SECOND_NS)
        for number in range(7 * 86_400)
    )
    assert budget.levels[N1][0] <= COMMIT_BYTES + SMALL


def test_a_level_drains_by_time_and_a_clock_that_goes_back_drains_none() -> None:
    budget = NodeBudget(BURST)
    write(budget, BYTES_PER_S * 10, now_ns=SECOND_NS)
    write(budget, 0)
    assert budget.levels[N1][0] == BYTES_PER_S * 10 + 2 * COMMIT_BYTES
    write(budget, 0, now_ns=4 * SECOND_NS)
    assert budget.levels[N1][0] == BYTES_PER_S * 6 + 3 * COMMIT_BYTES


def test_an_agent_that_repeats_a_commit_while_the_log_is_full_for_two_hours_keeps_its_key() -> None:
    budget = NodeBudget(BURST)
    for number in range(7_200):
        assert not budget.wrote(N1, b"c" * 500_000, 0, number * SECOND_NS)
        assert not budget.wrote(N1, b"", 0, number * SECOND_NS)
    assert budget.levels[N1][0] < BURST // 100


@pytest.mark.parametrize("pause_ns", [0, REPEAT_NS - 1])
def test_repetitions_in_a_row_without_an_honest_writer_s_pause_cost_their_bytes(
    pause_ns: int,
) -> None:
    budget = NodeBudget(BURST)
    assert any(budget.wrote(N1, b"g" * 500_000, 0, number * pause_ns) for number in range(40))


def test_a_message_that_the_log_stored_costs_its_bytes_again_however_slowly_it_is_repeated() -> (
    None
):
    budget = NodeBudget(BURST)
    assert any(write(budget, 500_000, now_ns=number * SECOND_NS) for number in range(40))


def test_facts_that_are_replayed_from_the_log_leave_no_credit() -> None:
    budget = NodeBudget(BURST)
    budget.stored(N1, 1_000)
    assert budget.levels == {}


def test_without_a_bound_no_node_passes_it() -> None:
    assert not write(NodeBudget(0), BURST * 2)


def test_only_a_fact_that_moved_its_job_on_counts_as_a_move() -> None:
    history = begun()
    history.queue("j")
    history.say(placed("j", member("n1", "n1g1")))
    started = f.JobStarted(job_id=JobId("j"), attempt=1, node_id=N1)
    ready = f.ReplicaReady(job_id=JobId("j"), attempt=1, node_id=N1)
    facts: tuple[AnyFact, ...] = (started, started, ready)
    changes = [
        fold.apply(
            history.cluster, fact, Stamp(seq=99, at_ns=0, epoch=1, writer=NODE_KIND, writer_id="n1")
        )
        for fact in facts
    ]
    assert (
        moves_of(
            Commit(
                version=1,
                min_reader=1,
                writer="facts.node.n1",
                number=1,
                epoch=1,
                at_ns=0,
                seen=0,
                facts=facts,
            ),
            changes,
        )
        == 1
    )
    assert f.JobReleased in MOVES


def revoked(history: History, reason: str = "it wrote too much") -> None:
    history.say(f.NodeRevoked(node_id=N1, reason=reason))


def test_a_revoked_node_takes_no_work_even_after_it_registers_again() -> None:
    history = begun()
    assert history.cluster.nodes[N1].takes_work
    revoked(history)
    revoked(history, "another reason")
    history.say(registered("n1", "g1", incarnation=2))
    found = history.cluster.nodes[N1]
    assert (found.usable, found.takes_work, found.revoked) == (True, False, "it wrote too much")


def test_a_node_that_is_revoked_before_it_registers_takes_no_work() -> None:
    history = History()
    revoked(history, "")
    history.say(registered("n1", "g1"))
    assert history.cluster.nodes[N1].revoked == "no reason given"


@pytest.mark.parametrize("over", [(), (N1,)])
def test_the_servers_refuse_a_revoked_node_and_one_over_its_budget(
    over: tuple[NodeId, ...],
) -> None:
    cluster = begun().cluster if over else _revoked_cluster()
    assert admitted(cluster, over) == Admitted({}, (), ("n1",))
    assert admitted(cluster, over).refused == {"n1"}


def _revoked_cluster() -> Cluster:
    history = begun()
    revoked(history)
    return history.cluster
