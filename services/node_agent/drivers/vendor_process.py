"""The agent's side of a vendor's child process.

The agent sends one request at a time. Each line of the answer has a deadline, and the child is
killed when one passes. The next request starts another child, which first lists its devices. The
only error is `Silent`: it names the device that did not answer, and why.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from libs.common.errors import Unavailable
from services.node_agent.drivers.readings import LIST, Answer, Ask, Listed, Reset

LINE_BYTES_MAX: Final = 1 << 20
DEATH_S: Final = 1.0
RESET_S: Final = 60.0
# Deadlines of calls. Without persistence mode NVIDIA's driver initialises each GPU again for the
# first process that opens it, which takes seconds for each.
ANSWER_S: Final = 8.0
BEGIN_S: Final = 60.0

# Stands for the vendor as a whole where a device's address is expected.
ALL: Final = ""

logger = logging.getLogger(__name__)

_answer = msgspec.json.Decoder(Answer)
_encode = msgspec.json.Encoder().encode


class Silent(Unavailable):
    """A device or a vendor did not answer.

    `device` is its address, empty for the vendor as a whole. `answers` are those that came before.
    """

    def __init__(self, vendor: str, device: str, why: str, answers: Sequence[Answer] = ()) -> None:
        super().__init__(f"the driver of {' '.join(filter(None, (vendor, device)))} {why}")
        self.device, self.answers = device, answers


class VendorProcess:
    """The child process of one vendor, with a deadline for each kind of call.

    | call | deadline |
    | --- | --- |
    | the start of a child: it loads the library, initialises the driver,
    lists the devices | `begin_s` |
    | the first call of a child on a device,
    and the first one for events: it may wake the device | `begin_s` |
    | every other call | `answer_s` |
    | a reset: ending it half-way may lose the device | `reset_s` |

    With `hurry` the first two have `answer_s` too: the agent's jobs have a lease that runs while it
    waits.
    """

    def __init__(
        self,
        vendor: str,
        answer_s: float,
        begin_s: float,
        command: Sequence[str] = (),
        reset_s: float = RESET_S,
    ) -> None:
        self.vendor, self.answer_s, self.begin_s, self.reset_s = vendor, answer_s, begin_s, reset_s
        self.command = command or (
            sys.executable,
            "-P",
            "-m",
            "services.node_agent.drivers.child",
            vendor,
            str(os.getpid()),
        )
        self.hurry = False
        self.warm: set[str] = set()
        self.child: asyncio.subprocess.Process | None = None
        self.turn = asyncio.Lock()
        self.opened = False
        self.listed = Listed()

    async def ask(self, ask: Ask) -> list[Answer]:
        """Return the answers to a request.

        Raises Silent, also if the vendor has no device here. LIST is answered even then, with the
        reason.
        """
        answers: list[Answer] = []
        async with self.turn:
            try:
                await self._ask(ask, answers)
            except (OSError, ValueError, msgspec.DecodeError) as error:
                device = ask.devices[len(answers)] if ask.devices and self.opened else ""
                await self.close()
                raise Silent(self.vendor, device, str(error), answers) from error
            except asyncio.CancelledError:
                # The tool of a reset goes on to its end: the agent of this node may stop meanwhile.
                self._kill(with_tool=not isinstance(ask.command, Reset))
                raise
        return answers

    async def _ask(self, ask: Ask, answers: list[Answer]) -> None:
        child = self.child
        if child is None or child.returncode is not None:
            child = await self._begin()
        if ask.verb == LIST:
            answers.append(self.listed)
            return
        if self.listed.missing:
            raise ValueError(f"has nothing here: {self.listed.missing}")
        _write(child, ask)
        for device in ask.devices or (ALL,):
            answers.append(await self._line(child, self._within_s(ask, device)))
            self.warm.add(device)

    def _within_s(self, ask: Ask, device: str) -> float:
        if isinstance(ask.command, Reset):
            return self.reset_s
        return (
            self.answer_s if self.hurry or device in self.warm else max(self.begin_s, self.answer_s)
        )

    async def _begin(self) -> asyncio.subprocess.Process:
        """Start a child and read its list of devices.

        A hang before that list counts against the vendor, a later one against the device that was
        called.
        """
        self.opened, pipe = False, asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *self.command, stdin=pipe, stdout=pipe, limit=LINE_BYTES_MAX, start_new_session=True
        )
        self.child = child
        self.warm.clear()
        _write(child, Ask(LIST))
        answer = await self._line(child, self.answer_s if self.hurry else self.begin_s)
        if not isinstance(answer, Listed):
            raise ValueError("did not list its devices")
        self.listed, self.opened = answer, not answer.missing
        return child

    async def _line(self, child: asyncio.subprocess.Process, within_s: float) -> Answer:
        assert child.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                line = await child.stdout.readline()
        except TimeoutError as error:
            raise ValueError(f"did not answer within {within_s:g} s") from error
        if not line:
            raise ValueError("has lost its process")
        answer: Answer = _answer.decode(line)
        return answer

    async def end_after_call(self) -> None:
        """Kill the child once no call runs: a reset that is ended half-way may lose its device."""
        async with self.turn:
            await self.close()

    async def close(self) -> None:
        """Kill the child, and wait at most DEATH_S: in a driver's call it may never die."""
        child = self._kill()
        try:
            async with asyncio.timeout(DEATH_S):
                if child is not None:
                    await child.wait()
        except TimeoutError:
            logger.warning(
                "the process %d that calls the driver of %s does not end after SIGKILL",
                child.pid if child else 0,
                self.vendor,
            )

    def _kill(self, with_tool: bool = True) -> asyncio.subprocess.Process | None:
        """Kill the child, and the vendor's tool that it runs."""
        child, self.child = self.child, None
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, but asyncio does not know yet
                (os.killpg if with_tool else os.kill)(child.pid, signal.SIGKILL)
        return child


def _write(child: asyncio.subprocess.Process, ask: Ask) -> None:
    assert child.stdin is not None
    child.stdin.write(_encode(ask) + b"\n")
