"""The memory broker's rules: who gets memory, and when it is free again."""

import pytest

from services.node_agent.memory import grants as g

MIB = 1 << 20
STEP = 2 * MIB
ME, OTHER = g.Holder(10, 1), g.Holder(11, 1)


def books(revocable: bool = True, capacity: int = 64 * MIB) -> g.Books:
    made = g.Books()
    for device in (0, g.HOST):
        g.add_device(made, device, capacity=capacity, granularity=STEP, revocable=revocable)
    g.admit(made, g.Attempt(key="a.1", tenant="t", token=b"A", limits={0: 16 * MIB}, job_dir="/a"))
    g.admit(made, g.Attempt(key="b.1", tenant="u", token=b"B", limits={0: 16 * MIB}, job_dir="/b"))
    return made


def granted(made: g.Books, size: int, key: str = "a.1", holder: g.Holder = ME) -> g.Grant:
    rounded = g.check(books=made, key=key, device=0, size=size, purpose="p")
    wanted = g.Grant(grant=0, key=key, device=0, bytes=rounded, purpose="p", holder=holder)
    return g.take_spare(made, wanted) or g.add(made, wanted)


def refused(made: g.Books, size: int, key: str = "a.1", device: int = 0, purpose: str = "") -> str:
    with pytest.raises(g.Refusal) as found:
        g.check(books=made, key=key, device=device, size=size, purpose=purpose)
    assert str(found.value) == found.value.detail
    return found.value.reason


def test_sizes_are_rounded_up_to_the_granularity() -> None:
    made = books()
    assert granted(made, 1).bytes == STEP
    assert granted(made, STEP + 1).bytes == 2 * STEP
    assert g.used_of(made, "a.1", 0) == g.owned_bytes(made, 0) == 3 * STEP


def test_a_job_gets_no_more_than_its_pool() -> None:
    made = books()
    granted(made, 15 * MIB)
    assert refused(made, 1) == "quota"
    assert granted(made, 16 * MIB, "b.1").bytes == 16 * MIB


@pytest.mark.parametrize("size", [0, -1, 16 * MIB + 1, 1 << 70])
def test_an_impossible_size_is_refused_before_anything_is_counted(size: int) -> None:
    made = books()
    assert refused(made, size) == "size"
    assert made.grants == {}


def test_a_device_of_another_job_and_a_released_job_get_nothing() -> None:
    made = books()
    assert refused(made, 1, device=7) == "device"
    assert refused(made, 1, key="z.1") == "released"
    assert refused(made, 1, purpose="x" * 65) == "purpose"


def test_all_jobs_together_get_no_more_than_the_device_has() -> None:
    made = books(capacity=20 * MIB)
    granted(made, 16 * MIB)
    assert refused(made, 6 * MIB, "b.1") == "full"
    granted(made, 4 * MIB, "b.1")
    assert g.owned_bytes(made, 0) == 20 * MIB


def test_a_returned_grant_is_free_only_for_the_caller_who_frees_it() -> None:
    made = books()
    grant = granted(made, 16 * MIB)
    assert g.returned(made, "a.1", grant.grant) == grant
    assert g.used_of(made, "a.1", 0) == 16 * MIB
    g.remove(made, grant.grant)
    assert g.used_of(made, "a.1", 0) == 0
    with pytest.raises(g.Refusal):
        g.returned(made, "a.1", grant.grant)


def test_a_job_cannot_return_the_grant_of_another() -> None:
    made = books()
    grant = granted(made, STEP)
    with pytest.raises(g.Refusal):
        g.returned(made, "b.1", grant.grant)
    assert made.grants[grant.grant] == grant


def test_the_death_of_a_holder_returns_its_grants_and_no_others() -> None:
    made = books()
    mine, other = granted(made, STEP), granted(made, STEP, holder=OTHER)
    assert g.died(made, ME) == [mine]
    assert g.holders(made) == [ME, OTHER]
    assert g.died(made, g.Holder(ME.pid, 2)) == []
    assert made.grants[other.grant] == other


def test_the_release_of_a_job_returns_all_its_grants() -> None:
    made = books()
    mine = [granted(made, STEP), granted(made, STEP, holder=OTHER)]
    granted(made, STEP, "b.1")
    assert g.released(made, "a.1") == mine
    assert g.by_token(made, b"A") is None
    assert refused(made, STEP) == "released"


def test_memory_that_cannot_be_revoked_stays_with_the_job_as_a_spare() -> None:
    made = books(revocable=False)
    grant = granted(made, 16 * MIB)
    assert g.returned(made, "a.1", grant.grant) is None
    assert g.owned_bytes(made, 0) == 16 * MIB
    assert refused(made, 2 * MIB) == "quota"
    again = granted(made, 16 * MIB, holder=OTHER)
    assert (again.grant, again.holder) == (grant.grant, OTHER)
    assert list(g.died(made, OTHER)) == []
    assert g.released(made, "a.1") == [made.grants[grant.grant]]


def test_a_lost_attempt_counts_as_its_whole_pool_and_gets_nothing() -> None:
    made = books(capacity=24 * MIB)
    g.admit(
        made,
        g.Attempt(key="c.1", tenant="t", token=b"C", limits={0: 16 * MIB}, job_dir="/c", lost=True),
    )
    assert refused(made, STEP, "c.1") == "lost"
    assert g.owned_bytes(made, 0) == 16 * MIB
    assert refused(made, 10 * MIB) == "full"
    assert g.released(made, "c.1") == []
    assert g.owned_bytes(made, 0) == 0


def test_a_repeated_request_finds_its_grant() -> None:
    made = books()
    grant = g.add(
        made, g.Grant(grant=0, key="a.1", device=0, bytes=STEP, purpose="", holder=ME, ask=7)
    )
    assert g.repeated(made, "a.1", ME, 7) == grant
    assert g.repeated(made, "a.1", OTHER, 7) is None
    assert g.repeated(made, "a.1", ME, 0) is None


def test_numbers_are_not_reused_after_a_restart() -> None:
    made = books()
    g.restore(made, g.Grant(grant=41, key="a.1", device=0, bytes=STEP, purpose="", holder=ME))
    assert granted(made, STEP).grant == 42


def test_a_job_names_its_devices_in_its_own_order() -> None:
    mapped = g.Attempt(
        key="m.1", tenant="t", token=b"M", limits={3: STEP, 5: STEP}, job_dir="/m", ordinals=(5, 3)
    )
    assert [g.number_of(mapped, ordinal) for ordinal in (0, 1)] == [5, 3]
    assert [g.ordinal_of(mapped, device) for device in (5, 3, g.HOST)] == [0, 1, g.HOST]
    for ordinal in (-1, 2, 3, 5):
        with pytest.raises(g.Refusal, match="use one of 1, 0"):
            g.number_of(mapped, ordinal)
    with_host = g.Attempt(
        key="h.1", tenant="t", token=b"H", limits={g.HOST: STEP}, job_dir="/h", ordinals=(5,)
    )
    assert g.number_of(with_host, g.HOST) == g.HOST
    with pytest.raises(g.Refusal):
        g.number_of(with_host, 0)


def test_a_closed_device_gives_no_memory_and_keeps_what_is_granted() -> None:
    made = books()
    grant = granted(made, STEP)
    g.close_device(made, 0, "its driver hangs")
    assert refused(made, STEP) == "driver"
    assert made.grants == {grant.grant: grant}
    g.add_device(made, 0, capacity=64 * MIB, granularity=STEP, revocable=True)
    assert granted(made, STEP).bytes == STEP


def test_a_device_that_was_never_usable_is_in_the_books() -> None:
    made = g.Books()
    g.close_device(made, 4, "no library")
    g.admit(made, g.Attempt(key="a.1", tenant="t", token=b"A", limits={4: STEP}, job_dir="/a"))
    with pytest.raises(g.Refusal, match="device 4 gives no memory: no library"):
        g.check(made, key="a.1", device=4, size=1, purpose="")
    g.restore(made, g.Grant(9, key="a.1", device=4, bytes=STEP, purpose="", holder=ME))
    assert g.died(made, ME) == []
    assert made.grants[9].holder is None


def test_an_attempt_has_at_most_so_many_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(g, "GRANTS_OF_ATTEMPT_MAX", 1)
    made = books()
    granted(made, STEP)
    assert refused(made, STEP) == "grants"
    g.remove(made, 1)
    assert made.count == {}


def test_the_sums_of_an_attempt_stay_while_it_has_other_grants() -> None:
    made = books()
    first, second = granted(made, STEP), granted(made, STEP)
    g.remove(made, first.grant)
    assert (made.used, made.count) == ({("a.1", 0): STEP}, {"a.1": 1})
    g.remove(made, second.grant)
    assert (made.used, made.count) == ({}, {})
