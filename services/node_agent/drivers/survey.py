"""Prints one line of JSON about this machine's devices, for `muster doctor` and `muster up`.

The line has the devices that drivers show, the absent ones, and why a vendor has none. Code in libs
runs it as `python -m services.node_agent.drivers.survey [STATE]`, because libs may not import the
agent (`libs/embedded/local_gpus.py`). STATE is the state directory of an agent or of a cluster: the
devices that its agents knew count as absent if no driver shows them.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from services.node_agent.drivers.absent import FILE, KnownDevices
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Device
from services.node_agent.drivers.vendor_process import ANSWER_S, BEGIN_S


async def survey(state: str = "") -> dict[str, object]:
    """Return the findings about this machine's devices."""
    removed = [
        part.strip()
        for part in os.environ.get("MUSTER_GPUS_REMOVED", "").split(",")
        if part.strip()
    ]
    answer_s = float(os.environ.get("MUSTER_DRIVER_ANSWER_MS", ANSWER_S * 1_000)) / 1_000
    begin_s = float(os.environ.get("MUSTER_DRIVER_BEGIN_MS", BEGIN_S * 1_000)) / 1_000
    driver = LocalDriver(answer_s, removed=removed, begin_s=begin_s)
    driver.known = _known(Path(state)) if state else ()
    try:
        gpus = [gpu for gpu in await driver.inventory() if gpu.uuid not in driver.absent]
    finally:
        await driver.close()
    absent = [{"pci_bus": each.device.pci_bus, "why": each.why} for each in driver.absent.values()]
    cold = [
        device.pci_bus
        for device in driver.known
        if device.persistent is False and device.uuid not in driver.absent
    ]
    return {
        "gpus": [{"vendor": gpu.vendor, "model": gpu.model} for gpu in gpus],
        "missing": driver.missing,
        "absent": absent,
        "cold": cold,
    }


def _known(state: Path) -> list[Device]:
    found: dict[str, Device] = {}
    for path in (state / FILE, *sorted(state.glob(f"services/*/{FILE}"))):
        try:
            found |= {
                device.uuid: device
                for device in msgspec.json.decode(path.read_bytes(), type=KnownDevices).devices
            }
        except (OSError, msgspec.DecodeError):
            continue
    return list(found.values())


if __name__ == "__main__":
    print(json.dumps(asyncio.run(survey(*sys.argv[1:2]))))
