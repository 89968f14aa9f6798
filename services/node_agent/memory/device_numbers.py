"""The numbers by which the memory broker and the weight servers know the devices of a node.

Both outlive the agent, and their grants name a device by its number. A vendor's own index changes:
when a card is divided, and when a GPU is lost, removed or added. So a device gets a number once, by
its UUID, and keeps it: a file has the numbers for the next agent. An agent without this file begins
with the indexes that the previous agent kept, because older versions of the agent numbered by
index. Tests: tests/unit/test_device_numbers.py.
"""

import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from libs.common.model import Gpu
from services.node_agent.drivers import absent, readings
from services.node_agent.memory.device_memory import DRIVER_OF, Device

FILE: Final = "device-numbers.json"
# The numbers of a vendor's devices begin here, because each vendor counts its own from 0.
FIRST: Final = {"nvidia": 0, "simulated": 0, "amd": 1_000, "intel": 2_000}
PASSABLE: Final = 0o711

logger = logging.getLogger(__name__)

_numbers = msgspec.json.Decoder(dict[str, int])
_known = msgspec.json.Decoder(absent.KnownDevices)


class DeviceNumbers:
    """The numbers of one folder's devices by UUID; without a folder they are not kept.

    `folder` is a folder of the agent's state directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.numbers: dict[str, int] = {}
        # Whether the file may be written, and whether it lacks a number.
        self._keeps = folder is not None
        self._lacks = False
        if folder is not None:
            self._read(folder)

    def number_of(self, gpu: Gpu) -> int:
        """Return the number of a device, which may be a new one."""
        if gpu.uuid not in self.numbers:
            self.numbers[gpu.uuid] = self._free(gpu.vendor, gpu.index)
            self._lacks = True
        if self._lacks:
            self._keep()
        return self.numbers[gpu.uuid]

    def devices_of(self, inventory: Sequence[Gpu]) -> list[Device]:
        """Return the devices as the memory broker knows them."""
        return [
            Device(
                number=self.number_of(gpu),
                driver=DRIVER_OF.get(gpu.vendor, gpu.vendor),
                bytes=gpu.memory_bytes,
                uuid=gpu.uuid,
                pci_bus=gpu.pci_bus,
            )
            for gpu in inventory
        ]

    def _free(self, vendor: str, index: int) -> int:
        """Return a number that no device has: that of the vendor's index, if possible.

        A device that no driver has shown yet has no index (-1).
        """
        taken, first = set(self.numbers.values()), FIRST.get(vendor, 0)
        if index >= 0 and first + index not in taken:
            return first + index
        return next(number for number in count(first) if number not in taken)

    def _read(self, folder: Path) -> None:
        """Read the numbers, or begin with the indexes that the previous agent kept."""
        path = folder / FILE
        try:
            self.numbers = _numbers.decode(path.read_bytes())
            return
        except FileNotFoundError:
            pass
        except msgspec.DecodeError as error:
            logger.warning("%s is damaged (%s): devices get new numbers", path, error)
        except OSError as error:
            self._keeps = False
            logger.warning(
                "%s cannot be read (%s): devices get new numbers, and the file stays as it is; "
                "make it readable, then restart the agent",
                *(path, error),
            )
        for device in _devices_of_previous_agent(folder.parent / absent.FILE):
            if device.index >= 0:
                self.numbers[device.uuid] = self._free(device.vendor, device.index)
                self._lacks = True

    def _keep(self) -> None:
        """Write the numbers down before the broker or a server learns a new one.

        This waits for the disk in the event loop, but only once for each new device: without the
        file the next agent could give the number to another device. The file need not survive a
        power cut, which ends broker and servers.
        """
        self._lacks = False
        if self.folder is None or not self._keeps:
            return
        try:
            self.folder.mkdir(mode=PASSABLE, parents=True, exist_ok=True)
            fresh = self.folder / f"{FILE}.new"
            fresh.write_bytes(msgspec.json.encode(self.numbers))
            fresh.replace(self.folder / FILE)
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s): the next agent may count memory for the wrong device; "
                "free space, then restart the agent",
                self.folder / FILE,
                error,
            )


def _devices_of_previous_agent(path: Path) -> Sequence[readings.Device]:
    try:
        return _known.decode(path.read_bytes()).devices
    except (OSError, msgspec.DecodeError):
        return ()
