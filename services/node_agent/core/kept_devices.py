"""The troubles of devices that survive the agent: written before the log hears of them, read at the
start of the next agent.

Pure: `health/lost_devices.py` reads and writes the file. Tests: tests/unit/test_agent_devices.py.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from libs.common.life import gpu_life
from libs.common.model import Gpu, GpuId
from services.node_agent.core.devices import (
    LEFT_BY_UNKNOWN,
    MENDED_BY_BOOT,
    RESET,
    UNSURE,
    Devices,
    Leftover,
    Trouble,
    add_trouble,
)

# The file in the state directory.
FILE: Final = "devices.json"


class Kept(msgspec.Struct, frozen=True):
    """The contents of the file.

    `known` are all devices that the log may hold as not well. `left` says which attempt left
    something on a quarantined device.
    """

    boot_id: str
    troubles: dict[GpuId, dict[str, Trouble]]
    known: tuple[GpuId, ...]
    left: dict[GpuId, Leftover] = {}


def encode(devices: Devices) -> bytes:
    """Return the file's contents, and note them as saved.

    Devices that were not well once are included: the log may not know that they recovered.
    """
    devices.unsaved = False
    known = tuple(dict.fromkeys((*devices.troubles, *devices.recorded)))
    return msgspec.json.encode(Kept(devices.boot_id, devices.troubles, known, devices.left))


def restore(
    devices: Devices, boot_id: str, gpus: Sequence[Gpu], data: bytes, gone: Collection[str] = ()
) -> None:
    """Restore the troubles that the previous agent kept; all of them are recorded again.

    Troubles that pass by themselves are not restored: they are found again if they last. If the
    machine was restarted, its devices were reset and no process is left, so devices that answer are
    well. `gpus` are the devices that the driver shows. A device that it does not show never counts
    as recovered. A device in `gone` is forgotten.
    """
    devices.boot_id, devices.count = boot_id, len(gpus)
    before = msgspec.json.decode(data, type=Kept) if data else Kept(boot_id, {}, ())
    mended = MENDED_BY_BOOT if before.boot_id != boot_id else ()
    present = [gpu.uuid for gpu in gpus]
    for uuid in (uuid for uuid in before.known if uuid not in gone):
        devices.recorded[uuid] = UNSURE
        for reason, trouble in before.troubles.get(uuid, {}).items():
            stays = (trouble.verdict and reason != RESET) or reason == gpu_life.QUARANTINED
            if stays and not (uuid in present and trouble.verdict in mended):
                add_trouble(devices, uuid, reason, trouble)
            if reason == gpu_life.QUARANTINED:
                devices.left[uuid] = (
                    Leftover() if mended else before.left.get(uuid, LEFT_BY_UNKNOWN)
                )
        if uuid not in present and uuid not in devices.troubles:
            del devices.recorded[uuid]
        elif mended and uuid not in devices.troubles:
            devices.checks[uuid] = {"boot": "another", "driver": "answers"}
