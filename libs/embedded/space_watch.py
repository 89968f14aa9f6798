"""Ends a nats-server before its disk is full, and waits until there is space again.

Only clusters of several servers use it.

A server whose write failed can delete its Raft log (NATS 2.15, "Resetting stream cluster state").
Then it votes for any other server, even for one without the newest commits, and acknowledged facts
are lost. A killed server loses nothing: all that it acknowledged is synced. See decision 101.
Tests: tests/unit/test_space_watch.py, tests/integration/test_full_disk.py.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
# Below this the server is ended. A program that writes 500 MB a second needs 0.1 s for the rest.
STOP_BYTES: Final = 64 * MIB
# From this on the server is started.
START_BYTES: Final = 2 * STOP_BYTES
# Pauses between two looks at the free space: while the server runs, and while it does not.
LOOK_S: Final = 0.02
WAIT_S: Final = 0.5

Free = Callable[[], int | None]


def free_bytes(store: Path) -> int | None:
    """Return the bytes that may still be written to the disk of a folder; None if unknown."""
    try:
        return shutil.disk_usage(store).free
    except OSError:
        return None


async def until_space(free: Free, say: Callable[[str], object]) -> None:
    """Wait until the disk has START_BYTES, or its space is unknown. Say once that it waits."""
    has_said = False
    while (found := free()) is not None and found < START_BYTES:
        if not has_said:
            has_said = True
            say(
                f"nats-server is not started: only {found // MIB} MiB are free on its disk. It is "
                f"started when {START_BYTES // MIB} MiB are free"
            )
        await asyncio.sleep(WAIT_S)


async def until_scarce(free: Free) -> int:
    """Wait until the disk has less than STOP_BYTES. Return the free bytes."""
    while (found := free()) is None or found >= STOP_BYTES:
        await asyncio.sleep(LOOK_S)
    return found
