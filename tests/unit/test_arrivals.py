"""The workload mix: newer jobs weigh more, and the counts have a bound.

The mix is stored only when it has changed.
"""

import pytest

from libs.common.state import arrivals
from libs.common.state.arrivals import FIRST, Arrival, Arrivals, kind_of, learnt_of, note
from tests.given import spec

WHOLE, HALF = spec(gpus=1), spec(gpus=1, gpu_share=50, cpus_milli=2_000, model=("L4", "A10"))


def noted(*counts: tuple[int, object]) -> Arrivals:
    found = Arrivals()
    for count, wish in counts:
        for _ in range(count):
            note(found, wish)  # type: ignore[arg-type]
    return found


def test_a_mix_is_learnt_when_enough_have_come_and_by_kinds() -> None:
    assert noted((FIRST - 1, WHOLE)).learnt == {}
    assert learnt_of(noted((FIRST // 4, HALF), (FIRST * 3 // 4, WHOLE)).learnt) == (
        (Arrival(1, 100, 0, ()), FIRST * 3 // 4),
        (Arrival(1, 50, 2_000, ("A10", "L4")), FIRST // 4),
    )


def test_another_mix_is_learnt_and_nearly_the_same_is_not() -> None:
    found = noted((FIRST, WHOLE))
    first = found.learnt
    for _ in range(FIRST):
        note(found, WHOLE)
    assert found.learnt is first
    for _ in range(2 * FIRST):
        note(found, HALF)
    assert found.learnt == {kind_of(WHOLE): 2 * FIRST, kind_of(HALF): 2 * FIRST}


def test_request_fields_decided_by_the_card_are_not_in_the_workload_mix() -> None:
    assert (
        noted((FIRST, spec(gpu_memory_bytes=1 << 30)), (FIRST, spec(mig_profile="1g.5gb")))
        == Arrivals()
    )


def test_counts_that_have_grown_are_halved_so_that_newer_jobs_weigh_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrivals, "TOTAL_MAX", 10)
    found = noted((1, HALF), (9, WHOLE))
    assert (found.counts, found.total) == ({kind_of(WHOLE): 4}, 4), "what came once is forgotten"
    note(found, spec(nodes=2))
    assert (found.counts, found.total, found.seen) == ({kind_of(WHOLE): 6}, 6, 11)


def test_kinds_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "KINDS_MAX", 3)
    kinds = [(1, spec(cpus_milli=number)) for number in range(100)]
    assert len(noted((8, WHOLE), *kinds).counts) <= 3
