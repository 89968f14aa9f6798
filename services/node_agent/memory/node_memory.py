"""The memory of all devices of one node, through the drivers that they need.

A driver is opened when its first device arrives. A device whose driver fails is unusable: it gives
no memory, and other devices work on. A driver that hangs ends the broker (`Hangs`); the agent then
tells the next broker not to open it. Tests: tests/vendors/test_broker_memory.py.
"""

import logging
import os
from collections.abc import Callable, Sequence

from libs.job.device.errors import Cause, DeviceError
from services.node_agent.memory import grants as g
from services.node_agent.memory.device_memory import HOST_DRIVER, Device, Piece, Source, source_of

logger = logging.getLogger(__name__)


class Hangs(Exception):
    """A driver's call did not return: this process must be replaced."""

    def __init__(self, driver: str, detail: str) -> None:
        super().__init__(detail)
        self.driver = driver
        self.detail = detail


class NodeMemory:
    """Devices by number, and the memory that exists."""

    def __init__(self, opened: Callable[[str], Source] = source_of) -> None:
        self._opened = opened
        self._sources: dict[str, Source] = {}
        self._devices: dict[int, Device] = {}
        self.pieces: dict[int, Piece] = {}

    def add(self, books: g.Books, device: Device, closed: str) -> str:
        """Add a device to the books; return why it is unusable, empty if it is usable.

        `closed` is why its driver must not be called. Raises Hangs.
        """
        self._devices[device.number] = device
        why = closed
        try:
            source = self._source(device.driver)
            if not why:
                g.add_device(
                    books,
                    device.number,
                    capacity=device.bytes,
                    granularity=source.granularity(device),
                    revocable=source.revocable,
                )
                return ""
        except DeviceError as error:
            why = self._said(error)
        except ValueError as error:
            why = str(error)
        g.close_device(books, device.number, why)
        return why

    def driver_of(self, number: int) -> str:
        """Return the driver by which a job maps memory of this device."""
        return self._devices[number].driver

    def create(self, number: int, size: int, numa: Sequence[int]) -> Piece:
        """Create memory of a device. Raises Refusal (nothing exists then) or Hangs."""
        device = self._devices[number]
        try:
            return self._source(device.driver).create(device, size, numa)
        except DeviceError as error:
            raise g.Refusal("driver", self._said(error)) from error

    def restore(self, grant: g.Grant, descriptor: int) -> None:
        """Take over memory that an earlier broker created."""
        device = self._devices[grant.device]
        source = self._source(device.driver)
        self.pieces[grant.grant] = source.restore(device, descriptor, grant.bytes)

    def free(self, number: int) -> None:
        """Free the memory of a grant. Raises Hangs; the next broker then frees it."""
        piece = self.pieces[number]
        try:
            piece.free()
        except DeviceError as error:
            logger.warning("memory of grant %d is given up: %s", number, self._said(error))
            os.close(piece.descriptor)
        del self.pieces[number]

    def _source(self, driver: str) -> Source:
        if driver not in self._sources:
            self._sources[driver] = self._opened(driver)
        return self._sources[driver]

    def _said(self, error: DeviceError) -> str:
        if error.cause == Cause.HANGS:
            raise Hangs(error.driver, str(error)) from error
        return str(error)


def host(size: int) -> Device:
    """Return host memory as a device."""
    return Device(g.HOST, HOST_DRIVER, size)
