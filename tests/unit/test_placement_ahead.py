"""Placement looks ahead and remembers within bounds: the answers do not depend on these bounds."""

import pytest

from libs.common.model import JobSpec
from services.scheduler.placement import capacity
from services.scheduler.placement.choose import choose
from services.scheduler.state.state import State
from tests.given import ended, given, member, placed, registered, spec, tell, waiting

WISHES = [spec(gpus=gpus) for gpus in (1, 2, 3)]


def chosen(state: State) -> list[object]:
    return [choose(state.capacity, request, "default") for request in WISHES]


def after_an_end() -> State:
    """Rankings were asked for, and what they know is old."""
    state = given(
        registered("a"), registered("b"), waiting("i", gpus=3), placed("i", member("a", 0, 1, 2))
    )
    chosen(state)
    for fact in ended("i", "a"):
        state.refresh(tell(state.cluster, fact))
    return state


def test_rankings_not_computed_ahead_are_computed_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "CATCH_UP_MAX", 1)
    state = after_an_end()
    state.capacity.catch_up()
    left = [
        ranking
        for ranking in state.capacity._rankings.values()
        if ranking.seen != state.capacity.changes.position
    ]
    assert left and chosen(state) == chosen(after_an_end())
    for _ in WISHES:
        state.capacity.catch_up()
    assert all(
        ranking.seen == state.capacity.changes.position
        for ranking in state.capacity._rankings.values()
    )


def test_forgotten_preemption_capacity_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.scheduler.placement.hardware.NEEDS_MAX", 1)

    def asked(request: JobSpec) -> object:
        return choose(after_an_end().capacity, request, "default")

    state = after_an_end()
    assert [choose(state.capacity, request, "default") for request in (*WISHES, *WISHES)] == [
        asked(request) for request in (*WISHES, *WISHES)
    ]
