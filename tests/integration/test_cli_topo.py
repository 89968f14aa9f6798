"""`muster topo` against a real gateway: the matrix of nvidia-smi, for each kind of node."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common.devices.topology import Topology
from libs.common.subjects import ask_node
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.drivers.topology import topology
from tests.drivers import trees
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_cli_identity import Shell

TWO_SOCKETS = """\
      GPU0  GPU1  GPU2  GPU3  NIC0  CPU AFFINITY  NUMA  DEVICE
GPU0  X     PIX   SYS   SYS   NODE  0-15          0     GPU-0 0000:3d:00.0
GPU1  PIX   X     SYS   SYS   NODE  0-15          0     GPU-1 0000:3e:00.0
GPU2  SYS   SYS   X     PHB   SYS   16-31         1     GPU-2 0000:d8:00.0
GPU3  SYS   SYS   PHB   X     SYS   16-31         1     GPU-3 0000:d9:00.0
NIC0  NODE  NODE  SYS   SYS   X     0-15          0     eno1 0000:01:00.0 (nearest: GPU0, GPU1)
"""


class Place:
    def __init__(self, world: World, shell: Shell) -> None:
        self.world, self.shell = world, shell

    async def answers(self, node_id: str, found: Topology) -> None:
        async def answer(subject: str, data: bytes) -> bytes:
            return msgspec.msgpack.encode(found)

        await self.world.bus.subscribe(ask_node(node_id, "topology"), answer)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with gateway_world(tmp_path, ask_ms=500, records_access=True) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        (tmp_path / "home").mkdir()
        shell = Shell(tmp_path / "home", world.url)
        await shell.run("login", world.url, stdin=KEY + "\n")
        yield Place(world, shell)


async def test_topo_prints_the_path_between_any_two_devices(place: Place, tmp_path: Path) -> None:
    await place.answers("n1", topology(trees.two_sockets(tmp_path / "sys").parts))
    out, _ = await place.shell.run("topo", "n1")
    assert out.startswith(TWO_SOCKETS) and "different NUMA nodes" in out


async def test_topo_marks_unknown_paths_and_simulated_devices(place: Place, tmp_path: Path) -> None:
    await place.answers("n1", topology(trees.mixed(tmp_path / "sys").parts))
    out, _ = await place.shell.run("topo", "n1")
    assert (
        "GPU2  ?     ?     X     ?     ?             ?     GPU-2 0001:00:01.0" in out
        and "simulated" not in out
    )
    await place.world.writers.register("n2")
    await place.answers("n2", await SimulatedDriver("n2", 2).topology())
    out, _ = await place.shell.run("topo", "n2")
    assert (
        "GPU0  X     NV    ?             0     GPU-n2-0 0000:01:00.0" in out
        and "The devices and their links are simulated" in out
    )


async def test_topo_of_a_silent_or_unknown_node_is_an_error(place: Place) -> None:
    _, err = await place.shell.run("topo", "n1", code=1)
    assert "ask.node.n1.topology" in err
    _, err = await place.shell.run("topo", "nowhere", code=1)
    assert "node 'nowhere' has not registered" in err
