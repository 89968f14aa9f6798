"""Garbage collection of a gateway: often and short instead of seldom and long.

The collector looks at all objects that it does not exclude. A gateway has millions of them, the
state, and requests allocate so much that full collections come often. Each would stop all tenants'
requests for as long as the state is large. So the state is excluded after the replay, and a full
collection every EVERY_S looks at what has come since, and then excludes it too. What was excluded
while it was in use, such as the cycles of an open stream, is not freed when its use ends; therefore
every so often all objects are looked at again. Tests: tests/unit/test_collecting.py.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Final

# Thresholds: new objects between two collections of young objects, and such collections between
# two of older ones. Full collections are made here.
YOUNG_MAX: Final = 5_000
LOOKS_AT_YOUNG: Final = 20
NEVER: Final = 1_000_000_000
EVERY_S: Final = 20.0
# Pause before the end of the replay is looked for again.
LOOK_S: Final = 0.2
ALL_EVERY_S: Final = 3_600.0


class Collecting:
    """The collections of one process. `all_at_s` is the time of the last one of all objects."""

    def __init__(self) -> None:
        self.all_at_s = time.monotonic()

    def begin(self) -> None:
        """Exclude what there is, after a replay."""
        gc.set_threshold(YOUNG_MAX, LOOKS_AT_YOUNG, NEVER)
        self.collect()

    def collect(self) -> None:
        """Collect what has come since the last time, or everything when that is due."""
        now_s = time.monotonic()
        if now_s - self.all_at_s >= ALL_EVERY_S:
            self.all_at_s = now_s
            gc.unfreeze()
        gc.collect()
        gc.freeze()

    async def run(self, is_replayed: Callable[[], bool]) -> None:
        """Collect for ever, from the end of the replay on."""
        while not is_replayed():
            await asyncio.sleep(LOOK_S)
        self.begin()
        while True:
            await asyncio.sleep(EVERY_S)
            self.collect()
