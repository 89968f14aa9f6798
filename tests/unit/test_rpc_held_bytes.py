"""Bytes that calls keep: one tenant has a part of them, and all are given back."""

import pytest

from libs.common.open_share import OpenShare
from services.api_gateway.problems import Problem
from services.api_gateway.rpc.held_bytes import HeldBytes


def test_a_call_keeps_bytes_until_it_ends() -> None:
    share = OpenShare(1_000)
    first, second = HeldBytes(share, "a"), HeldBytes(share, "b")
    first.take(100)
    first.keep(50)
    second.take(7)
    first.keep(20)
    assert (share.held, share.of_tenant) == (127, {"a": 120, "b": 7})
    first.give_back(100)
    first.keep(0)
    assert (share.held, share.of_tenant) == (7, {"b": 7})
    first.take(3)
    first.close()
    second.close()
    assert (share.held, share.of_tenant) == (0, {})


def test_a_tenant_that_keeps_too_many_is_refused_and_another_is_not() -> None:
    share = OpenShare(1_000)
    greedy = [HeldBytes(share, "a") for _ in range(9)]
    with pytest.raises(Problem, match="tenant a keep as many bytes") as problem:
        for each in greedy:
            each.take(100)
    assert (problem.value.status, share.held) == (429, 800)
    HeldBytes(share, "b").take(100)
    refused = greedy[-1]
    with pytest.raises(Problem):
        refused.keep(101)
    assert (refused.size, refused.kept) == (0, 0)


def test_a_call_that_has_ended_takes_nothing_more() -> None:
    share = OpenShare(10)
    held = HeldBytes(share, "a")
    held.take(4)
    held.close()
    held.take(100)
    held.give_back(4)
    held.keep(100)
    held.close()
    assert share.held == 0


def test_without_a_share_nothing_is_counted() -> None:
    held = HeldBytes()
    held.take(1 << 40)
    held.give_back(1)
    held.close()
    assert held.size == 0
