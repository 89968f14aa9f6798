"""The schedule of faults: repeatable, complete, and over before the run is."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.machines import faults

SERVERS = ("nats-1", "nats-2", "nats-3")
OTHERS = ("scheduler-a", "scheduler-b", "gateway-a", "node-1")
LONG_S = 400.0

seeds = st.integers(0, 1 << 32)


def made(seed: int, length_s: float = LONG_S) -> list[faults.Fault]:
    return faults.schedule(random.Random(seed), length_s, SERVERS, OTHERS)


@given(seeds)
def test_one_seed_gives_one_schedule(seed: int) -> None:
    assert made(seed) == made(seed)


@given(seeds, st.floats(1.0, LONG_S))
def test_every_fault_begins_after_the_one_before_and_ends_within_the_run(
    seed: int, length_s: float
) -> None:
    found = made(seed, length_s)
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    assert all(each.at_s + each.seconds <= length_s for each in found)


@given(seeds)
def test_a_long_run_has_every_kind(seed: int) -> None:
    assert {each.kind for each in made(seed)} == set(faults.KINDS)


@given(seeds)
def test_a_fault_is_where_its_kind_can_be(seed: int) -> None:
    for fault in made(seed):
        shortest, longest = faults.LASTS_S.get(fault.kind, (0.0, 0.0))
        assert shortest <= fault.seconds <= longest
        assert set(fault.hosts) <= {*SERVERS, *OTHERS} and fault.hosts
        assert not set(fault.hosts) & set(fault.others)
        if fault.kind in (faults.FULL, faults.POWER, faults.FULL_ALL, faults.POWER_ALL):
            assert set(fault.hosts) <= set(SERVERS)
        if fault.kind == faults.SPLIT:
            assert {*fault.hosts, *fault.others} == {*SERVERS, *OTHERS}
            assert set(fault.hosts) & set(SERVERS) and set(fault.others) & set(SERVERS)
        if fault.kind == faults.ONE_WAY:
            assert len(fault.hosts) == len(fault.others) == 1
