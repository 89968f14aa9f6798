"""Stores files for the next agent on this node, so that a full disk does not end this agent.

All jobs of the node depend on the agent's leases, and any of them may have filled the disk. Tests:
tests/integration/test_agent_full_disk.py.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from services.node_agent.core import kept_devices
from services.node_agent.core.state import State
from services.node_agent.directories.protocol import Memory

# How long after a failure the troubles of devices are stored again.
AGAIN_S: Final = 10.0

logger = logging.getLogger(__name__)


async def kept(memory: Memory, name: str, data: bytes) -> bool:
    """Keep a file; return whether it is on the disk."""
    try:
        await memory.keep(name, data)
    except OSError as error:
        logger.warning(
            "%s cannot be stored (%s), so the next agent would not know its content: make space in "
            "the state directory",
            name,
            error,
        )
        return False
    return True


async def keep_devices(
    memory: Memory, data: bytes, state: Callable[[], State], wake: asyncio.Event
) -> None:
    """Keep the troubles of devices; after a failure let the agent keep them again later."""

    def again() -> None:
        state().devices.unsaved = True
        wake.set()

    if not await kept(memory, kept_devices.FILE, data):
        asyncio.get_running_loop().call_later(AGAIN_S, again)
