"""Calls one vendor's library in its own process, because a call into a driver may hang or crash.

The agent starts it as `python -m services.node_agent.drivers.child nvidia PID`, with the agent's
own PID. Each line on stdin is an Ask. The answer is one line for each device that it names. The
agent has a deadline for each line, and kills this process when one passes (`vendor_process.py`).
The process ends when its stdin ends, and when the agent ends, even if a call hangs.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Final

import msgspec

from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import (
    Answer,
    Ask,
    Command,
    Done,
    Fault,
    Happened,
    Lacking,
    Listed,
    Reset,
)
from services.node_agent.drivers.vendors import Lost, NotThere, Refusal, Vendor, words
from services.node_agent.machine.processes import PR_SET_PDEATHSIG, prctl

# A vendor's file and the class in it.
VENDORS: Final = {"nvidia": "Nvidia", "amd": "Amd", "intel": "Intel"}

_asks = msgspec.json.Decoder(Ask)
_encode = msgspec.json.Encoder().encode


class Child:
    """One vendor's binding; `missing` says why the vendor has no device here."""

    def __init__(self, vendor: str) -> None:
        self.name = vendor
        self.vendor: Vendor | None = None
        self.missing = ""
        # The UUIDs of the devices that got a command, by address.
        self.uuids: dict[str, str] = {}

    def answers(self, ask: Ask) -> Iterator[Answer]:
        """Yield one answer per line, as soon as it is ready."""
        if self.vendor is None and not self.missing:
            self._open()
        vendor = self.vendor
        if vendor is None:
            yield Listed(missing=self.missing)
        elif ask.verb == r.LIST:
            yield _listed(vendor)
        elif ask.verb == r.EVENTS:
            found = vendor.events()
            yield Happened(found if isinstance(found, Lacking) else tuple(found))
        else:
            call = self._calls(vendor, ask)
            yield from (_of(device, call) for device in ask.devices)

    def _calls(self, vendor: Vendor, ask: Ask) -> Callable[[str], Answer]:
        if ask.verb == r.DESCRIBE:
            return vendor.describe
        if ask.verb == r.SAMPLE:
            return vendor.sample
        command = ask.command
        assert ask.verb == r.CONTROL and command is not None, f"no such ask: {ask.verb}"
        return lambda device: self._control(vendor, device, ask.uuid, command)

    def _control(self, vendor: Vendor, device: str, uuid: str, command: Command) -> Done | Lacking:
        """Carry out a command. Raises Refusal if the device at the address has another UUID.

        A device whose UUID cannot be read because it is lost gets the command: a reset may bring it
        back. Without a `uuid` the device is not called before the command.
        """
        if uuid and device not in self.uuids:
            with suppress(Lost):
                self.uuids[device] = vendor.describe(device).uuid
        found = self.uuids.get(device, uuid)
        if uuid and found != uuid:
            raise Refusal(
                f"another device ({found}) is now at {device}: restart the agent of this node"
            )
        if isinstance(command, Reset):
            self.uuids.pop(device, None)
        return vendor.control(device, command)

    def _open(self) -> None:
        """Import and open the binding, which may raise any exception."""
        try:
            vendor: Vendor = getattr(
                import_module(f"services.node_agent.drivers.vendors.{self.name}"),
                VENDORS[self.name],
            )()
            vendor.open()
        except ModuleNotFoundError as error:
            self.missing = (
                f"Python's {error.name} is not installed: pip install 'muster-gpu[{self.name}]'"
            )
        except Exception as error:
            self.missing = words(error)
        else:
            self.vendor = vendor


def _listed(vendor: Vendor) -> Listed:
    try:
        found = tuple(vendor.devices())
    except NotThere as error:
        return Listed(missing=words(error))
    return Listed(found, "" if found else "its library answers and knows no device", answers=True)


def _of(device: str, call: Callable[[str], Answer]) -> Answer:
    try:
        return call(device)
    except Lost as error:
        return Fault(words(error), lost=True)
    except Refusal as error:
        return Fault(words(error))


def main() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return  # the agent ended before prctl asked the kernel for a signal at its end
    # What a binding prints must not stand between the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    child = Child(sys.argv[1])
    for line in sys.stdin.buffer:
        for answer in child.answers(_asks.decode(line)):
            answers.write(_encode(answer) + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
