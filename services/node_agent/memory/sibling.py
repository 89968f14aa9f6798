"""A process beside the agent that outlives it: found again or started, and read without blocking.

`SiblingProcess` connects to the process of an earlier agent, or starts one, and starts the next one
when it ends. Its owner says what to send and what the messages mean. Tests:
tests/integration/test_gms_restarts.py.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from libs.job.memory.broker_wire import BadMessage, Ended, Link

CONNECT_AGAIN_S: Final = 0.05
RESPAWN_S: Final = 0.2
SEND_S: Final = 5.0

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """The functions to call when the process begins, ends or speaks."""

    def found(self) -> None:
        """A process of an earlier agent answers; it sends all that it has next."""

    def started(self) -> None:
        """A new process answers; it needs all that the owner has."""

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        """A message arrived. Its descriptors are on the link."""

    def ended(self) -> None:
        """The connection is gone; the next process is on its way."""


class SiblingProcess:
    """The connection to the process, kept up by `run`. `restarts` counts processes started."""

    def __init__(
        self, owner: Owner, folder: Path, control: str, command: Sequence[str], most: int
    ) -> None:
        self.owner = owner
        self.folder = folder
        self.control = control
        self.command = command
        self.most = most
        self.restarts = 0
        self.process: asyncio.subprocess.Process | None = None
        self._link: Link | None = None
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Keep a process and the connection to it, until cancelled."""
        while True:
            if not self._find():
                await self._start()
            await self._ended.wait()
            self._ended.clear()

    def send(self, message: dict[str, Any], descriptor: int = -1) -> None:
        """Send to the process. The owner repeats what gets lost when the next one starts."""
        if self._link is not None:
            with suppress(OSError):
                self._link.send(message, descriptor)

    def unlink(self) -> None:
        """Close the connection; the process lives on."""
        if self._link is not None:
            asyncio.get_running_loop().remove_reader(self._link.stream.fileno())
            self._link.close()
            self._link = None

    async def kill(self) -> None:
        """End the process, if this agent started it."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    def _find(self) -> bool:
        try:
            link = self._dial()
        except OSError:
            return False
        self.owner.found()
        self._watch(link)
        return True

    async def _start(self) -> None:
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:  # for example at the limit of processes
            logger.warning("%s cannot be started, and is tried again: %s", self.command[2], error)
            await asyncio.sleep(RESPAWN_S)
            self._ended.set()
            return
        while True:
            if self.process.returncode is not None:
                logger.warning("%s ended with %s", self.command[2], self.process.returncode)
                await asyncio.sleep(RESPAWN_S)
                self._ended.set()
                return
            try:
                link = self._dial()
                break
            except OSError:
                await asyncio.sleep(CONNECT_AGAIN_S)
        self.restarts += 1
        self._watch(link)
        self.owner.started()

    def _dial(self) -> Link:
        stream = socket.socket(socket.AF_UNIX)
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # a socket path has at most 107 bytes
            stream.connect(f"/proc/self/fd/{folder}/{self.control}")
        except OSError:
            stream.close()
            raise
        finally:
            os.close(folder)
        stream.settimeout(SEND_S)
        return Link(stream, accepts=True, most=self.most)

    def _watch(self, link: Link) -> None:
        self._link = link
        asyncio.get_running_loop().add_reader(link.stream.fileno(), self._read, link)

    def _read(self, link: Link) -> None:
        try:
            link.receive()
            for message in link.messages():
                self.owner.heard(link, message)
        except (Ended, BadMessage, OSError) as error:
            logger.info("%s is away: %s", self.command[2], error or "ended")
            self.unlink()
            self.owner.ended()
            self._ended.set()
