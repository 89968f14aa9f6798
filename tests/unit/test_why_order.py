"""Explanation of the order of waiting jobs, in the words of the queue's policy."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.model import JobId
from services.scheduler.explain.explain import explain
from tests.given import given, member, placed, registered, started, waiting

J = JobId("j")


def before(*history: Any) -> list[str]:
    busy = [
        *waiting("i", gpus=2, tenant="other"),
        placed("i", member("a", 0, 1)),
        started("i", "a"),
    ]
    return [
        f"{each['job_id']} {each['why']}"
        for each in explain(given(registered("a"), busy, *history), J)["before"]
    ]


def queue(policy: str, **fields: Any) -> f.QueueSet:
    return f.QueueSet(queue="default", policy=policy, **fields)


@pytest.mark.parametrize(
    ("policy", "first", "own", "why"),
    [
        ("priority", {"priority": 60}, {}, "has priority 60, this one 50"),
        ("priority", {}, {}, "was submitted first"),
        ("fifo", {"priority": 60}, {}, "was submitted first"),
        (
            "fair_share",
            {"tenant": "red"},
            {"tenant": "other"},
            "is of tenant red, which has less for its weight",
        ),
        ("fair_share", {"priority": 60}, {}, "has priority 60, this one 50"),
    ],
)
def test_the_reason_is_the_policy_s_own(
    policy: str, first: dict[str, Any], own: dict[str, Any], why: str
) -> None:
    assert before(queue(policy), waiting("first", gpus=4, **first), waiting("j", **own)) == [
        f"first {why}"
    ]


@pytest.mark.parametrize(
    ("policy", "own", "first", "why"),
    [
        ("srsf", {"estimate_s": 900}, {"estimate_s": 10}, "has less left to do"),
        (
            "deadline",
            {"deadline_ns": 9 << 60},
            {"deadline_ns": 1 << 60},
            "has the earlier deadline",
        ),
    ],
)
def test_explanation_gives_the_reason_for_a_later_job_in_front(
    policy: str, own: dict[str, Any], first: dict[str, Any], why: str
) -> None:
    assert before(queue(policy), waiting("j", **own), waiting("first", gpus=4, **first)) == [
        f"first {why}"
    ]


def test_a_queue_that_holds_less_goes_first() -> None:
    sets = [queue("fifo"), f.QueueSet(queue="quick", policy="fifo", weight=1_000)]
    assert before(sets, waiting("first", gpus=4, queue="quick"), waiting("j")) == [
        "first is of queue quick, which holds less for its weight"
    ]


def test_the_first_of_many_are_named_in_order() -> None:
    many = [waiting(name, gpus=4) for name in ("x", "y", "z", "w")]
    assert before(*many, waiting("j")) == [f"{name} was submitted first" for name in "xyz"]


def reserved_nodes(*history: Any) -> list[str]:
    blockers = explain(given(registered("a"), *history), J)["blockers"]
    return [each["detail"] for each in blockers if each["what"] == "reserved for big"]


def test_the_nodes_reserved_for_the_first_job_are_named_with_backfill() -> None:
    def busy(limit_s: int) -> list[Any]:
        return [
            *waiting("i", gpus=2, time_limit_s=limit_s),
            placed("i", member("a", 0, 1)),
            *waiting("big", gpus=4),
            *waiting("j"),
        ]

    assert reserved_nodes(busy(7_160)) == [
        "a; in 2h00m at latest: jobs that start before it end by then, run elsewhere, or make room "
        "when asked (--preemptible)"
    ]
    assert reserved_nodes(busy(0)) == [
        "a; at an unknown time: only jobs that make room when asked (--preemptible) start there"
    ]
    assert (
        reserved_nodes(f.QueueSet(queue="default", policy="priority", backfill=False), busy(60))
        == []
    )
