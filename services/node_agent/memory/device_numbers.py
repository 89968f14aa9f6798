"""The numbers by which the memory broker and the weight servers know the devices of a node.

Both outlive the agent, and their grants name a device by its number. A vendor's own index changes:
when a card is divided, and when a GPU is lost, removed or added. So a device gets a number once, by
its UUID, and keeps it: a file has the numbers for the next agent. Tests:
tests/unit/test_device_numbers.py.
"""

import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from libs.common.model import Gpu
from services.node_agent.memory.device_memory import DRIVER_OF, Device

FILE: Final = "device-numbers.json"
# The numbers of a vendor's devices begin here, because each vendor counts its own from 0.
FIRST: Final = {"nvidia": 0, "simulated": 0, "amd": 1_000, "intel": 2_000}
PASSABLE: Final = 0o711

logger = logging.getLogger(__name__)

_numbers = msgspec.json.Decoder(dict[str, int])


class DeviceNumbers:
    """The numbers of one folder's devices by UUID; without a folder they are not kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.numbers = _read(folder / FILE) if folder is not None else {}

    def number_of(self, gpu: Gpu) -> int:
        """Return the number of a device, which may be a new one."""
        if gpu.uuid not in self.numbers:
            self.numbers[gpu.uuid] = self._free(gpu)
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

    def _free(self, gpu: Gpu) -> int:
        """Return a number that no device has: that of the vendor's index, if possible.

        An absent device has no index (-1).
        """
        taken, first = set(self.numbers.values()), FIRST.get(gpu.vendor, 0)
        if gpu.index >= 0 and first + gpu.index not in taken:
            return first + gpu.index
        return next(number for number in count(first) if number not in taken)

    def _keep(self) -> None:
        """Write the numbers down.

        They need not survive a power cut, which ends broker and servers.
        """
        if self.folder is None:
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


def _read(path: Path) -> dict[str, int]:
    try:
        return _numbers.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s cannot be read (%s): devices are numbered anew", path, error)
        return {}
