"""No sender uses up what another may say, and the kernel's filter passes what its rules say."""

import struct

import pytest

from libs.common.model import NodeId
from services.node_agent.peers import peer_budget as b
from services.node_agent.peers import peer_filter
from services.node_agent.peers.peer_budget import Budget

WINDOW = 1_000
PEER, OTHER = "10.0.0.1:9", "10.0.0.2:9"


def test_each_address_of_the_roster_has_a_budget_of_its_own_in_each_window() -> None:
    budget = Budget()
    budget.hears(PEER, True, 10, WINDOW)
    assert [budget.may_verify_ask(PEER, True) for _ in range(b.HEARD_PER_NODE + 1)] == [
        True
    ] * b.HEARD_PER_NODE + [False]
    assert budget.may_verify_ask(OTHER, True)
    budget.hears(PEER, True, 11 + WINDOW, WINDOW)
    assert budget.may_verify_ask(PEER, True)


def test_strangers_share_one_budget_and_leave_the_others_theirs() -> None:
    budget = Budget()
    asked = [
        budget.may_verify_ask(f"10.0.0.3:{port}", False) for port in range(b.STRANGERS_MAX + 1)
    ]
    assert asked == [True] * b.STRANGERS_MAX + [False]
    assert budget.may_verify_ask(PEER, True)
    assert budget.may_verify_answer(NodeId("a"))


def test_an_identity_s_answers_and_what_it_was_verified_to_say_are_bounded_apart() -> None:
    budget = Budget()
    for counts in (budget.may_verify_answer, budget.may_believe):
        assert [counts(NodeId("a")) for _ in range(b.HEARD_PER_NODE + 1)] == [
            True
        ] * b.HEARD_PER_NODE + [False]
        assert counts(NodeId("b"))


def test_a_few_strangers_are_no_flood() -> None:
    budget = Budget()
    assert not any(budget.hears("x:1", False, 10, WINDOW) for _ in range(b.FLOOD_HEARD))
    assert not budget.is_narrow(10)


def test_a_flood_of_strangers_narrows_for_some_windows_and_is_said_once() -> None:
    budget = Budget()
    assert [budget.hears("x:1", False, 10, WINDOW) for _ in range(b.FLOOD_HEARD + 9)].count(
        True
    ) == 1
    assert budget.is_narrow(10) and not budget.is_narrow(10 + b.NARROW_WINDOWS * WINDOW)
    assert budget.loud == set()


def test_wrong_signatures_of_strangers_are_a_flood_too() -> None:
    budget = Budget()
    for _ in range(b.STRANGERS_MAX):
        assert not budget.hears("x:1", False, 10, WINDOW)
        budget.may_verify_ask("x:1", False)
    assert budget.hears("x:1", False, 10, WINDOW)


def test_an_address_of_the_roster_that_floods_is_loud_until_the_flood_is_over() -> None:
    budget = Budget()
    assert any(budget.hears(PEER, True, 10, WINDOW) for _ in range(b.FLOOD_HEARD + 1))
    assert any(budget.hears(OTHER, True, 10, WINDOW) for _ in range(b.FLOOD_HEARD + 1))
    assert budget.loud == {PEER, OTHER}
    later = 20 + b.NARROW_WINDOWS * WINDOW
    assert any(budget.hears("x:1", False, later, WINDOW) for _ in range(b.FLOOD_HEARD + 1))
    assert budget.loud == set()


def passes(program: bytes, source: str, port: int, size: int) -> bool:
    """A small machine for the instructions that `peer_filter` uses."""
    address = int.from_bytes(bytes(int(part) for part in source.split(".")), "big")
    loads = {(0x28, 4): size + 8, (0x28, 0): port, (0x20, 0xFFF0000C): address}
    code, at, held = list(struct.iter_unpack("HBBI", program)), 0, 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        if kind == 0x06:
            return bool(value)
        if kind in (0x28, 0x20):
            held = loads[kind, value]
        elif kind == 0x05:
            at += value
        else:
            at += (
                yes if {0x15: held == value, 0x25: held > value, 0x35: held >= value}[kind] else no
            )


@pytest.mark.parametrize(
    ("size", "whether"),
    [(0, False), (1, False), (79, False), (80, True), (1_024, True), (1_025, False)],
)
def test_the_filter_drops_what_is_too_short_or_too_long(size: int, whether: bool) -> None:
    program = peer_filter.program(80, 1_024)
    assert program is not None
    assert passes(program, "10.0.0.9", 1, size) is whether


def test_the_narrowed_filter_passes_the_given_addresses_and_ports_alone() -> None:
    senders = [("10.0.0.1", 9), ("10.0.0.1", 10), ("10.0.0.2", 9)]
    program = peer_filter.program(80, 1_024, senders)
    assert program is not None
    tried = [(f"10.0.0.{host}", port) for host in (1, 2, 3) for port in (8, 9, 10)]
    assert [each for each in tried if passes(program, *each, 100)] == senders
    assert not passes(program, "10.0.0.1", 9, 1)


def test_a_filter_of_no_senders_passes_nothing() -> None:
    program = peer_filter.program(80, 1_024, [])
    assert program is not None
    assert not passes(program, "10.0.0.1", 9, 100)


def test_senders_that_the_kernel_cannot_tell_make_no_filter() -> None:
    assert peer_filter.program(80, 1_024, [("::1", 9)]) is None
    assert (
        peer_filter.program(
            80, 1_024, [(f"10.0.{number // 250}.{number % 250}", 9) for number in range(1_000)]
        )
        is None
    )
