"""Pauses, threads, and the bound of calls at once: the part that differs between the two clients.

`libs/client/synchronous/pauses.py` is the counterpart, written by hand.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

pause = asyncio.sleep
Places = asyncio.Semaphore


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Do blocking work without blocking the event loop."""
    return await asyncio.to_thread(work, *arguments)
