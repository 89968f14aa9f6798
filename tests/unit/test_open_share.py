"""A tenant's share of what all tenants of a gateway use."""

import pytest

from libs.common.open_share import ALL_FULL, TENANT_FULL, OpenShare


def taken(share: OpenShare, tenant: str) -> int:
    """Let the tenant take as much as it can have."""
    count = 0
    while not share.take(tenant):
        count += 1
    return count


def test_tenants_that_take_all_they_can_leave_something_for_the_next() -> None:
    share = OpenShare(1_000)
    assert [taken(share, name) for name in "abcd"] == [800, 160, 32, 7]


def test_two_tenants_that_take_by_turns_have_the_same() -> None:
    share = OpenShare(900)
    for _ in range(900):
        share.take("a")
        share.take("b")
    assert share.of_tenant == {"a": 400, "b": 400}
    assert share.take("a") == TENANT_FULL
    assert share.take("c") == ""


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_small_bound_can_be_used_whole(most: int) -> None:
    share = OpenShare(most)
    assert taken(share, "a") == most
    assert share.take("b") == ALL_FULL


def test_what_is_given_back_can_be_taken_again_and_leaves_nothing_behind() -> None:
    share = OpenShare(100)
    assert share.take("a", 70) == ""
    assert share.take("a", 40) == ALL_FULL
    assert share.take("b", 25) == ""
    share.give_back("a", 30)
    assert share.of_tenant == {"a": 40, "b": 25}
    share.give_back("a", 40)
    share.give_back("b", 25)
    assert share.of_tenant == {} and share.held == 0
