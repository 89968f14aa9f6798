"""How devices lie to each other: by links, bridges and NUMA nodes of four kinds of machines; what
is not known stays unknown.
"""

from pathlib import Path

from services.node_agent.drivers.sysfs import Seat, sockets
from services.node_agent.drivers.topology import groups, path, switch, topology
from tests.drivers import trees
from tests.drivers.trees import Machine


def way(machine: Machine, one: str, other: str) -> str:
    there, back = (
        path(machine.named(a), machine.named(b)) for a, b in ((one, other), (other, one))
    )
    assert there == back
    return there


def test_a_dgx_h100_has_one_fabric_and_a_network_card_near_each_gpu(tmp_path: Path) -> None:
    machine = trees.dgx_h100(tmp_path)
    assert [part.device for part in machine.parts if part.kind == "nic"] == [
        f"mlx5_{i}" for i in range(10)
    ]
    assert {way(machine, "GPU0", f"GPU{i}") for i in range(1, 8)} == {"NV18"}
    assert (
        way(machine, "GPU0", "NIC0"),
        way(machine, "GPU0", "NIC1"),
        way(machine, "GPU0", "NIC4"),
    ) == ("PXB", "NODE", "SYS")
    assert len(set(groups(machine.parts).values())) == 1 and len(groups(machine.parts)) == 8
    assert len({switch(part.seat) for part in machine.parts[:8]}) == 8
    assert [part.seat.numa for part in machine.parts[:8]] == [0] * 4 + [1] * 4
    assert sockets(tmp_path) == (0, 1)
    spots = topology(machine.parts).spots
    assert (spots[0].cpus, spots[7].cpus, spots[13].nearest) == ("0-55", "56-111", ("GPU5",))
    assert spots[17].nearest == ("GPU4", "GPU5", "GPU6", "GPU7")


def test_eight_mi300x_are_linked_each_to_each(tmp_path: Path) -> None:
    machine = trees.mi300x(tmp_path)
    assert {way(machine, f"GPU{i}", f"GPU{j}") for i in range(8) for j in range(8) if i != j} == {
        "XGMI"
    }
    assert len(set(groups(machine.parts).values())) == 1
    assert switch(machine.parts[0].seat) == "0000:03:00.0"


def test_four_gpus_on_two_sockets_without_links_have_no_group(tmp_path: Path) -> None:
    machine = trees.two_sockets(tmp_path)
    assert (
        way(machine, "GPU0", "GPU1"),
        way(machine, "GPU2", "GPU3"),
        way(machine, "GPU1", "GPU2"),
    ) == ("PIX", "PHB", "SYS")
    assert groups(machine.parts) == {}
    assert [switch(part.seat) for part in machine.parts] == [
        "0000:3b:00.0",
        "0000:3b:00.0",
        "",
        "",
        "",
    ]
    assert topology(machine.parts).spots[4].nearest == ("GPU0", "GPU1")


def test_unreported_topology_of_a_mixed_machine_is_unknown(tmp_path: Path) -> None:
    machine = trees.mixed(tmp_path)
    assert (
        way(machine, "GPU0", "GPU1"),
        way(machine, "GPU0", "GPU2"),
        way(machine, "GPU2", "GPU3"),
    ) == ("NV4", "?", "?")
    assert list(groups(machine.parts)) == ["0000:00:05.0", "0000:00:06.0"]
    assert machine.named("GPU3").seat == Seat() and machine.named("GPU0").seat.numa == -1
    assert sockets(tmp_path) == ()


def test_groups_that_are_found_to_touch_are_one(tmp_path: Path) -> None:
    machine = trees.mi300x(tmp_path)
    chain = [
        part._replace(links=part.links[max(0, i - 1) : i + 1])
        for i, part in enumerate(machine.parts)
    ]
    assert len(set(groups(chain).values())) == 1
