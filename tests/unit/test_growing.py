"""Gangs that restart with more nodes: when, ahead of which jobs, and how they continue."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId, TenantId
from services.scheduler.decide.attempts import ATTEMPTS_MAX, may_try_again
from services.scheduler.explain.explain import explain
from services.scheduler.queueing.backfill import SCAN_MAX
from services.scheduler.state.state import State
from tests.given import (
    EPOCH,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    waiting,
)
from tests.unit.scheduler_decisions import decisions, hear
from tests.unit.test_elastic import THREE, nodes_of, on, running

AFTER_S = 60
SAVES: dict[str, Any] = {"preemptible": True, "checkpoint_signal": 10, "checkpoint_grace_s": 30}
J = JobId("j")


def ripe(*history: AnyFact | list[AnyFact], **fields: Any) -> State:
    """`j` has run on a and b for as long as it takes, and c is free."""
    state = State(
        given(THREE, running("a", "b", **{**SAVES, **fields}), *history).cluster,
        grow_after_s=AFTER_S,
    )
    state.begin(EPOCH, 0)
    decisions(state, now_s=0)
    return state


def grown(state: State, now_s: float = AFTER_S) -> list[str]:
    """The nodes that are reserved for its next attempt."""
    return [
        m.node_id
        for fact in decisions(state, now_s)
        if isinstance(fact, f.DevicesReserved)
        for m in fact.members
    ]


def test_it_begins_anew_with_more_nodes_once_it_has_run_for_a_while() -> None:
    state = ripe()
    assert decisions(state, now_s=AFTER_S - 1) == []
    assert decisions(state, now_s=AFTER_S) == [
        f.DevicesReserved(job_id=J, attempt=2, members=tuple(on("a", "b", "c"))),
        f.JobPreempted(
            job_id=J,
            attempt=1,
            by=J,
            signal=10,
            grace_ms=40_000,
            lost_share_ms=800 * AFTER_S * 1_000,
        ),
    ]
    assert explain(state, J)["answer"] == "it saves its work and ends, to restart on a, b, c"
    hear(state, f.JobCheckpointed(job_id=J, attempt=1, node_id=NodeId("a"), asked=True))
    assert decisions(state) == [
        f.JobStopOrdered(job_id=J, attempt=1, reason="grown", signal=15, grace_ms=10_000)
    ]
    hear(
        state,
        *(
            fact
            for name in "ab"
            for fact in (
                finished("j", name, None, signal=15, reason="stopped"),
                released("j", name),
            )
        ),
    )
    said = decisions(state)
    assert said[0] == f.JobRequeued(
        job_id=J, attempt=1, reason="grown", counted=False
    ) and nodes_of(said) == ["a", "b", "c"]
    kept = state.cluster.jobs[J].preemption
    assert (kept.grown, kept.times, kept.reserved) == (1, 0, ())


def test_its_own_time_may_be_longer_and_a_new_term_counts_anew() -> None:
    assert grown(ripe(min_run_s=90), now_s=89) == []
    assert grown(ripe(min_run_s=90), now_s=90) == ["a", "b", "c"]
    state = ripe()
    state.begin(EPOCH, 50)
    decisions(state, now_s=50)
    assert (grown(state, now_s=109), grown(state, now_s=110)) == ([], ["a", "b", "c"])


@pytest.mark.parametrize("fields", [{"checkpoint_grace_s": 0}, {"preemptible": False}, {"most": 2}])
def test_only_an_elastic_gang_with_a_checkpoint_restarts_to_grow(fields: dict[str, Any]) -> None:
    assert grown(ripe(**fields)) == []


def test_a_gang_at_its_maximum_or_ending_does_not_grow() -> None:
    assert grown(ripe(most=3)) == ["a", "b", "c"]
    cancel = f.CancelRequested(job_id=J, signal=15, grace_s=1)
    assert grown(ripe(cancel)) == []
    assert grown(ripe(finished("j", "a"))) == []


def test_a_gang_does_not_grow_onto_nodes_that_a_waiting_job_could_use() -> None:
    """Not even one that needs more than there is now; but one that could never run there."""
    assert (
        grown(
            ripe(
                waiting(
                    "wide",
                    nodes=3,
                    gpus=1,
                    node_list=(NodeId("a"), NodeId("b"), NodeId("c")),
                    gpu_share=100,
                )
            ),
            0,
        )
        == []
    )
    big = [
        registered("d", gpus=8),
        *waiting("rock", gpus=8),
        placed("rock", member("d", *range(8))),
    ]
    assert grown(ripe(big, waiting("whole", nodes=2, gpus=8))) == ["a", "b", "c"]
    assert grown(ripe(big, waiting("one", gpus=8))) == ["a", "b", "c"]
    assert grown(ripe(big, waiting("three", nodes=3, gpus=4, rack="none"))) == []


def test_a_limit_counts_what_it_will_have() -> None:
    def limited(gpus: int) -> f.TenantSet:
        return f.TenantSet(tenant=TenantId("default"), max_gpu_share=100 * gpus)

    assert grown(ripe(limited(8))) == grown(ripe(limited(11))) == []
    assert grown(ripe(limited(12), registered("d"))) == ["a", "b", "c"]
    by_memory = {"gpu_memory_bytes": 80 << 30}
    assert (grown(ripe(limited(11), **by_memory)), grown(ripe(limited(12), **by_memory))) == (
        [],
        ["a", "b", "c"],
    )


def test_planned_size_of_an_ending_gang_counts_for_the_limit() -> None:
    """Else another job of its tenant would make that in vain."""
    four = f.TenantSet(tenant=TenantId("default"), max_gpu_share=1_200)
    state = ripe(four, registered("d"), most=3)
    assert grown(state) == ["a", "b", "c"]
    hear(state, *waiting("late", gpus=1))
    assert decisions(state) == []
    hear(
        state,
        *(
            fact
            for name in "ab"
            for fact in (
                finished("j", name, None, signal=15, reason="stopped"),
                released("j", name),
            )
        ),
    )
    said = decisions(state)
    assert (nodes_of(said), nodes_of(said, "late")) == (["a", "b", "c"], [])


def test_a_gang_on_a_silent_node_does_not_grow() -> None:
    lost = f.NodeLost(node_id=NodeId("b"), incarnation=1)
    assert grown(ripe(lost, registered("d"), most=3, on_control_loss="continue")) == []


def test_a_held_gang_does_not_restart_to_grow() -> None:
    assert grown(ripe(f.JobUpdated(job_id=J, held=True, user="u"))) == []


def test_a_gang_does_not_grow_when_its_node_is_reserved_for_others() -> None:
    soon = f.ReservationSet(
        reservation="m", nodes=(NodeId("a"),), start_ns=1 << 59, end_ns=1 << 60, user="u"
    )
    assert grown(ripe(soon)) == []


def test_a_job_at_a_limit_blocks_only_its_own_tenant() -> None:
    tight = f.TenantSet(tenant=TenantId("red"), max_gpu_share=100)
    assert grown(ripe(tight, waiting("reds", gpus=4, tenant="red"))) == ["a", "b", "c"]
    own = f.TenantSet(tenant=TenantId("default"), max_gpu_share=1_200)
    assert grown(ripe(own, waiting("mine", nodes=3, gpus=4))) == []


def test_no_gang_grows_while_too_many_kinds_of_jobs_wait() -> None:
    def kinds(count: int) -> list[AnyFact]:
        return [
            fact
            for number in range(count)
            for fact in waiting(f"w{number}", node_labels={"none": f"{number}"})
        ]

    assert grown(ripe(kinds(SCAN_MAX))) == ["a", "b", "c"]
    assert grown(ripe(kinds(SCAN_MAX + 1))) == []


def test_nodes_that_are_kept_for_others_are_not_taken() -> None:
    kept = f.ReservationSet(
        reservation="m", nodes=(NodeId("c"),), start_ns=0, end_ns=1 << 60, user="u"
    )
    assert grown(ripe(kept)) == []
    assert grown(ripe(kept, registered("d"))) == ["a", "b", "d"]


def test_a_job_that_waits_for_its_reservation_uses_no_other_nodes() -> None:
    tenants = (TenantId("default"),)
    kept = f.ReservationSet(
        reservation="m",
        nodes=(NodeId("d"),),
        start_ns=1 << 59,
        end_ns=1 << 60,
        tenants=tenants,
        user="u",
    )
    assert grown(
        ripe(registered("d"), kept, waiting("early", gpus=4, reservation="m"), most=3)
    ) == ["a", "b", "c"]


def test_growing_uses_up_none_of_its_attempts() -> None:
    job = ripe().cluster.jobs[J]
    job.attempt = ATTEMPTS_MAX + 1
    assert not may_try_again(job, "node_lost", counted=False)
    job.preemption.grown = 2
    assert may_try_again(job, "node_lost", counted=False)


def test_gangs_grow_one_at_a_time_and_never_onto_the_same_nodes() -> None:
    other = [
        *waiting("k", nodes=1, nodes_max=3, gpus=4, **SAVES),
        placed("k", member("e", 0, 1, 2, 3)),
        started("k", "e"),
    ]
    state = ripe(registered("d"), registered("e"), other, most=3)
    taken = grown(state)
    assert sorted(taken) == ["a", "b", "c", "d", "e"]
