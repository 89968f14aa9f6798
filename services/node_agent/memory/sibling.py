"""A process beside the agent that outlives it: found again or started, and never waited for.

`SiblingProcess` connects to the process of an earlier agent, or starts one, and starts the next one
when it ends or does not answer. Its owner says what to send and what the messages mean. Tests:
tests/integration/test_gms_restarts.py, tests/integration/test_hung_siblings.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from libs.job.memory.broker_wire import BadMessage, Ended, Link
from services.node_agent.memory import control_link
from services.node_agent.memory.control_link import ControlLink

CONNECT_AGAIN_S: Final = 0.05
RESPAWN_S: Final = 0.2
# How long a killed process may take to end. In a driver's call it may never end.
DEATH_S: Final = 1.0

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

    def ping(self) -> dict[str, Any]:
        """Return a message that the process answers and that changes nothing."""


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
        self._link: ControlLink | None = None
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Keep a process and the connection to it, until cancelled."""
        while True:
            if not await self._find():
                await self._start()
            await self._until_ended()
            await asyncio.sleep(CONNECT_AGAIN_S)  # a link may end at once, again and again

    async def _until_ended(self) -> None:
        """Wait until the connection ends; end it if the process does not answer."""
        while not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(control_link.PING_S):
                    await self._ended.wait()
                    break
            if self._link is not None and not self._link.ping(self.owner.ping()):
                self._replace()
        self._ended.clear()

    def _replace(self) -> None:
        """Kill the process, and leave its socket to the next one: it may not end at once."""
        logger.error(
            "%s in %s has not answered for %.0f s: it is killed and replaced; if this repeats, "
            "look for errors of the driver in the kernel's log and restart the machine",
            *(self.command[2], self.folder, control_link.ANSWER_S),
        )
        if self._link is not None:
            self._link.kill()
        with suppress(OSError):
            (self.folder / self.control).unlink()
        self.unlink()
        self.owner.ended()
        self._ended.set()

    def send(self, message: dict[str, Any], descriptor: int = -1) -> None:
        """Send to the process. The owner repeats what gets lost when the next one starts.

        The owner keeps the descriptor open until the process has it or the connection ends.
        """
        if self._link is not None:
            self._link.send(message, descriptor)

    def unlink(self) -> None:
        """Close the connection; the process lives on."""
        if self._link is not None:
            asyncio.get_running_loop().remove_reader(self._link.fileno())
            self._link.close()
            self._link = None

    async def kill(self) -> None:
        """End the process, if this agent started it."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(DEATH_S):
                    await self.process.wait()

    async def _find(self) -> bool:
        link = await control_link.find(self.folder, self.control, self.most)
        if link is None:
            return False
        self.owner.found()
        self._watch(link)
        return True

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # its process does not accept connections
            (self.folder / self.control).unlink()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:  # for example at the limit of processes
            logger.warning("%s cannot be started, and is tried again: %s", self.command[2], error)
            await asyncio.sleep(RESPAWN_S)
            self._ended.set()
            return
        until_s = loop.time() + control_link.ANSWER_S
        while True:
            if self.process.returncode is not None:
                logger.warning("%s ended with %s", self.command[2], self.process.returncode)
                await asyncio.sleep(RESPAWN_S)
                self._ended.set()
                return
            try:
                link = ControlLink(self.folder, self.control, self.most)
                break
            except OSError:
                await asyncio.sleep(CONNECT_AGAIN_S)
            if loop.time() > until_s:
                self.process.kill()
                self._replace()
                return
        self.restarts += 1
        self._watch(link)
        self.owner.started()

    def _watch(self, link: ControlLink) -> None:
        self._link = link
        asyncio.get_running_loop().add_reader(link.fileno(), self._read, link)

    def _read(self, control: ControlLink) -> None:
        link, control.unanswered = control.link, 0
        try:
            link.receive()
            for message in link.messages():
                self.owner.heard(link, message)
        except BlockingIOError:
            return
        except (Ended, BadMessage, OSError) as error:
            logger.info("%s is away: %s", self.command[2], error or "ended")
            self.unlink()
            self.owner.ended()
            self._ended.set()
