"""The roster on disk, with which a node survives without a scheduler, even after a restart.

If it is lost, the next lease brings it again.
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
    """The roster's file; implements `peers.Keeper`."""

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
        await asyncio.to_thread(synced_file.exchange, self.path, msgspec.msgpack.encode(kept))
