"""The roster on this agent's disk, beside its incarnation: what lets the node go on without a
scheduler, even after a restart.

Losing it is no harm but that: the next lease brings it again.
"""

import asyncio
import logging
from pathlib import Path

import msgspec

from services.node_agent.machine import synced_file
from services.node_agent.peers.peers import Kept

FILE = "roster"

logger = logging.getLogger(__name__)


class RosterFile:
    """See `peers.Keeper`."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE

    async def load(self) -> Kept:
        try:
            return msgspec.msgpack.decode(self.path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return Kept()
        except msgspec.DecodeError as error:
            logger.warning("%s cannot be read (%s): the scheduler gives another", self.path, error)
            return Kept()

    async def store(self, kept: Kept) -> None:
        await asyncio.to_thread(synced_file.replace, self.path, msgspec.msgpack.encode(kept))
