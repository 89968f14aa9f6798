"""The device nodes that tell the MIG instances of one card from each other, as NVIDIA's driver
numbers them (`sysfs.capabilities`).

Whoever has a part of a card can open the card's node; which part it may use, these decide. The node
of an instance is made where the driver's own tools have not made it yet: a job may not raise its
privileges to have it made. Tests: tests/unit/test_mig_capabilities.py.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.common.model import GpuId
from services.node_agent.drivers import Capabilities
from services.node_agent.drivers.readings import MigInstance

DEV: Final = Path("/dev")
# To cut cards, and to see what others do on theirs.
OPERATORS: Final = ("config", "monitor")
# As the driver says of each: everybody may read, and the device filter says who is let in.
MODE: Final = 0o444


def own(capabilities: Capabilities, made: Mapping[GpuId, MigInstance]) -> Iterator[tuple[int, int]]:
    """Of the instances that a job has, by which it opens them."""
    for uuid, instance in made.items():
        yield from (
            node
            for name, node in capabilities.get(uuid, {}).items()
            if name.startswith(_of(instance))
        )


def others(
    capabilities: Capabilities, made: Mapping[GpuId, MigInstance]
) -> Iterator[tuple[int, int]]:
    """Those that it may not open: to cut or watch cards is no job's, nor is any other instance that
    its cards have or could have.
    """
    for uuid, named in capabilities.items():
        of_instance = _of(made[uuid]) if uuid in made else ""
        yield from (
            node
            for name, node in named.items()
            if name in OPERATORS or (of_instance and not name.startswith(of_instance))
        )


def make_nodes(nodes: Iterable[tuple[int, int]], dev: Path = DEV) -> None:
    """Those that are not there. Raises Refused."""
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


def _of(instance: MigInstance) -> str:
    return f"gi{instance.number}/"
