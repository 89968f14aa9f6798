"""The memory of past states: no full garbage collection while one is made, and none freed at once.

A state of 50,000 jobs has millions of objects. The collector would look at all of them while they
are made, and the interpreter would free them in one go, for half a second each; all requests would
wait. The objects form no cycles, so the collector is not needed for them. Tests:
tests/unit/test_moment_memory.py.
"""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from services.api_gateway.moments.moment import Moment

# A number of collections of older objects that is never reached.
NEVER: Final = 1_000_000_000
FREED_AT_ONCE: Final = 50
# A dropped state is freed when no request reads it any more.
LOOK_S: Final = 0.1


class Collector:
    """Defers full collections while there are folds. `folds`: how many there are."""

    def __init__(self) -> None:
        self.folds = 0
        self._thresholds = gc.get_threshold()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Make no full collection, and afterwards exclude what was made from the next ones.

        Cyclic garbage of that time is excluded too and never freed; it is small.
        """
        if not self.folds:
            self._thresholds = gc.get_threshold()
            gc.set_threshold(self._thresholds[0], self._thresholds[1], NEVER)
        self.folds += 1
        try:
            yield
        finally:
            self.folds -= 1
            gc.freeze()
            if not self.folds:
                gc.set_threshold(*self._thresholds)


async def unread(moment: "weakref.ref[Moment]") -> None:
    """Wait until no request reads the moment."""
    while moment() is not None:
        await asyncio.sleep(LOOK_S)


def pieces_of(moment: Moment) -> list[object]:
    """Return what the moment consists of, in small pieces, which keep it alive."""
    cluster, index = moment.cluster, moment.index
    tables = (cluster.jobs, cluster.gpus, cluster.nodes, cluster.uncharged)
    pieces: list[object] = [value for table in tables for value in table.values()]
    pieces += index.place_of.values()
    pieces += index.state_of.values()
    return pieces


def freed(pieces: list[object]) -> Iterator[int]:
    """Free the pieces, and yield after some."""
    while pieces:
        del pieces[-FREED_AT_ONCE:]
        yield len(pieces)
