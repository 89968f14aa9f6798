"""Gangs of more than one size: how many nodes an attempt is given, and on how many it goes on."""

from typing import Any

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, Member, NodeId, TenantId
from services.scheduler.explain.explain import explain
from services.scheduler.placement.gang import widest
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.state.state import State
from tests.given import (
    finished,
    given,
    member,
    placed,
    registered,
    released,
    spec,
    started,
    waiting,
)
from tests.unit.scheduler_decisions import decisions, hear

THREE = [registered(name) for name in "abc"]


def elastic(
    job: str = "j", fewest: int = 2, most: int = 4, gpus: int = 4, **fields: Any
) -> list[AnyFact]:
    return waiting(job, nodes=fewest, nodes_max=most, gpus=gpus, **fields)


def on(*names: str, gpus: int = 4) -> list[Member]:
    """All devices of these nodes, by rank."""
    return [member(name, *range(gpus), rank=rank) for rank, name in enumerate(names)]


def running(*names: str, **fields: Any) -> list[AnyFact]:
    return [*elastic(**fields), placed("j", *on(*names)), *(started("j", name) for name in names)]


def nodes_of(facts: list[AnyFact], job: str = "j") -> list[str]:
    """Where it is placed."""
    return [
        member.node_id
        for fact in facts
        if isinstance(fact, f.JobPlaced) and fact.job_id == job
        for member in fact.members
    ]


def lose(state: State, name: str) -> list[AnyFact]:
    """The node is lost, and the other members of `j` end by that."""
    said = decisions(state, silent=[(NodeId(name), 1)])
    for left in [other for other in state.cluster.jobs[JobId("j")].members if other != name]:
        hear(state, finished("j", left, None, signal=15, reason="stopped"), released("j", left))
    return said + decisions(state)


def test_it_is_placed_on_as_many_nodes_as_there_are_and_never_on_more_than_it_may_have() -> None:
    assert decisions(given(THREE, elastic())) == [placed("j", *on("a", "b", "c"))]
    assert decisions(given(THREE, elastic(fewest=1, most=2))) == [placed("j", *on("a", "b"))]
    assert decisions(given(THREE, elastic(fewest=1, most=9, rack="required"))) == [
        placed("j", *on("a"))
    ]


def test_fewer_nodes_than_it_needs_are_none() -> None:
    assert decisions(given(registered("a"), elastic())) == []


def test_it_is_given_as_much_as_its_tenant_may_hold() -> None:
    limit = f.TenantSet(tenant=TenantId("default"), max_gpu_share=1_000)
    assert nodes_of(decisions(given(THREE, limit, elastic()))) == ["a", "b"]
    by_memory = elastic(gpus=4, gpu_memory_bytes=80 << 30, gpu_share=100)
    assert nodes_of(decisions(given(THREE, limit, by_memory))) == ["a", "b"]


def test_an_elastic_gang_avoids_the_reserved_nodes() -> None:
    four = [*THREE, registered("d")]
    busy = [*waiting("rock", gpus=1, time_limit_s=60), placed("rock", member("d", 0))]
    first = waiting("first", nodes=3, gpus=4, rack="none")
    assert nodes_of(decisions(given(four, busy, first, elastic(fewest=1)))) == []
    head = waiting("head", nodes=4, gpus=4)
    assert nodes_of(decisions(given(four, busy, head, elastic(fewest=1)))) == []
    lone = waiting("lone", gpus=4, node_list=(NodeId("d"),))
    assert nodes_of(decisions(given(four, busy, lone, elastic(fewest=1)))) == ["a", "b", "c"]


def test_a_gang_that_lost_a_node_goes_on_with_a_free_one() -> None:
    assert nodes_of(lose(given(THREE, running("a", "b")), "a")) == ["b", "c"]


def test_it_goes_on_with_fewer_where_none_is_free_and_strangers_wait() -> None:
    state = given(THREE, running("a", "b", "c"), waiting("stranger", gpus=4))
    said = lose(state, "a")
    assert f.DevicesReserved(job_id=JobId("j"), attempt=2, members=tuple(on("b", "c"))) in said
    assert (nodes_of(said), nodes_of(said, "stranger")) == (["b", "c"], [])
    assert state.cluster.jobs[JobId("j")].retries_used == 0


def test_a_gang_with_too_few_nodes_left_waits_in_the_queue() -> None:
    said = lose(given(THREE, running("a", "b", "c", fewest=3), waiting("stranger", gpus=4)), "a")
    assert (nodes_of(said), nodes_of(said, "stranger")) == ([], ["b"])


def test_a_preempted_gang_restarts_on_the_devices_that_are_left() -> None:
    state = given(
        THREE,
        running("a", "b", "c", fewest=1, priority=10, preemptible=True),
        waiting("high", gpus=4, priority=90),
    )
    decisions(state)
    for name in "abc":
        hear(state, finished("j", name, None, signal=15, reason="stopped"), released("j", name))
    said = decisions(state)
    assert (
        sorted([*nodes_of(said, "high"), *nodes_of(said)]) == ["a", "b", "c"]
        and len(nodes_of(said)) == 2
    )


def test_gang_keeps_its_reservation_rather_than_start_sooner_with_fewer_nodes() -> None:
    """The free node alone would do for it, and it has two reserved that are being freed."""
    kept = f.DevicesReserved(job_id=JobId("j"), attempt=1, members=tuple(on("a", "b")))
    state = given(THREE, running_elsewhere(), elastic(fewest=1), kept)
    assert decisions(state) == []
    hear(state, *(fact for name in "ab" for fact in (finished("old", name), released("old", name))))
    assert nodes_of(decisions(state)) == ["a", "b"]


def running_elsewhere() -> list[AnyFact]:
    return [
        *waiting("old", nodes=2, gpus=4),
        placed("old", *on("a", "b")),
        started("old", "a"),
        started("old", "b"),
    ]


def test_a_proof_asks_for_what_it_needs_and_whatif_shows_what_it_would_be_given() -> None:
    state = given(
        THREE, [*waiting("rock", nodes=2, gpus=1), placed("rock", *on("a", "b", gpus=1))], elastic()
    )
    assert "it needs 2 nodes with 4 GPUs" in explain(state, JobId("j"))["answer"]
    asked = WhatIfAsk(spec(nodes=2, nodes_max=4, gpus=4), TenantId("default"))
    assert [rank["node_id"] for rank in what_if(given(THREE), asked)["placement"]] == [
        "a",
        "b",
        "c",
    ]


def test_the_widest_choice_is_found_by_a_few_questions() -> None:
    asked: list[int] = []

    def choose(nodes: int) -> list[int]:
        asked.append(nodes)
        return [nodes] * (nodes <= 700)

    assert widest(2, 1_000, choose) == [700] and len(asked) <= 12
    assert widest(2, 2, choose) == [2]
