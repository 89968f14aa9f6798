"""Chooses which directories of ended attempts to prune: by age, total size and number.

Pure. Directories whose output is only on this node are never chosen. `kept_directories.py` prunes
the chosen ones and leaves their markers, which keep the attempts from being started again.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

SECOND_NS: Final = 1_000_000_000


class Keep(NamedTuple):
    """The bounds of what is kept; None means unbounded."""

    age_s: int | None = None
    size_bytes: int | None = None
    jobs: int | None = None


class Kept(NamedTuple):
    """The directory of an attempt that the agent has forgotten.

    `ended_ns` is on the machine's wall clock. `tenant` is empty for an attempt that an earlier
    version started.
    """

    name: str
    size_bytes: int
    ended_ns: int
    tenant: str = ""


class Pruned(NamedTuple):
    """The result of a pruning: what was removed, or would be, and what is left.

    `uncopied` is the number of directories that stay because their output is only on this node.
    """

    jobs: int = 0
    size_bytes: int = 0
    jobs_left: int = 0
    bytes_left: int = 0
    uncopied: int = 0


class Shelf:
    """The kept directories of one tenant by name, the oldest first."""

    def __init__(self, kept: Iterable[Kept] = ()) -> None:
        self.kept: dict[str, Kept] = {}
        self.size_bytes = 0
        for directory in kept:
            self.add(directory)

    def add(self, directory: Kept) -> None:
        self.kept[directory.name] = directory
        self.size_bytes += directory.size_bytes

    def remove(self, directory: Kept) -> None:
        del self.kept[directory.name]
        self.size_bytes -= directory.size_bytes


class _Pile:
    """A tenant's directories during the choice: `jobs` and `size_bytes` count those that stay."""

    def __init__(self, shelf: Shelf, uncopied: Container[str]) -> None:
        self.jobs = len(shelf.kept)
        self.size_bytes = shelf.size_bytes
        self.copied = (kept for kept in shelf.kept.values() if kept.name not in uncopied)
        self.oldest = next(self.copied, None)

    def take(self) -> Kept:
        """Choose the oldest directory and return it."""
        taken = self.oldest
        assert taken is not None, "take is called only while `oldest` is set"
        self.jobs -= 1
        self.size_bytes -= taken.size_bytes
        self.oldest = next(self.copied, None)
        return taken


def surplus(
    shelves: Collection[Shelf], uncopied: Container[str], keep: Keep, now_ns: int
) -> list[Kept]:
    """Return the directories to prune: first all that are too old.

    While a bound of size or number is exceeded, the oldest directory of the tenant that has the
    most goes. So no tenant's directories displace those of a tenant that has less.
    """
    piles = [_Pile(shelf, uncopied) for shelf in shelves]
    chosen: list[Kept] = []
    for pile in piles:
        while (
            keep.age_s is not None
            and pile.oldest is not None
            and now_ns - pile.oldest.ended_ns >= keep.age_s * SECOND_NS
        ):
            chosen.append(pile.take())
    chosen += _surplus_of(piles, keep.size_bytes, lambda pile: pile.size_bytes)
    chosen += _surplus_of(piles, keep.jobs, lambda pile: pile.jobs)
    return chosen


def _surplus_of(
    piles: Sequence[_Pile], bound: int | None, amount: Callable[[_Pile], int]
) -> Iterator[Kept]:
    """Yield directories of the tenant with the largest amount until the total is within bound."""
    while bound is not None and sum(map(amount, piles)) > bound:
        largest = max((pile for pile in piles if pile.oldest is not None), key=amount, default=None)
        if largest is None:
            return
        yield largest.take()
