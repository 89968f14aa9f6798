"""The device nodes that separate the MIG instances of a card, numbered by NVIDIA's driver
(`sysfs.capabilities`).

Every job on a card can open the card's node; these nodes decide which instance it may use. The
agent makes an instance's node if the driver's tools have not: a job may not raise its privileges to
do so. Tests: tests/unit/test_mig_capabilities.py.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.common.model import GpuId
from services.node_agent.drivers import Capabilities

DEV: Final = Path("/dev")
# The nodes to configure MIG, and to monitor other instances.
OPERATORS: Final = ("config", "monitor")
# All users may read, as the driver sets it; the device filter decides which job may open it.
MODE: Final = 0o444


def own(capabilities: Capabilities, made: Mapping[GpuId, int]) -> Iterator[tuple[int, int]]:
    """Return the nodes of the instances that a job has; `made` are their numbers by device."""
    for uuid, instance in made.items():
        yield from (
            node
            for name, node in capabilities.get(uuid, {}).items()
            if name.startswith(_of(instance))
        )


def others(capabilities: Capabilities, made: Mapping[GpuId, int]) -> Iterator[tuple[int, int]]:
    """Return the nodes that a job may not open: configuration, monitoring, and all
    other instances.
    """
    for uuid, named in capabilities.items():
        of_instance = _of(made[uuid]) if uuid in made else ""
        yield from (
            node
            for name, node in named.items()
            if name in OPERATORS or (of_instance and not name.startswith(of_instance))
        )


def make_nodes(nodes: Iterable[tuple[int, int]], dev: Path = DEV) -> None:
    """Make the nodes that are missing. Raises Refused."""
    for major, minor in nodes:
        path = dev / "nvidia-caps" / f"nvidia-cap{minor}"
        try:
            if not path.exists():
                path.parent.mkdir(mode=0o755, exist_ok=True)
                os.mknod(path, stat.S_IFCHR | MODE, os.makedev(major, minor))
                path.chmod(MODE)
        except OSError as error:
            raise Refused(
                f"{path}, by which a MIG instance is opened, cannot be made: {error.strerror}"
            ) from error


def _of(instance: int) -> str:
    return f"gi{instance}/"
