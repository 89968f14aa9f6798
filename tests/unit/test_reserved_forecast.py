"""The first job also waits for nodes with devices that are reserved for another job.

In its forecast, that job counts as if it started on them now.
"""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Allocation, JobId, Serve
from libs.common.state.cluster import Cluster
from services.scheduler.placement.forecast import NEVER, UNKNOWN, Forecast
from services.scheduler.placement.place import Place
from services.scheduler.queueing.backfill import reservation_for
from services.scheduler.state.state import State
from tests.given import SECOND_NS, ended, given, registered, waiting
from tests.unit.preemption_facts import running
from tests.unit.scheduler_decisions import decisions, hear
from tests.unit.test_backfill import LASTS_100, begin, lasting, when_and_where

GANG = waiting("first", gpus=4, nodes=2)
ONLY_A = {"only": "a"}


def reserve_a(
    *behind: list[AnyFact], victim: dict[str, Any] = LASTS_100, gpus: int = 4, **fields: Any
) -> State:
    """Return a state in which devices of node a are reserved for the job `urgent`, whose victim
    still runs there, and node b is free.
    """
    asked = {"gpus": gpus, "priority": 90, "node_labels": ONLY_A} | fields
    state = given(
        registered("a", labels=ONLY_A),
        registered("b"),
        running("victim", 0, 1, 2, 3, node="a", **victim),
        waiting("urgent", **asked),
    )
    assert [fact.job_id for fact in decisions(state)] == ["urgent", "victim"]
    hear(state, *(fact for each in behind for fact in each))
    return state


def test_a_job_without_a_limit_avoids_the_reserved_nodes_of_a_gang_that_waits_for_others() -> None:
    state = reserve_a(GANG, waiting("long"))
    assert when_and_where(state, "first") == (UNKNOWN, ["a", "b"])
    assert begin(state) == []
    hear(state, *ended("victim", "a", None, signal=15, reason="stopped")[1:])
    assert begin(state)[0] == ("urgent", "a")
    assert when_and_where(state, "first") == (UNKNOWN, ["a", "b"])


def test_a_job_that_ends_before_the_reserved_job_is_backfilled() -> None:
    behind = [waiting("long", **lasting(200)), waiting("short", **lasting(60))]
    state = reserve_a(GANG, *behind, victim=lasting(50), **lasting(60))
    assert when_and_where(state, "first") == (61, ["a", "b"])
    assert begin(state) == [("short", "b")]


def test_the_end_of_a_job_with_reserved_devices_moves_with_the_time_until_it_starts() -> None:
    state = reserve_a(GANG, victim=lasting(50), **lasting(60))
    assert when_and_where(state, "first") == (61, ["a", "b"])
    state.pass_time(9 * SECOND_NS)
    assert when_and_where(state, "first") == (69, ["a", "b"])
    again = State(state.cluster)
    again.pass_time(9 * SECOND_NS)
    assert when_and_where(again, "first") == (69, ["a", "b"])
    hear(state, *ended("victim", "a", None, signal=15, reason="stopped")[1:])
    assert begin(state, now_s=10)[0] == ("urgent", "a")
    assert when_and_where(state, "first") == (70, ["a", "b"])


def test_nodes_with_reserved_devices_are_examined_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = reserve_a(GANG, victim=lasting(50), **lasting(60))
    examined = []
    when = Forecast._when

    def noted(self: Forecast, cluster: Cluster, place: Place, now_ns: int) -> int | None:
        examined.append(place.node.node_id)
        return when(self, cluster, place, now_ns)

    monkeypatch.setattr(Forecast, "_when", noted)
    ends = []
    for at_ns in (SECOND_NS, SECOND_NS * 3 // 2, 2 * SECOND_NS - 1, 2 * SECOND_NS):
        state.pass_time(at_ns)
        ends.append(when_and_where(state, "first"))
    assert ends == [(61, ["a", "b"])] * 3 + [(62, ["a", "b"])]
    assert examined == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("fields", "end_ns"),
    [
        ({"estimate_s": 70}, 71 * SECOND_NS),
        ({"allocation": Allocation(70), "grace_s": 9}, 80 * SECOND_NS),
        ({}, UNKNOWN + 50 * SECOND_NS),
        ({"serve": Serve("m", 1)}, NEVER + 50 * SECOND_NS),
    ],
    ids=["estimate", "allocation", "unknown", "replica"],
)
def test_the_end_of_a_job_with_reserved_devices_is_that_of_a_job_that_starts_now(
    fields: dict[str, Any], end_ns: int
) -> None:
    state = reserve_a(GANG, victim=lasting(50), **fields)
    assert reservation_for(state, state.cluster.jobs[JobId("first")]).when_ns == end_ns


def test_devices_that_are_not_reserved_are_forecast_without_the_job_that_has_others() -> None:
    """The victim holds the whole node, and only two of its devices are reserved."""
    state = reserve_a(
        waiting("pair", gpus=2, node_labels=ONLY_A),
        waiting("whole", gpus=4, node_labels=ONLY_A),
        victim=lasting(50),
        gpus=2,
        **lasting(60),
    )
    assert when_and_where(state, "pair") == (50, ["a"])
    assert when_and_where(state, "whole") == (61, ["a"])


def test_a_part_of_a_reserved_device_is_forecast_once_the_job_that_needs_it_has_ended() -> None:
    def part(job: str, share: int, **fields: Any) -> list[AnyFact]:
        asked = {"gpu_share": share, "node_labels": ONLY_A} | fields
        return waiting(job, **asked)

    state = given(registered("a", 1, labels=ONLY_A))
    hear(
        state, *part("rock", 30), *part("victim", 50, priority=10, preemptible=True, **lasting(50))
    )
    assert [fact.job_id for fact in decisions(state)] == ["rock", "victim"]
    hear(state, *part("urgent", 40, priority=90, **lasting(60)), *part("next", 60))
    assert [fact.job_id for fact in decisions(state)] == ["urgent", "victim"]
    assert when_and_where(state, "next") == (61, ["a"])
    hear(
        state,
        f.GpuFaulted(
            node_id=state.capacity.nodes[0], uuid="a-gpu0", health="offline", reason="xid"
        ),
    )
    assert when_and_where(state, "next") == (UNKNOWN, [])
