"""The old store of a server that was told to start with an empty one.

It stays beside the new store, on the same disk, until the server holds the whole log, or until the
disk has too little space for the server.
Tests: tests/unit/test_replaced_store.py, tests/integration/test_bus_servers.py.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from libs.embedded import space_watch

# The folder that nats-server creates in its store, and its name after a replacement.
STORED: Final = "jetstream"
ASIDE: Final = "replaced"
# Between two questions whether the server holds the whole log.
LOOK_S: Final = 2.0

Say = Callable[[str], object]


def put_aside(store: Path, say: Say) -> None:
    """Rename the server's files, so that it starts empty. Delete an older copy."""
    aside = store / ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    if (store / STORED).exists():
        (store / STORED).rename(aside)
        say(f"the old store is kept in {aside} until the server holds the whole log")


def make_space(store: Path, say: Say) -> None:
    """Delete the old store if the disk has too little space to start the server."""
    aside = store / ASIDE
    free = space_watch.free_bytes(store)
    try:
        if free is not None and free < space_watch.START_BYTES and aside.exists():
            _delete(aside, say, "the disk has too little space to start the server")
    except OSError as error:
        say(f"{_kept(aside, error)}. Its disk has too little space to start the server")


async def delete_when_filled(
    store: Path, holds_all: Callable[[], Awaitable[bool]], say: Say
) -> None:
    """Delete the old store once `holds_all` returns that the server holds the whole log.

    Run until cancelled. No fault ends it, because the server would end too: it says so once, and
    tries again.
    """
    aside, said = store / ASIDE, ""
    while True:
        try:
            if await _is_gone(aside, holds_all, say):
                break
        except Exception as error:
            if (fault := _kept(aside, error)) != said:
                say(fault)
                said = fault
        await asyncio.sleep(LOOK_S)
    await asyncio.Event().wait()


async def _is_gone(aside: Path, holds_all: Callable[[], Awaitable[bool]], say: Say) -> bool:
    """Return whether there is no old store. Delete it if the server holds the whole log."""
    if not await asyncio.to_thread(aside.exists):
        return True
    if await holds_all():
        await asyncio.to_thread(_delete, aside, say, "the server holds the whole log")
    return False


def _kept(aside: Path, error: Exception) -> str:
    return (
        f"the old store in {aside} could not be deleted ({error!r}): check the disk, and delete "
        "the folder once the server holds the whole log"
    )


def _delete(aside: Path, say: Say, why: str) -> None:
    """Delete the old store, or what can be deleted of it."""
    shutil.rmtree(aside, ignore_errors=True)
    if not aside.exists():
        say(f"the old store in {aside} was deleted: {why}")
