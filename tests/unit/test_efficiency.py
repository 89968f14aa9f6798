"""How the use of devices adds up, and which hints follow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common import efficiency as e
from libs.common.facts import DeviceUse

GIB = 1 << 30
ONE = DeviceUse(
    devices=2,
    used=1,
    sampled_ms=100_000,
    busy_ms=40_000,
    peak_percent=90,
    memory_peak_bytes=60 * GIB,
    memory_bytes=80 * GIB,
    energy_mj=5,
)
OTHER = DeviceUse(devices=1, used=1, sampled_ms=10, busy_ms=10, peak_percent=99, shared=True)


def test_members_have_different_devices_and_attempts_the_same() -> None:
    members, attempts = e.of_members(ONE, OTHER), e.of_attempts(ONE, OTHER)
    assert members is not None and attempts is not None
    assert (members.devices, members.used, members.sampled_ms) == (3, 2, 100_010)
    assert (attempts.devices, attempts.used, attempts.busy_ms) == (2, 1, 40_010)
    assert members.peak_percent == 99 and members.shared and members.energy_mj == 5
    assert e.of_members(None, ONE) == ONE == e.of_members(ONE, None)
    assert e.of_members(None, None) is None


def test_energies_add_up_where_they_are_reported() -> None:
    both = e.of_members(ONE, ONE)
    assert both is not None and both.energy_mj == 10
    neither = e.of_members(OTHER, OTHER)
    assert neither is not None and neither.energy_mj == -1


def test_what_was_not_sampled_is_neither_busy_nor_idle() -> None:
    assert e.measured(1_000, 200_000, ONE) == (200, 300)
    assert e.measured(1_000, 200_000, None) == (0, 0)
    assert e.measured(1_000, 50_000, ONE) == (400, 600)


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.integers(0, 999), st.integers(0, 1_999))
def test_busy_and_idle_never_exceed_the_share(
    share_ms: int, devices_ms: int, sampled_ms: int, busy_ms: int
) -> None:
    use = DeviceUse(sampled_ms=sampled_ms, busy_ms=busy_ms)
    busy, idle = e.measured(share_ms, devices_ms, use)
    assert busy >= 0 and idle >= 0 and busy + idle <= share_ms


def test_the_average_is_rounded() -> None:
    assert e.average_percent(ONE) == 40 and e.average_percent(DeviceUse()) == 0
    assert e.average_percent(DeviceUse(sampled_ms=1_000, busy_ms=5)) == 1


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        ({"used": 0}, "used none of its 2 GPUs: ask for none, or check"),
        ({"used": 1}, "used 1 of 2 GPUs: ask for 1"),
        ({"used": 2, "busy_ms": 10_000}, "its 2 GPUs computed 10 % of the time"),
        ({"used": 2, "memory_peak_bytes": GIB}, "used at most 1.0 of 80 GiB of GPU memory"),
    ],
)
def test_a_hint_says_what_a_job_could_do_better(use: dict[str, int], hint: str) -> None:
    (found,) = e.hints(DeviceUse(*_with(use)))
    assert found.startswith(hint)


@pytest.mark.parametrize(
    "use", [{"used": 2}, {"shared": True}, {"sampled_ms": 1_000}, {"devices": 0}]
)
def test_a_job_that_did_well_shared_or_was_short_gets_no_hint(use: dict[str, int]) -> None:
    assert e.hints(DeviceUse(*_with(use))) == [] == e.hints(None)


def _with(changed: dict[str, int]) -> list[int]:
    return [changed.get(name, getattr(ONE, name)) for name in DeviceUse.__struct_fields__]
