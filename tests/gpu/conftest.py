"""One look at the machine for all tests, and one cluster whose only node is this machine with its
own devices.
"""

import asyncio
import ctypes
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from bench.cluster import Cluster, running
from libs.common.model import Gpu
from services.node_agent.drivers import DeviceNodes
from services.node_agent.drivers.local import LocalDriver
from tests import cgroups


class Machine(NamedTuple):
    """NVIDIA's devices here, and by what each is opened."""

    gpus: Sequence[Gpu]
    nodes: DeviceNodes


@pytest.fixture(scope="session")
def machine() -> Machine:
    """Skips without a GPU, and without libcuda: a container may have the driver's tools and not its
    CUDA library.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no CUDA driver library here: {error}")
    found, why = asyncio.run(_look())
    if not found.gpus:
        pytest.skip(f"no NVIDIA GPU here: {why}")
    return found


async def _look() -> tuple[Machine, str]:
    driver = LocalDriver()
    try:
        gpus = [gpu for gpu in await driver.inventory() if gpu.vendor == "nvidia"]
        return Machine(gpus, driver.nodes), driver.missing.get("nvidia", "its driver names none")
    finally:
        await driver.close()


@pytest.fixture(scope="session")
def cluster(machine: Machine) -> Iterator[Cluster]:
    with (
        cgroups.below() as parent,
        running(nodes=0, gpus=0, local={"MUSTER_CGROUP": parent}) as made,
    ):
        yield made
