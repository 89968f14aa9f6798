"""Decides how long directories of ended attempts are kept: by age, and by size and number, which
tenants share.

Pure. What has not been copied off the node is never chosen. `kept_directories.py` removes what is
chosen, and leaves the marker, which keeps the attempt from being started again.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

SECOND_NS: Final = 1_000_000_000


class Keep(NamedTuple):
    """Bounds; None: none."""

    age_s: int | None = None
    size_bytes: int | None = None
    jobs: int | None = None


class Kept(NamedTuple):
    """The directory of an attempt that is over and forgotten.

    `ended_ns` is on the machine's wall clock.

    `tenant` is empty for an attempt that an earlier version started.
    """

    name: str
    size_bytes: int
    ended_ns: int
    tenant: str = ""


class Pruned(NamedTuple):
    """What was removed, or would be, and what is left.

    `uncopied` of those left are held back only because the store has not taken the end of their
    output yet.
    """

    jobs: int = 0
    size_bytes: int = 0
    jobs_left: int = 0
    bytes_left: int = 0
    uncopied: int = 0


class Shelf:
    """The directories that one tenant keeps here, by name, the oldest first."""

    def __init__(self, kept: Iterable[Kept] = ()) -> None:
        self.kept: dict[str, Kept] = {}
        self.size_bytes = 0
        for one in kept:
            self.add(one)

    def add(self, one: Kept) -> None:
        self.kept[one.name] = one
        self.size_bytes += one.size_bytes

    def remove(self, one: Kept) -> None:
        del self.kept[one.name]
        self.size_bytes -= one.size_bytes


class _Pile:
    """A tenant's directories while some are chosen: `jobs` and `size_bytes` are what stays."""

    def __init__(self, shelf: Shelf, uncopied: Container[str]) -> None:
        self.jobs = len(shelf.kept)
        self.size_bytes = shelf.size_bytes
        self.copied = (one for one in shelf.kept.values() if one.name not in uncopied)
        self.oldest = next(self.copied, None)

    def take(self) -> Kept:
        """Choose the oldest."""
        one = self.oldest
        assert one is not None, "only a pile with something to choose is taken from"
        self.jobs, self.size_bytes, self.oldest = (
            self.jobs - 1,
            self.size_bytes - one.size_bytes,
            next(self.copied, None),
        )
        return one


def surplus(
    shelves: Collection[Shelf], uncopied: Container[str], keep: Keep, now_ns: int
) -> list[Kept]:
    """Return what is to go. What is too old goes first.

    Past a bound of size or number the oldest of the tenant that has the most goes, so that no
    tenant's directories push out those of a tenant that has less.
    """
    piles, found = [_Pile(shelf, uncopied) for shelf in shelves], []
    for pile in piles:
        while (
            keep.age_s is not None
            and pile.oldest is not None
            and now_ns - pile.oldest.ended_ns >= keep.age_s * SECOND_NS
        ):
            found.append(pile.take())
    found += _down_to(piles, keep.size_bytes, lambda pile: pile.size_bytes)
    found += _down_to(piles, keep.jobs, lambda pile: pile.jobs)
    return found


def _down_to(
    piles: Sequence[_Pile], bound: int | None, amount: Callable[[_Pile], int]
) -> Iterator[Kept]:
    while bound is not None and sum(map(amount, piles)) > bound:
        largest = max((pile for pile in piles if pile.oldest is not None), key=amount, default=None)
        if largest is None:
            return
        yield largest.take()
