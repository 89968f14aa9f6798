"""The bound on bytes per second of a tenant: a burst of one second, then the rate."""

from services.node_agent.links import rates
from services.node_agent.links.rates import SECOND_NS, Rates


def test_a_second_s_bytes_go_at_once_and_more_must_wait() -> None:
    bucket = Rates(1_000)
    assert bucket.wait_ns("red", 1_000, 0) == 0
    assert bucket.wait_ns("red", 500, 0) == SECOND_NS // 2
    assert bucket.wait_ns("red", 1_000, 10 * SECOND_NS) == 0


def test_tenants_do_not_share_a_bucket() -> None:
    bucket = Rates(1_000)
    assert bucket.wait_ns("red", 5_000, 0) == 4 * SECOND_NS
    assert bucket.wait_ns("blue", 1_000, 0) == 0


def test_without_a_bound_nothing_waits() -> None:
    assert Rates(0).wait_ns("red", 1 << 50, 0) == 0


def test_a_bounded_number_of_tenants_is_remembered() -> None:
    bucket = Rates(1)
    for number in range(rates.TENANTS_MAX + 10):
        bucket.wait_ns(str(number), 1, 0)
    assert len(bucket._free_ns) == rates.TENANTS_MAX
