"""Topology against brute force: no placement crosses a level that another set of free devices, or
of nodes, would not have crossed.
"""

from itertools import combinations

from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import LEVELS, NO_CARE, PREFERRED, REQUIRED, Gpu, GpuId, NodeId
from services.scheduler.placement.choose import NO_PLACEMENT, choose
from services.scheduler.placement.hardware import NONE, Hardware
from services.scheduler.placement.resource_request import INSIDE, request_of
from tests.given import given, member, placed, spec, waiting

# What it is worse to cross stands first.
WEIGHTS = ("interconnect", "socket", "numa", "switch")
WORDS = st.sampled_from((REQUIRED, PREFERRED, NO_CARE))
POLICIES = st.fixed_dictionaries(dict.fromkeys(INSIDE, WORDS))
# Groups at random, not nested in each other: links, switch and NUMA node of each device; the last
# is "not known".
DEVICES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-1, 1)), min_size=1, max_size=6
)


def gpus(found: list[tuple[int, int, int]]) -> list[Gpu]:
    return [
        Gpu(
            uuid=GpuId(f"g{i}"),
            index=i,
            vendor="v",
            model="m",
            memory_bytes=1,
            numa=numa,
            switch=f"s{switch}" if switch else "",
            links=f"l{links}" if links else "",
        )
        for i, (links, switch, numa) in enumerate(found)
    ]


def crossed(
    devices: list[Gpu], chosen: tuple[int, ...], sockets: tuple[int, ...]
) -> tuple[int, ...]:
    """1 for each level that the set crosses; what is not known is a group of its own."""
    groups = {
        "interconnect": [devices[i].links or f"?{i}" for i in chosen],
        "switch": [devices[i].switch or f"?{i}" for i in chosen],
        "numa": [str(devices[i].numa) if devices[i].numa >= 0 else f"?{i}" for i in chosen],
        "socket": [
            str(sockets[devices[i].numa]) if devices[i].numa >= 0 else f"?{i}" for i in chosen
        ],
    }
    return tuple(int(len(dict.fromkeys(groups[level])) > 1) for level in WEIGHTS)


@draw(DEVICES, st.integers(1, 4), st.integers(0, 63), POLICIES, st.sampled_from([(0, 1), (0, 0)]))
def test_devices_of_a_node_cross_no_level_that_others_would_not(
    found: list[tuple[int, int, int]],
    count: int,
    taken: int,
    policies: dict[str, str],
    sockets: tuple[int, ...],
) -> None:
    devices = gpus(found)
    free = ((1 << len(devices)) - 1) & ~taken
    picked = Hardware(devices, sockets).pick(free, count, request_of(spec(gpus=count, **policies)))

    def cost(chosen: tuple[int, ...]) -> tuple[int, ...] | None:
        over = crossed(devices, chosen, sockets)
        if any(
            bit and policies[level] == REQUIRED for bit, level in zip(over, WEIGHTS, strict=True)
        ):
            return None
        return tuple(
            bit if policies[level] == PREFERRED else 0
            for bit, level in zip(over, WEIGHTS, strict=True)
        )

    possible = [
        cost(each)
        for each in combinations([i for i in range(len(devices)) if free >> i & 1], count)
    ]
    costs = [each for each in possible if each is not None]
    if not costs:
        assert picked is NONE
        return
    chosen = tuple(i for i in range(len(devices)) if picked.mask >> i & 1)
    assert len(chosen) == count and picked.mask & ~free == 0
    assert cost(chosen) == min(costs)


RACKS = st.lists(
    st.tuples(st.sampled_from(["", "r1", "r2", "r3"]), st.integers(0, 2)), min_size=1, max_size=7
)
SPINES = {"": "", "r1": "x", "r2": "x", "r3": "y"}


@draw(RACKS, st.integers(2, 4), WORDS, WORDS)
def test_a_gang_crosses_no_rack_or_spine_that_another_set_of_nodes_would_not(
    found: list[tuple[str, int]], nodes: int, rack: str, spine: str
) -> None:
    history: list[AnyFact] = []
    for number, (name, busy) in enumerate(found):
        devices = tuple(
            Gpu(uuid=GpuId(f"n{number}-gpu{i}"), index=i, vendor="v", model="m", memory_bytes=1)
            for i in range(2)
        )
        history.append(
            f.NodeRegistered(
                node_id=NodeId(f"n{number}"),
                incarnation=1,
                address="",
                gpus=devices,
                rack=name,
                spine=SPINES[name],
            )
        )
        if busy:
            history += [
                *waiting(f"j{number}", gpus=busy),
                placed(f"j{number}", member(f"n{number}", *range(busy))),
            ]
    state = given(*history)
    serving = [number for number, (_, busy) in enumerate(found) if busy < 2]

    def cost(chosen: tuple[int, ...]) -> tuple[int, int, int] | None:
        racks = [found[n][0] for n in chosen]
        over_rack = "" in racks or len(dict.fromkeys(racks)) > 1
        over_spine = "" in racks or len(dict.fromkeys(SPINES[name] for name in racks)) > 1
        if (over_rack and rack == REQUIRED) or (over_spine and spine == REQUIRED):
            return None
        return int(over_spine and spine == PREFERRED), int(over_rack and rack == PREFERRED), 0

    costs = [each for each in map(cost, combinations(serving, nodes)) if each is not None]
    choice = choose(state.capacity, spec(nodes=nodes, gpus=1, rack=rack, spine=spine), "default")
    if not costs:
        assert choice is NO_PLACEMENT
        return
    chosen = tuple(int(node_id[1:]) for node_id, _ in choice)
    assert len(dict.fromkeys(chosen)) == nodes
    assert cost(chosen) == min(costs)
    racks = [found[n][0] for n in chosen]
    assert racks == [name for name in dict.fromkeys(racks) for each in racks if each == name], (
        "neighbours in a rack are neighbours in rank"
    )


def test_a_job_that_may_not_cross_numa_waits_rather_than_crosses() -> None:
    devices = tuple(
        Gpu(uuid=GpuId(f"a-gpu{i}"), index=i, vendor="v", model="m", memory_bytes=1, numa=i // 2)
        for i in range(4)
    )
    machine = f.NodeRegistered(
        node_id=NodeId("a"), incarnation=1, address="", gpus=devices, sockets=(0, 1)
    )
    crossing = [
        *waiting("i"),
        placed("i", member("a", 0)),
        *waiting("k"),
        placed("k", member("a", 2)),
    ]
    half = given(machine, crossing)
    assert choose(half.capacity, spec(gpus=2), "default") is not NO_PLACEMENT
    assert choose(half.capacity, spec(gpus=2, allow_cross_numa=False), "default") is NO_PLACEMENT
    assert (
        choose(given(machine).capacity, spec(gpus=2, allow_cross_numa=False), "default")
        is not NO_PLACEMENT
    )
    assert set(INSIDE) < set(LEVELS)
