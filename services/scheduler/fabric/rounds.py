"""The rounds of a tournament: in each round, disjoint pairs of nodes measure their link.

Pure: the seed is text, and the same nodes and seed give the same rounds. Up to CIRCLE_MAX nodes
every pair meets once (the circle method). Above that, ceil(log2 N) random matchings and the pairs
of neighbours stand for all pairs. Tests: tests/unit/test_fabric_rounds.py.
"""

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

from libs.common.model import NodeId

CIRCLE_MAX: Final = 64
# Pairs of one round. More would make its fact too large for the log; the rest is not measured.
PAIRS_MAX: Final = 512

Pair = tuple[NodeId, NodeId]
Round = tuple[Pair, ...]
Item = TypeVar("Item")


def rounds_of(nodes: Sequence[NodeId], seed: str) -> tuple[Round, ...]:
    """Return the rounds for these nodes. Neighbours in `nodes` are neighbours in the network."""
    if len(nodes) < 2:
        return ()
    if len(nodes) <= CIRCLE_MAX:
        return _circle(shuffled(nodes, seed))
    matchings = [
        _matched(shuffled(nodes, f"{seed}/{number}")) for number in range(_log2(len(nodes)))
    ]
    return (_matched(nodes), _matched(nodes[1:]), *matchings)


def disjoint(pairs: Iterable[Pair], busy: Collection[NodeId] = ()) -> Round:
    """Return the first of these pairs that share no node with each other or with `busy`."""
    taken = dict.fromkeys(busy)
    chosen: list[Pair] = []
    for pair in pairs:
        if len(chosen) < PAIRS_MAX and not any(node in taken for node in pair):
            chosen.append(pair)
            taken |= dict.fromkeys(pair)
    return tuple(chosen)


def ordered(a: NodeId, b: NodeId) -> Pair:
    """Return the pair in the order in which every fact names it."""
    return (a, b) if a < b else (b, a)


def shuffled(items: Sequence[Item], seed: str) -> list[Item]:
    """Return the items in an order that depends on the seed alone."""
    return sorted(items, key=lambda item: blake2b(f"{seed} {item}".encode()).digest())


def _circle(nodes: Sequence[NodeId]) -> tuple[Round, ...]:
    """Return N-1 rounds (N for an odd number) in which every pair meets once."""
    seats: list[NodeId | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    found: list[Round] = []
    for _ in range(len(seats) - 1):
        opposite = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        found.append(tuple(ordered(a, b) for a, b in opposite if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(found)


def _matched(nodes: Sequence[NodeId]) -> Round:
    """Return the pairs of a list of nodes: first with second, third with fourth, and so on."""
    pairs = [ordered(a, b) for a, b in zip(nodes[::2], nodes[1::2], strict=False)]
    return tuple(pairs[:PAIRS_MAX])


def _log2(count: int) -> int:
    return (count - 1).bit_length()
