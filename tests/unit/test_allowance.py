"""Bytes by tenant and minute: acts, refuses with a time, drains, and agrees between gateways."""

from services.api_gateway.access.allowance import KEPT_MAX, MINUTE_NS, SECOND_NS, Allowance

T = 1_000 * MINUTE_NS


def test_a_tenant_waits_until_its_bytes_have_drained() -> None:
    allowance = Allowance(6_000)
    allowance.recorded("t", 6_000, T, T)
    assert allowance.wait_s("t", 100, T) == 1
    assert allowance.wait_s("t", 1_000, T) == 10
    assert allowance.wait_s("t", 1_000, T + 10 * SECOND_NS) == 0
    assert allowance.wait_s("another", 6_000, T) == 0


def test_running_requests_count_until_they_are_over() -> None:
    allowance = Allowance(6_000)
    allowance.begin("t", 3_000)
    allowance.begin("t", 2_000)
    assert allowance.wait_s("t", 2_000, T) == 10
    allowance.end("t", 2_000)
    assert allowance.wait_s("t", 2_000, T) == 0
    allowance.end("t", 3_000)
    assert allowance.under_way == {}


def test_a_commit_from_a_gateway_whose_clock_is_behind_drains_nothing() -> None:
    allowance = Allowance(6_000)
    allowance.recorded("t", 3_000, T, T)
    allowance.recorded("t", 3_000, T - MINUTE_NS, T)
    assert allowance.wait_s("t", 1, T) == 1


def test_a_commit_from_a_gateway_whose_clock_is_ahead_delays_its_tenant_no_longer() -> None:
    allowance = Allowance(6_000)
    allowance.recorded("t", 6_000, T + 60 * MINUTE_NS, T)
    assert allowance.wait_s("t", 1_000, T) == 10
    assert allowance.wait_s("t", 1_000, T + 10 * SECOND_NS) == 0


def test_a_clock_that_is_set_back_freezes_no_tenant() -> None:
    allowance = Allowance(6_000)
    allowance.recorded("t", 6_000, T, T)
    assert allowance.wait_s("t", 1_000, T - 60 * MINUTE_NS) == 10
    assert allowance.wait_s("t", 1_000, T - 60 * MINUTE_NS + 10 * SECOND_NS) == 0


def test_gateways_that_folded_the_same_commits_agree() -> None:
    one, two = Allowance(6_000), Allowance(6_000)
    for second in range(90):
        for each in (one, two):
            each.recorded("t", 200, T + second * SECOND_NS, T + second * SECOND_NS)
    assert one.level == two.level
    assert one.wait_s("t", 200, T + 89 * SECOND_NS) == two.wait_s("t", 200, T + 89 * SECOND_NS) > 0


def test_tenants_that_took_nothing_for_a_minute_are_forgotten() -> None:
    allowance = Allowance(6_000)
    for number in range(KEPT_MAX):
        allowance.recorded(f"t{number}", 6_000, T, T)
    allowance.recorded("late", 1, T + MINUTE_NS, T + MINUTE_NS)
    assert list(allowance.level) == ["late"] == list(allowance.at)
