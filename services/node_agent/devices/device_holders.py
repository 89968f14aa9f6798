"""The processes that have a device open, from their descriptors in /proc.

A process that started before the job was not left by it (a persistence daemon, an exporter). A
process with a terminal belongs to a person who looks at the device (nvtop). This agent's own
children ask the driver. Tests: tests/integration/test_release.py.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from libs.common.devices.means import lost
from libs.common.model import MIG, Gpu, GpuId
from services.node_agent.drivers import DeviceNodes, Driver
from services.node_agent.machine import processes
from services.node_agent.machine.processes import Process

DEVICES: Final = "devices"


def holders(nodes: DeviceNodes, since_ns: int, but: Collection[int] = ()) -> dict[GpuId, list[str]]:
    """Return the holders by device, for example "4711 python", but not these processes.

    `since_ns` is on the boot clock. Reads every descriptor of the machine, so it must not run on
    the event loop.
    """
    devices = {os.makedev(*node): uuid for uuid, held in nodes.items() for node in held}
    own = {os.getpid(), *processes.children(os.getpid()), *but}
    found: dict[GpuId, list[str]] = {}
    for pid in processes.all_pids() if devices else ():
        opened = set(map(devices.get, _opened(pid))) - {None} if pid not in own else ()
        seen = processes.process(pid) if opened else None
        if seen is not None and _counts(seen, since_ns):
            for uuid in sorted(filter(None, opened)):
                found.setdefault(uuid, []).append(f"{pid} {seen.name}")
    return found


def without_nodes(driver: Driver, uuids: Iterable[GpuId]) -> list[GpuId]:
    """Return the real devices whose nodes were not found, so that their holders are unknown."""
    return [] if driver.simulated else [uuid for uuid in uuids if not driver.nodes.get(uuid)]


def isolation(reports: Mapping[str, str], driver: Driver, gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the isolation for NodeRegistered.

    Devices without found nodes are open to all jobs, and only root makes MIG instances.
    """
    inventory = list(gpus)
    found = dict(reports)
    unseen = without_nodes(driver, (gpu.uuid for gpu in inventory))
    if unseen:
        found[DEVICES] = lost(f"no device node of {', '.join(unseen)} was found")
    if any(gpu.mig_profiles for gpu in inventory):
        found[MIG] = lost(
            "the agent is not root, and the driver lets only root make instances"
            if _lacks_root(driver)
            else ""
        )
    return found


def _lacks_root(driver: Driver) -> bool:
    return not driver.simulated and os.geteuid() != 0


def _counts(seen: Process, since_ns: int) -> bool:
    return not seen.terminal and processes.boot_ns_of(seen.start_ticks) >= since_ns


def _opened(pid: int) -> Iterator[int]:
    """Return the devices that a process has open; none if it is gone or may not be read."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = os.stat(entry.path)
                if stat.S_ISCHR(status.st_mode):
                    yield status.st_rdev
