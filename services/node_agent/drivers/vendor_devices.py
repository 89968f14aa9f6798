"""The devices of one vendor on this machine, and the handling of those that do not answer.

One call without an answer proves little: the child process is restarted, and the device keeps its
last values, marked as stale. A second one within STALE_S sets the device aside. It is called again
after a pause, which doubles each time that it does not answer. A new child process serves the other
devices meanwhile. Each change of a device is reported as one event.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import (
    Answer,
    Ask,
    Command,
    Device,
    Event,
    Fault,
    Happened,
    Listed,
    Reset,
    Sample,
)
from services.node_agent.drivers.vendor_process import ALL, Silent, VendorProcess

ASIDE_FIRST_S: Final = 30.0
ASIDE_MAX_S: Final = 600.0
EVENTS_KEPT: Final = 1_000
# A second call without an answer within this time sets a device aside, unless an answer came in
# between.
STALE_S: Final = 300.0

logger = logging.getLogger(__name__)


class VendorDevices:
    """The devices of one vendor.

    `devices` has them by address in the vendor's order. `missing` says why there is none.
    `answers`: the vendor's library has answered. `known` are the devices that an earlier agent
    knew. `lost` has the reasons for the lost ones among `devices`.
    """

    def __init__(self, process: VendorProcess, aside_s: float = ASIDE_FIRST_S) -> None:
        self.process, self.aside_s = process, aside_s
        self.devices: dict[str, Device] = {}
        self.missing = ""
        self.answers = False
        self.known: dict[str, Device] = {}
        self.silent_at: dict[str, float] = {}
        self.aside: dict[str, tuple[float, float]] = {}
        self.lost: dict[str, str] = {}
        self.unreported: list[Event] = []

    async def discover(self) -> None:
        """Find the vendor's devices.

        A silent device keeps its last description. A device without one is called a second time.
        """
        try:
            (found,) = await self._list()
        except Silent as error:
            self._was_silent(error)
            self.missing, self.answers, self.devices = str(error), False, self.devices or self.known
            return
        assert isinstance(found, Listed), "LIST has no other answer"
        self.missing, self.answers = found.missing, found.answers
        if not found.devices:
            await self.close()  # the process has nothing to do
        answers = await self._each(r.DESCRIBE, found.devices)
        unseen = [
            address
            for address in found.devices
            if address not in answers and address not in self.known and address not in self.devices
        ]
        answers |= await self._each(r.DESCRIBE, unseen)
        known = {
            **self.known,
            **self.devices,
            **{
                address: answer for address, answer in answers.items() if isinstance(answer, Device)
            },
        }
        self.devices = {address: known[address] for address in found.devices if address in known}

    async def _list(self) -> list[Answer]:
        try:
            return await self.process.ask(Ask(r.LIST))
        except Silent as error:
            if self.known or self.devices:
                raise
            self._was_silent(error)
            return await self.process.ask(Ask(r.LIST))

    async def sample(self, addresses: Sequence[str]) -> dict[str, Sample]:
        """Return samples of the devices that answer."""
        answers = await self._each(r.SAMPLE, addresses)
        return {
            address: answer for address, answer in answers.items() if isinstance(answer, Sample)
        }

    async def events(self) -> list[Event]:
        """Return the events since the last call: the driver's, and those of silent devices."""
        if self.devices and not self._is_set_aside(ALL):
            try:
                answers = await self.process.ask(Ask(r.EVENTS))
            except Silent as error:
                self._was_silent(error)
            else:
                self.silent_at.pop(ALL, None)
                self.unreported += [
                    event
                    for found in answers
                    if isinstance(found, Happened)
                    for event in _events(found)
                ]
        events, self.unreported = self.unreported[:EVENTS_KEPT], []
        return events

    async def control(self, address: str, command: Command) -> Answer:
        """Send a command to one device. Raises Silent.

        The command is refused if another device is at the address. A device that does not answer
        cannot be checked: its reset, which may be the only way to get it back, is not.
        """
        uuid = self.devices[address].uuid if address in self.devices else ""
        is_silent = {address, ALL} & {*self.silent_at, *self.aside}
        if isinstance(command, Reset) and is_silent:
            uuid = ""
        try:
            return (await self.process.ask(Ask(r.CONTROL, (address,), command, uuid)))[0]
        except Silent as error:
            self._was_silent(error)
            raise

    def is_aside(self, address: str) -> bool:
        return self._is_set_aside(ALL) or self._is_set_aside(address)

    def is_stale(self, address: str) -> bool:
        """Return whether the device was silent at its last call and is not set aside."""
        return (address in self.silent_at or ALL in self.silent_at) and not self.is_aside(address)

    async def close(self) -> None:
        await self.process.close()

    async def restart(self) -> None:
        """End the child process. The next call starts another one, which lists the devices."""
        await self.process.end_after_call()

    async def _each(self, verb: str, addresses: Sequence[str]) -> dict[str, Answer]:
        """Return the answers of all devices that are not silent.

        Stale devices come last, so that no other device waits for them.
        """
        found: dict[str, Answer] = {}
        silent: dict[str, None] = {}
        left = [address for address in addresses if not self.is_aside(address)]
        left.sort(key=lambda address: address in self.silent_at)
        while left and ALL not in silent:
            try:
                answers: Sequence[Answer] = await self.process.ask(Ask(verb, tuple(left)))
            except Silent as error:
                answers = error.answers
                silent[error.device] = None
                self._was_silent(error)
            found.update(zip(left, answers, strict=False))
            left = [
                address
                for address in left
                if address not in {**found, **silent} and not self.is_aside(address)
            ]
        for address, answer in found.items():
            self._answered(address, answer)
        return found

    def _answered(self, address: str, answer: Answer) -> None:
        if isinstance(answer, Fault) and answer.lost:
            if address not in self.lost:
                self.lost[address] = answer.text
                self._report_event(address, r.LOST, answer.text)
            return
        for each in (ALL, address):
            self.silent_at.pop(each, None)
            if each in self.aside or each in self.lost:
                self.aside.pop(each, None)
                self.lost.pop(each, None)
                self._report_event(each, r.ANSWERS)

    def _was_silent(self, error: Silent) -> None:
        """Keep the last sample of a silent device.

        Set it aside when it is silent again within STALE_S, or at a retry.
        """
        now_s = asyncio.get_running_loop().time()
        before_s = self.silent_at.get(error.device)
        if error.device not in self.aside and (before_s is None or now_s > before_s + STALE_S):
            self.silent_at[error.device] = now_s
            logger.warning("%s: it keeps its last values until it is silent again", error)
            return
        self._set_aside(error)

    def _set_aside(self, error: Silent) -> None:
        _, pause_s = self.aside.get(error.device, (0.0, 0.0))
        if not pause_s:
            self._report_event(error.device, r.WEDGED, str(error))
        pause_s = min(2 * pause_s or self.aside_s, ASIDE_MAX_S)
        self.aside[error.device] = (asyncio.get_running_loop().time() + pause_s, pause_s)

    def _is_set_aside(self, address: str) -> bool:
        until, _ = self.aside.get(address, (0.0, 0.0))
        return asyncio.get_running_loop().time() < until

    def _report_event(self, address: str, kind: str, text: str = "") -> None:
        self.unreported.append(Event(time.time_ns(), self.process.vendor, address, kind, text=text))


def _events(found: Happened) -> Sequence[Event]:
    return found.events if isinstance(found.events, tuple) else ()
